"""Faults that tests ask for: ranks that are killed, late or slow, and calls that are delayed at random."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

from allfold.collectives import COLLECTIVES
from allfold.communicator.communicator import Communicator
from allfold.errors import UsageError

_LONGEST_DELAY_SECONDS = 0.01
_CALLS = (*COLLECTIVES, "send", "recv", "isend", "irecv")


@dataclass
class _Here:
    """The rank of a test that this code runs in."""

    rank: int
    size: int
    folder: str | None  # of the run; None if ranks are threads
    delays: random.Random | None
    seconds: float = 0.0  # by which each call of the rank is late

    def before_call(self) -> None:
        seconds = self.seconds
        if self.delays is not None and self.delays.random() < 0.5:
            seconds += self.delays.uniform(0, _LONGEST_DELAY_SECONDS)
        if seconds:
            time.sleep(seconds)


_of_thread: ContextVar[_Here | None] = ContextVar("the rank that a thread is", default=None)
_of_process: _Here | None = None  # for all threads that a rank has


@contextlib.contextmanager
def running(rank: int, size: int, folder: str | None, delays: int | None) -> Iterator[None]:
    """A rank of a test: this process, or this thread if there is no folder. `delays` is the seed of random delays."""
    global _of_process
    here = _Here(rank, size, folder, None if delays is None else random.Random(f"{delays} {rank}"))
    if delays is not None:
        _watch_calls()
    if folder is not None:
        _of_process = here
    token = _of_thread.set(here)
    try:
        yield
    finally:
        _of_thread.reset(token)
        if folder is not None:
            _of_process = None


def killed_file(folder: str | os.PathLike[str], rank: int) -> str:
    """The file that exists if the test has killed the rank."""
    return os.path.join(folder, f"killed-{rank}")


class RanksOfTest:
    """The ranks of the test that runs, to make some of them fail or fall behind. All ranks call the same methods.

    >>> def work(comm):
    ...     ranks.kill(2)
    ...     try:
    ...         comm.barrier()
    ...     except af.RankLost:
    ...         comm = comm.shrink()
    ...     return comm.size
    >>> from allfold.testing import ranks, run
    >>> run(work, ranks=4)
    [3, 3, None, 3]
    """

    def kill(self, *ranks: int) -> None:
        """Kill these ranks with SIGKILL. The others go on, and the test does not fail because of it."""
        here = _here("kill", ranks)
        if here.folder is None:
            raise UsageError("ranks.kill: threads cannot be killed; run the test in processes, without threads=True")
        if len(set(ranks)) == here.size:
            raise UsageError(f"ranks.kill: none of {here.size} ranks would be left")
        if here.rank in ranks:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            with open(killed_file(here.folder, here.rank), "wb"):
                os.kill(os.getpid(), signal.SIGKILL)

    def delay(self, rank: int, seconds: float) -> None:
        """Have this rank sleep now."""
        if _here("delay", [rank], seconds).rank == rank:
            time.sleep(seconds)

    def slow(self, rank: int, seconds: float) -> None:
        """From now on, have every call of this rank start late by this many seconds."""
        if (here := _here("slow", [rank], seconds)).rank == rank:
            _watch_calls()
            here.seconds = seconds


def _here(name: str, ranks: Any, seconds: float = 0.0) -> _Here:
    """The rank that this is; checks the arguments of a method of `RanksOfTest`."""
    here = _of_thread.get() or _of_process
    if here is None:
        raise UsageError(f"ranks.{name} works in the ranks of @pytest.mark.ranks and of allfold.testing.run only")
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < here.size:
            raise UsageError(f"ranks.{name}: expected a rank from 0 to {here.size - 1}, not {rank!r:.40}")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
        raise UsageError(f"ranks.{name}: expected a number of seconds, not {seconds!r:.40}")
    return here


def _act() -> None:
    if (here := _of_thread.get() or _of_process) is not None:
        here.before_call()


@cache
def _watch_calls() -> None:
    """Have `_act` called before every call on a communicator, and on torch's groups of any backend, in this process."""
    for name in _CALLS:
        _act_before(Communicator, name)
    if "torch.distributed" not in sys.modules:
        return
    from allfold.intercept.dispatch import watch, watch_class
    from allfold.torch.group import Group

    watch_class(Group)
    watch("delays", _act_and_go)


def _act_and_go(_: object, go: Callable[[], Any]) -> Any:
    _act()
    return go()


def _act_before(owner: type, name: str) -> None:
    method = getattr(owner, name)

    @wraps(method)
    def acting(*args: Any, **kwargs: Any) -> Any:
        _act()
        return method(*args, **kwargs)

    setattr(owner, name, acting)
