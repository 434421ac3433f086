"""The one place that says which engine serves which ranks, and which arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import AllfoldError, UsageError
from .buffer import memory_of
from .engine import CUDA, Call, Engine, Processes
from .table import check, in_processes, over

ENGINE_OF = {CUDA: "stream"}
"""The engine for arrays in memory that is not main memory, by kind of memory."""


VARIABLE = "ALLFOLD_ENGINE"


def named(engine: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The engine that a program names, or else its environment; None: neither does."""
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
    """The engine of this rank: the one that is named, or the one that fits where the ranks are."""
    if engine is not None:
        return in_processes(engine, ranks._replace(is_named=True), timeout)
    return in_processes("islands" if ranks.is_spread else "shared_memory", ranks, timeout)


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
        return self.others.get(kinds[0]) or self._made(call, kinds[0])

    def _made(self, call: Call, memory: str) -> Engine:
        if memory not in ENGINE_OF:
            raise UsageError(f"{call.collective}: the engine of {self.main.label} takes arrays in a GPU's memory only")
        try:
            # Its calls wait in a stream, where others must not overtake them: it has a group of its own.
            own = self.main.group(range(self.main.size), call.timeout)
            assert own is not None
            self.others[memory] = over(ENGINE_OF[memory], own)
        except AllfoldError:
            raise
        except BaseException:  # an interrupt: the other ranks must not wait for the rest
            self.main.abort()
            raise
        return self.others[memory]

    def abort(self) -> None:
        self.main.abort()
        for engine in self.others.values():
            engine.abort()

    def close(self, compares: bool) -> None:
        for engine in self.others.values():
            engine.close(compares=False)
        self.main.close(compares)
