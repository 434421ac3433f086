"""The engine of ranks on several hosts: shared memory inside an island, the fabric's messages between islands.

A group has four parts. `calls.py` makes calls one after the other, on the calling thread or in the background, and times
them. `agreement.py` checks that all ranks make the same call, before its data are used. `membership.py` knows which ranks
are there and what has failed; a failure cuts the fabric and aborts the island, which ends all waits. `execution/` carries
calls out. `parts.py` puts the parts together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine import Background, Call, Engine, Entry, Event, MeasuredNetwork, name_group
from ..shared_memory.members import number_of
from ..signature import check_groups
from .crossing import Crossing
from .execution.probe import clock_shift, probe
from .parts import Parts
from .roster import Roster


class Islands(Engine):
    """One rank's end of a group that spans islands."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self._roster = parts, parts.roster
        self.rank, self.size = parts.roster.rank, parts.roster.size
        self.label, self.timeout = parts.roster.label, parts.roster.timeout
        self.messages = parts.messages
        self._groups = 0

    # Calls -----------------------------------------------------------------------------------------------------------

    def run(self, call: Call, async_op: bool) -> Background | None:
        return self.parts.calls.begin(call, async_op)

    def entry(self, run: Entry, vouched: bool = False) -> Entry:
        return self.parts.executor.entry(run, vouched)

    def calls(self) -> int:
        return self.parts.calls.direct.made()

    def failed(self, error: BaseException) -> None:
        self.parts.calls.explain(error)

    def flight(self) -> dict[str, Any]:
        return {**self.parts.calls.flight(), "size": self.size, "label": self.label}

    def start_trace(self) -> None:
        self.parts.executor.start_trace()

    def stop_trace(self) -> list[Event]:
        recorder, inside = self.parts.executor.stop_trace()
        if recorder is None:
            return []
        self.run(Call("barrier"), False)  # no other call is in progress after it
        return recorder.events(inside, clock_shift(self.parts.executor.levels))

    # Hosts -----------------------------------------------------------------------------------------------------------

    def hosts(self) -> list[list[int]]:
        return self._roster.islands

    def network(self, by_size: bool = False) -> MeasuredNetwork:
        return probe(self.parts.executor.levels, lambda call: self.run(call, False), by_size)

    @property
    def address(self) -> str | None:
        return self.parts.fabric.address

    @property
    def fabric_name(self) -> str:
        return self.parts.fabric.name

    @property
    def crossing(self) -> Crossing:
        return self.parts.executor.levels.crossing

    def cross_by(self, crossing: Crossing) -> None:
        """Use other rules. Every rank calls this between two calls, with the same rules."""
        self.parts.executor.levels.cross_by(crossing)

    # Memory, groups, life --------------------------------------------------------------------------------------------

    def empty(self, bytes: int) -> np.ndarray[Any, Any]:
        return self.parts.shared.messages.empty(bytes)

    def group(self, ranks: Sequence[int], timeout: float | None) -> Engine | None:
        roster, chosen = self._roster, list(ranks)
        own = np.full(self.size, -1, np.int64)
        own[: len(chosen)] = chosen
        table = np.empty((self.size, self.size), np.int64)
        self.run(Call("all_gather", input=own, output=table, timeout=timeout), False)
        self._groups += 1
        check_groups([[rank for rank in row if rank >= 0] for row in table.tolist()])
        is_member = self.rank in chosen
        # Ranks outside create a throwaway group, because group() is collective in an island.
        here = [roster.local[rank] for rank in (chosen if is_member else [self.rank]) if rank in roster.local]
        label = name_group(self._groups, chosen, self.label)
        is_inside = len(here) == len(chosen)  # in one island: callers then see the errors of its engine
        shared = self.parts.shared.group(here, timeout, label if is_inside else None)
        if not is_member:
            return None
        assert shared is not None
        if is_inside:
            return shared.messages
        number = number_of(roster.number, self._groups, chosen)
        fabric = self.parts.fabric.another(f"group {number}", chosen)
        world, members = self.parts.world, [roster.ranks[rank] for rank in chosen]
        smaller = Roster.of(world.rank, world.islands, members, label, self.timeout, number)
        return Islands(Parts.join(world, smaller, shared, fabric, self.timeout))

    def shrink(self, timeout: float | None) -> Engine:
        return self.parts.membership.shrink(self.timeout if timeout is None else timeout)

    def close(self, compares: bool) -> None:
        self.parts.close()

    def abort(self) -> None:
        self.parts.abort()
