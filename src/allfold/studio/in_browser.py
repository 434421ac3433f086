"""The studio inside the reader's browser: the same answers, by the same code, in a Python that runs in the page.

Pyodide runs it in a Web Worker, with no server and no processes (docs/site.md). An endless loop is ended by the page, which
ends the worker; so each question can be asked of an interpreter that has just started.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..errors import AllfoldError, UsageError
from ..launch.sandbox import CodeError, answered
from ..learn.course import PROGRESS
from ..learn.judge import Verdict, verdict_of
from ..learn.lesson import Lesson
from ..learn.worker import judge_file
from ..registry import REGISTRY
from ..view import TOPOLOGY
from . import worker
from .answers import Answers
from .edit import Limits, question_of
from .lessons import Lessons
from .routes import POSTED, Api

FOLDER = Path("/course")  # of the learner, in the worker's own file system
_MEMORY = "memory than the browser gives it"


@dataclass
class Here:
    """Runs and proves edited code in this interpreter."""

    ran: Callable[[], None] = lambda: None

    def prepare(self) -> None:
        REGISTRY.all()

    def prove(self, request: dict[str, Any], limits: Limits) -> dict[str, Any]:
        def work(question: dict[str, Any]) -> dict[str, Any]:
            return worker.answer(question, self.ran)

        with _unchanged(), contextlib.redirect_stdout(io.StringIO()):
            found = answered(work, question_of(request, limits), _MEMORY)
        if "error" in found:
            raise CodeError(found["error"]["message"], found["error"]["line"])
        return found

    def close(self) -> None:
        pass


@dataclass
class Page:
    """Answers the page's questions. `folder` is the learner's: files that come with a question are written there."""

    folder: Path = FOLDER
    here: Here = field(default_factory=Here)
    routes: Api = field(init=False)

    def __post_init__(self) -> None:
        self.here.prepare()
        self.routes = Api(Answers(workers=self.here), Lessons(self.folder, _judge, lambda lesson: []))

    def warm(self) -> None:
        """Ask a question of each kind, so that the modules that they need are loaded."""
        code = "from allfold import copy\n\n\ndef one(ranks):\n    yield [copy(chunk=0, source=0, destination=0)]\n"
        case = {"collective": "all_reduce", "algorithm": "ring", "ranks": 4, "root": None, "code": code}
        for question in (
            {"path": "/api/edit", "body": {**case, "topology": TOPOLOGY}},
            {"path": "/api/prove", "body": {**case, "many": [1, 2]}},
            {"path": f"/api/entry?collective=all_reduce&algorithm=ring&ranks=4&topology={TOPOLOGY}&size=1024"},
        ):
            found = self.answer(json.dumps(question))
        made = json.loads(found)["answer"]["schedule"]
        self.answer(json.dumps({"path": "/api/msccl", "body": {"schedule": made}}))

    def answer(self, question: str, ran: Callable[[], None] = lambda: None) -> str:
        """The answer to `{"path": "/api/…", "body": …, "files": {…}}`, as the server would give it, in `answer`, with the
        learner's files afterwards in `files`; or `{"error": {"message": …, "line": …}}`.

        `ran` is called when the reader's code has run, and only allfold's own is left to run.
        """
        self.here.ran = ran
        try:
            asked = json.loads(question)
            if asked.get("files") is not None:
                self._write(asked["files"])
            found: dict[str, Any] = {"answer": json.loads(self._found(asked["path"], asked.get("body")))}
            if asked.get("files") is not None:
                found["files"] = self._files()
        except AllfoldError as error:
            found = {"error": {"message": str(error), "line": getattr(error, "line", None)}}
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))

    def _found(self, address: str, body: dict[str, Any] | None) -> bytes:
        parts = urlsplit(address)
        if body is None:
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            found = self.routes.get(parts.path, query)
        else:
            found = self.routes.post(parts.path, body) if parts.path in POSTED else None
        if found is None:
            raise UsageError(f"there is nothing at {parts.path[:100]}")
        return found

    def _write(self, files: dict[str, str]) -> None:
        """The page has the learner's files: what an earlier question left is gone."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def _files(self) -> dict[str, str]:
        """Progress and code; the texts and pictures of the lessons are in the page."""
        kept = [*self.folder.glob("*/*.py"), self.folder / PROGRESS]
        return {str(path.relative_to(self.folder)): path.read_text(encoding="utf-8") for path in kept if path.is_file()}


def _judge(lesson: Lesson, file: Path) -> Verdict:
    printed = io.StringIO()
    with _unchanged(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        found = answered(lambda asked: judge_file(lesson, file), {"file": str(file)}, _MEMORY)
    return verdict_of(file, found, printed.getvalue())


@contextlib.contextmanager
def _unchanged() -> Iterator[None]:
    """What the reader's code registers, imports, or changes in Python's own names is gone afterwards."""
    own = vars(builtins)
    names, modules, places = dict(own), dict(sys.modules), list(sys.path)
    try:
        with REGISTRY.scope():
            yield
    finally:
        for name in own.keys() - names.keys():
            del own[name]
        own.update(names)
        for name in sys.modules.keys() - modules.keys():
            if not name.startswith(("allfold.", "numpy.")):
                del sys.modules[name]
        sys.modules.update(modules)
        sys.path[:] = places
