"""Sweeps: the fastest algorithm for every size and every number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..topology.topology import Topology
from .plan import Plan, Planner, Progress


@dataclass(frozen=True, eq=False)
class Sweep:
    """A plan for every size (rows) and every number of ranks (columns).

    >>> sweep = price.sweep("all_reduce", price.laptop, ranks=[4], sizes=[2**10, 2**26], names=["tree", "ring"])
    >>> [sweep.plans[4, size].costs[0].algorithm for size in sweep.sizes]
    ['tree', 'ring']
    """

    collective: str
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    plans: dict[tuple[int, int], Plan]
    """By (ranks, size)."""

    @property
    def winners(self) -> list[str]:
        """The algorithms that win somewhere, in the order in which they first win, from small to large."""
        met = (self.plans[ranks, size].winner.algorithm for size in self.sizes for ranks in self.ranks)
        return list(dict.fromkeys(met))

    def to_json(self) -> dict[str, Any]:
        return {
            "collective": self.collective,
            "ranks": list(self.ranks),
            "sizes": list(self.sizes),
            "cells": [
                {
                    "ranks": ranks,
                    "size": size,
                    "topology": plan.topology.name,
                    "winner": plan.winner.algorithm,
                    "time": plan.winner.time,
                    "limit": plan.winner.limit.kind,
                    "ratio": plan.winner.ratio,
                    "times": {cost.algorithm: cost.time for cost in plan.costs},
                    "left_out": plan.left_out,
                }
                for (ranks, size), plan in self.plans.items()
            ],
        }


def sweep(
    collective: str,
    topology: Callable[[int], Topology],
    ranks: Sequence[int],
    sizes: Sequence[int],
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Plans for all sizes and numbers of ranks; `topology` makes the topology for a number of ranks.

    >>> sweep = price.sweep("all_reduce", price.laptop, ranks=[2, 4], sizes=[2**20], names=["tree", "ring"])
    >>> sorted(sweep.plans)
    [(2, 1048576), (4, 1048576)]
    """
    plans: dict[tuple[int, int], Plan] = {}
    for many in ranks:
        planner = Planner(collective, topology(many), many, names, progress)
        for size in sizes:
            plans[many, size] = planner.plan(size)
    return Sweep(collective, tuple(ranks), tuple(sizes), plans)
