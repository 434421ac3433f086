"""Running a function on several ranks, for a test."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from allfold.errors import RankFailed, UsageError
from allfold.intercept import CHECK
from allfold.launch.kept import KeptTemplate
from allfold.launch.kept_ranks import take
from allfold.launch.lines import is_installed
from allfold.launch.outcome import result_of
from allfold.launch.spawn import (
    check_kind,
    check_ranks,
    check_work,
    pickled_by_value,
    ranks_per_host,
    supervised,
    users_function,
)
from allfold.launch.supervise import Child
from allfold.testing.coverage_of_ranks import collect, settings
from allfold.testing.faults import killed_file, running
from allfold.testing.rank import RankOfTest, Setup, entered, process_group_of_thread, warning_filters
from allfold.testing.report import call_in, failure, place_in, places_in

Result = TypeVar("Result")

BACKENDS = ("allfold", "gloo", "nccl")
DEFAULT_TIMEOUT = 30.0
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
# From the timeout of a test until ranks that do not obey SIGTERM are killed.
SECONDS_TO_OBEY = 0.3

_store: tuple[int, Any] | None = None  # the process that created it, and one of torch's stores


@dataclass(frozen=True)
class Options:
    """The options that `run` and the mark have in common."""

    backend: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    hosts: int | Sequence[int] | None = None
    keep: bool = False
    threads: bool = False
    delays: int | None = None
    device: str | None = None
    check: bool = True

    def __post_init__(self) -> None:
        for name in ("keep", "threads", "check"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be True or False, not {getattr(self, name)!r:.40}")
        check_kind("threads" if self.threads else "processes", hosts=self.hosts)
        if self.threads and self.keep:
            raise UsageError("ranks that are threads cannot be kept: starting them takes no time")
        if self.backend is not None and self.backend not in BACKENDS:
            raise UsageError(f"backend must be 'allfold', 'gloo', 'nccl' or None, not {self.backend!r:.40}")
        if self.threads and self.backend not in (None, "allfold"):
            raise UsageError(
                f"ranks that are threads have the backend 'allfold' only, not {self.backend!r}: at the timeout "
                "nothing could end a thread that waits in a call of another backend"
            )
        if self.delays is not None and (isinstance(self.delays, bool) or not isinstance(self.delays, int)):
            raise UsageError(f"delays must be a whole number, the seed of random delays, not {self.delays!r:.40}")
        if self.device is not None and not (isinstance(self.device, str) and _DEVICE.fullmatch(self.device)):
            raise UsageError(f"device must be 'cpu', 'cuda' or a GPU such as 'cuda:0', not {self.device!r:.40}")
        if self.device is not None and self.backend is None:
            raise UsageError(f"device={self.device!r} is for torch's process groups: name a backend, too")
        if self.threads and self.device not in (None, "cpu"):
            raise UsageError("ranks that are threads have no GPU: torch's groups are for tensors in main memory there")
        if self.backend == "nccl" and (self.device is None or self.device == "cpu"):
            raise UsageError("nccl needs GPUs: device='cuda' gives each rank one of its own")
        given = self.timeout
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < float("inf"):
            raise UsageError(f"timeout must be a positive number of seconds, not {given!r:.40}")

    @property
    def needs_torch(self) -> bool:
        return self.backend is not None or "torch" in sys.modules

    @property
    def checks(self) -> bool:
        """True if the calls of torch's groups are compared; allfold's own groups do that themselves."""
        return self.check and self.backend in ("gloo", "nccl") and os.environ.get(CHECK) != "0"

    def kind(self, ranks: int) -> tuple[object, ...]:
        """Equal for runs that can use the same kept ranks."""
        hosts = () if self.hosts is None else tuple(ranks_per_host(ranks, self.hosts))
        return ranks, self.backend, self.needs_torch, hosts, self.checks


def run(
    function: Callable[..., Result],
    ranks: int = 4,
    *,
    args: Sequence[Any] = (),
    backend: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    hosts: int | Sequence[int] | None = None,
    keep: bool = False,
    threads: bool = False,
    delays: int | None = None,
    device: str | None = None,
    check: bool = True,
) -> list[Result]:
    """Run `function(communicator, *args)` in one process per rank, as a test; the results, by rank.

    With a `backend`, `allfold`, `gloo` or `nccl`, torch.distributed is initialized with it, and the function gets the
    default process group in place of the communicator. `device` makes a GPU torch's current device: `cuda:0` the same one
    on all ranks, which nccl refuses, `cuda` one for each rank.

    The first call starts a process that imports NumPy, allfold and, if there is a backend or this process has imported
    it, torch. Ranks are forked from it, so that further calls take milliseconds. The function and what it uses of its
    module travel by value, and ranks have one thread for computing.

    If a rank raises or dies, RankFailed has its traceback, and a line about every other rank. After `timeout` seconds
    CollectiveTimeout says at which line each rank is. A rank that leaves child processes, threads or shared memory behind
    has failed. `hosts` simulates hosts, as in `spawn`.

    With `keep` the ranks are kept, and the next call with `keep` and the same number of ranks, backend and hosts uses
    them again. It has a group of its own, but finds the modules and the global state that earlier functions have left.
    After a failure the next call gets new ranks.

    With `threads`, ranks are threads of this process, as in `spawn(…, ranks_are="threads")`: it works on every system,
    without the engine in C++, and nothing is pickled. The exception of the rank that failed first is the cause of
    RankFailed. A thread cannot be ended: one that makes no more calls after the timeout keeps running until the process
    ends. The only `backend` is `allfold`, for CPU tensors, and ranks are not checked for what they leave behind.

    `delays` is the seed of random delays of up to 10 ms before calls on communicators and process groups, different on
    every rank: they expose bugs that depend on which rank is first. `allfold.testing.ranks` makes ranks late or slow, or
    kills them; the result of a rank that it has killed is None.

    With gloo and nccl, every call is compared on all ranks before it is made (docs/check.md): where ranks differ or wait for
    each other, all of them raise the same error at once. That costs some microseconds per call, and every blocking call
    waits for all ranks of its group. `check=False`, or ALLFOLD_CHECK=0, turns that off.

    >>> def work(comm, factor):
    ...     x = np.full(1000, comm.rank * factor)
    ...     comm.all_reduce(x)
    ...     return int(x[0])
    >>> from allfold.testing import run
    >>> run(work, ranks=4, args=(10,))
    [60, 60, 60, 60]
    """
    __tracebackhide__ = True
    check_work("run", function, args)
    options = Options(backend, timeout, hosts, keep, threads, delays, device, check)
    return run_ranks(partial(_with_group, function), ranks, options, args=args, connects=backend is None)


def _with_group(function: Callable[..., Result], rank: RankOfTest, *args: Any) -> Result:
    __tracebackhide__ = True
    return function(rank.comm if rank.process_group is None else rank.process_group, *args)


def run_ranks(
    work: Callable[..., Result],
    ranks: int,
    options: Options,
    *,
    args: Sequence[Any] = (),
    connects: bool,
    end_of: Callable[[Result], str] = lambda _: "",
) -> list[Result]:
    """Like `run`, but the work gets a `RankOfTest`, which has a communicator if `connects`.

    `end_of` is what messages about other ranks say of one that has returned this result.
    """
    __tracebackhide__ = True
    if options.threads:
        return _run_threads(work, ranks, options, args, end_of)
    backend, timeout = options.backend, float(options.timeout)
    with tempfile.TemporaryDirectory(prefix="allfold-test-", ignore_cleanup_errors=True) as folder, by_value(work):
        port = None if backend is None else _store_port()
        setup = Setup(
            folder,
            port,
            backend,
            connects,
            timeout,
            options.delays,
            options.device,
            settings(),
            options.checks,
            warning_filters(),
        )
        try:
            supervisor = supervised(
                partial(entered, setup),
                work,
                ranks,
                args=args,
                timeout=timeout,
                prefix_output=True,
                hosts=options.hosts,
                call="run",
                modules=["torch"] if options.needs_torch else [],
                make_template=partial(take, options.kind(ranks)) if options.keep else KeptTemplate,
                was_meant_to_die=lambda child: os.path.exists(killed_file(folder, child.rank)),
                seconds_to_obey=SECONDS_TO_OBEY,
            )
        except BaseException as stop:  # from outside: an interrupt, or the timeout of pytest-timeout
            for place in places_in(Path(folder), ranks):
                stop.add_note(place)
            raise
        collect(folder)
        whose = Path(folder)

        def said(child: Child) -> str:
            return end_of(result_of(child)) if child.has_reported(b"R") else ""

        error = failure(supervisor, partial(place_in, whose), timeout, options.delays, partial(call_in, whose), said)
    if error is not None:
        raise error
    return [None if child.was_meant_to_die else result_of(child) for child in supervisor.children]  # type: ignore[misc]


def _store_port() -> int | None:
    """The port of a store for torch's groups in this process, if it has imported torch.

    The ranks of all runs meet there. A file would work, too, but torch looks at it only every 10 ms.
    """
    global _store
    if "torch.distributed" not in sys.modules:
        return None
    if _store is None or _store[0] != os.getpid():
        server = socket.create_server(("127.0.0.1", 0), backlog=512)
        port = server.getsockname()[1]
        options = {"is_master": True, "wait_for_workers": False, "master_listen_fd": server.detach()}
        _store = os.getpid(), sys.modules["torch.distributed"].TCPStore("127.0.0.1", port, **options)
    return int(_store[1].port)


def _run_threads(
    work: Callable[..., Result], ranks: int, options: Options, args: Sequence[Any], end_of: Callable[[Result], str]
) -> list[Result]:
    __tracebackhide__ = True
    from allfold.launch.threads import ThreadRun

    def on_rank(communicator: Any) -> Result:
        __tracebackhide__ = True
        rank = communicator.rank
        with running(rank, ranks, None, options.delays), contextlib.ExitStack() as group:
            if options.backend is not None:
                group.enter_context(process_group_of_thread(options.backend, options.timeout))
            return work(RankOfTest(rank, ranks, communicator, options.backend is not None), *args)

    check_ranks(ranks)
    if options.backend is not None:
        import allfold.torch  # noqa: F401 - now, because the import takes seconds of the timeout
    run = ThreadRun(on_rank, ranks)
    run.watch(options.timeout, SECONDS_TO_OBEY)
    error = failure(
        run,
        lambda child: run.places[child.rank],
        options.timeout,
        options.delays,
        end_of=lambda child: end_of(run.results[child.rank]),
    )
    if isinstance(error, RankFailed):
        raise error from run.errors.get(error.rank)
    if error is not None:
        raise error
    return run.results


@contextlib.contextmanager
def by_value(work: object) -> Iterator[None]:
    """Have functions of the work's module pickled by value, unless it is installed.

    A rank need not import the test's module, which may not be importable there. And the text of pytest's assertions is
    in the code of the functions, as pytest has rewritten them.
    """
    module = sys.modules.get(getattr(users_function(work), "__module__", None) or "")
    file = getattr(module, "__file__", None)
    with pickled_by_value(*([] if module is None or file is None or is_installed(file) else [module])):
        yield
