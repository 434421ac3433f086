"""Hosts as a topology, with figures measured between them and inside them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

from ...engines.engine import MeasuredNetwork
from .machines import hosts as hosts_under_a_switch
from .topology import Row, Topology

_RISE = 1.02  # a longer message that takes hardly longer says nothing of bandwidth


def hosts_as_measured(hosts: Sequence[Sequence[int]], network: MeasuredNetwork) -> Topology | None:
    """Hosts under one switch, as slow as the slowest two of them; None where they have different numbers of ranks."""
    if len({len(ranks) for ranks in hosts}) > 1:
        return None
    overhead = max(wire.overhead for wire in network.wires)
    latency = max(wire.latency for wire in network.wires)
    bandwidth = min(wire.all_ranks for wire in network.wires)
    each = [dict(wire.sizes) for wire in network.wires]
    sizes = sorted(set.intersection(*map(set, each)))
    measured = [(bytes, max(one[bytes] for one in each) - overhead) for bytes in sizes]
    rows = rows_of(measured, len(hosts[0])) if measured else []
    first, *rest = rows or [(0.0, max(0.0, latency - overhead) / 2, bandwidth)]  # two cards are on the way
    made = hosts_under_a_switch(
        len(hosts),
        ranks_per_host=len(hosts[0]),
        port=network.bus,
        bus=network.bus,
        bandwidth=first[2],
        latency=first[1],
        overhead=overhead,
        reduction=network.reduction,
    )
    if not rest:
        return made
    table = [{"bytes": int(start), "latency": latency, "bandwidth": bandwidth} for start, latency, bandwidth in rest]
    return Topology.from_json({**made.to_json(), "sizes": {"nic": table}})


def rows_of(measured: Sequence[tuple[int, float]], together: int) -> list[Row]:
    """The table of a network card from the seconds that messages of some sizes took, each with others at the same time.

    Between two sizes time is a straight line. Where it would begin below zero, it begins at zero.
    """
    kept: list[tuple[int, float]] = []
    for bytes, measured_seconds in reversed(measured):
        seconds = max(measured_seconds, 1e-9)  # the overhead that was taken off was measured at another moment
        # What a longer message did in less time, a shorter one could have done.
        if not kept or seconds * _RISE < kept[0][1]:
            kept.insert(0, (bytes, seconds))
    rows: list[Row] = []
    for (bytes, seconds), (more, longer) in pairwise([*kept[:1], *kept] if len(kept) == 1 else kept):
        slope = (longer - seconds) / (more - bytes) if more > bytes else inf
        if slope * bytes > seconds:
            slope = longer / more
        start = float(bytes) if rows else 0.0
        rows.append((start, max(0.0, seconds - slope * bytes) / 2, together / slope))  # two cards are on the way
    return rows
