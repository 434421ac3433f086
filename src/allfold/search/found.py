"""The task of a search, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..collectives import Collective, find_collective
from ..price.cost.bounds import ratio_of
from ..price.cost.certificate import Certificate
from ..price.cost.cost import Cost
from ..price.cost.cuts import TightestCut
from ..price.topology.network import Network
from ..price.topology.routing import unsplit
from ..price.topology.topology import Topology
from ..schedules import Schedule

if TYPE_CHECKING:
    from .paths.flows import Flows

Progress = Callable[[str], None]

_GOOD = 1.0095  # times the bound: segments are only chosen to 1 %, so nothing closer can be expected
_MANY, _GOOD_FOR_MANY = 100, 1.011  # the same for more ranks than this
_NEAR = 1.05  # times the bound


@dataclass(frozen=True, eq=False)
class Task:
    """One search: what every method is given."""

    collective: str
    topology: Topology
    network: Network
    ranks: int
    root: int | None
    size: int
    """Bytes of the whole buffer."""
    chunks: int | None = None
    """Chunks per slice (per buffer where there are no slices) if the user asked for a number."""
    seed: int = 0
    deadline: float = float("inf")
    """By `time.monotonic`. A method ends by itself soon after it."""
    progress: Progress | None = None
    most_moves: int = 2**40
    """More take too long to prove. What has more is only taken where there is nothing else."""
    bound: float = 0.0
    """Seconds that nothing can beat."""
    flows: Flows | None = None
    """For all_to_all, scatter and gather, if they are known already."""
    prices: list[float] = field(default_factory=list)
    """The prices of the schedules yielded so far, the last one last, for methods to go by."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Notes of methods besides schedules, as plain data: `Found.notes`."""

    @property
    def promise(self) -> Collective:
        return find_collective(self.collective)

    @property
    def whole(self) -> Topology:
        """The topology for methods that count whole chunks: no message is split."""
        return unsplit(self.topology)

    @property
    def left(self) -> float:
        """Seconds until the deadline; never negative."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def good(self) -> bool:
        """True if the best so far is so close to the bound that looking further is not worth it."""
        enough = _GOOD if self.ranks <= _MANY else _GOOD_FOR_MANY
        return bool(self.prices) and min(self.prices) <= self.bound * enough

    @property
    def near(self) -> bool:
        """True if the best so far is near the bound: good enough where looking further takes minutes."""
        return bool(self.prices) and min(self.prices) <= self.bound * _NEAR

    def say(self, sentence: str) -> None:
        if self.progress is not None:
            self.progress(sentence)


@dataclass(frozen=True, eq=False)
class Found:
    """The cheapest schedule that was found, and what nothing can beat.

    >>> found = af.find("all_gather", "dgx1", size=2**30)
    >>> found.schedule.ranks, found.method, found.ratio < 1.1
    (8, 'greedy', True)
    """

    schedule: Schedule
    cost: Cost
    """As `allfold.price.cost` prices the schedule on the topology."""
    certificate: Certificate
    """The proof of the bound, in exact numbers; `allfold check-bound` checks it."""
    cut: TightestCut | None
    """The cut that gives the bound, if one does."""
    why: str
    """The reason for the bound, as a sentence."""
    method: str
    seconds: float
    """Seconds that the search took; `proving` are those of the proof."""
    proving: float
    complete: bool = True
    """True if the search finished: time did not run out, and it was not interrupted."""
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def time(self) -> float:
        """Seconds, as `cost` prices the schedule."""
        return self.cost.time

    @property
    def bound(self) -> float:
        """Seconds that nothing can beat on this topology."""
        return self.certificate.bound

    @property
    def ratio(self) -> float | None:
        """The time divided by the bound; None if that is 0 and the time is not."""
        return ratio_of(self.time, self.bound)

    def to_json(self) -> dict[str, Any]:
        """The result as `allfold find --json` prints it."""
        return {
            "collective": self.schedule.collective,
            "algorithm": self.schedule.algorithm,
            "ranks": self.schedule.ranks,
            "root": self.schedule.root,
            "chunks": self.schedule.chunks,
            "steps": self.schedule.steps,
            "size": self.cost.size,
            "topology": self.cost.topology,
            "time": self.time,
            "bound": self.bound,
            "ratio": self.ratio,
            "why": self.why,
            "cut": None if self.cut is None else self.cut.to_json(),
            "certificate": self.certificate.to_json(),
            "method": self.method,
            "seconds": self.seconds,
            "proving": self.proving,
            "complete": self.complete,
            "notes": self.notes,
            "cost": self.cost.to_json(),
        }
