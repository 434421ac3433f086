"""Everything that allfold raises on purpose: one hierarchy, so that `except allfold.AllfoldError` catches it all."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from types import CodeType


class AllfoldError(Exception):
    """The root of the hierarchy.

    >>> try:
    ...     af.schedule("all_reduce", "no_such_thing", ranks=4)
    ... except af.AllfoldError as error:
    ...     print(type(error).__name__)
    UsageError
    """


class UsageError(AllfoldError, ValueError):
    """An argument cannot be used; the message says what was expected and what was passed.

    >>> try:
    ...     af.spawn(print, ranks=0)
    ... except af.UsageError as error:
    ...     print(error)
    expected a whole number of ranks, at least 1; got 0
    """


class EngineMissing(UsageError):
    """The request runs between processes, and this allfold has no engine; the message says what works."""


class SolverMissing(UsageError):
    """A search or a bound needs a linear program, and scipy, which solves it, cannot be imported."""


class ScheduleError(AllfoldError):
    """A schedule is wrong. `rank`, `chunk`, `step` and `site` say where, as far as it is known.

    >>> def half(ranks):
    ...     yield [af.reduce(chunk=0, source=r, destination=0) for r in range(1, ranks)]
    >>> try:
    ...     af.verify(af.schedule("all_reduce", half, ranks=3))
    ... except af.ScheduleError as error:
    ...     print(error.rank, error.chunk)
    1 0
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        chunk: int | None = None,
        step: int | None = None,
        site: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.chunk = chunk
        self.step = step
        self.site = site


class BoundError(AllfoldError):
    """A certificate does not prove its lower bound; or a schedule is priced below one, which is a mistake in allfold.

    >>> certificate = af.find("broadcast", "ring", ranks=4, size=10**6, seconds=2).certificate.to_json()
    >>> try:
    ...     price.check_bound({**certificate, "seconds": "1"}, price.ring(4))
    ... except af.BoundError as error:
    ...     print(error)
    it claims 1 s, but proves only 1e-05 s on ring
    """


class MismatchError(AllfoldError, RuntimeError):
    """Ranks differ in what should be the same call: in its collective, count, type, operation or root.

    >>> def work(comm):
    ...     try:
    ...         comm.all_reduce(np.zeros(1000 + comm.rank))
    ...     except af.MismatchError as error:
    ...         return str(error)
    >>> print(af.spawn(work, ranks=2)[0])
    all_reduce: rank 0 called it with float64[1000] sum, rank 1 with float64[1001] sum (call 1 of the world)
    """


class RankLost(AllfoldError, RuntimeError):
    """A rank of the communicator is gone.

    >>> import os
    >>> def work(comm):
    ...     if comm.rank == 1:
    ...         os._exit(3)
    ...     try:
    ...         comm.barrier()
    ...     except af.RankLost as error:
    ...         return comm.shrink().size
    >>> af.spawn(work, ranks=3, survive=True)
    [2, None, 2]
    """


class CollectiveTimeout(AllfoldError, TimeoutError):
    """A call did not finish within its timeout; the message names the ranks that did not arrive.

    >>> import time
    >>> def work(comm):
    ...     time.sleep(100)
    >>> try:
    ...     af.spawn(work, ranks=2, timeout=0.5)
    ... except af.CollectiveTimeout as error:
    ...     print(error)
    spawn: ranks 0 and 1 of 2 had not finished after 0.5 s; all ranks were ended
    """


class RankFailed(AllfoldError, RuntimeError):
    """A rank started by the launcher raised or died; `traceback` is that rank's own.

    `ranks` are all that failed by themselves, this one first.

    >>> def work(comm):
    ...     return 1 / comm.rank
    >>> try:
    ...     af.spawn(work, ranks=2)
    ... except af.RankFailed as error:
    ...     print(error.rank, error.traceback.splitlines()[-1])
    0 ZeroDivisionError: division by zero
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        ranks: Sequence[int] = (),
        traceback: str = "",
        exit_code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.ranks = [*ranks] or [rank]
        self.traceback = traceback
        self.exit_code = exit_code


class SharedMemoryError(AllfoldError, MemoryError):
    """The machine has no room for shared memory, or does not allow it; the message says what to set.

    >>> def work(comm):
    ...     try:
    ...         comm.empty(2**50)
    ...     except af.SharedMemoryError as error:
    ...         return type(error).__name__
    >>> af.spawn(work, ranks=1)
    ['SharedMemoryError']
    """


class DeviceError(AllfoldError, RuntimeError):
    """A GPU or its driver reported an error; the message says which.

    >>> issubclass(af.DeviceError, af.AllfoldError)
    True
    """


# Errors of others -----------------------------------------------------------------------------------------------------


def raised_by_handler(error: BaseException) -> bool:
    """True if a signal handler raised this error.

    Python runs a handler between any two instructions of the main thread. So its exception may come out of any function
    and say nothing about that function. Code that turns the errors of a function into its own leaves it alone.
    """
    handlers = {_code(signal.getsignal(number)) for number in range(1, signal.NSIG)} - {None}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in handlers:
        trace = trace.tb_next
    return trace is not None


def _code(handler: object) -> CodeType | None:
    """The code of a handler that is written in Python: a function, a method, or an object that can be called."""
    while isinstance(handler, partial):
        handler = handler.func
    function = handler if hasattr(handler, "__code__") else getattr(type(handler), "__call__", None)  # noqa: B004
    return getattr(function, "__code__", None)
