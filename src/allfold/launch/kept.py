"""Templates that start warm: forked, one per run, from a process that is kept and has imported everything already.

A template takes 0.2 s to import NumPy and allfold, and seconds with torch. Whoever starts ranks hundreds of times (tests)
keeps a process that imports them once: one without torch, and one with torch, each started when it is first needed. They
fork the templates, which are then like those of a single run. What such a process does is in `worker.py`.

`spawn` keeps one from its second run on (`RepeatedTemplate`), if its ranks cannot tell the difference: everything that a
process inherits is as it was when the kept one started.

It imports a first list of modules when it starts. Then it gets a byte for every request, with five descriptors: of a pickled
(path, folder, environment, ranks, modules), the two that a template has, and the output and errors of the ranks. It answers
with {"process": 1234}, or {"error": [errno, text]} if it could not fork.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from allfold import _native
from allfold.errors import AllfoldError
from allfold.launch.template import WORKER, Process, Start, Template, private_file

_SECONDS_TO_ANSWER = 240.0  # the first answer comes after its imports, which take long on a busy machine
_SECONDS_TO_END = 10.0

_PLAIN = (
    *("allfold.launch.spawn", "allfold.communicator.communicator", "allfold.engines.shared_memory.engine"),
    *("allfold.engines.islands.engine", "allfold.fabrics.ucx", "allfold.algorithms.table"),
    *("allfold.engines.islands.meeting", "allfold.engines.stream.engine", "allfold.fabrics.table"),
    # A rank that imports an extension module itself, such as mmap, ends slowly.
    *("numpy.random", "faulthandler", "mmap", "concurrent.futures.thread", "multiprocessing.shared_memory"),
)
# With what ranks that use torch import later, in seconds: the group, the optimizers, torch's own DDP.
_WITH_TORCH = (
    *("allfold.fabrics.torch_store", "allfold.torch.bootstrap"),
    *("torch._dynamo", "torch.nn.parallel", "torch.distributed.algorithms.join"),
    "allfold.check.checker",
)
# If this process has imported them, functions that it sends to ranks may need them.
_OF_THE_CALLER = (
    "pytest",
    "allfold.testing",
    "allfold.testing.in_pytest",
    "coverage",
    "coverage.tracer",
    "coverage.sqldata",
)
# Ranks measure coverage themselves (`allfold.testing.coverage_of_ranks`), and not what is imported here.
_NOT_HERE = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")

# What `spawn` keeps ends when it was not used for this long; a notebook may stay open for days.
_SECONDS_IDLE = 60.0
_MOST_OF_SPAWN = 2
# What a process inherits, as far as /proc/thread-self/status has it.
_STATUS = ("Umask", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "SigBlk", "SigIgn", "CapEff", "Cpus_", "Mems_")

_servers: dict[Hashable, _Server] = {}  # with torch, and without; those of `spawn` by what they inherited
_seen: set[int] = set()
_lock = threading.Lock()


class KeptTemplate(Template):
    """A template that is forked from a process that is kept."""

    @staticmethod
    def _start(start: Start) -> Process:
        with _lock:
            return _forked(_server("torch" in start.modules), start)


class RepeatedTemplate(Template):
    """The template of `spawn`: that of a process's first run is a process of its own, later ones are forked."""

    @staticmethod
    def _start(start: Start) -> Process:
        with _lock:
            server = _server_of_spawn(start)
            if server is not None:
                with contextlib.suppress(AllfoldError, OSError):  # it has ended: it was idle, or somebody killed it
                    return _forked(server, start)
        return Template._start(start)


def _forked(server: _Server, start: Start) -> _Forked:
    try:
        forked = _Forked(server.fork(start))
        server.templates = [*(one for one in server.templates if one.returncode is None), forked]
        return forked
    except BaseException:
        # Its answer, if one comes, would be taken for that to the next request.
        _servers.pop(server.kind).end(patience=0)
        raise


def warm_up(with_torch: bool) -> None:
    """Start the process that templates are forked from. It imports while this process goes on."""
    if _native.MISSING is None:  # otherwise the run says so
        with _lock:
            _server(with_torch)


def _server_of_spawn(start: Start) -> _Server | None:
    """The process to fork the template from. None: this run starts one of its own."""
    if "ALLFOLD_RANK" in start.environment:
        return None  # a rank, which must leave no process behind
    try:
        kind = (start.has_output, tuple(start.environment.items()), _inherited())
    except OSError:  # there is no /proc
        return None
    if hash(kind) not in _seen:
        _seen.add(hash(kind))
        return None
    found = _servers.get(kind)
    if found is not None and found.is_usable():
        return found
    # The kernel ends a process when the thread that started it ends: another thread's ranks would end with it.
    if threading.current_thread() is not threading.main_thread():
        return None
    of_spawn = [one for one in _servers.values() if not isinstance(one.kind, bool)]
    if len(of_spawn) >= _MOST_OF_SPAWN:
        idle = next((one for one in of_spawn if not one.is_usable() or one.is_idle()), None)
        if idle is None:
            return None
        _servers.pop(idle.kind).end()
    return _keep(_Server(kind, (), start.environment, start.has_output, _SECONDS_IDLE))


def _inherited() -> Hashable:
    """Everything that a new process inherits and a program can change, but for its folder and its variables."""
    import resource  # only here: there is none on Windows

    status = Path("/proc/thread-self/status").read_text().splitlines()
    spaces = Path("/proc/self/ns")
    return (
        os.getpid(),
        sys.executable,
        os.isatty(1),
        os.isatty(2),
        tuple(line for line in status if line.startswith(_STATUS)),
        tuple(resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")),
        tuple(os.readlink(spaces / name) for name in sorted(os.listdir(spaces))),
        *(Path(f"/proc/self/{name}").read_text() for name in ("cgroup", "oom_score_adj")),
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
    )


def end_kept() -> None:
    """End the processes that are kept; the next template starts one again."""
    with _lock:
        while _servers:
            _servers.popitem()[1].end()


def _server(with_torch: bool) -> _Server:
    server = _servers.get(with_torch)
    if server is not None and server.is_usable():
        return server
    modules = [
        *_PLAIN,
        *(_WITH_TORCH if with_torch else ()),
        *(one for one in _OF_THE_CALLER if one in sys.modules),
    ]
    # The templates have variables of their own. A library that starts threads when it is imported must not.
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_HERE}
    return _keep(_Server(with_torch, modules, environment | {"OMP_NUM_THREADS": "1"}))


def _keep(server: _Server) -> _Server:
    atexit.unregister(end_kept)
    atexit.register(end_kept)
    _servers[server.kind] = server
    return server


class _Server:
    """The process that is kept, as the launcher sees it."""

    def __init__(
        self,
        kind: Hashable,
        modules: Sequence[str],
        environment: Mapping[str, str],
        has_output: bool = True,
        seconds_idle: float | None = None,
    ) -> None:
        self.kind = kind
        self.owner = os.getpid()
        self.templates: list[_Forked] = []
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(_SECONDS_TO_ANSWER)
        with theirs, private_file(pickle.dumps((sys.path, list(modules), seconds_idle))) as start:
            descriptors = (theirs.fileno(), start)
            self.process = subprocess.Popen(
                [sys.executable, "-P", WORKER, "serve", *map(str, (os.getpid(), *descriptors))],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=None if has_output else subprocess.DEVNULL,  # as in `Template._start`
                pass_fds=descriptors,
                start_new_session=True,
            )

    def is_usable(self) -> bool:
        """True if it is there, and this process's own: a forked process cannot use its parent's."""
        return self.owner == os.getpid() and self.process.poll() is None

    def is_idle(self) -> bool:
        """True if no run uses it."""
        return all(one.poll() is not None for one in self.templates)

    def fork(self, start: Start) -> int:
        """The process id of a new template."""
        request = pickle.dumps((sys.path, os.getcwd(), dict(start.environment), start.ranks, list(start.modules)))
        with private_file(request) as file, open(os.devnull, "wb") as nowhere:
            output = 1 if start.has_output else nowhere.fileno()
            try:
                socket.send_fds(self.connection, [b"T"], [file, *start.descriptors, output, 2])
                answer = json.loads(self.connection.recv(1024) or b"{}")
            except TimeoutError:
                raise AllfoldError(
                    f"the process that forks ranks did not answer within {_SECONDS_TO_ANSWER:g} s"
                ) from None
            except ConnectionError:
                answer = {}
        if "error" in answer:
            raise OSError(*answer["error"])
        if "process" not in answer:
            raise AllfoldError("the process that forks ranks has ended")
        return int(answer["process"])

    def end(self, patience: float = _SECONDS_TO_END) -> None:
        if self.owner != os.getpid():
            self.connection.close()
            return
        # Not only closed: a process that this one has forked may have the connection, too.
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()  # and with it its templates and their ranks
            self.process.wait()


class _Forked:
    """A template whose parent is the process that is kept."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            end = select.poll()  # select() takes no descriptor above 1023
            end.register(self._end, select.POLLIN)
            if not end.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired("the template", timeout or 0.0)
            self.returncode = -signal.SIGKILL  # its parent alone knows more
            os.close(self._end)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._end, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
