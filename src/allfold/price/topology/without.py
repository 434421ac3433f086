"""A topology without some of its links: what is left of a network after a failure.

Pairs whose route crosses none of them keep it. The others get the fewest links that still lead there, over other ranks
where need be, as in a network whose routing has noticed the failure and changed no more than it had to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ...wording import name_ranks, suggest
from .network import network_of
from .routing import ABSENT, Graph, NoPath, fewest_hops, split
from .topology import Block, Links, Ranks, Routes, Topology

_MOST = 4096  # ranks; the table of the ways round grows with the square
_MOST_NAMED = 8  # known links that an error lists

Edge = tuple[int, int, int]


def without(topology: Topology, names: Iterable[str]) -> Topology:
    """The topology without the links of these names, with new routes for the pairs that used them.

    >>> whole = price.torus(shape=(4, 4))
    >>> broken = price.without(whole, [whole.links[-1].name])
    >>> len(whole.links) - len(broken.links)
    1
    """
    wanted = list(dict.fromkeys([names] if isinstance(names, str) else names))
    if isinstance(topology.router, Rerouted):  # all at once, on the whole network
        return without(topology.router.whole, [*topology.router.missing, *wanted])
    if not wanted:
        return topology
    if topology.folding:
        return _without_edges(topology, wanted)
    if topology.ranks > _MOST:
        raise UsageError(f"topology {topology.name}: {topology.ranks} ranks; links can be taken from at most {_MOST}")
    kept = np.ones(len(topology.links), bool)
    kept[_numbers(topology, wanted)] = False
    return replace(
        topology,
        links=Links(_blocks(topology.links, kept)),
        source=f"{topology.source}. Without {', '.join(wanted)}",
        router=Rerouted(
            topology,
            tuple(wanted),
            np.where(kept, np.cumsum(kept) - 1, ABSENT).astype(np.int32),
            _ways_round(topology, wanted, kept),
        ),
        recipe={**topology.recipe, "without": wanted},
    )


def _without_edges(topology: Topology, wanted: Sequence[str]) -> Topology:
    """Remove edges from the graph of a file, where switches fold. Other pairs keep the fewest hops they had."""
    gone = [*topology.recipe.get("without", []), *wanted]
    _numbers(topology, wanted)
    graph = topology.recipe["graph"]
    left = {
        "links": [link for link in topology.recipe["links"] if link["name"] not in gone],
        "graph": {**graph, "edges": [edge for edge in graph["edges"] if edge.get("link") not in gone]},
    }
    whole = {key: value for key, value in topology.recipe.items() if key != "without"}
    head = {"format": "allfold-topology", "version": 1}
    try:
        found = Topology.from_json({**head, **whole, **left})
    except UsageError as error:
        named = ", ".join(repr(name) for name in gone)
        raise UsageError(f"without {named}, {error}") from None
    said = topology.source.partition(". Without ")[0]
    return replace(found, recipe={**whole, "without": gone}, source=f"{said}. Without {', '.join(gone)}")


@dataclass(frozen=True, eq=False)
class Rerouted:
    """The routes of the whole network, and a way round for those that cross a link that is missing."""

    whole: Topology
    missing: tuple[str, ...]
    number: NDArray[np.int32]
    """The new number of every link, or ABSENT."""
    ways: Graph
    """In the old numbers."""

    def __call__(self, source: Ranks, destination: Ranks) -> Routes:
        old = self.whole.router(source, destination)
        pair = np.repeat(np.arange(len(source)), old.lengths)
        broken = np.zeros(len(source), bool)
        broken[pair[self.number[old.links] == ABSENT]] = True
        kept, lost = np.flatnonzero(~broken), np.flatnonzero(broken)
        parts = [self.whole.router(source[kept], destination[kept]), self.ways(source[lost], destination[lost])]
        found = split(len(source), [one.by_path(which) for which, one in zip((kept, lost), parts, strict=True)])
        plain = all(part.paths is None for part in parts)
        links = self.number[found.links]
        return Routes(found.offsets, links) if plain else replace(found, links=links)

    @property
    def splits(self) -> bool:
        return self.whole.splits


def _numbers(topology: Topology, names: Sequence[str]) -> list[int]:
    known = {link.name: number for number, link in enumerate(topology.links)}
    for name in names:
        if name not in known:
            beyond = [one for one, number in known.items() if number >= 2 * topology.ranks]
            advice, *others = suggest(name, beyond).split(", ")
            more = [f"and {len(others) - _MOST_NAMED} more"] if len(others) > _MOST_NAMED else []
            listed = ", ".join([advice, *others[:_MOST_NAMED], *more])
            raise UsageError(f"topology {topology.name} has no link {str(name)[:60]!r}; {listed}")
        if known[name] < 2 * topology.ranks:
            rank = known[name] % topology.ranks
            raise UsageError(
                f"{name!r} is the port of rank {rank}, and without it rank {rank} cannot reach any other; "
                f"only links beyond the ports can be missing from topology {topology.name}"
            )
    return [known[name] for name in names]


def _blocks(links: Links, kept: NDArray[np.bool_]) -> list[Block]:
    blocks, at = [], 0
    for block in links.blocks:
        own = kept[at : at + block.count]
        at += block.count
        if not own.all():
            before = np.arange(block.count, dtype=np.int32) if block.kept is None else block.kept
            block = replace(block, kept=before[own])
        blocks.append(block)
    return blocks


def _ways_round(topology: Topology, names: Sequence[str], kept: NDArray[np.bool_]) -> Graph:
    """The fewest links between any two ranks, of those that are left."""
    nodes, every = _edges(topology)
    edges = [edge for edge in every if edge[2] == ABSENT or kept[edge[2]]]
    try:
        return fewest_hops(nodes, topology.ranks, edges, topology.bandwidth if topology.splits else None)
    except NoPath as error:
        away = _not_reached(topology.ranks, error.start, edges)
        gone = ", ".join(repr(name) for name in names)
        raise UsageError(
            f"topology {topology.name} without {gone}: {name_ranks(away)} cannot be reached from rank {error.start}"
        ) from None


def _edges(topology: Topology) -> tuple[int, list[Edge]]:
    """The number of nodes of the network, ranks first, and its edges without the ports where a route starts and ends.

    In between it crosses the ports of a rank that it passes only if they are edges of the network; that rank is then
    another node than the one where routes start and end.
    """
    router = topology.router
    if isinstance(router, Graph):
        ends = zip(router.edge_start.tolist(), router.edge_end.tolist(), router.edge_link.tolist(), strict=True)
        return len(router.step), list(ends)[:-1]  # the last one is no edge
    network = network_of(topology)
    passing: list[Edge] = []  # listed first, so that no route goes over the node where others end
    plain: list[Edge] = []
    for tail, head, link in zip(network.tail.tolist(), network.head.tolist(), network.link.tolist(), strict=True):
        if link < 2 * topology.ranks:
            relay = network.vertices + link % topology.ranks
            passing.append((relay, head, link) if link < topology.ranks else (tail, relay, link))
            plain.append((tail, head, ABSENT))
        else:
            plain.append((tail, head, link))
    return network.vertices + (topology.ranks if passing else 0), [*passing, *plain]


def _not_reached(ranks: int, start: int, edges: Sequence[Edge]) -> list[int]:
    after: dict[int, list[int]] = {}
    for tail, head, _ in edges:
        after.setdefault(tail, []).append(head)
    reached, ahead = {start}, [start]
    while ahead:
        new = {head for tail in ahead for head in after.get(tail, [])} - reached
        reached |= new
        ahead = list(new)
    return [rank for rank in range(ranks) if rank not in reached]
