"""Every message of a simulation: its bytes, its route, and what it takes on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...division import Lengths
from ...patterns import shares_of_moves
from ...schedules import Schedule
from ..cost.folding import shares_of
from ..topology.topology import Topology
from .dependencies import Dependencies, Moves, group_messages
from .noise import Noise
from .symmetry import Shift, network


@dataclass(frozen=True)
class Facts:
    """One entry per message unless noted otherwise; in lists, since reading one element is faster than in an array."""

    source: list[int]
    destination: list[int]
    """The simulated rank that stands for the destination."""
    stays: list[bool]
    """It goes from a rank to itself."""
    step: list[int]
    order: list[int]
    """The order at a tie: by step, then the nearest to the right, so that senders do not all pick one receiver."""
    orders: int
    bytes: list[float]
    """Bytes of one segment."""
    combining: list[float]
    """Seconds."""
    latency: list[float]
    """Seconds, one entry per message and segment."""
    limit: list[float]
    """Bytes per second that it could take alone, one entry per message and segment."""
    pair: list[int]
    """The index of its route in `routes`."""
    routes: list[tuple[int, ...]]
    shares: list[tuple[float, ...]] | None
    """The share of a message that crosses each link of its route; None if no message is split. One entry per route."""
    own: list[tuple[float, ...]] | None
    """The same, one entry per message, where switches fold or speed depends on the size of a message."""
    bandwidth: list[float]
    """One entry per link."""
    overhead: list[float]
    """One entry per rank."""


def facts_of(
    schedule: Schedule,
    topology: Topology,
    size: int,
    segments: int,
    noise: Noise,
    shift: Shift,
    moves: Moves,
    needs: Dependencies,
    lengths: Lengths | None,
) -> Facts:
    ranks = schedule.ranks
    source, destination, step = (column[needs.move] for column in (moves.source, moves.destination, moves.step))
    pairs, pair = np.unique(source * ranks + destination, return_inverse=True)
    slow, bandwidth = noise.slowness(ranks), topology.bandwidth.copy()
    for rank in noise.slow if ranks > 1 else ():
        here, peer = np.full(1, rank), np.full(1, (rank + 1) % ranks)
        bandwidth[topology.routes(here, peer).links[0]] /= slow[rank]
        bandwidth[topology.routes(peer, here).links[-1]] /= slow[rank]
    net = network(topology, ranks, pairs, shift, bandwidth)
    chunk = size / schedule.chunks / segments if schedule.promise.carries_data else 0.0
    moved, combined = needs.moves.astype(np.float64) * chunk, needs.reduces.astype(np.float64) * chunk
    if lengths is not None:
        message, parts = group_messages(moves)[0], shares_of_moves(schedule, lengths) * (size / segments)
        moved = np.bincount(message, parts, len(needs.move)).astype(np.float64)
        combined = np.bincount(message, parts * moves.reduces, len(needs.move)).astype(np.float64)
    own, arrives = None, np.ones(len(source))
    if topology.folding:
        steps, ends = (
            shares_of(schedule, topology),
            zip(step.tolist(), source.tolist(), destination.tolist(), strict=True),
        )
        own = [tuple(steps[at][a, b].tolist()) if a != b else () for at, a, b in ends]
        arrives = np.asarray([parts[-1] if parts else 1.0 for parts in own])
    limit, latency = net.limit[pair], net.latency[pair]
    if topology.by_size:
        routes = topology.routes(source, destination, moved)
        each = np.split(routes.stretched(routes.loads(np.ones(len(routes)))), routes.offsets[1:-1])
        own = [tuple((row * (parts or 1.0)).tolist()) for row, parts in zip(each, own or [()] * len(each), strict=True)]
        travels = source != destination
        if travels.any():
            between = topology.routes(source[travels], destination[travels], moved[travels])
            limit[travels], latency[travels] = between.slowest(bandwidth), between.latency(topology.latency)
    more_latency, less_bandwidth = noise.factors(len(needs.move) * segments)
    links = net.lengths.tolist()
    shares = None
    if net.share is not None:
        shares = [tuple(row[:length]) for row, length in zip(net.share.tolist(), links, strict=True)]
    return Facts(
        source=source.tolist(),
        destination=(destination % shift.ranks).tolist(),
        stays=(source == destination).tolist(),
        step=step.tolist(),
        order=(step * ranks + (destination - source) % ranks).tolist(),
        orders=schedule.steps * ranks,
        bytes=moved.tolist(),
        combining=(combined * arrives / topology.reduction * slow[destination]).tolist(),
        latency=(np.repeat(latency, segments) * more_latency).tolist(),
        limit=(np.repeat(limit, segments) / less_bandwidth).tolist(),
        pair=pair.tolist(),
        routes=[tuple(route[:length]) for route, length in zip(net.routes.tolist(), links, strict=True)],
        shares=shares,
        own=own,
        bandwidth=net.bandwidth.tolist(),
        overhead=(topology.overhead * slow).tolist(),
    )
