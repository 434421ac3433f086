"""A call as a stream takes it: the instructions of its program as copies and kernels, its waits as waits for words.

"Wait until a peer has come far enough" is a wait of the stream for a word in this rank's page, which the peer's stream
writes. Each rank has one word in the page of every other one, and one in its own, in which its stream says that it has
come to the call.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from ...division import Division
from ...programs.compile import INPUT, WORK
from ..buffer import Buffer
from ..engine import Call
from ..taken import elements_of
from .batch import Batch
from .blocks import Reached
from .programs import Slot, StreamProgram

AREA_BYTES = 64 << 20
"""Of each of the two work areas. Longer arrays go through them in segments."""
ALIGNED = 256
WORD_BYTES = 64  # a cache line


class StreamState(NamedTuple):
    """The state that a batch depends on, besides its call: progress counts from the rank's progress before the call."""

    area: int
    settled: int  # how far all peers must have come before the work areas may be used
    seen: tuple[int, ...]  # how far the stream has waited for each rank


class After(NamedTuple):
    """The effects of a call: the areas it used, and its progress, relative to before the call."""

    areas: int
    settled: int
    base: int
    seen: list[int]


class Addresses(NamedTuple):
    """Addresses: by rank, the words of its page and its arena; and the arrays of all ranks, if they are reachable."""

    rank: int
    words: list[int]
    arenas: list[int]
    reached: Reached | None


def compose(
    call: Call,
    program: StreamProgram,
    source: Buffer | None,
    target: Buffer | None,
    state: StreamState,
    places: Addresses,
) -> tuple[Batch, After]:
    rank, size, batch = places.rank, len(places.arenas), Batch()
    array = source or target
    assert array is not None
    item, areas_used, seen = array.dtype.itemsize, state.area, list(state.seen)
    division = Division(size, program.chunks, elements_of(call, source, target, rank, size), call.counts)
    longest = division.longest
    segment, segments = longest, 1
    if program.work_slots and longest:
        step = ALIGNED // item
        slot = AREA_BYTES // program.work_slots // ALIGNED * step
        segment = ceil(ceil(longest / ceil(longest / slot)) / step) * step
        segments = ceil(longest / segment)

    def wait(peer: int, value: int) -> None:
        # What the stream has waited for once, it need not wait for again.
        if peer != rank and seen[peer] < value:
            seen[peer] = value
            batch.wait(places.words[rank] + peer * WORD_BYTES, value)

    def publish(value: int) -> None:
        for peer in range(size):
            if peer != rank:
                batch.write(places.words[peer] + rank * WORD_BYTES, value)

    def at(slot: Slot, start: int) -> int:
        owner, space, index = slot
        if space == WORK:
            return int(places.arenas[owner] + (areas_used & 1) * AREA_BYTES + index * segment * item)
        given = source if space == INPUT else target
        assert given is not None and (owner == rank or places.reached is not None)
        pointer = given.pointer if places.reached is None else places.reached.pointers[space != INPUT][owner]
        bounds, origin = division.bounds(owner, space != INPUT), program.origins[owner][space != INPUT]
        return int(pointer + (bounds[index] - bounds[origin] + start) * item)

    batch.write(places.words[rank] + rank * WORD_BYTES, 1)  # for the hosts: whose stream has come to the call
    for peer in range(size):
        wait(peer, state.settled)
    if places.reached is not None:  # peers reach into this rank's arrays: not before it has come to the call
        publish(1)
        for peer in range(size):
            wait(peer, 1)
    for number in range(segments):
        here = 1 + number * program.stride
        if number == 1:
            for peer in range(size):
                wait(peer, 0)
        for position, one in enumerate(program.instructions):
            for peer, count in one.waits:
                wait(peer, here + count)
            if number >= 2:
                for peer, count in one.reuse:
                    wait(peer, here - 2 * program.stride + count)
            length = division.length(one.length_of)
            start = min(length, number * segment)
            elements = min(length, start + segment) - start
            if one.sources and elements:
                sources, destinations = ([at(slot, start) for slot in slots] for slots in one[2:4])
                _fold(batch, call, array, sources, destinations, elements, size if one.complete else 1)
            if one.announce:
                publish(here + position + 1)
        areas_used += not program.one_area
    areas_used += program.one_area
    last = 1 + (segments - 1) * program.stride
    for peer, count in program.leave:
        wait(peer, last + count)
    end = 2 + segments * program.stride
    publish(end)
    seen[rank] = end
    settled = last if segments > 1 and not program.one_area else 0
    return batch, After(areas_used - state.area, settled, end, seen)


def _fold(
    batch: Batch,
    call: Call,
    array: Buffer,
    sources: list[int],
    destinations: list[int],
    elements: int,
    contributions: int,
) -> None:
    if len(sources) == 1:
        for destination in destinations:
            if destination != sources[0]:
                batch.copy(destination, sources[0], elements * array.dtype.itemsize)
        return
    assert call.op is not None
    divisor = contributions if call.op.averages else 1
    batch.fold(call.op.name, array.dtype.name, sources, destinations, elements, divisor)
