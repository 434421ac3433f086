"""The choice of algorithms between islands for calls that name none: built-in rules, and what `allfold tune` found."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...collectives import find_collective
from ...documents import DocumentError, list_at, object_at, text_at, whole_at
from ..shared_memory.tuning import TuningError, read_document, tuning_path

_MOST_SEGMENT, _MOST_RANKS = 1 << 40, 1 << 20
_MOST_RUNS = 1000

IN_ORDER = ("naive", "direct")
"""The algorithms that fold in the order of the islands, so that tuning never changes the bits of a result."""

ALONG_BYTES = 1 << 16
"""At most this much data is sent in the same message as the header of a call; more follows in a message of its own."""
_FOLLOWING_BYTES = 4 << 20
_ALL_BYTES = 16 << 20  # at most this much is received from all other leaders in one call

SLICES_BY_LEADERS = 1 << 20
"""Bytes of all slices together up to which only leaders send to other islands; above, every rank sends its own slice."""

_MOST_COLLECTED = 128  # ranks up to which leaders collect what each of their ranks has for each other rank
_MOST_SPOKES = 3  # islands to which the root of a broadcast sends directly
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
    """The rules by which calls cross between islands. The result has the same bits with all of them. Only all_reduce is
    tuned."""

    leaders_up_to: int = 512 << 10
    """Bytes of an all_reduce up to which only one leader per island crosses; above, every rank does, with its share."""
    segment: int = 4 << 20
    """Bytes of a segment. Short, so that the network is busy while hosts add; but every segment costs messages and waits."""
    across: str | None = None
    """The algorithm by which shares cross; None: the built-in rule."""

    def leaders(self, islands: int) -> int:
        """The most bytes that leaders send with the header of a call, for this many islands."""
        return min(self.leaders_up_to, most_bytes(islands))

    def algorithm(self, islands: int) -> str:
        """The algorithm by which the shares of a large array cross."""
        return self.across or ("naive" if islands == 2 else "direct")

    def schedule(
        self, collective: str, islands: Sequence[Sequence[int]], bytes: int, commutative: bool = True
    ) -> tuple[str, dict[str, Any]]:
        """The algorithm of a call that names none, and its parameters; the engine does exactly this.

        `bytes`: the length of the whole array on one rank, all slices together. `commutative`: False if the operation is
        not; then, unless the ranks of the islands are consecutive, all ranks exchange messages and fold in rank order.
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
        if promise.exchanges or promise.has_order:
            in_order = order == list(range(len(order)))
            # How many buffers long the longest message between two leaders is; at least one, since buffers are collected.
            buffers = max(1, max(map(len, groups)) ** 2 / len(order)) if promise.exchanges else 1
            fits = buffers * bytes <= ALONG_BYTES and len(order) <= _MOST_COLLECTED
            if fits and (promise.exchanges or in_order):
                return "hierarchical", {"groups": groups}
        name, by = _WAYS.get(collective, ("direct", {}))
        if promise.in_place and promise.starts.root_only and many > _MOST_SPOKES:
            by = {**by, "across": "tree"}
        return name, {"groups": groups, **by} if by else {}

    def segments(self, bytes: int) -> int:
        """The number of segments in which an array crosses."""
        return 1 if bytes <= self.leaders_up_to else -(-bytes // self.segment)


BUILT_IN = Crossing()


@dataclass(frozen=True)
class Tuned:
    """The tuning for some hosts: the number of ranks on each, the fabric that connects them, and the rules."""

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
    """The part of a tuning file about hosts."""
    try:
        return [Tuned.from_json(one) for one in list_at(document.get("hosts", []), "hosts", 0, _MOST_RUNS)]
    except DocumentError as error:
        raise TuningError(f"it is damaged: {error}") from None


def find_tuned() -> list[Tuned]:
    """The user's tuning for hosts; empty if there is none. The shared-memory engine warns if the file cannot be used."""
    path, _ = tuning_path()
    try:
        return [] if path is None else tuned_of(read_document(path))
    except FileNotFoundError:
        return []
    except (TuningError, OSError) as error:
        log.debug("the tuning file is ignored between hosts: %s", error)
        return []


def most_bytes(islands: int) -> int:
    """The longest data that the leaders of this many islands exchange with their headers."""
    return min(_FOLLOWING_BYTES, _ALL_BYTES // max(1, islands - 1))
