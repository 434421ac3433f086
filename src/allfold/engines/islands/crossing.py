"""How large arrays cross between islands: what is built in, and what `allfold tune` found for given hosts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...documents import DocumentError, list_at, object_at, text_at, whole_at
from ..shared_memory.tuning import TuningError, read_document, tuning_path
from .fronts import most_bytes

_MOST_SEGMENT, _MOST_RANKS = 1 << 40, 1 << 20
_MOST_RUNS = 1000

IN_ORDER = ("naive", "direct")
"""The algorithms that fold in the order of the islands, so that tuning never changes a bit of the result."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Crossing:
    """How an all_reduce crosses. Whatever is chosen, the result has the same bits."""

    leaders_up_to: int = 2 << 20
    """Bytes up to which one leader per island crosses; beyond, every rank does, with its share."""
    segment: int = 32 << 20
    """Bytes that are on their way at once: a message costs much and starts late, so few and long ones."""
    across: str | None = None
    """How the shares cross; the built-in rule if None."""

    def leaders(self, islands: int) -> int:
        """Up to how many bytes the leaders of so many islands cross with what the call is."""
        return min(self.leaders_up_to, most_bytes(islands))

    def algorithm(self, islands: int) -> str:
        """The algorithm by which the shares of a large array cross."""
        return self.across or ("naive" if islands == 2 else "direct")

    def schedule(self, islands: Sequence[Sequence[int]], bytes: int) -> tuple[str, dict[str, Any]]:
        """The algorithm that an all_reduce of so many bytes follows, and its parameters."""
        groups, many = [list(island) for island in islands], len(islands)
        if bytes <= self.leaders_up_to:
            across = "naive" if bytes <= self.leaders(many) else "direct"
            return "hierarchical", {"groups": groups, "up": "driver", "across": across, "down": "driver"}
        return "two_level", {
            "groups": groups,
            "scatter": "direct",
            "across": self.algorithm(many),
            "gather": "direct",
        }

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
