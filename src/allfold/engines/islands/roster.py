"""The ranks of a group that spans islands, and the shared memory of this rank's island."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..shared_memory.engine import SharedMemory


@dataclass(frozen=True)
class Roster:
    """The members of a group. Ranks are numbers in the group, except those in `ranks`."""

    number: int  # of the group, in the whole run; the world has 0
    label: str  # the group's name in errors
    timeout: float  # of calls that have none of their own
    rank: int  # this one
    size: int
    ranks: list[int]  # by rank: its number in the world
    islands: list[list[int]]  # the ranks that share memory, in the order of their lowest ranks
    mine: list[int]  # the island of this rank
    local: dict[int, int]  # by rank of this island: its number there

    @classmethod
    def of(
        cls, rank: int, islands: Sequence[Sequence[int]], ranks: Sequence[int], label: str, timeout: float, number: int
    ) -> Roster:
        """The roster of some ranks of the world, in this order. `rank` and `islands` are those of the world."""
        at = {one: position for position, one in enumerate(ranks)}
        groups = sorted(sorted(at[one] for one in island if one in at) for island in islands)
        groups = [group for group in groups if group]
        mine = next(group for group in groups if at[rank] in group)
        local = {one: position for position, one in enumerate(mine)}
        return cls(number, label, timeout, at[rank], len(ranks), list(ranks), groups, mine, local)

    @property
    def leaders(self) -> list[int]:
        """The first rank of every island."""
        return [island[0] for island in self.islands]

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    @property
    def is_in_order(self) -> bool:
        """True if the islands, one after the other, list all ranks in order."""
        return [rank for island in self.islands for rank in island] == list(range(self.size))


@dataclass(frozen=True)
class Shared:
    """The shared memory of this rank's island: two engines, so that users' messages never match those of collectives."""

    collectives: SharedMemory
    messages: SharedMemory
    """For users' messages. It runs collectives only to explain a mismatch."""

    def group(self, local: Sequence[int], timeout: float | None, label: str | None) -> Shared | None:
        """The shared memory of some of the island's ranks; None on the others. `label`: the group's name in errors."""
        messages = self.messages.group(local, timeout, label)
        collectives = self.collectives.group(local, timeout)
        return None if messages is None or collectives is None else Shared(collectives, messages)

    def abort(self) -> None:
        for engine in (self.collectives, self.messages):
            engine.native.abort()  # not engine.abort(), which would report the exception being handled here
        self.collectives.messages.close()

    def close(self) -> None:
        for engine in (self.collectives, self.messages):
            engine.close(False)
