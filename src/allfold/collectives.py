"""What the collectives promise: what every chunk holds at the start, and what it must hold at the end.

A rank's buffer is a row of chunks. Where a collective has slices (one per rank: gather, scatter, all_gather,
reduce_scatter, all_to_all), the row is the whole array and slice i belongs to rank i; scratch chunks may follow.
What a chunk holds is written as a number, its *datum*: which piece of data it is, wherever it lies. For a collective
that reduces, a datum is complete when every rank has contributed to it exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError
from .wording import suggest

NOTHING = -1
"""The datum of a chunk that holds nothing; in a postcondition, that of a chunk that may hold anything."""


@dataclass(frozen=True)
class Bounds:
    """Lower bounds: no schedule of the collective needs less. Bytes are multiples of S, the bytes of the whole buffer.

    `rounds`: messages that must follow one another when a port carries one at a time.
    """

    rounds: int
    messages: int
    bytes: Fraction
    busiest_port_bytes: Fraction


@dataclass(frozen=True)
class Collective:
    """One collective: its shape, its promise and its lower bounds."""

    name: str
    summary: str
    rooted: bool = False
    reduces: bool = False
    sliced: bool = False
    in_place: bool = False
    idempotent: bool = False
    """A contribution may arrive twice (a barrier's signal); elsewhere that is an error."""
    carries_data: bool = True

    def slices(self, ranks: int) -> int:
        return ranks if self.sliced else 1

    def chunks(self, ranks: int, named: int) -> int:
        """How many chunks the buffer has if the highest chunk that moves name is `named - 1`."""
        return ranks if self.sliced else max(1, named)

    def starts_with(self, ranks: int, root: int | None, chunks: int) -> NDArray[np.int32]:
        """The datum in every chunk of every rank before the first step."""
        return _layout(self, ranks, root, chunks, at_end=False)

    def ends_with(self, ranks: int, root: int | None, chunks: int) -> NDArray[np.int32]:
        """The datum that every chunk of every rank must hold after the last step."""
        return _layout(self, ranks, root, chunks, at_end=True)

    def bounds(self, ranks: int) -> Bounds:
        others = ranks - 1
        everybody_hears_everybody = not self.rooted
        slice_only = Fraction(others, ranks)
        port = {
            "all_reduce": 2 * slice_only,
            "broadcast": Fraction(min(others, 1)),
            "reduce": Fraction(min(others, 1)),
            "barrier": Fraction(0),
        }.get(self.name, slice_only)
        total = {
            "all_reduce": Fraction(2 * others),
            "gather": slice_only,
            "scatter": slice_only,
            "barrier": Fraction(0),
        }.get(self.name, Fraction(others))
        return Bounds(
            rounds=others.bit_length(),  # the number of ranks that know something can at most double per round
            messages=others * (2 if everybody_hears_everybody else 1),
            bytes=total,
            busiest_port_bytes=port,
        )


@lru_cache(maxsize=2)  # of the schedule at hand, which is asked for again and again
def _layout(collective: Collective, ranks: int, root: int | None, chunks: int, at_end: bool) -> NDArray[np.int32]:
    row = np.arange(chunks, dtype=np.int32)
    everywhere = np.broadcast_to(row, (ranks, chunks))
    here = np.arange(ranks)[:, None]
    mine = here == row * collective.slices(ranks) // chunks  # the chunks of rank i's own slice
    at_root = np.broadcast_to(here == root, (ranks, chunks))
    if collective.name == "all_to_all":
        part = chunks // ranks
        owner, offset = row // part, row % part
        layout = (owner * chunks + here * part + offset if at_end else here * chunks + row).astype(np.int32)
    else:
        held = {
            "broadcast": (at_root, True),
            "reduce": (True, at_root),
            "all_reduce": (True, True),
            "gather": (mine, at_root),
            "scatter": (at_root, mine),
            "all_gather": (mine, True),
            "reduce_scatter": (True, mine),
            "barrier": (True, True),
        }[collective.name][at_end]
        layout = np.where(held, everywhere, np.int32(NOTHING))
    layout.setflags(write=False)
    return layout


COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective("all_reduce", "all buffers combined, result on every rank", reduces=True, in_place=True),
        Collective("reduce", "all buffers combined, result on the root", rooted=True, reduces=True, in_place=True),
        Collective("broadcast", "one rank's buffer to all", rooted=True, in_place=True),
        Collective("gather", "every rank's buffer to the root", rooted=True, sliced=True),
        Collective("scatter", "slice i of the root's buffer to rank i", rooted=True, sliced=True),
        Collective("all_gather", "every rank's buffer to every rank", sliced=True),
        Collective("reduce_scatter", "all buffers combined, slice i on rank i", reduces=True, sliced=True),
        Collective("all_to_all", "slice j of rank i to slice i of rank j", sliced=True),
        Collective(
            "barrier",
            "nobody leaves before everybody has come",
            reduces=True,
            in_place=True,
            idempotent=True,
            carries_data=False,
        ),
    )
}


def find_collective(name: object) -> Collective:
    if isinstance(name, str) and name in COLLECTIVES:
        return COLLECTIVES[name]
    raise UsageError(f"unknown collective {name!r}; {suggest(name, COLLECTIVES)}")
