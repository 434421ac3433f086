"""The choice of an engine for given ranks and arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import AllfoldError, UsageError
from .buffer import memory_of
from .engine import CUDA, Call, Engine, Processes
from .table import check, compare_names, in_processes, over

ENGINE_OF = {CUDA: "stream"}
"""The engine for arrays in memory that is not main memory, by kind of memory."""


VARIABLE = "ALLFOLD_ENGINE"


def named(engine: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The engine named by the program or by its environment; None if neither names one."""
    __tracebackhide__ = True
    if engine is not None:
        check(engine)
        return engine
    if (by_variable := environ.get(VARIABLE)) is not None:
        try:
            check(by_variable)
        except UsageError as error:
            raise UsageError(f"{VARIABLE}: {error}") from None
    return by_variable


def meet(ranks: Processes, timeout: float, engine: str | None = None) -> Engine:
    """The engine of this rank: the named one, or the one for the ranks' hosts."""
    fitting = fitting_engine(ranks.is_spread)
    if engine is None:
        return in_processes(fitting, ranks, timeout)
    # Ranks that name no engine, or this one, are where those of the fitting one meet.
    board = compare_names(fitting, ranks, engine, timeout) if engine != fitting and ranks.size > 1 else None
    made = in_processes(engine, ranks._replace(is_named=True), timeout)
    del board  # not earlier: ranks that have not met yet may still look at it
    return made


def fitting_engine(is_spread: bool) -> str:
    """The engine for ranks that name none; `is_spread`: they may be on several hosts."""
    return "islands" if is_spread else "shared_memory"


class Engines:
    """The engines of one communicator: that of its ranks, and one for each other kind of memory, made on first use."""

    def __init__(self, main: Engine) -> None:
        self.main = main
        self.others: dict[str, Engine] = {}  # by kind of memory

    def serving(self, call: Call) -> Engine:
        """The engine for the arrays of a call. All ranks take part in the first call with another kind of memory."""
        main, input, output = self.main.memory, call.input, call.output
        if (input is None or memory_of(input) == main) and (output is None or memory_of(output) == main):
            return self.main
        kinds = [memory_of(array) for array in (input, output) if array is not None]
        if kinds[0] != kinds[-1]:
            raise UsageError(f"{call.collective}: one array is in a GPU's memory, the other is not; both must be")
        return self.for_memory(call.collective, kinds[0], call.timeout)

    def for_memory(self, caller: str, memory: str, timeout: float | None) -> Engine:
        """The engine for arrays in a kind of memory. All ranks take part in the first use of another kind."""
        if memory == self.main.memory:
            return self.main
        if memory not in self.others:
            self.others[memory] = self._made(caller, memory, timeout)
        return self.others[memory]

    def _made(self, caller: str, memory: str, timeout: float | None) -> Engine:
        if memory not in ENGINE_OF:
            raise UsageError(f"{caller}: the engine of {self.main.label} takes arrays in a GPU's memory only")
        try:
            # Its calls wait in a stream, where others must not overtake them: it has a group of its own.
            return over(ENGINE_OF[memory], self.main.inner(timeout))
        except AllfoldError:
            raise
        except BaseException:  # an interrupt: the other ranks must not wait for the rest
            self.main.abort()
            raise

    def abort(self) -> None:
        self.main.abort()
        for engine in self.others.values():
            engine.abort()

    def close(self, compares: bool) -> None:
        for engine in self.others.values():
            engine.close(compares=False)
        self.main.close(compares)
