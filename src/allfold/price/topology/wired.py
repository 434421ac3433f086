"""Networks of cables: hosts whose ranks are wired to each other, to switches of their host, and to a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import UsageError
from .routing import fewest_hops
from .shapes import ports
from .topology import Block, Cut, Links, Place, Ranks, Topology

MOST_NODES = 4096  # the table of routes grows with the square


@dataclass(frozen=True)
class Cable:
    """One link, and the edges of the graph that cross it: pairs of nodes. Nodes from the number of ranks on are switches."""

    name: str
    kind: str
    latency: float
    bandwidth: float
    place: Place
    edges: tuple[tuple[int, int], ...]


def between(one: int, other: int, bandwidth: float, latency: float) -> list[Cable]:
    """A cable between two ranks, in both directions."""
    return [*one_way(one, other, bandwidth, latency), *one_way(other, one, bandwidth, latency)]


def one_way(source: int, destination: int, bandwidth: float, latency: float, kind: str = "cable") -> list[Cable]:
    name = f"rank {source} to rank {destination}"
    place: Place = {"from": source, "to": destination}
    return [Cable(name, kind, latency, bandwidth, place, ((source, destination),))]


def to_switch(rank: int, word: str, switch: int, node: int, bandwidth: float, latency: float) -> list[Cable]:
    """Both directions between a rank and switch number `switch`, which is called `word` and is a node of the graph."""
    out: Place = {"rank": rank, "switch": switch, "way": "out"}
    into: Place = {"rank": rank, "switch": switch, "way": "in"}
    return [
        Cable(f"rank {rank} out to {word} {switch}", "cable", latency, bandwidth, out, ((rank, node),)),
        Cable(f"rank {rank} in from {word} {switch}", "cable", latency, bandwidth, into, ((node, rank),)),
    ]


def card(
    host: int,
    number: int,
    way: str,
    inside: Iterable[int],
    switch: int,
    bandwidth: float,
    latency: float,
    leaf: int | None = None,
) -> list[Cable]:
    """One direction of a network card, between ranks or a switch of a host, `inside`, and a switch of the network."""
    place: Place = {"host": host, "card": number, "way": way}
    if leaf is not None:
        place["leaf"] = leaf
    edges = tuple((node, switch) if way == "out" else (switch, node) for node in inside)
    return [Cable(f"host {host} card {number} {way}", "nic", latency, bandwidth, place, edges)]


def wired(
    name: str,
    host: Ranks,
    switches: Sequence[int | None],
    cables: Sequence[Cable],
    overhead: float,
    reduction: float,
    source: str,
) -> Topology:
    """The topology of these cables. Messages take the fewest cables, through ranks where need be; ports are no limit.

    `switches` holds the host of every switch, None for those between hosts.
    """
    ranks = len(host)
    nodes = ranks + len(switches)
    if nodes > MOST_NODES:
        raise UsageError(f"topology {name}: {ranks} ranks and {len(switches)} switches; at most {MOST_NODES} are taken")
    first = 2 * ranks
    edges = [(*edge, first + number) for number, cable in enumerate(cables) for edge in cable.edges]
    rank = np.arange(ranks, dtype=np.int32)
    single = [*rank.tolist(), *(None for _ in switches)]
    cuts = [Cut("cables of a rank", rank, _most(single, cables))] if ranks > 1 else []
    if host[-1] > 0:
        cuts.append(Cut("cables of a host", host, _most([*host.tolist(), *switches], cables)))
    blocks = [
        Block(cable.name, cable.kind, cable.latency, cable.bandwidth, (1,), common=cable.place) for cable in cables
    ]
    return Topology(
        name=name,
        ranks=ranks,
        host=host,
        links=Links([*ports(ranks, 0.0, float("inf")), *blocks]),
        overhead=overhead,
        reduction=reduction,
        source=source,
        router=fewest_hops(nodes, ranks, edges),
        cuts=tuple(cuts),
    )


def _most(group: Sequence[int | None], cables: Sequence[Cable]) -> float:
    """The most that any group of nodes can send to, or receive from, all that is outside of it."""
    out: dict[int | None, float] = {}
    into: dict[int | None, float] = {}
    for cable in cables:
        crossing = [(group[start], group[end]) for start, end in cable.edges if group[start] != group[end]]
        for sums, ends in ((out, {start for start, _ in crossing}), (into, {end for _, end in crossing})):
            for one in ends - {None}:
                sums[one] = sums.get(one, 0.0) + cable.bandwidth
    return max(*out.values(), *into.values())
