"""Check a lower bound from its certificate and the topology alone, in exact numbers. What finds bounds shares no code.

links: every link charges its price per byte. If all messages together must pay `demand` per byte of the buffer, that takes
at least demand · size / Σ price · bandwidth. In all_to_all, scatter and gather nothing is copied or combined, so every byte
pays the cheapest way to its end. In the others a set of ranks must send the rest what only it has. Sets have weights, and
no message leaves sets of more weight than it pays; so what must leave a set is paid for as often as its weight. In an
all_reduce, G groups of ranks need 2(G−1) one-way messages to hear of each other; so of what messages pay beyond the
weights, at least twice the cheapest spanning tree is paid, too.
distance: news cannot be at another rank sooner than by the cheapest chain of messages (overhead, and latencies of routes).
spread: nor can it be at all ranks before enough messages were started.
combining: P ranks combine (P−1) · size bytes.
"""

from __future__ import annotations

from fractions import Fraction
from math import comb, lcm
from typing import Any

import numpy as np

from ..errors import BoundError, UsageError
from .topology.topology import Topology

ROOT_SENDS, ROOT_RECEIVES, ONE_WAY = ("broadcast", "scatter"), ("reduce", "gather"), ("all_to_all", "scatter", "gather")
COMBINES = ("reduce", "all_reduce", "reduce_scatter")
KNOWN = {"broadcast", "all_gather", "barrier", *COMBINES, *ONE_WAY}


def check_bound(certificate: dict[str, Any], topology: Topology) -> Fraction:
    """The seconds that are proved, which are those that the certificate claims; a `BoundError` if it proves less."""
    try:
        claimed, proved = Fraction(certificate["seconds"]), _proved(certificate, topology)
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, IndexError) as error:
        raise UsageError(f"this is not a certificate of a bound: {type(error).__name__}: {str(error)[:100]}") from None
    if not 0 <= claimed <= proved:
        raise BoundError(f"it claims {float(claimed):.9g} s, but proves only {float(proved):.9g} s on {topology.name}")
    return claimed


def _proved(data: dict[str, Any], topology: Topology) -> Fraction:
    collective, ranks, root, size = (data[key] for key in ("collective", "ranks", "root", "size"))
    if (data["format"], data["version"]) != ("allfold-bound", 1) or collective not in KNOWN:
        raise UsageError(f"{data['format']!r:.40} version {data['version']!r:.40} for {collective!r:.40} is not known")
    if type(ranks) is not int or not 1 <= ranks <= topology.ranks or type(size) is not int or size < 0:
        raise UsageError(
            f"it is for {ranks!r:.40} ranks and {size!r:.40} bytes; the topology has {topology.ranks} ranks"
        )
    if (root in range(ranks) and type(root) is int) != (collective in (*ROOT_SENDS, *ROOT_RECEIVES)):
        raise UsageError(f"the root of {collective} is {root!r:.40}")
    kind = data["kind"]
    if kind == "links" and collective != "barrier":
        return _paid(data, topology, collective, ranks, root) * size
    if kind == "combining" and collective in COMBINES:
        return Fraction(ranks - 1, ranks) * size / Fraction(topology.reduction)
    if kind == "distance":
        start, end = data["from"], data["to"]
        if (collective in ROOT_SENDS and start != root) or (collective in ROOT_RECEIVES and end != root):
            raise BoundError(f"in this {collective}, nothing need go from rank {start!r:.40} to rank {end!r:.40}")
        return _distance(topology, ranks, range(ranks)[start], range(ranks)[end])
    if kind == "spread":
        return _spread(topology, ranks, data["among"] == "hosts", Fraction(data["seconds"]))
    if kind != "nothing":
        raise UsageError(f"a bound of the kind {kind!r:.40} for {collective} is not known")
    return Fraction(0)


def _paid(data: dict[str, Any], topology: Topology, collective: str, ranks: int, root: int | None) -> Fraction:
    """Seconds per byte of the buffer."""
    numbers = {link.name: number for number, link in enumerate(topology.links)}
    price = {numbers[name]: Fraction(text) for name, text in data["prices"].items()}
    sets = [(np.isin(np.arange(ranks), one["ranks"]), Fraction(one["weight"])) for one in data["sets"]]
    figures = [*price.values(), *(weight for _, weight in sets)]
    if min(figures) < 0:
        raise UsageError("a price or a weight is below 0")
    earned = sum(one * Fraction(float(topology.bandwidth[link])) for link, one in price.items())
    scale = lcm(*(one.denominator for one in figures))
    exact = np.int64 if sum(figures) * scale < 2**40 else object
    pays = _over_pairs(
        topology, ranks, np.asarray([int(price.get(one, 0) * scale) for one in range(len(topology.links))], exact)
    )
    if collective in ONE_WAY:
        for over in range(ranks):
            pays = np.minimum(pays, pays[:, [over]] + pays[[over]])
        from_root = pays[root] if collective in ROOT_SENDS else pays[:, root] if collective in ROOT_RECEIVES else pays
        return Fraction(sum(from_root.ravel().tolist())) / ranks / (scale * earned)
    demand = Fraction(0)
    for inside, weight in ((inside, int(weight * scale)) for inside, weight in sets if 0 < inside.sum() < ranks):
        pays = pays - np.outer(inside, ~inside).astype(exact) * weight
        part = {"all_gather": int(inside.sum()), "reduce_scatter": int((~inside).sum())}.get(collective, ranks)
        needed = collective not in ("broadcast", "reduce") or bool(inside[root]) == (collective == "broadcast")
        demand += weight * Fraction(part if needed else 0, ranks)
    if (pays < 0).any():
        start, end = np.argwhere(pays < 0)[0]
        raise BoundError(f"a message from rank {start} to rank {end} leaves sets of more weight than it pays")
    if collective == "all_reduce":
        demand += 2 * _spanning_tree(np.minimum(pays, pays.T))
    return demand / (scale * earned)


def _over_pairs(topology: Topology, ranks: int, of_link: Any, slowest: bool = False) -> Any:
    """What links add up to on the way from each rank to each: by the shares of a split message, or on its worst path."""
    table = np.zeros((ranks, ranks), of_link.dtype)
    for rank in range(ranks if ranks > 1 else 0):
        others = np.delete(np.arange(ranks), rank)
        routes = topology.routes(np.full(len(others), rank), others)
        starts = routes.offsets if routes.paths is None else routes.paths
        each = np.add.reduceat(of_link[routes.links], starts[:-1])
        if routes.share is not None:
            first = np.searchsorted(starts[:-1], routes.offsets[:-1])
            share: Any = np.asarray([Fraction(one) for one in routes.share[starts[:-1]].tolist()], object)
            table = table.astype(object)
            each = np.maximum.reduceat(each, first) if slowest else np.add.reduceat(each * share, first)
        table[rank, others] = each
    return table


def _spanning_tree(cost: Any) -> Fraction:
    inside, total = {0}, Fraction(0)
    least = dict(enumerate(cost[0].tolist()))
    while len(inside) < len(cost):
        nearest = min((rank for rank in least if rank not in inside), key=least.__getitem__)
        inside.add(nearest)
        total += least[nearest]
        least = {rank: min(least[rank], cost[nearest, rank]) for rank in least}
    return Fraction(total)


def _messages(topology: Topology, ranks: int) -> Any:
    """The seconds that a message of no bytes takes from each rank to each; from a rank to itself, none."""
    latency = np.asarray([Fraction(one) for one in topology.latency.tolist()], object)
    takes = _over_pairs(topology, ranks, latency, slowest=True) + Fraction(topology.overhead)
    takes[np.arange(ranks), np.arange(ranks)] = Fraction(0)
    return takes


def _distance(topology: Topology, ranks: int, start: int, end: int) -> Fraction:
    takes, far, ahead = _messages(topology, ranks), {}, {start: Fraction(0)}
    while end not in far:
        rank = min(ahead, key=ahead.__getitem__)
        here = far[rank] = ahead.pop(rank)
        for other in set(range(ranks)) - far.keys():
            ahead[other] = min(ahead.get(other, here + takes[rank, other]), here + takes[rank, other])
    return far[end]


def _spread(topology: Topology, ranks: int, hosts: bool, claimed: Fraction) -> Fraction:
    """A rank that knows tells another every `overhead`, who knows one hop later; all ranks of a host that knows do."""
    takes, host, overhead = _messages(topology, ranks), topology.host[:ranks], Fraction(topology.overhead)
    who, group = np.unique(host if hosts else np.arange(ranks), return_counts=True)
    apart = host[:, None] != host if hosts else ~np.eye(ranks, dtype=bool)
    hop, know, hops = min(takes[apart]), 0, 0
    while hops * hop <= claimed and know < len(who) and overhead:
        know += int(group.max()) ** hops * comb(hops + int(min((claimed - hops * hop) / overhead, ranks)), hops)
        hops += 1
    return hop if not overhead else claimed if know < len(who) else Fraction(0)
