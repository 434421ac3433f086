"""Check a lower bound from its certificate and the topology alone, in exact numbers. What finds bounds shares no code.

links: every link charges its price per byte. If all messages must pay `demand` per byte of the buffer, that takes at least
demand · size / Σ price · bandwidth. In all_to_all, scatter and gather every byte pays the cheapest way to its end. In the
others a set of ranks must send the rest what only it has. No message leaves sets of more weight than it pays; so what must
leave a set is paid for as often as its weight. In an all_reduce, G groups of ranks need 2(G−1) one-way messages to reach
each other; so of what messages pay beyond the weights, at least twice the cheapest spanning tree is paid, too. Where
switches fold, messages pay once for many, and one set is all that is counted. Where bandwidth depends on the size of
messages, none carries more of use than the buffer (in all_to_all, all buffers), but it may be longer. distance: data take
at least the cheapest chain of messages (overhead, and latencies of routes) to another rank. spread: nor can it be at all
ranks before enough messages were started. combining: P ranks combine (P−1) · size bytes.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import comb, lcm
from typing import Any

import numpy as np

from ..collectives import COLLECTIVES, Collective
from ..errors import BoundError, UsageError
from .topology.topology import Topology


def check_bound(certificate: dict[str, Any], topology: Topology) -> Fraction:
    """The seconds that are proved, which are those that the certificate claims; a `BoundError` if it proves less.

    >>> found = af.find("broadcast", "ring", ranks=4, size=10**6, seconds=2)
    >>> float(price.check_bound(found.certificate.to_json(), price.ring(4)))
    1e-05
    """
    try:
        claimed, proved = _number(certificate["seconds"]), _proved(certificate, topology)
    except (KeyError, TypeError, ArithmeticError, AttributeError, IndexError) as error:
        raise UsageError(f"this is not a certificate of a bound: {type(error).__name__}: {str(error)[:100]}") from None
    if not 0 <= claimed <= proved:
        raise BoundError(f"it claims {float(claimed):.9g} s, but proves only {float(proved):.9g} s on {topology.name}")
    return claimed


def _number(text: str) -> Fraction:
    if not re.fullmatch("[0-9]{1,999}(/[0-9]{1,999})?", text):
        raise UsageError(f"{text[:40]!r} is not a fraction of whole numbers")
    return Fraction(text)


def _proved(data: dict[str, Any], topology: Topology) -> Fraction:
    collective, ranks, root, size = (data[key] for key in ("collective", "ranks", "root", "size"))
    if (data["format"], data["version"]) != ("allfold-bound", 1) or collective not in COLLECTIVES:
        raise UsageError(f"{data['format']!r:.40} version {data['version']!r:.40} for {collective!r:.40} is not known")
    promise = COLLECTIVES[collective]
    if type(ranks) is not int or not 1 <= ranks <= topology.ranks or type(size) is not int or size < 0:
        raise UsageError(f"it is for {ranks!r:.40} ranks and {size!r:.40} bytes, on {topology.ranks} ranks")
    if (type(root) is int and 0 <= root < ranks) != promise.rooted:
        raise UsageError(f"the root of {collective} is {root!r:.40}")
    if (kind := data["kind"]) == "links" and promise.carries_data:
        return _paid(data, topology, promise, ranks, root) * size
    if kind == "combining" and promise.takes_op and not topology.folding:
        return Fraction(promise.combinations(ranks), ranks) * size / Fraction(topology.reduction)
    if kind == "distance":
        start, end = data["from"], data["to"]
        at_root = (start if promise.starts.root_only else root) == (end if promise.ends.root_only else root) == root
        if not at_root or start not in promise.contributors(end, ranks):
            raise BoundError(f"in this {collective}, no data must go from rank {start!r:.40} to rank {end!r:.40}")
        far = (takes := _messages(topology, ranks))[range(ranks)[start]]
        while ((nearer := (far[:, None] + takes).min(axis=0)) < far).any():
            far = nearer
        return Fraction(far[range(ranks)[end]])
    if kind == "spread" and not topology.folding:
        return _spread(topology, ranks, data["among"] == "hosts", _number(data["seconds"]))
    if kind != "nothing":
        raise UsageError(f"a bound of the kind {kind!r:.40} for {collective} is not known")
    return Fraction(0)


def _paid(data: dict[str, Any], topology: Topology, promise: Collective, ranks: int, root: int | None) -> Fraction:
    numbers = {link.name: number for number, link in enumerate(topology.links)}
    price = {numbers[name]: _number(text) for name, text in data["prices"].items()}
    counted = data["sets"][: 1 if topology.folding else None]
    sets = [(np.isin(np.arange(ranks), one["ranks"]), _number(one["weight"])) for one in counted]
    figures = [*price.values(), *(weight for _, weight in sets)]
    useful = max(1, data["size"] * (ranks if promise.exchanges else 1))
    earned = demand = Fraction(0)
    for link, one in price.items():
        earned += one * max(Fraction(bw) * useful / max(int(at), useful) for at, _, bw in topology.links[link].rows)
    scale = lcm(*(one.denominator for one in figures))
    charge = [int(price.get(link, 0) * scale) for link in range(len(topology.links))]
    pays = _over_pairs(topology, ranks, np.asarray(charge, np.int64 if sum(figures) * scale < 2**40 else object))
    if promise.one_way:
        for over in range(ranks):
            pays = np.minimum(pays, pays[:, [over]] + pays[[over]])
        from_root = pays[root] if promise.starts.root_only else pays[:, root] if promise.ends.root_only else pays
        return Fraction(sum(from_root.ravel().tolist())) / ranks / (scale * earned)
    for inside, weight in ((inside, int(weight * scale)) for inside, weight in sets if 0 < inside.sum() < ranks):
        pays = pays - np.outer(inside, ~inside).astype(pays.dtype) * weight
        part = int(inside.sum()) if promise.starts.sliced else int((~inside).sum()) if promise.ends.sliced else ranks
        wanted = (inside[promise.contributors(one, ranks)].any() for one in np.flatnonzero(~inside).tolist())
        needed = bool(inside[root]) == promise.starts.root_only if promise.rooted else any(wanted)
        demand += weight * Fraction(part if needed else 0, ranks)
    for start, end in np.argwhere(pays < 0):
        raise BoundError(f"a message from rank {start} to rank {end} leaves sets of more weight than it pays")
    if promise.round_trip and not topology.folding:
        demand += 2 * _spanning_tree(np.minimum(pays, pays.T))
    return demand / (scale * earned)


def _over_pairs(topology: Topology, ranks: int, of_link: Any, slowest: bool = False) -> Any:
    """The sum over the links from each rank to each: by the shares of a split message, or on its worst path."""
    table = np.zeros((ranks, ranks), of_link.dtype)
    for rank, others in ((rank, np.delete(np.arange(ranks), rank)) for rank in range(ranks if ranks > 1 else 0)):
        routes = topology.routes(np.full(len(others), rank), others)
        starts = routes.offsets[:-1] if routes.paths is None else routes.paths[:-1]
        each = np.add.reduceat(of_link[routes.links], starts)
        if routes.share is not None:
            share: Any = np.asarray([Fraction(one) for one in routes.share[starts].tolist()], object)
            join, each, table = (np.maximum, each, table) if slowest else (np.add, each * share, table.astype(object))
            each = join.reduceat(each, np.searchsorted(starts, routes.offsets[:-1]))
        table[rank, others] = each
    return table


def _spanning_tree(cost: Any) -> Fraction:
    rows, total = cost.tolist(), Fraction(0)  # Python's numbers, which do not overflow
    least = dict(enumerate(rows[0][1:], 1))
    while least:
        nearest = min(least, key=least.__getitem__)
        total += least.pop(nearest)
        least = {rank: min(so_far, rows[nearest][rank]) for rank, so_far in least.items()}
    return total


def _messages(topology: Topology, ranks: int) -> Any:
    """The seconds that a message of no bytes takes from each rank to each; from a rank to itself, none."""
    latency = np.asarray([Fraction(one) for one in topology.latency.tolist()], object)
    return (_over_pairs(topology, ranks, latency, True) + Fraction(topology.overhead)) * (1 - np.eye(ranks, dtype=int))


def _spread(topology: Topology, ranks: int, hosts: bool, claimed: Fraction) -> Fraction:
    """An informed rank informs another every `overhead`, one hop later; among hosts, all ranks of an informed host do."""
    takes, host, overhead = _messages(topology, ranks), topology.host[:ranks], Fraction(topology.overhead)
    who, group = np.unique(host if hosts else np.arange(ranks), return_counts=True)
    apart = host[:, None] != host if hosts else ~np.eye(ranks, dtype=bool)
    hop, know, hops = min(takes[apart]), 0, 0
    while overhead and hops * hop <= claimed and know < len(who):
        know += int(group.max()) ** hops * comb(hops + int(min((claimed - hops * hop) / overhead, ranks)), hops)
        hops += 1
    return hop if not overhead else claimed if know < len(who) else Fraction(0)
