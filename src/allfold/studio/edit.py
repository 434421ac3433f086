"""Edited code is proved in a process with limits (`launch/sandbox.py`); the next process waits, its modules loaded."""

from __future__ import annotations

import os
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from ..launch.sandbox import HAS_LIMITS, Allowance, CodeError, Sandbox

MOST_CODE = 200_000  # characters
_ENDING = "the studio is ending"
_END = 10.0  # seconds in which killed workers are removed, even on a busy machine
FILE = "edited.py"  # the name of the code's file, unless the page has one


@dataclass(frozen=True)
class Limits:
    """Limits of edited code."""

    seconds: float = 5.0
    """Seconds of CPU time; four times as much wall-clock time, because others may need the machine too."""
    memory: int = 2 * 2**30
    """Bytes."""
    moves: int = 200_000

    @property
    def allowance(self) -> Allowance:
        return Allowance(self.seconds, 4 * self.seconds, self.memory, alone=True)


@dataclass(frozen=True)
class _Worker:
    """A process that waits for its question, in an empty folder of its own."""

    sandbox: Sandbox
    folder: tempfile.TemporaryDirectory[str]

    def end(self) -> None:
        self.sandbox.end()
        self.folder.cleanup()


class Prover(Protocol):
    """Runs and proves edited code."""

    def prepare(self) -> None: ...

    def prove(self, request: dict[str, Any], limits: Limits) -> dict[str, Any]: ...

    def close(self) -> None: ...


def question_of(request: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """The question for `worker.answer`."""
    return {**request, "file": request["file"] or FILE, "moves": limits.moves}


class Workers:
    """Processes for edited code, each for one question. One that has loaded its modules waits for the next question."""

    def __init__(self) -> None:
        # A worker dies with the thread that started it (PR_SET_PDEATHSIG), so this thread starts all of them.
        self._starter = ThreadPoolExecutor(1, "allfold-studio-starter")
        self._next: Future[_Worker] | None = None
        self._asked: set[Future[_Worker]] = set()
        self._closed = False
        self._changed = threading.Condition()

    def prepare(self) -> None:
        """Start the worker of the next question now."""
        if HAS_LIMITS:
            with self._changed:
                if not self._closed:
                    self._next = self._next or self._starter.submit(_start)

    def prove(self, request: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """The entry of the schedule that the code makes: proved, or with what is wrong with it."""
        if not HAS_LIMITS:
            raise CodeError(
                "edited code is run in a process with limits of time and memory, and this system (Windows) has none: "
                "save it to a file, and prove it with `allfold verify FILE.py:FUNCTION`"
            )
        with self._changed:
            if self._closed:
                raise CodeError(_ENDING)
            ready, self._next = self._next or self._starter.submit(_start), None
            self._asked.add(ready)
        try:
            worker = ready.result()
            self.prepare()
            try:
                found = worker.sandbox.ask(question_of(request, limits), limits.allowance)
            finally:
                worker.end()
        finally:
            with self._changed:
                self._asked.remove(ready)
                self._changed.notify_all()
        if self._closed:
            raise CodeError(_ENDING)
        if "error" in found:
            raise CodeError(found["error"]["message"], found["error"]["line"])
        return found

    def close(self) -> None:
        """End all workers, and wait until their folders are removed: a daemon thread of a request would not finish that."""
        with self._changed:
            self._closed = True
            waiting, self._next = self._next, None
            asked = [*self._asked]
        for worker in asked:
            worker.result().sandbox.kill()
        with self._changed:
            self._changed.wait_for(lambda: not self._asked, _END)
        self._starter.shutdown()
        if waiting is not None:
            waiting.result().end()


def _start() -> _Worker:
    folder = tempfile.TemporaryDirectory(prefix="allfold-studio-")
    return _Worker(Sandbox("allfold.studio.worker", folder.name, {"PATH": os.defpath}, None), folder)
