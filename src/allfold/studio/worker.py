"""The process that runs edited code: it reads a request from its input, limits itself, and writes one answer."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import linecache
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from traceback import extract_tb
from types import ModuleType
from typing import Any

from ..errors import AllfoldError
from ..registry import REGISTRY, Algorithm, Steps
from ..view.entry import entry, schedule_up_to_error
from .answers import TooManyMoves, topology_of, within
from .edit import LENGTH, READY

FILE = "edited.py"  # what the code's file is called unless the request names it
_PR_SET_PDEATHSIG = 1


def main() -> None:
    REGISTRY.all()  # they are loaded while nobody waits for an answer
    given = sys.stdin.buffer.read()
    if not given:
        return  # the studio has ended without a question
    question = json.loads(given)
    answers = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # what the code prints is not the answer
        os.dup2(nothing, stream)
    limits = question["limits"]
    _die_with(question["parent"])
    _limit(limits["seconds"], limits["memory"])
    os.write(answers, READY)
    try:
        answer = _answer(question, limits["moves"])
    except MemoryError:
        answer = _error(f"the code needs more than {limits['memory'] / 2**30:.1f} GiB of memory")
    except _Refused as refused:
        answer = _error(str(refused), refused.line)
    except AllfoldError as error:
        answer = _error(str(error), _line_of_site(getattr(error, "site", None), _file(question)))
    content = json.dumps(answer).encode()
    text = b"%0*d" % (LENGTH, len(content)) + content
    while text:
        text = text[os.write(answers, text) :]
    os._exit(0)  # do not wait for threads and exit handlers of the code


class _Refused(Exception):
    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def _error(message: str, line: int | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "line": line}}


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _limit(seconds: float, memory: int) -> None:
    import resource  # only here: there is none on Windows

    used = resource.getrusage(resource.RUSAGE_SELF)
    whole = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))
    with contextlib.suppress(ValueError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it has no reason to write files
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # or to start processes; root is exempt from this limit


def _file(question: dict[str, Any]) -> str:
    return question.get("file") or FILE


def _answer(question: dict[str, Any], most_moves: int) -> dict[str, Any]:
    collective = question["collective"]
    chosen = _choose(collective, _run(question["code"], _file(question)), question.get("algorithm"))
    limited = within(chosen, most_moves)
    schedule, error = schedule_up_to_error(collective, limited, question["ranks"], question.get("root"))
    if error is not None and (isinstance(error, TooManyMoves) or not schedule.steps):
        raise error
    topology = topology_of(question["topology"], schedule.ranks)
    return entry(
        schedule,
        topology,
        question["size"],
        topology_name=question["topology"],
        function=chosen.function,
        error=error,
    )


@dataclass(frozen=True)
class _Found:
    """What the code defines (registered algorithms, plain generators), and what was registered before it."""

    registered: list[Algorithm]
    before: list[Algorithm]
    plain: list[Callable[..., Steps]]


def _run(code: str, file: str) -> _Found:
    """Run the code as if it were one of the algorithms' files, so that it may import what they import."""
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    module = ModuleType("allfold.algorithms.edited")
    module.__package__ = "allfold.algorithms"
    module.__file__ = file
    sys.modules[module.__name__] = module
    before = REGISTRY.all()
    try:
        with REGISTRY.replacing() as registered:  # its own names are taken already
            exec(compile(code, file, "exec"), module.__dict__)
    except SyntaxError as error:
        raise _Refused(f"this is not Python: {error.msg}", error.lineno) from None
    except MemoryError:
        raise
    except BaseException as error:
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file]
        what = str(error) if isinstance(error, AllfoldError) else f"{type(error).__name__}: {error}"
        raise _Refused(f"the code raised {what}", lines[-1] if lines else None) from None
    plain = [
        value
        for value in vars(module).values()
        if inspect.isgeneratorfunction(value) and value.__module__ == module.__name__
    ]
    return _Found(registered, before, plain)


def _choose(collective: str, found: _Found, wanted: str | None) -> Algorithm:
    """The requested algorithm; else one that was changed; else the last one."""
    here = [one for one in found.registered if one.collective == collective]
    if here:
        known = {one.name: one for one in found.before if one.collective == collective}
        changed = [one for one in here if one.name not in known or one.source != known[one.name].source]
        return next((one for one in here if one.name == wanted), (changed or here)[-1])
    if not found.plain:
        raise _Refused(f"the code defines no generator function, and registers none for {collective}")
    named = next((one for one in found.plain if one.__name__ == wanted), found.plain[-1])
    return Algorithm(collective, named.__name__, named, None)


def _line_of_site(site: str | None, own: str) -> int | None:
    file, _, line = (site or "").rpartition(":")
    return int(line) if file == own and line.isdecimal() else None
