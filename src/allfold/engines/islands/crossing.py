"""How calls that name no algorithm cross between islands: what is built in, and what `allfold tune` found for hosts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...collectives import find_collective
from ...documents import DocumentError, list_at, object_at, text_at, whole_at
from ..shared_memory.tuning import TuningError, read_document, tuning_path
from .fronts import most_bytes

_MOST_SEGMENT, _MOST_RANKS = 1 << 40, 1 << 20
_MOST_RUNS = 1000

IN_ORDER = ("naive", "direct")
"""The algorithms that fold in the order of the islands, so that tuning never changes a bit of the result."""

SLICES_BY_LEADERS = 1 << 20
"""Bytes of all slices up to which leaders cross with them; beyond, every rank does, with its own slice."""

_MOST_SPOKES = 3  # islands to which the root of a broadcast sends by itself
_WAYS = {
    "reduce": ("hierarchical", {"up": "driver", "across": "driver"}),
    "broadcast": ("hierarchical", {"across": "driver", "down": "driver"}),
    "gather": ("hierarchical", {"up": "driver", "across": "driver"}),
    "scatter": ("hierarchical", {"across": "driver", "down": "driver"}),
    "all_gather": ("two_level", {"across": "direct", "gather": "direct"}),
    "reduce_scatter": ("two_level", {"scatter": "direct", "across": "direct"}),
    "scan": ("tree", {}),
    "exscan": ("tree", {}),
    "barrier": ("hierarchical", {"up": "driver", "across": "naive", "down": "driver"}),
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Crossing:
    """How calls cross. Whatever is chosen, the result has the same bits. Only the all_reduce is tuned."""

    leaders_up_to: int = 2 << 20
    """Bytes of an all_reduce up to which one leader per island crosses; beyond, every rank does, with its share."""
    segment: int = 32 << 20
    """Bytes that are on their way at once: a message costs much and starts late, so few and long ones."""
    across: str | None = None
    """How the shares cross; the built-in rule if None."""

    def leaders(self, islands: int) -> int:
        """The most bytes that leaders send along with the signature of a call, for this many islands."""
        return min(self.leaders_up_to, most_bytes(islands))

    def algorithm(self, islands: int) -> str:
        """The algorithm by which the shares of a large array cross."""
        return self.across or ("naive" if islands == 2 else "direct")

    def schedule(
        self, collective: str, islands: Sequence[Sequence[int]], bytes: int, commutative: bool = True
    ) -> tuple[str, dict[str, Any]]:
        """The algorithm that a call follows when it names none, and its parameters; the engine does just this.

        `bytes`: of the whole array on one rank, all slices together. `commutative`: whether the operation is; if not, and
        the ranks of the islands are not consecutive, the call is folded in rank order between all ranks.
        """
        promise = find_collective(collective)
        groups, many = [list(island) for island in islands], len(islands)
        order = [rank for group in groups for rank in group]
        if not commutative and order != list(range(len(order))):
            return "driver" if promise.rooted else "direct", {}
        if promise.round_trip:
            if bytes > self.leaders_up_to:
                by = {"scatter": "direct", "across": self.algorithm(many), "gather": "direct"}
                return "two_level", {"groups": groups, **by}
            across = "naive" if bytes <= self.leaders(many) else "direct"
            return "hierarchical", {"groups": groups, "up": "driver", "across": across, "down": "driver"}
        if promise.sliced and promise.rooted and bytes > SLICES_BY_LEADERS:
            return "driver", {}
        if promise.sliced and promise.trees and bytes <= SLICES_BY_LEADERS:
            return "hierarchical", {"groups": groups, "up": "driver", "across": "direct", "down": "driver"}
        name, by = _WAYS.get(collective, ("direct", {}))
        if promise.in_place and promise.starts.root_only and many > _MOST_SPOKES:
            by = {**by, "across": "tree"}
        return name, {"groups": groups, **by} if by else {}

    def segments(self, bytes: int) -> int:
        """In how many segments an array crosses."""
        return 1 if bytes <= self.leaders_up_to else -(-bytes // self.segment)


BUILT_IN = Crossing()


@dataclass(frozen=True)
class Tuned:
    """What was found for some hosts: how many ranks each has, and by which fabric they are connected."""

    hosts: tuple[int, ...]
    fabric: str
    crossing: Crossing

    def to_json(self) -> dict[str, Any]:
        return {"hosts": list(self.hosts), "fabric": self.fabric, "crossing": asdict(self.crossing)}

    @staticmethod
    def from_json(value: object) -> Tuned:
        one = object_at(value, "a run between hosts")
        crossing = object_at(one.get("crossing"), "crossing")
        across = crossing.get("across")
        if across is not None and across not in IN_ORDER:
            raise DocumentError(f"across is {across!r:.60}; expected one of {', '.join(IN_ORDER)}")
        hosts = [whole_at(count, "ranks of a host", 1, _MOST_RANKS) for count in list_at(one.get("hosts"), "hosts", 2)]
        return Tuned(
            tuple(hosts),
            text_at(one.get("fabric"), "fabric", 20),
            Crossing(
                whole_at(crossing.get("leaders_up_to"), "leaders_up_to", 0, _MOST_SEGMENT),
                whole_at(crossing.get("segment"), "segment", 1, _MOST_SEGMENT),
                across,
            ),
        )


def tuned_of(document: Mapping[str, Any]) -> list[Tuned]:
    """What a tuning file holds of hosts."""
    try:
        return [Tuned.from_json(one) for one in list_at(document.get("hosts", []), "hosts", 0, _MOST_RUNS)]
    except DocumentError as error:
        raise TuningError(f"it is damaged: {error}") from None


def find_tuned() -> list[Tuned]:
    """What the tuning file of this user says; nothing if there is none. Why it cannot be used, the islands say."""
    path, _ = tuning_path()
    try:
        return [] if path is None else tuned_of(read_document(path))
    except FileNotFoundError:
        return []
    except (TuningError, OSError) as error:
        log.debug("the tuning file is ignored between hosts: %s", error)
        return []
