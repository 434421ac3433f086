"""The collectives, as data: what every chunk holds at the start, what it must hold at the end, and what that needs.

A rank's buffer is a row of chunks. Where a collective has slices (one per rank: gather, scatter, all_gather,
reduce_scatter, all_to_all), the row is the whole array and slice i belongs to rank i; scratch chunks may follow.
What a chunk holds is written as a number, its *datum*: which piece of data it is, wherever it lies. For a collective
that reduces, a datum is complete when every rank of a wanted set has contributed to it exactly once, and no other rank.

Everything that depends on which collective it is follows from the fields of `Collective`: nothing else in allfold asks
for its name. The extension and the page are handed the same facts. A new collective is one entry of `COLLECTIVES`, its
algorithms, and a method of `Communicator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any

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

    def to_json(self) -> dict[str, float]:
        return plain(vars(self))


def plain(figures: Mapping[str, int | Fraction]) -> dict[str, float]:
    """Figures by name, with fractions as floats."""
    return {name: float(one) if isinstance(one, Fraction) else one for name, one in figures.items()}


@dataclass(frozen=True)
class Part:
    """The part of the whole buffer that a rank has before or after a collective."""

    sliced: bool = False
    """Its own slice only."""
    root_only: bool = False
    """The root has it, and the other ranks have nothing."""
    in_pieces: bool = False
    """The chunks that the layout says, one after the other; each rank has its own number of them."""

    def length(self, whole: int, ranks: int, is_root: bool) -> int:
        """The number of elements (or chunks) that a rank has, of `whole` in the buffer."""
        return 0 if self.root_only and not is_root else whole // ranks if self.sliced else whole

    def held(self, ranks: int, root: int | None, chunks: int) -> NDArray[np.bool_]:
        """By rank and chunk: whether the rank has the chunk."""
        here, row = np.arange(ranks)[:, None], np.arange(chunks)
        held = here == row * ranks // chunks if self.sliced else np.ones((1, chunks), bool)
        return np.broadcast_to(held & (here == root) if self.root_only else held, (ranks, chunks))


WHOLE, SLICE, AT_ROOT, PIECES = Part(), Part(sliced=True), Part(root_only=True), Part(in_pieces=True)


def everyone(rank: int, ranks: int) -> range:
    """The contributors of a result to which every rank contributes."""
    return range(ranks)


def up_to(rank: int, ranks: int) -> range:
    """The contributors of an inclusive prefix."""
    return range(rank + 1)


def below(rank: int, ranks: int) -> range:
    """The contributors of an exclusive prefix. Rank 0, which has no rank below it, keeps its own data."""
    return range(max(rank, 1))


@dataclass(frozen=True)
class Collective:
    """One collective: its shape, its promise and its lower bounds."""

    name: str
    summary: str
    starts: Part
    """The part of the buffer that a rank has before the call."""
    ends: Part
    """The part of the buffer that a rank has after the call."""
    least: Callable[[int], tuple[int, int | Fraction, int | Fraction]]
    """For this many ranks: the fewest messages, bytes in all, and bytes through the busiest port (as multiples of S)."""
    reduces: bool = False
    contributors: Callable[[int, int], range] = everyone
    """Of a collective that reduces: (rank, ranks) → the ranks that contribute to this rank's result."""
    exchanges: bool = False
    """Every rank's slices are data of their own: slice j of rank i ends as slice i of rank j."""
    idempotent: bool = False
    """A contribution may arrive twice (a barrier's signal); elsewhere that is an error."""
    carries_data: bool = True

    # Derived -------------------------------------------------------------------------------------------

    @cached_property
    def rooted(self) -> bool:
        return self.starts.root_only or self.ends.root_only

    @cached_property
    def sliced(self) -> bool:
        return self.starts.sliced or self.ends.sliced or self.exchanges

    @cached_property
    def in_place(self) -> bool:
        """One array is the input and the output. Where a rank gets nothing, it is workspace."""
        return not self.sliced

    @cached_property
    def takes_op(self) -> bool:
        """A barrier combines signals, and takes no operation."""
        return self.reduces and self.carries_data

    @cached_property
    def combines_all(self) -> bool:
        """Every rank contributes to every result."""
        return self.reduces and self.contributors is everyone

    @cached_property
    def has_order(self) -> bool:
        """Ranks cannot change places: who contributes depends on the order of the ranks."""
        return self.reduces and not self.combines_all

    @cached_property
    def one_way(self) -> bool:
        """Nothing is copied or combined on the way: every piece of data has one place where it must go."""
        return not self.reduces and self.sliced and (self.exchanges or self.rooted)

    @cached_property
    def trees(self) -> tuple[bool, ...]:
        """The phases in which trees can carry it, True for trees that collect and False for trees that spread."""
        if not self.carries_data or self.one_way or self.has_order:
            return ()
        return (True, False) if self.round_trip else (self.reduces,)

    @cached_property
    def round_trip(self) -> bool:
        """Every rank gets, whole, what all ranks together make: it is collected and then spread, as in an all_reduce."""
        return self.combines_all and self.carries_data and self.ends == WHOLE

    def may_lack(self, is_input: bool) -> bool:
        """True if some ranks pass no input array (or no output array)."""
        if not self.carries_data or self.in_place:
            return is_input or not self.carries_data
        return (self.starts if is_input else self.ends).root_only

    def reads(self, is_root: bool) -> bool:
        """True if the call reads the rank's array."""
        return is_root or not self.starts.root_only

    def writes(self, is_root: bool) -> bool:
        """True if the rank's array holds a new result after the call."""
        return (is_root or not self.ends.root_only) and not (self.starts == AT_ROOT and self.in_place and is_root)

    @property
    def label(self) -> str:
        """The name in headings."""
        return self.name

    def arguments(self, ranks: int, root: int | None) -> tuple[Any, ...]:
        """The positional arguments of the generator functions of its algorithms."""
        return (ranks, root) if self.rooted else (ranks,)

    def slices(self, ranks: int) -> int:
        return ranks if self.sliced else 1

    def chunks(self, ranks: int, named: int) -> int:
        """The number of chunks of the buffer if the highest chunk that moves name is `named - 1`."""
        return ranks if self.sliced else max(1, named)

    def starts_with(self, ranks: int, root: int | None, chunks: int) -> NDArray[np.int32]:
        """The datum in every chunk of every rank before the first step."""
        return _layout(self, ranks, root, chunks, at_end=False)

    def ends_with(self, ranks: int, root: int | None, chunks: int) -> NDArray[np.int32]:
        """The datum that every chunk of every rank must hold after the last step."""
        return _layout(self, ranks, root, chunks, at_end=True)

    def bounds(self, ranks: int) -> Bounds:
        messages, total, port = self.least(ranks)
        # The number of ranks that know something can at most double per round.
        return Bounds((ranks - 1).bit_length(), messages, Fraction(total), Fraction(port))

    def combinations(self, ranks: int) -> int:
        """The number of times that two buffers must be combined, on all ranks together: k contributions need k − 1."""
        sets = (self.contributors(rank, ranks) for rank in range(1 if self.combines_all else ranks))
        return max(map(len, sets)) - 1

    def must_leave(self, ranks: int, root: int | None, inside: Sequence[int]) -> Fraction:
        """The share of the buffer that must leave a set of ranks, whatever the algorithm; 0 for a set of all or none."""
        many = len(inside)
        if not 0 < many < ranks or not self.carries_data:
            return Fraction(0)
        if self.exchanges:
            return Fraction(many * (ranks - many), ranks)
        if (self.starts.root_only and root not in inside) or (self.ends.root_only and root in inside):
            return Fraction(0)
        if self.has_order and not self._is_wanted_outside(ranks, set(inside)):
            return Fraction(0)
        brought, taken = many if self.starts.sliced else ranks, ranks - many if self.ends.sliced else ranks
        return Fraction(brought * taken, ranks * ranks)

    def _is_wanted_outside(self, ranks: int, inside: set[int]) -> bool:
        outside = (rank for rank in range(ranks) if rank not in inside)
        return any(not inside.isdisjoint(self.contributors(rank, ranks)) for rank in outside)

    def whole(self, ranks: int, given: int | None, taken: int | None) -> int:
        """The elements of the whole buffer, from those of the input and of the output (None: no array), or an error."""

        def need(good: bool, what: str) -> None:
            if not good:
                raise UsageError(f"{self.name}: {what}, got {given or 0} and {taken or 0}")

        if (given is None and not self.may_lack(True)) or (taken is None and not self.may_lack(False)):
            raise UsageError(f"{self.name}: expected an array that speaks the buffer protocol or DLPack, got None")
        if self.starts.sliced:
            assert given is not None
            need(taken is None or taken == given * ranks, "the output must hold one input of every rank")
            return given * ranks
        if self.ends.sliced:
            assert taken is not None
            need(given is None or given == taken * ranks, "the input must hold one output for every rank")
            return taken * ranks
        if self.exchanges:
            assert given is not None
            need(
                given == taken and given % ranks == 0,
                "input and output must be equally long, a multiple of the ranks",
            )
        return taken or 0

    def facts(self) -> dict[str, Any]:
        """The facts that are handed to the extension and the page."""
        return {
            "name": self.name,
            "rooted": self.rooted,
            "reduces": self.reduces,
            "takes_op": self.takes_op,
            "in_place": self.in_place,
            "sliced": self.sliced,
            "exchanges": self.exchanges,
            "idempotent": self.idempotent,
            "carries_data": self.carries_data,
            "combines_all": self.combines_all,
            "brings_slice": self.starts.sliced,
            "gets_slice": self.ends.sliced,
            "root_brings": self.starts.root_only,
            "root_gets": self.ends.root_only,
        }


@lru_cache(maxsize=2)  # of the schedule at hand, which is asked for again and again
def _layout(collective: Collective, ranks: int, root: int | None, chunks: int, at_end: bool) -> NDArray[np.int32]:
    row = np.arange(chunks, dtype=np.int32)
    if collective.exchanges:
        here, part = np.arange(ranks)[:, None], chunks // ranks
        owner, offset = row // part, row % part
        layout = (owner * chunks + here * part + offset if at_end else here * chunks + row).astype(np.int32)
    else:
        part_of = collective.ends if at_end else collective.starts
        layout = np.where(part_of.held(ranks, root, chunks), row, np.int32(NOTHING))
    layout.setflags(write=False)
    return layout


# The fewest messages, bytes in all, and bytes through the busiest port ------------------------------------------------


def _all_reduce(ranks: int) -> tuple[int, int, Fraction]:
    others = ranks - 1
    return 2 * others, 2 * others, Fraction(2 * others, ranks)


def _slice_to_each(ranks: int) -> tuple[int, int, Fraction]:
    """Every rank depends on every other, and needs a slice of each."""
    others = ranks - 1
    return 2 * others, others, Fraction(others, ranks)


def _buffer_each(ranks: int) -> tuple[int, int, int]:
    """All ranks but one send or receive a whole buffer."""
    others = ranks - 1
    return others, others, min(others, 1)


def _slice_each(ranks: int) -> tuple[int, Fraction, Fraction]:
    """All ranks but the root send or receive a slice."""
    others = ranks - 1
    return others, Fraction(others, ranks), Fraction(others, ranks)


def _signals(ranks: int) -> tuple[int, int, int]:
    return 2 * (ranks - 1), 0, 0


COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective("all_reduce", "all buffers combined, result on every rank", WHOLE, WHOLE, _all_reduce, reduces=True),
        Collective("reduce", "all buffers combined, result on the root", WHOLE, AT_ROOT, _buffer_each, reduces=True),
        Collective("broadcast", "one rank's buffer to all", AT_ROOT, WHOLE, _buffer_each),
        Collective("gather", "every rank's slice to the root", SLICE, AT_ROOT, _slice_each),
        Collective("scatter", "slice i of the root's buffer to rank i", AT_ROOT, SLICE, _slice_each),
        Collective("all_gather", "every rank's slice to every rank", SLICE, WHOLE, _slice_to_each),
        Collective(
            "reduce_scatter", "all buffers combined, slice i on rank i", WHOLE, SLICE, _slice_to_each, reduces=True
        ),
        Collective(
            "all_to_all", "slice j of rank i to slice i of rank j", WHOLE, WHOLE, _slice_to_each, exchanges=True
        ),
        Collective(
            "scan",
            "buffers of ranks 0 to r combined on rank r",
            WHOLE,
            WHOLE,
            _buffer_each,
            reduces=True,
            contributors=up_to,
        ),
        Collective(
            "exscan",
            "buffers of ranks 0 to r−1 combined on rank r",
            WHOLE,
            WHOLE,
            _buffer_each,
            reduces=True,
            contributors=below,
        ),
        Collective(
            "barrier",
            "nobody leaves before everybody has come",
            WHOLE,
            WHOLE,
            _signals,
            reduces=True,
            idempotent=True,
            carries_data=False,
        ),
    )
}


def find_collective(name: object) -> Collective:
    """The collective of a name, which may be one between the neighbours of a graph (`algorithms.between_neighbours`)."""
    if isinstance(name, str) and name in COLLECTIVES:
        return COLLECTIVES[name]
    if isinstance(name, str) and "(" in name:
        found: Collective | None = import_module(".algorithms.between_neighbours", __package__).find_neighbourhood(name)
        if found is not None:
            return found
    raise UsageError(f"unknown collective {name!r}; {suggest(name, COLLECTIVES)}")
