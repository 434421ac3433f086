"""The first code of a started process: tie its life to the launcher's, then become the command or do the work.

The launcher runs this file by its path, before it is known where allfold is installed. Hence only the standard library
is imported at the top, and nothing of allfold before the launcher's own `sys.path` has been taken over.

    worker.py exec LAUNCHER COMMAND…                             become the command
    worker.py fork LAUNCHER CONNECTION WORK RANKS MODULE…        import the modules, then fork as many ranks; each does
                                                                 what descriptor WORK holds, and reports the outcome
    worker.py serve LAUNCHER CONNECTION START                    import what descriptor START lists, then fork a template,
                                                                 as above, for every request

`template.py` says what the template and the launcher tell each other through the descriptor CONNECTION, `kept.py` what a
request is, and `kept_ranks.py` how ranks are kept that do one work after another.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import pickle
import signal
import sys
import weakref
from types import AsyncGeneratorType, CoroutineType, GeneratorType, ModuleType
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_LONGEST_REQUEST = 256 * 1024
_MOST_DESCRIPTORS = 3
_DESCRIPTORS_OF_A_REQUEST = 5
_DESCRIPTORS_OF_A_JOB = 5


def main(arguments: list[str]) -> NoReturn:
    task, launcher, *rest = arguments
    die_with(int(launcher))
    if task == "exec":
        _become(rest)
    if task == "serve":
        _serve(*map(int, rest))
    connection, work, ranks = map(int, rest[:3])
    _fork_ranks(connection, work, ranks, rest[3:])


def die_with(parent: int) -> None:
    """Ask the kernel for a SIGKILL when the parent ends, however it ends. This outlives exec. Only Linux does that."""
    if sys.platform == "linux":
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "the kernel refused prctl(PR_SET_PDEATHSIG)")
    # If the parent was gone before the call, the kernel no longer reports its end.
    if os.getppid() != parent:
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


def _serve(connection: int, start: int) -> NoReturn:
    """Fork a template for every request, until the launcher closes the connection, or sends none for a while.

    Templates leave this function.
    """
    import contextlib
    import itertools
    import select
    import socket

    gc.disable()
    server, launcher = os.getpid(), socket.socket(fileno=connection)
    launcher.set_inheritable(False)
    sys.path[:], modules, seconds_idle = _unpickled(start)
    _import(modules)
    requests = itertools.count()
    incoming = select.poll()
    incoming.register(launcher, select.POLLIN)
    while True:
        if next(requests) == 1:  # while the first run goes on
            _gather_memory()
        while seconds_idle is not None and not incoming.poll(1000 * seconds_idle):
            if not _has_children():
                os._exit(0)
        message, descriptors = b"", list[int]()
        with contextlib.suppress(ConnectionError):
            message, descriptors, _, _ = socket.recv_fds(launcher, 1, _DESCRIPTORS_OF_A_REQUEST)
        if not message:
            os._exit(0)  # what the modules do at the end of a process is not for this one
        _has_children()
        sys.path[:], folder, environment, ranks, modules = _unpickled(descriptors[0])
        # Others may look for variables of the run while they are imported: the template imports those.
        stays = [module for module in modules if module == "torch" or module.startswith("allfold.")]
        _import(stays)
        try:
            process = os.fork()
        except OSError as error:
            _tell(launcher, {"error": [error.errno, f"cannot fork a template: {error.strerror}"]})
            process = None
        if process == 0:
            launcher.close()
            die_with(server)
            os.setsid()
            with contextlib.suppress(OSError):
                os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            *given, output, errors = descriptors[1:]
            for number, descriptor in ((1, output), (2, errors)):
                os.dup2(descriptor, number)
                os.close(descriptor)
            _fork_ranks(given[0], given[1], ranks, [module for module in modules if module not in stays])
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        if process is not None:
            _tell(launcher, {"process": process})


def _has_children() -> bool:
    """True if a template is running; those that have ended are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _unpickled(descriptor: int) -> Any:
    """The content of a file of the launcher (`private_file`), which is closed.

    Its offset is not used: ranks that are kept read the same open file at the same time.
    """
    content = bytearray()
    while part := os.pread(descriptor, os.fstat(descriptor).st_size, len(content)):
        content += part
    os.close(descriptor)
    return pickle.loads(content)


def _import(modules: list[str]) -> None:
    import contextlib
    import importlib

    for module in modules:
        with contextlib.suppress(Exception):  # the ranks that need it say what is wrong
            importlib.import_module(module)


def _gather_memory() -> None:
    from allfold.launch.huge_pages import gather

    gather()


def _fork_ranks(connection: int, work: int, ranks: int, modules: list[str]) -> NoReturn:
    """Act as the template. Ranks leave this function to do their work."""
    import contextlib
    import json
    import socket

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody learns how a child has ended
    gc.disable()  # hardly anything of what is imported is garbage
    sys.path[:], sys.argv[:], script, algorithms, pickled_work = _unpickled(work)
    _import(modules)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # what is left in a buffer would be written by every rank
    gc.freeze()  # a collection in a rank would write to all that was imported, and the kernel copy it for that
    # The last name alone: to count a reference to each name is to write to a thousand pages.
    last_imported, finalizers = next(reversed(sys.modules)), list(weakref.finalize._registry)  # type: ignore[attr-defined]
    launcher = socket.socket(fileno=connection)
    launcher.set_inheritable(False)
    template = os.getpid()
    running: dict[int, int] = {}
    for rank in range(ranks):
        message, descriptors = b"", list[int]()
        with contextlib.suppress(ConnectionError):
            message, descriptors, _, _ = socket.recv_fds(launcher, _LONGEST_REQUEST, _MOST_DESCRIPTORS)
        if not message:
            break  # the launcher gives up
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        # Until the rank has set itself up, or has ended, it holds the other end of this pipe.
        waiting, set_up = os.pipe2(os.O_CLOEXEC)
        try:
            process = os.fork()
        except OSError as error:
            _tell(launcher, {"error": [error.errno, f"cannot fork rank {rank}: {error.strerror}"]})
            break
        if process == 0:
            os.close(waiting)
            launcher.close()
            die_with(template)
            os.setsid()  # as the launcher's own processes; see `Supervisor.start_command`
            os.close(set_up)
            if pickled_work is None:
                status = _do_jobs(descriptors[0])
            else:
                _become_rank(json.loads(message), descriptors[1:])
                outcome, status = _perform(script, algorithms, pickled_work)
                _send(descriptors[0], outcome)
                del outcome
            del algorithms, pickled_work
            _end(status, last_imported, finalizers)
        running[process] = rank
        for descriptor in (set_up, *descriptors):
            os.close(descriptor)
        os.read(waiting, 1)
        os.close(waiting)
        _tell(launcher, {"rank": rank, "started": process})
    del algorithms, pickled_work  # the ranks have what they need of it
    _wait_for_ranks(launcher, running)
    os._exit(0)  # what the modules do at the end of a process is not for this one


def _become_rank(variables: dict[str, str], outputs: list[int]) -> None:
    """Give a forked process what would be its own if it were not forked."""
    gc.enable()
    os.environ.update(variables)
    for number, descriptor in enumerate(outputs, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # Python sees to its own random numbers after a fork.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _do_jobs(connection: int) -> int:
    """Do one work after another as a rank that is kept; the exit status. Each has variables and outputs of its own."""
    import contextlib
    import json
    import socket

    from allfold.registry import REGISTRY

    launcher = socket.socket(fileno=connection)
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    while True:
        message, descriptors = b"", list[int]()
        with contextlib.suppress(ConnectionError):
            message, descriptors, _, _ = socket.recv_fds(launcher, _LONGEST_REQUEST, _DESCRIPTORS_OF_A_JOB)
        if not message:
            return 0  # the launcher needs this rank no more
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        start, work, report, *outputs = descriptors
        folder, environment = _unpickled(start)
        sys.path[:], sys.argv[:], script, algorithms, pickled_work = _unpickled(work)
        with contextlib.suppress(OSError):
            os.chdir(folder)
        os.environ.clear()
        _become_rank(environment | json.loads(message), outputs)
        with REGISTRY.scope():
            outcome, status = _perform(script, algorithms, pickled_work)
        with contextlib.suppress(Exception):  # the launcher reads what is written before the report
            sys.stdout.flush()
            sys.stderr.flush()
            ctypes.CDLL(None).fflush(None)
        is_clean = outcome.startswith(b"R")
        if is_clean:
            for number in (1, 2):
                os.dup2(nowhere, number)
        _send(report, outcome)
        if not is_clean:
            return status
        del algorithms, pickled_work, outcome


def _wait_for_ranks(launcher: Any, running: dict[int, int]) -> None:
    """Tell the launcher which ranks have ended, and wait for them only when it no longer needs their process ids."""
    while running:
        first = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert first is not None
        ended = {}
        for process in running:
            if found := os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                ended[process] = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        if ended:
            _tell(launcher, {"ended": [[running[process], status] for process, status in ended.items()]}, wait=True)
        for process in ended or [first.si_pid]:  # an import may have left a process as well
            os.waitpid(process, 0)
            running.pop(process, None)


def _tell(launcher: Any, message: dict[str, Any], wait: bool = False) -> None:
    """Send a message, and wait for an answer if that is wanted. If the launcher is gone, do nothing."""
    import contextlib
    import json

    with contextlib.suppress(ConnectionError):
        launcher.send(json.dumps(message).encode())
        if wait:
            launcher.recv(1)


def _load(pickled: bytes, main: ModuleType) -> Any:
    """Unpickle; what was defined in the script becomes an attribute of `main`, where pickle looks for it by its name."""
    made: list[Any] = []

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found = super().find_class(module, name)
            if not (module.startswith("cloudpickle") and name.startswith("_make_")):
                return found

            def make(*arguments: Any, **options: Any) -> Any:
                made.append(found(*arguments, **options))
                return made[-1]

            return make

    loaded = Unpickler(io.BytesIO(pickled)).load()
    for one in made:
        name = getattr(one, "__qualname__", None)
        if getattr(one, "__module__", None) == "__main__" and isinstance(name, str) and name.isidentifier():
            setattr(main, name, one)
    made.clear()  # the class above refers to it, and is garbage of the kind that is freed late
    return loaded


def _perform(script: str | None, pickled_algorithms: list[bytes], pickled_work: bytes) -> tuple[bytes, int]:
    """Do the work; its report and the exit status. Leaves by an exception if this is no longer the rank."""
    import faulthandler

    faulthandler.enable()  # a crash in native code then says where it happened, before the launcher says that it did
    rank_process = os.getpid()
    status = 0
    # The rank's own, not this file: classes of the script are pickled as those of __main__.
    main = sys.modules["__main__"] = ModuleType("__main__")
    if script is not None:
        main.__file__ = script
    try:
        import cloudpickle  # type: ignore[import-untyped]

        from allfold.errors import UsageError
        from allfold.launch.environment import place_from_environment
        from allfold.registry import algorithm, register

        place = place_from_environment()
        try:
            for pickled in pickled_algorithms:
                match _load(pickled, main):
                    case (made,):
                        register(made)
                    case (collective, name, chunks, generator):
                        algorithm(collective, name, chunks=chunks)(generator)
            enter, function, args = _load(pickled_work, main)
        except Exception as error:
            raise UsageError(
                f"rank {place.rank} cannot unpickle its work, what that uses of the script, or its arguments: "
                f"{type(error).__name__}: {error}"
            ) from error
        with enter(place) as handle:
            result = function(handle, *args)
            check_result(place.rank, result)
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
        message, status = report_of(error)
    if os.getpid() != rank_process:
        sys.exit(status)
    return message, status


def _end(status: int, last_imported: str, finalizers: list[weakref.finalize[..., Any]]) -> NoReturn:
    """End as an interpreter ends, but leave alone what was imported before the fork.

    Freeing that would write to nearly all of its memory, which the kernel then copies: 30 ms for each rank, and
    100 ms if torch unregisters its operators. Objects that the rank created and imported itself are freed, and every file
    that is still open then is flushed. An extension that the rank has loaded may have asked to be told when the
    interpreter ends; then it ends in full.
    """
    import atexit
    import threading
    import typing
    from importlib.machinery import EXTENSION_SUFFIXES
    from itertools import takewhile

    own = [*takewhile(lambda name: name != last_imported, reversed(sys.modules))]
    if any(str(getattr(sys.modules[name], "__file__", "")).endswith(tuple(EXTENSION_SUFFIXES)) for name in own):
        sys.exit(status)
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does: threads that are not daemons
    for one in finalizers:  # of objects that were made before the fork; functions of atexit run all the same
        one.atexit = False
    typing._cleanups.clear()  # type: ignore[attr-defined]  # caches, which nanobind frees to find leaks: 8 ms with torch
    atexit._run_exitfuncs()
    for name in own:
        sys.modules.pop(name, None)
    gc.collect()
    files = [one for one in gc.get_objects() if issubclass(type(one), io.IOBase)]  # isinstance() may run code of theirs
    for file in sorted([sys.stdout, sys.stderr, *files], key=lambda one: not isinstance(one, io.TextIOBase)):
        try:  # text first: it is written through the others
            if file is not None and not file.closed:
                file.flush()
        except Exception:
            if file is sys.stdout and status == 0:
                status = 120  # as the interpreter has it
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


def check_result(rank: int, result: object) -> None:
    from allfold.errors import UsageError

    if isinstance(result, (CoroutineType, GeneratorType, AsyncGeneratorType)):
        if isinstance(result, CoroutineType):
            result.close()  # or Python warns that it was never awaited
        raise UsageError(
            f"rank {rank} returned a {type(result).__name__}, whose body never ran; the work must return what it has computed"
        )


def report_of(error: BaseException) -> tuple[bytes, int]:
    """The report of an exception, and the exit status that goes with it."""
    import json
    import time
    import traceback

    # The first frames are this file's and those of who calls the user's function for it. They tell the user nothing.
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename == __file__ or "__tracebackhide__" in trace.tb_frame.f_locals
    ):
        trace = trace.tb_next
    status = 1
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    facts = {
        "time": time.monotonic(),  # one clock for all processes of a machine
        "type": type(error).__name__,
        "message": "".join(traceback.format_exception_only(error)),
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
