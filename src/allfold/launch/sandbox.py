"""A user's code in a process of its own, with limits; it is killed with everything it started when it exceeds them.

This protects against mistakes: endless loops, lists that grow without end, code that ends its process. It is no protection
from an attacker: the code is the user's own, and may do what the user may. `Sandbox` is the side that asks, `serve` the
process that answers. Only the standard library is loaded here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from traceback import extract_tb
from types import FrameType, ModuleType
from typing import IO, Any

from ..errors import AllfoldError
from .worker import die_with

HAS_LIMITS = find_spec("resource") is not None  # not on Windows
_START = 60.0  # seconds to load the interpreter and the modules, even on a busy machine
_GRACE = 5.0  # seconds after which a process that has not stopped itself is killed
_READY = b"."  # what the process writes when it is about to run the code


@dataclass(frozen=True)
class Allowance:
    """Limits of the code."""

    seconds: float
    """Seconds of CPU time."""
    wall: float
    """Seconds of wall-clock time: others may need the machine too."""
    memory: int
    """Bytes of its own; shared memory is not counted."""
    alone: bool = False
    """It may write no files and start no processes (root is exempt from the second)."""


class CodeError(AllfoldError):
    """The code does not run, or exceeds its limits; `line` is where, if that is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class Sandbox:
    """A process that runs `main(answers)` of `module` and waits for its one question."""

    def __init__(
        self, module: str, folder: str | os.PathLike[str], environment: Mapping[str, str], printed: IO[bytes] | None
    ) -> None:
        self._answers, theirs = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from {module} import main; main({theirs})"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL if printed is None else printed,
                stderr=subprocess.STDOUT,
                cwd=folder,
                # With `python -c` the folder would come first in sys.path: a user's json.py must not become ours.
                # OpenBLAS would reserve memory for every core.
                env={**environment, "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1", "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=(theirs,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._answers)
            raise
        finally:
            os.close(theirs)

    def ask(self, question: dict[str, Any], allowance: Allowance) -> dict[str, Any]:
        """The answer. If the code kept the process from answering, `{"error": {"message": …, "line": …}}`."""
        asked = {**question, "allowance": asdict(allowance), "parent": os.getpid()}
        assert self.process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has died, as its missing answer says
                self.process.stdin.write(json.dumps(asked).encode())
                self.process.stdin.close()
            answer = self._receive(allowance)
            if not answer.endswith(b"\n"):
                self._let_end()
        finally:
            self.end()
        if answer.endswith(b"\n"):
            return json.loads(answer)  # type: ignore[no-any-return]
        if self.process.returncode == -signal.SIGKILL:
            return _error(_stopped(f"{allowance.wall:g} s"))
        status = self.process.returncode
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return _error(f"the code ended the process that ran it ({how})")

    def _receive(self, allowance: Allowance) -> bytearray:
        """One line, or as much of it as arrived. Does not wait for the pipe's end: processes of the code may hold it open."""
        received, deadline = bytearray(), time.monotonic() + _START
        while not received.endswith(b"\n"):
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                break
            part = os.read(self._answers, 2**20)
            if not part:
                break
            if not received:
                deadline = time.monotonic() + allowance.wall + _GRACE
            received += part
        return received[len(_READY) :]

    def _let_end(self) -> None:
        """Wait a moment for the process to end by itself: then its status is its own. It is not reaped yet."""
        deadline = time.monotonic() + 0.2
        # Python has no waitid on macOS before 3.13.
        while hasattr(os, "waitid") and time.monotonic() < deadline:
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                break
            time.sleep(0.005)

    def kill(self) -> None:
        """Kill the process and everything it started, from any thread: they form a separate session."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended: Linux, macOS
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it, wait for its end, and close its pipes."""
        self.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1


def _error(message: str, line: int | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "line": line}}


def _stopped(after: str) -> str:
    return f"the code was stopped after {after}; does every loop end?"


# In the process -------------------------------------------------------------------------------------------------------


def serve(answers: int, work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Read the question, set its limits, and write the result of `work`; `file` in it is the name of the code."""
    given = sys.stdin.buffer.read()
    if not given:
        return  # nobody asks any more
    question = json.loads(given)
    file, allowance = question["file"], Allowance(**question["allowance"])
    die_with(question["parent"])
    _limit(file, allowance, answers)
    os.write(answers, _READY)
    _send(answers, answered(work, question, f"than {allowance.memory / 2**30:g} GiB of memory"))


def answered(work: Callable[[dict[str, Any]], dict[str, Any]], question: dict[str, Any], memory: str) -> dict[str, Any]:
    """The result of `work(question)`, or what the code that it runs raised: `{"error": {"message": …, "line": …}}`."""
    file = question["file"]
    try:
        return work(question)
    except MemoryError as error:
        return _error(f"the code needs more {memory}", line_of(error, file))
    except AllfoldError as error:
        place = line_in(getattr(error, "site", None), os.path.basename(file))
        return _error(str(error), getattr(error, "line", None) or place)
    except BaseException as error:  # an object of the code may raise wherever it is looked at
        return _error(f"checking it raised {type(error).__name__}", line_of(error, file))


def _send(answers: int, answer: dict[str, Any]) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the code may have closed it
            stream.flush()
    text = json.dumps(answer).encode() + b"\n"
    while text:
        text = text[os.write(answers, text) :]
    os._exit(0)  # does not wait for threads and exit handlers of the code


def _limit(file: str, allowance: Allowance, answers: int) -> None:
    """The signals find out where the code is; it cannot catch them, because the process ends here."""
    import resource  # only here: there is none on Windows

    def out_of_time(number: int, frame: FrameType | None) -> None:
        # This thread first; where ranks are threads, it is one of the others.
        lines = (_line_below(one, file) for one in (frame, *sys._current_frames().values()))
        cpu = number == signal.SIGPROF
        used = f"{allowance.seconds:g} s of processor time" if cpu else f"{allowance.wall:g} s"
        _send(answers, _error(_stopped(used), next(filter(None, lines), None)))

    signal.signal(signal.SIGPROF, out_of_time)
    signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_PROF, allowance.seconds)
    signal.setitimer(signal.ITIMER_REAL, allowance.wall)
    # Not the address space: the ranks' shared memory reserves much of it and uses little.
    with contextlib.suppress(ValueError):  # macOS may refuse it
        resource.setrlimit(resource.RLIMIT_DATA, (allowance.memory, allowance.memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if allowance.alone:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def run_code(code: str | bytes, file: str, module: ModuleType) -> None:
    """Run the code as this module. What it raises becomes a `CodeError`, with its line."""
    module.__file__ = file
    sys.modules[module.__name__] = module
    try:
        exec(compile(code, file, "exec"), module.__dict__)
    except MemoryError:
        raise
    except SyntaxError as error:
        raise CodeError(f"this is not Python: {error.msg}", error.lineno) from None
    except BaseException as error:
        raise CodeError(f"the code raised {sentence(error)}", line_of(error, file)) from None


def sentence(error: BaseException) -> str:
    """An exception in one line: the traceback of another process may follow, and end with its reason."""
    said = str(error).strip().splitlines() or [""]
    text = said[0] if len(said) == 1 else f"{said[0]}: {said[-1]}"
    if isinstance(error, AllfoldError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def line_of(error: BaseException | None, file: str) -> int | None:
    """The last line of the file that an exception, or what caused it, came through."""
    while error is not None:
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file]
        if lines:
            return lines[-1]
        error = error.__cause__
    return None


def line_in(site: str | None, file: str) -> int | None:
    """24 of `ring.py:24`, if that is the file."""
    name, _, line = (site or "").rpartition(":")
    return int(line) if name == file and line.isdecimal() else None


def _line_below(frame: FrameType | None, file: str) -> int | None:
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return None if frame is None else frame.f_lineno
