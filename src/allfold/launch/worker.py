"""What a started process does first: tie its life to the launcher's, then become the command or do the work.

The launcher runs this file by its path, before it is known where allfold is installed. Hence only the standard library
is imported at the top, and nothing of allfold before the launcher's own `sys.path` has been taken over.

    worker.py exec LAUNCHER COMMAND…         become the command
    worker.py work LAUNCHER WORK REPORT      do what descriptor WORK holds, report the outcome on descriptor REPORT
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> NoReturn:
    task, launcher, *rest = arguments
    _die_with(int(launcher))
    if task == "exec":
        _become(rest)
    work, report = (int(descriptor) for descriptor in rest)
    _perform(work, report)


def _die_with(launcher: int) -> None:
    """Ask the kernel for a SIGKILL when the launcher ends, however it ends. This outlives exec."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused prctl(PR_SET_PDEATHSIG)")
    # If the launcher was gone before the call, the kernel no longer reports its end.
    if os.getppid() != launcher:
        os._exit(1)


def _become(command: list[str]) -> NoReturn:
    # Python ignores these two for itself, and what is ignored stays ignored across exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"allfold run: cannot start {command[0]!r}: {error.strerror}\n")
        # As in a shell: 127 for a command that is not found, 126 for one that cannot be run.
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def _perform(work: int, report: int) -> NoReturn:
    import faulthandler

    os.set_inheritable(report, False)
    faulthandler.enable()  # a crash in native code then says where it happened, before the launcher says that it did
    rank_process = os.getpid()
    status = 0
    try:
        # The ranks share one open file, and with it one file position: map the file instead of reading from there.
        import mmap

        with os.fdopen(work, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            path, pickled_algorithms, pickled_work = pickle.loads(memory)
        sys.path[:] = path
        import cloudpickle  # type: ignore[import-untyped]

        from allfold.errors import UsageError
        from allfold.launch.environment import place_from_environment
        from allfold.registry import algorithm

        place = place_from_environment()
        try:
            for pickled in pickled_algorithms:
                collective, name, chunks, generator = pickle.loads(pickled)
                algorithm(collective, name, chunks=chunks)(generator)
            enter, function, args = pickle.loads(pickled_work)
        except Exception as error:
            raise UsageError(
                f"rank {place.rank} cannot unpickle its work, what that uses of the script, or its arguments: "
                f"{type(error).__name__}: {error}"
            ) from error
        with enter(place) as handle:
            result = function(handle, *args)
            try:
                # Before the handle is closed: a result may lie in memory that goes away with it.
                message = b"R" + cloudpickle.dumps(result)
            except Exception as error:
                raise UsageError(
                    f"rank {place.rank} returned a {type(result).__name__} that cannot be pickled: {error}"
                ) from None
    except BaseException as error:
        if os.getpid() != rank_process:
            raise  # a forked child that came back here: it ends as any process does, and does not speak for the rank
        message, status = _failure(error)
    if os.getpid() == rank_process:
        _send(report, message)
    sys.exit(status)


def _failure(error: BaseException) -> tuple[bytes, int]:
    """The report of an exception, and the exit status that goes with it."""
    import json
    import time
    import traceback

    # The first frames are this file's, and tell the user nothing.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    status = 1
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    facts = {
        "time": time.monotonic(),  # one clock for all processes of a machine
        "type": type(error).__name__,
        "traceback": "".join(traceback.format_exception(error.with_traceback(trace))),
        "is_follow_up": _follows_from_a_lost_rank(error),
        "status": status,
    }
    return b"E" + json.dumps(facts).encode(), status & 0xFF


def _follows_from_a_lost_rank(error: BaseException | None) -> bool:
    from allfold.errors import RankLost

    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, RankLost):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _send(descriptor: int, message: bytes) -> None:
    left = memoryview(len(message).to_bytes(8, "big") + message)
    while left:
        left = left[os.write(descriptor, left) :]
    os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1:])
