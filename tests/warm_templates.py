"""Templates of `spawn` that are forked from processes which have imported everything already.

A template takes 0.2 s to import NumPy and allfold, and two seconds with torch; the tests need hundreds of them. So one
process imports NumPy and allfold, another torch as well, when they are first needed; they fork the templates. From then on
these are what users have: they import what else they are told to, and fork ranks. tests/launch has the template itself.

    warm_templates.py CONNECTION TESTS MODULE…     import the modules, then fork a template for every request
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import Any

from allfold.launch import worker
from allfold.launch.spawn import run_everywhere
from allfold.launch.template import Template

_LONGEST_REQUEST = 256 * 1024
_DESCRIPTORS = 4

_PLAIN = ("allfold.launch.spawn", "allfold.communicator.communicator", "allfold.engines.shared_memory.engine")
# With what ranks that use torch import later, in seconds: the group, the optimizers, torch's own DDP.
_WITH_TORCH = (
    *("allfold.engines.islands.engine", "allfold.fabrics.gloo", "allfold.torch.bootstrap"),
    *("torch._dynamo", "torch.nn.parallel", "torch.distributed.algorithms.join"),
)

_servers: dict[bool, _Server] = {}  # with torch, and without


def launched(work: Callable[..., Any], ranks: int, *args: Any, hosts: Any = None) -> list[Any]:
    """What `work` returns in processes that have the variables of `allfold run`, and no communicator yet."""
    return run_everywhere(contextlib.nullcontext, work, ranks, args=args, hosts=hosts, timeout=120)


def command(_: object, *words: str) -> tuple[int, str, str]:
    """The work of a rank: a command of allfold; its status, what it printed, and what it said on stderr."""
    from allfold.cli import main

    out, err = StringIO(), StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(words))
    return status, out.getvalue(), err.getvalue()


class WarmTemplate(Template):
    @staticmethod
    def _start(
        descriptors: tuple[int, int],
        ranks: int,
        modules: Sequence[str],
        environment: Mapping[str, str],
        has_output: bool,
    ) -> Any:
        with_torch = bool({"torch", "allfold.fabrics.gloo"}.intersection(modules))
        if with_torch not in _servers:
            _servers[with_torch] = _Server((*_PLAIN, *(_WITH_TORCH if with_torch else ())))
        return _servers[with_torch].fork(descriptors, ranks, modules, environment, has_output)


class _Server:
    def __init__(self, modules: Sequence[str]) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            numbers = map(str, (theirs.fileno(), os.getpid()))
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__, *numbers, *modules],
                # The templates have variables of their own. A library that starts threads when it is imported must not.
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def fork(
        self,
        descriptors: tuple[int, int],
        ranks: int,
        modules: Sequence[str],
        environment: Mapping[str, str],
        has_output: bool,
    ) -> _Forked:
        request = pickle.dumps((ranks, list(modules), dict(environment), os.getcwd()))
        with open(os.devnull, "wb") as nowhere:
            output = 1 if has_output else nowhere.fileno()
            socket.send_fds(self.connection, [request], [*descriptors, output, 2])
        return _Forked(int(self.connection.recv(100)))


class _Forked:
    """A template whose parent is the server: what `Template` needs of a process."""

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


def end_servers() -> None:
    for server in _servers.values():
        server.connection.close()
        server.process.wait(60)
    _servers.clear()


def _serve(number: int, tests: int, modules: list[str]) -> None:
    worker.die_with(tests)
    gc.disable()
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.freeze()
    server, connection = os.getpid(), socket.socket(fileno=number)
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, _LONGEST_REQUEST, _DESCRIPTORS)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG if request else 0)[0]:
                pass
        if not request:
            return
        process = os.fork()
        if process == 0:
            connection.close()
            _become_template(server, pickle.loads(request), descriptors)
        connection.send(str(process).encode())
        for descriptor in descriptors:
            os.close(descriptor)


def _become_template(server: int, request: Any, descriptors: list[int]) -> None:
    ranks, modules, environment, folder = request
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, descriptor in enumerate(descriptors[2:], start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    worker.main(["fork", *map(str, (server, *descriptors[:2], ranks)), *modules])


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
