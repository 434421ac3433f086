"""Groups: ordered sets of ranks of the world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from . import constants as c
from .failures import error
from .handles import MPIHandle


class RankList:
    """The ranks of a group, as they are numbered in the world."""

    def __init__(self, world: Sequence[int]) -> None:
        self.world = tuple(world)


class Group(MPIHandle):
    """An ordered set of ranks."""

    _null_error = "ERR_GROUP"
    _ob: RankList | None

    @property
    def ranks(self) -> tuple[int, ...]:
        group: RankList = self._need()
        return group.world

    @classmethod
    def _from(cls, ranks: Sequence[int]) -> Self:
        return cls._of(RankList(ranks) if ranks else _EMPTY)

    def Get_size(self) -> int:
        return len(self.ranks)

    def Get_rank(self) -> int:
        from .environment import world_rank

        ranks, own = self.ranks, world_rank()
        return ranks.index(own) if own in ranks else c.UNDEFINED

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        own = self.ranks
        if group is None:
            from .environment import world

            group = Group._from(world().world.world)
        other = group.ranks
        given = range(len(own)) if ranks is None else ranks
        return [
            rank
            if rank == c.PROC_NULL
            else other.index(own[rank])
            if own[self._checked(rank)] in other
            else c.UNDEFINED
            for rank in given
        ]

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < len(self.ranks):
            raise error("ERR_RANK", f"a group of {len(self.ranks)} has no rank {rank}")
        return rank

    def Compare(self, group: Group) -> int:
        first, second = self.ranks, group.ranks
        return c.IDENT if first == second else c.SIMILAR if sorted(first) == sorted(second) else c.UNEQUAL

    def Dup(self) -> Self:
        return type(self)._of(RankList(self.ranks))

    Clone = Dup

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Self:
        return cls._from([*group1.ranks, *(rank for rank in group2.ranks if rank not in group1.ranks)])

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Self:
        return cls._from([rank for rank in group1.ranks if rank in group2.ranks])

    Intersect = Intersection

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Self:
        return cls._from([rank for rank in group1.ranks if rank not in group2.ranks])

    def Incl(self, ranks: Sequence[int]) -> Self:
        return type(self)._from([self.ranks[rank] for rank in self._different(ranks)])

    def Excl(self, ranks: Sequence[int]) -> Self:
        out = self._different(ranks)
        return type(self)._from([one for rank, one in enumerate(self.ranks) if rank not in out])

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> Self:
        return self.Incl(_listed(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> Self:
        return self.Excl(_listed(ranks))

    def _different(self, ranks: Sequence[int]) -> list[int]:
        given = [self._checked(rank) for rank in ranks]
        if len(set(given)) != len(given):
            raise error("ERR_RANK", f"the ranks must differ: {given}")
        return given

    @classmethod
    def Create_from_session_pset(cls, session: Any, pset_name: str) -> Self:
        from .refused import refuse

        raise refuse("sessions", "use MPI.COMM_WORLD.Get_group()")

    size, rank = property(Get_size), property(Get_rank)


def _listed(ranges: Sequence[tuple[int, int, int]]) -> list[int]:
    ranks: list[int] = []
    for first, last, step in ranges:
        if step == 0:
            raise error("ERR_ARG", "the step of a range of ranks must not be 0")
        ranks += range(first, last + (1 if step > 0 else -1), step)
    return ranks


_EMPTY = RankList(())
GROUP_NULL, GROUP_EMPTY = Group._of(None), Group._of(_EMPTY)
GROUP_NULL._predefined = GROUP_EMPTY._predefined = True
