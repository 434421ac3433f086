"""Measures the speed of the wires between hosts and of their memory, with the operations that collectives use; and the
difference between their clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

import numpy as np

from ....fabrics import tags
from ....fabrics.fabric import FOREVER, Bytes
from ....ops import OPS
from ...engine import Call, MeasuredNetwork, Wire
from .levels import Levels

MakeCall = Callable[[Call], object]

_QUESTIONS = 10
_SMALL, _LARGE, _INSIDE = 8, 8 << 20, 16 << 20
_SIZES = (_SMALL, *(1 << power for power in range(10, 23)))
_TRIES, _LARGE_TRIES = 30, 5
_SOON = 0.25  # the quantile that counts: on a busy machine, many tries take too long


def probe(levels: Levels, run: MakeCall, by_size: bool) -> MeasuredNetwork:
    """The figures of every pair of hosts and of their memory. Collective; no other call may be in progress.

    `run` makes a call of all ranks. `by_size`: also time messages of several sizes.
    """
    wires = []
    for number, here in enumerate(levels.islands):
        for there in levels.islands[number + 1 :]:
            wires.append(_pair(levels, run, here, there, (*_SIZES, _LARGE) if by_size else (_LARGE,)))
    return MeasuredNetwork(wires, *_inside(levels, run))


def _pair(levels: Levels, run: MakeCall, here: list[int], there: list[int], sizes: tuple[int, ...]) -> Wire:
    # Ranks cross in pairs, as they do with large arrays.
    pairs = list(zip(here, there, strict=False))
    mine = next((pair for pair in pairs if levels.rank in pair), None)
    alone = mine if mine == pairs[0] else None
    times = np.zeros(3 + len(sizes))
    for at, bytes, tries in ((0, _SMALL, _TRIES), (1, _LARGE, _LARGE_TRIES)):
        run(Call("barrier"))
        if alone is not None:
            times[at], posting = _echo(levels, alone, bytes, tries)
            times[2] = posting if at == 0 else times[2]
    for at, bytes in enumerate(sizes, 3):
        exchanges = np.zeros(_LARGE_TRIES if bytes == _LARGE else _TRIES)
        data, room = (np.full(bytes, 1, np.uint8) for _ in range(2))
        run(Call("barrier"))
        if mine is not None:  # an exchange waits for both ranks
            exchanges[:] = [_exchange(levels, mine, data, room) for _ in exchanges]
        times[at] = np.quantile(exchanges, _SOON)
    table = np.zeros((levels.size, len(times)))
    run(Call("all_gather", input=times, output=table))
    small, large, posting = table[here[0], :3].tolist()
    crowd = table[[rank for pair in pairs for rank in pair], 3:].max(axis=0)
    return Wire(
        hosts=(here, there),
        latency=small,
        overhead=min(posting, small, float(crowd.min())),  # all are measured, and none is exact
        bandwidth=_LARGE / max(large - small, 1e-9),
        all_ranks=len(pairs) * _LARGE / max(float(crowd[-1]) - small, 1e-9),
        sizes=list(zip(sizes, crowd.tolist(), strict=True)) if len(sizes) > 1 else [],
    )


def _inside(levels: Levels, run: MakeCall) -> tuple[float, float]:
    """The bytes per second that all ranks of a host move together, and that each rank adds. All hosts measure at once.

    Bytes are counted as in the model: every rank but one sends every byte of an all_gather.
    """
    island = levels.shared.collectives
    size = len(levels.mine)
    tries = np.zeros((_LARGE_TRIES, 2))
    if size > 1:
        own = levels.scratch("probe", _INSIDE // size).view(np.float32)
        whole = np.full(own.size * size, 1, np.float32)  # as users' arrays are
        own[...] = 0
    for number in range(_LARGE_TRIES):
        run(Call("barrier"))
        if size > 1:
            begun = time.perf_counter()
            island.run(Call("all_gather", input=own, output=whole, timeout=FOREVER), False)
            gathered = time.perf_counter()
            island.run(Call("reduce_scatter", input=whole, output=own, op=OPS["sum"], timeout=FOREVER), False)
            tries[number] = gathered - begun, time.perf_counter() - gathered
    table = np.zeros((levels.size, 2))
    run(Call("all_gather", input=np.median(tries, axis=0), output=table))
    gather, scatter = table.max(axis=0).tolist()
    most = max(map(len, levels.islands))
    if not gather:
        return inf, inf
    moved = (most - 1) * _INSIDE
    # Where memory bandwidth is the limit, adding takes no extra time.
    folded = moved / most / (scatter - gather) if scatter > 1.05 * gather else inf
    return moved / gather, folded


def _echo(levels: Levels, pair: tuple[int, int], bytes: int, tries: int) -> tuple[float, float]:
    """The seconds of a message between two ranks (half of a round trip), and the seconds to begin a send."""
    peer = pair[1] if levels.rank == pair[0] else pair[0]
    data, room = (np.full(bytes, 1, np.uint8) for _ in range(2))
    ways, posting = np.zeros(tries), np.zeros(tries)
    for number in range(tries):
        receive = levels.links.receive(peer, room, tags.PROBE)
        begun = time.perf_counter()
        if levels.rank == pair[1]:
            receive.wait()
        sending = time.perf_counter()
        send = levels.links.send(peer, data, tags.PROBE)
        posting[number] = time.perf_counter() - sending
        if levels.rank == pair[0]:
            receive.wait()
        ways[number] = time.perf_counter() - begun
        send.wait()
    return float(np.quantile(ways, _SOON)) / 2, float(np.quantile(posting, _SOON))


def _exchange(levels: Levels, pair: tuple[int, int], data: Bytes, room: Bytes) -> float:
    """The seconds in which two ranks send each other a message."""
    peer = pair[1] if levels.rank == pair[0] else pair[0]
    begun = time.perf_counter()
    transfers = [levels.links.receive(peer, room, tags.PROBE), levels.links.send(peer, data, tags.PROBE)]
    for transfer in transfers:
        transfer.wait()
    return time.perf_counter() - begun


def clock_shift(levels: Levels) -> int:
    """The nanoseconds to add to this host's clock to get rank 0's. Collective.

    The leader of every island asks rank 0 for its time, several times, and uses the fastest answer: it was given about
    halfway through the round trip.
    """
    leaders = [leader for leader in levels.roster.leaders if leader != 0]
    shift = np.zeros(1, np.int64)
    links = levels.links
    if levels.rank == 0:
        for leader in leaders:
            for _ in range(_QUESTIONS):
                asked = np.zeros(1, np.uint8)
                links.receive(leader, asked, tags.CLOCK).wait()
                now = np.array([time.monotonic_ns()], np.int64)
                links.send(leader, now.view(np.uint8), tags.CLOCK).wait()
    elif levels.rank in leaders:
        best = None
        for _ in range(_QUESTIONS):
            there = np.zeros(1, np.int64)
            answer = links.receive(0, there.view(np.uint8), tags.CLOCK)
            begun = time.monotonic_ns()
            links.send(0, np.zeros(1, np.uint8), tags.CLOCK).wait()
            answer.wait()
            took = time.monotonic_ns() - begun
            if best is None or took < best:
                best, shift[0] = took, int(there[0]) - (begun + took // 2)
    if len(levels.mine) > 1:
        levels.shared.collectives.run(Call("broadcast", output=shift, timeout=levels.roster.timeout), False)
    return int(shift[0])
