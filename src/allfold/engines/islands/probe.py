"""How fast the wire between two hosts is: measured with the messages that collectives send."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from ...fabrics.fabric import FOREVER
from ..engine import Call, Wire

if TYPE_CHECKING:
    from .engine import Islands

_TAG = (1023 << 21) + 1  # no call has it: see Job.tag
_SMALL, _LARGE = 8, 8 << 20
_TRIES, _LARGE_TRIES = 30, 5


def probe(engine: Islands) -> list[Wire]:
    """The figures of every pair of hosts, on every rank. Every rank calls it, and makes no other call meanwhile."""
    wires = []
    for number, here in enumerate(engine.islands):
        for there in engine.islands[number + 1 :]:
            wires.append(_pair(engine, here, there))
    return wires


def _pair(engine: Islands, here: list[int], there: list[int]) -> Wire:
    # Ranks cross in pairs, as they do with large arrays.
    pairs = list(zip(here, there, strict=False))
    mine = next((pair for pair in pairs if engine.rank in pair), None)
    times = np.zeros(4)
    everybody = [(mine, _LARGE, _LARGE_TRIES)]
    alone = mine if mine == pairs[0] else None
    for at, (pair, bytes, tries) in enumerate([(alone, _SMALL, _TRIES), (alone, _LARGE, _LARGE_TRIES), *everybody]):
        _together(engine)
        if pair is not None:
            times[at], posting = _echo(engine, pair, bytes, tries)
            times[3] = posting if at == 0 else times[3]
    table = np.zeros((engine.size, 4))
    engine.run(Call("all_gather", times, table, None, 0, None, None, None), False)
    small, large = float(table[here[0], 0]), float(table[here[0], 1])
    crowd = max(float(table[rank, 2]) for rank, _ in pairs)
    return Wire(
        hosts=(here, there),
        latency=small,
        overhead=float(table[here[0], 3]),
        bandwidth=_LARGE / max(large - small, 1e-9),
        all_ranks=len(pairs) * _LARGE / max(crowd - small, 1e-9),
    )


def _together(engine: Islands) -> None:
    engine.run(Call("barrier", None, None, None, 0, None, None, None), False)


def _echo(engine: Islands, pair: tuple[int, int], bytes: int, tries: int) -> tuple[float, float]:
    """The seconds from one rank of a pair to the other, half of the shortest way there and back; and to begin a send."""
    peer = pair[1] if engine.rank == pair[0] else pair[0]
    data, room = np.zeros(bytes, np.uint8), np.zeros(bytes, np.uint8)
    best = posting = FOREVER
    for _ in range(tries):
        receive = engine.links.receive(peer, room, _TAG)
        begun = time.perf_counter()
        if engine.rank == pair[1]:
            receive.wait()
        sending = time.perf_counter()
        send = engine.links.send(peer, data, _TAG)
        posting = min(posting, time.perf_counter() - sending)
        if engine.rank == pair[0]:
            receive.wait()
        best = min(best, time.perf_counter() - begun)
        send.wait()
    return best / 2, posting
