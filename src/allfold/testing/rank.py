"""A rank of a test, around the test's function: it connects, records its stacks, and checks that nothing is left."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import random
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from allfold.errors import UsageError
from allfold.launch.environment import Place
from allfold.launch.spawn import connected
from allfold.testing.coverage_of_ranks import measured
from allfold.testing.faults import RanksOfTest, running
from allfold.testing.leftovers import watching

_stacks: int | None = None


@dataclass(frozen=True)
class Setup:
    """The settings that all ranks of a run share."""

    folder: str  # for stacks, and for the store of torch's group if there is no port
    port: int | None  # of that store
    backend: str | None
    connects: bool
    timeout: float
    delays: int | None = None  # the seed of random delays before calls
    device: str | None = None
    coverage: str | None = None  # the settings of a measurement
    checks: bool = False  # the calls of torch's groups are compared before they are made
    filters: Sequence[bytes] = ()  # of warnings


@dataclass(frozen=True)
class RankOfTest:
    """One rank of a test."""

    rank: int
    world_size: int
    comm: Any = None
    ranks: ClassVar[RanksOfTest] = RanksOfTest()
    has_group: bool = False

    @property
    def process_group(self) -> Any:
        # Not an attribute: only the test and torch may have a reference to the group when it is destroyed.
        return sys.modules["torch.distributed"].group.WORLD if self.has_group else None


@contextlib.contextmanager
def entered(setup: Setup, place: Place) -> Iterator[RankOfTest]:
    """A rank that is connected as the test wants it."""
    __tracebackhide__ = True
    record_stacks(setup.folder, place.rank)
    _seed(place.rank)
    faults = running(place.rank, place.size, setup.folder, setup.delays)
    coverage = measured(setup.coverage, setup.folder, place.rank)
    with coverage, no_debugger(place.rank), watching(), faults, contextlib.ExitStack() as connections:
        if setup.checks:
            connections.enter_context(_checked())
        if setup.backend is not None:
            connections.enter_context(_process_group(setup, setup.backend, place))
        comm = connections.enter_context(connected(place)) if setup.connects else None
        with _filtered(setup.filters):
            yield RankOfTest(place.rank, place.size, comm, setup.backend is not None)
        # Not after an error, as in `connected`.
        _destroy_groups()


def warning_filters() -> list[bytes]:
    """The filters of warnings in this process, such as those of `pytest -W error`. Each is pickled by itself."""
    found = []
    for action, message, category, module, line in warnings.filters:
        # Python's own filters compare the whole name of a module, all others are regular expressions.
        patterns = [
            f"{re.escape(one)}\\Z" if isinstance(one, str) else one and one.pattern for one in (message, module)
        ]
        with contextlib.suppress(Exception):
            found.append(pickle.dumps((action, patterns[0] or "", category, patterns[1] or "", line)))
    return found


@contextlib.contextmanager
def _filtered(filters: Sequence[bytes]) -> Iterator[None]:
    __tracebackhide__ = True
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for one in filters:
            with contextlib.suppress(Exception):  # a category that cannot be imported here
                action, message, category, module, line = pickle.loads(one)
                warnings.filterwarnings(action, message, category, module, line, append=True)
        yield


@contextlib.contextmanager
def _checked() -> Iterator[None]:
    """Compare the calls of all groups of torch that are made from now on (docs/check.md)."""
    __tracebackhide__ = True
    from allfold.check.install import end_check, install

    install()
    try:
        yield
    except BaseException:
        end_check()  # now, so that the others know that this rank makes no more calls, and why
        raise


@contextlib.contextmanager
def no_debugger(rank: int) -> Iterator[None]:
    """Have `breakpoint()` raise an error that says what to use instead: ranks have no terminal."""

    def say(*_: object, **__: object) -> None:
        raise UsageError(
            f"breakpoint() in rank {rank}: ranks that are processes have no terminal. Give the test's mark, or "
            "allfold.testing.run, threads=True, or start a script by `allfold run --pdb RANK`"
        )

    hook = sys.breakpointhook
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = say
    try:
        yield
    finally:
        sys.breakpointhook = hook


def _seed(rank: int) -> None:
    """Give each rank random numbers of its own, the same in every run."""
    random.seed(rank)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(rank)
    if (torch := sys.modules.get("torch")) is not None:
        # torch.manual_seed takes 6 ms the first time.
        seed = torch.default_generator.manual_seed
        (seed if torch.accelerator.current_accelerator() is None else torch.manual_seed)(rank)


def record_stacks(folder: str, rank: int) -> None:
    """Have a rank that crashes or is ended write its stacks to a file."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # a rank that is killed has then written its lines
    stacks = _open_stacks(stack_file(folder, rank))
    faulthandler.enable(stacks)
    # The handler runs at once, even if the rank waits in C. Then the signal ends the rank, as it would without it.
    faulthandler.register(signal.SIGTERM, stacks, all_threads=True, chain=True)


def _open_stacks(path: str) -> int:
    """The descriptor for stacks. It stays open until the process ends, which may be a crash or a hang."""
    global _stacks
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if _stacks is None:
        _stacks = file
    else:  # of an earlier test: this rank is kept
        os.dup2(file, _stacks, inheritable=False)
        os.close(file)
    return _stacks


def stack_file(folder: str | os.PathLike[str], rank: int) -> str:
    return os.path.join(folder, f"stack-{rank}")


@contextlib.contextmanager
def _process_group(setup: Setup, backend: str, place: Place) -> Iterator[None]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if setup.device is not None and setup.device != "cpu":
        _choose_gpu(setup.device, place)
    timeout = _timeout_of_calls(setup.timeout)
    if setup.port is None:
        store = dist.FileStore(os.path.join(setup.folder, "store"), place.size)
    else:
        server = dist.TCPStore("127.0.0.1", setup.port, is_master=False, wait_for_workers=False, timeout=timeout)
        store = dist.PrefixStore(setup.folder, server)
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=timeout)
    # gloo fails to connect if a rank that has connected to all others is gone before these have.
    store.set(f"connected/{place.rank}", "")
    store.wait([f"connected/{rank}" for rank in range(place.size)], timeout)
    yield


@contextlib.contextmanager
def process_group_of_thread(backend: str, timeout: float) -> Iterator[None]:
    """torch's default group, in a rank that is a thread."""
    import torch.distributed as dist

    dist.init_process_group(backend, timeout=_timeout_of_calls(timeout))
    yield
    if dist.is_initialized():  # not after an error, as in `connected`
        dist.destroy_process_group()


def _timeout_of_calls(timeout: float) -> timedelta:
    """The test's timeout comes first, because its error says more than that of a call."""
    return timedelta(seconds=2 * timeout + 10)


def _choose_gpu(device: str, place: Place) -> None:
    import torch

    found = torch.cuda.device_count()
    number = int(device.partition(":")[2] or place.local_rank)
    if number >= found:
        raise UsageError(
            f"device={device!r}: rank {place.rank} would use GPU {number}, and torch finds {found or 'no'} "
            f"GPU{'' if found == 1 else 's'} here"
        )
    torch.cuda.set_device(number)


def _destroy_groups() -> None:
    """Destroy torch's groups, including those that the test has left. gloo takes 10 ms for each other rank."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_initialized():
        return
    groups = list(dist.distributed_c10d._world.pg_map)
    dist.destroy_process_group()
    threading.Thread(target=groups.clear, daemon=True).start()
