"""Judging the learner's file, in a process of its own with limits, which is ended with everything that it started.

This protects the learner from mistakes: endless loops, lists that grow without end, a file that ends its process. It is
not a sandbox: the code is the learner's own, and may do what the learner may.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .lesson import Lesson

SECONDS = 20.0
"""Of processor time."""
WALL = 80.0
"""Seconds in all: others may need the machine too."""
MEMORY = 4 * 2**30  # bytes of its own; shared memory is not counted
_MOST_PRINTED = 2_000  # characters of what the file prints that are shown


@dataclass(frozen=True)
class Predicted:
    name: str
    question: str
    given: str | None
    right: bool
    answer: str | None = None
    because: str = ""


@dataclass(frozen=True)
class Judged:
    function: str
    passed: bool
    message: str
    line: int | None
    kind: str = ""
    """The mistake in one word, by which hints are chosen."""
    ranks: int | None = None
    """With `root`, the case in which an algorithm failed."""
    root: int | None = None
    built: dict[str, Any] | None = None
    """The schedule that a right algorithm makes for a few ranks, as JSON: the picture of what the learner built."""
    run: tuple[str, list[list[str]]] | None = None
    """What was found between real processes: a sentence and a table."""


@dataclass(frozen=True)
class Verdict:
    """What is right and what is wrong in one file."""

    file: Path
    error: str | None
    line: int | None
    predictions: tuple[Predicted, ...]
    exercises: tuple[Judged, ...]
    printed: str

    @property
    def passed(self) -> bool:
        committed = all(one.answer is not None for one in self.predictions)
        return self.error is None and committed and all(one.passed for one in self.exercises)


def judge(
    lesson: Lesson,
    file: Path,
    run: bool = False,
    seconds: float = SECONDS,
    wall: float = WALL,
    memory: int = MEMORY,
) -> Verdict:
    """With `run`, a lesson that is solved is also run between real processes, where it has something to show by it."""
    if find_spec("resource") is None:
        raise UsageError(
            "your file is checked in a process with limits of time and memory, and this system (Windows) has none; "
            "prove an algorithm with `allfold verify FILE.py:FUNCTION`"
        )
    file = file.absolute()
    with tempfile.TemporaryFile() as question, tempfile.TemporaryFile() as printed:
        reading, writing = os.pipe()
        try:
            asked = {
                "lesson": lesson.name,
                "file": str(file),
                "seconds": seconds,
                "wall": wall,
                "memory": memory,
                "run": run,
                "answers": writing,
                "parent": os.getpid(),
            }
            question.write(json.dumps(asked).encode())
            question.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-c", "from allfold.learn.worker import main; main()"],
                stdin=question,
                stdout=printed,
                stderr=printed,
                cwd=file.parent,
                # With `python -c` the folder would come first in sys.path: a learner's json.py must not become ours.
                env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1", "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=(writing,),
                start_new_session=True,
            )
            os.close(writing)
            writing = -1
            try:
                answer = _receive(reading, wall + _START)
            finally:
                _end(process)
        finally:
            os.close(reading)
            if writing >= 0:
                os.close(writing)
        printed.seek(0)
        text = _readable(printed.read(4 * _MOST_PRINTED).decode("utf-8", errors="replace"))
    return _verdict(file, answer, process.returncode, text, wall)


_START = 60.0  # seconds to load the interpreter and the modules, even on a busy machine


def _receive(reading: int, seconds: float) -> bytes:
    """One line, or as much of it as came. Does not wait for the pipe's end: processes of the file may hold it open."""
    received, deadline = b"", time.monotonic() + seconds
    while not received.endswith(b"\n"):
        if not select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            break
        part = os.read(reading, 2**20)
        if not part:
            break
        received += part
    return received


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything it started: they are a session of their own.

    It usually ends by itself; then its exit status is its own. It is not reaped before, so that its number is not reused.
    """
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        # Python has no waitid on macOS before 3.13.
        if hasattr(os, "waitid") and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            break
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended: Linux, macOS
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _readable(text: str) -> str:
    """What the file printed, without signs that would move the cursor or change colours, and not endless."""
    clean = "".join(sign if sign.isprintable() or sign == "\n" else "�" for sign in text.expandtabs()).strip("\n")
    return clean if len(clean) <= _MOST_PRINTED else clean[:_MOST_PRINTED] + " …"


def _verdict(file: Path, answer: bytes, status: int, printed: str, wall: float) -> Verdict:
    try:
        found: dict[str, Any] = json.loads(answer)
    except ValueError:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        message = f"it ended the process that ran it ({how})"
        if status == -signal.SIGKILL:
            message = f"it was stopped after {wall:g} s; does every loop end?"
        return Verdict(file, message, None, (), (), printed)
    error = found["error"] or {"message": None, "line": None}
    return Verdict(
        file,
        None if error["message"] is None else _readable(error["message"]),
        error["line"],
        tuple(Predicted(**one) for one in found["predictions"]),
        tuple(Judged(**{**one, "message": _readable(one["message"])}) for one in found["exercises"]),
        printed,
    )
