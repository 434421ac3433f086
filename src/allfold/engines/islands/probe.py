"""How fast the wires between hosts and their memories are: measured with what collectives send and do inside."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from ...fabrics import tags
from ...fabrics.fabric import FOREVER, Bytes
from ...ops import OPS
from ..engine import Call, Network, Wire

if TYPE_CHECKING:
    from .engine import Islands

_SMALL, _LARGE, _INSIDE = 8, 8 << 20, 16 << 20
_SIZES = (_SMALL, *(1 << power for power in range(10, 23)))  # and between them
_TRIES, _LARGE_TRIES = 30, 5


def probe(engine: Islands, by_size: bool) -> Network:
    """The figures of every pair of hosts and of their memory, on every rank. Every rank calls it, and nothing else.

    `by_size`: how long messages of several sizes take, too.
    """
    wires = []
    for number, here in enumerate(engine.islands):
        for there in engine.islands[number + 1 :]:
            wires.append(_pair(engine, here, there, (*_SIZES, _LARGE) if by_size else (_LARGE,)))
    return Network(wires, *_inside(engine))


def _pair(engine: Islands, here: list[int], there: list[int], sizes: tuple[int, ...]) -> Wire:
    # Ranks cross in pairs, as they do with large arrays.
    pairs = list(zip(here, there, strict=False))
    mine = next((pair for pair in pairs if engine.rank in pair), None)
    alone = mine if mine == pairs[0] else None
    times = np.zeros(3 + len(sizes))
    for at, bytes, tries in ((0, _SMALL, _TRIES), (1, _LARGE, _LARGE_TRIES)):
        _together(engine)
        if alone is not None:
            times[at], posting = _echo(engine, alone, bytes, tries)
            times[2] = posting if at == 0 else times[2]
    for at, bytes in enumerate(sizes, 3):
        exchanges = np.zeros(_LARGE_TRIES if bytes == _LARGE else _TRIES)
        data, room = (np.full(bytes, 1, np.uint8) for _ in range(2))
        _together(engine)
        if mine is not None:  # who exchanges waits for the other
            exchanges[:] = [_exchange(engine, mine, data, room) for _ in exchanges]
        times[at] = np.quantile(exchanges, 0.25)  # on a busy machine many are late
    table = np.zeros((engine.size, len(times)))
    engine.run(Call("all_gather", input=times, output=table), False)
    small, large, posting = table[here[0], :3].tolist()
    crowd = table[[rank for pair in pairs for rank in pair], 3:].max(axis=0)
    return Wire(
        hosts=(here, there),
        latency=small,
        overhead=min(posting, small),  # both are measured, and neither is exact
        bandwidth=_LARGE / max(large - small, 1e-9),
        all_ranks=len(pairs) * _LARGE / max(float(crowd[-1]) - small, 1e-9),
        sizes=list(zip(sizes, crowd.tolist(), strict=True)) if len(sizes) > 1 else [],
    )


def _inside(engine: Islands) -> tuple[float, float]:
    """What all ranks of a host move together, and what each adds, in bytes per second; all hosts at once.

    As the model counts them: every rank but one sends every byte of an all_gather.
    """
    size = len(engine.island_ranks)
    tries = np.zeros((_LARGE_TRIES, 2))
    if size > 1:
        own = engine.scratch("probe", _INSIDE // size).view(np.float32)
        whole = np.full(own.size * size, 1, np.float32)  # as users' arrays are
        own[...] = 0
    for number in range(_LARGE_TRIES):
        _together(engine)
        if size > 1:
            begun = time.perf_counter()
            engine.island.run(Call("all_gather", input=own, output=whole, timeout=FOREVER), False)
            gathered = time.perf_counter()
            engine.island.run(Call("reduce_scatter", input=whole, output=own, op=OPS["sum"], timeout=FOREVER), False)
            tries[number] = gathered - begun, time.perf_counter() - gathered
    table = np.zeros((engine.size, 2))
    engine.run(Call("all_gather", input=np.median(tries, axis=0), output=table), False)
    gather, scatter = table.max(axis=0).tolist()
    most = max(map(len, engine.islands))
    if not gather:
        return inf, inf
    moved = (most - 1) * _INSIDE
    # Adding takes no time of its own where the memory is the limit.
    folded = moved / most / (scatter - gather) if scatter > 1.05 * gather else inf
    return moved / gather, folded


def _together(engine: Islands) -> None:
    engine.run(Call("barrier"), False)


def _echo(engine: Islands, pair: tuple[int, int], bytes: int, tries: int) -> tuple[float, float]:
    """The seconds from one rank of a pair to the other, half of the usual way there and back; and to begin a send."""
    peer = pair[1] if engine.rank == pair[0] else pair[0]
    data, room = (np.full(bytes, 1, np.uint8) for _ in range(2))
    ways, posting = np.zeros(tries), np.zeros(tries)
    for number in range(tries):
        receive = engine.links.receive(peer, room, tags.PROBE)
        begun = time.perf_counter()
        if engine.rank == pair[1]:
            receive.wait()
        sending = time.perf_counter()
        send = engine.links.send(peer, data, tags.PROBE)
        posting[number] = time.perf_counter() - sending
        if engine.rank == pair[0]:
            receive.wait()
        ways[number] = time.perf_counter() - begun
        send.wait()
    return float(np.median(ways)) / 2, float(np.median(posting))


def _exchange(engine: Islands, pair: tuple[int, int], data: Bytes, room: Bytes) -> float:
    """The seconds in which two ranks send each other a large message."""
    peer = pair[1] if engine.rank == pair[0] else pair[0]
    begun = time.perf_counter()
    transfers = [engine.links.receive(peer, room, tags.PROBE), engine.links.send(peer, data, tags.PROBE)]
    for transfer in transfers:
        transfer.wait()
    return time.perf_counter() - begun
