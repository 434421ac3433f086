"""Neighbours: the pairs of ranks that hand on to each other, their links, and the chunks that a link carries in one round.

A schedule need only name moves between neighbours: pairs of ranks with no other rank on the route between them. On a
torus those are the ranks at the two ends of a cable; under a switch, all ranks are neighbours and share the cables to
it. A move crosses the links of the topology's route and shares them with the other moves of its step, so that what a
method counts in rounds is what `cost` prices in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..price.topology.network import network_of
from ..price.topology.pairs import every_pair, needed_pairs
from ..price.topology.routing import Graph, Grid, unsplit
from ..price.topology.topology import Topology, spans

Numbers = NDArray[np.int32]

UNLIMITED = 2**24  # chunks per round: more than any link has
_FINEST = 8  # a round is at least 1/8 of what the slowest link takes for a chunk
_MOST_COMPARED = 128  # ranks up to which routes are compared with each other
_NEAR = 0.01  # a link may carry this much less than a whole number of chunks per round


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Pair i leads from `source[i]` to `destination[i]`, over the links `links[offsets[i]:offsets[i + 1]]`."""

    ranks: int
    source: Numbers
    destination: Numbers
    offsets: NDArray[np.intp]
    links: Numbers
    """Links with a limit, in numbers of their own: link i here is link `names[i]` of the topology."""
    names: Numbers
    capacity: Numbers
    """Chunks that each link carries in one round."""
    bandwidth: NDArray[np.float64]
    share: NDArray[np.float64]
    """Per entry of `links`: how much of a chunk crosses it. Less than 1 where messages are split over several paths."""

    @property
    def direct(self) -> bool:
        """True if every pair has links of its own: no switch, and nothing shared."""
        return bool((np.bincount(self.links, minlength=1) <= 1).all())

    @cached_property
    def pair(self) -> NDArray[np.intp]:
        """Per entry of `links`: the pair that crosses it."""
        return np.repeat(np.arange(len(self.source)), np.diff(self.offsets))

    @cached_property
    def routes(self) -> list[list[int]]:
        """By pair: the links that it crosses."""
        return [links.tolist() for links in np.split(self.links, self.offsets[1:-1])]

    @cached_property
    def times(self) -> NDArray[np.float64]:
        """By link: how long it carries one chunk, if the slowest takes 1."""
        return np.asarray(self.bandwidth.min(initial=np.inf) / self.bandwidth)

    def narrowest(self, of_link: NDArray[Any], unlimited: float) -> NDArray[Any]:
        """By pair: the least of the figures of its links; `unlimited` where no link limits it."""
        found = np.full(len(self.source), unlimited)
        np.minimum.at(found, self.pair, of_link[self.links])
        return found

    def reversed(self) -> Neighbours:
        """Every pair the other way round: what can be spread there can be collected here."""
        return replace(self, source=self.destination, destination=self.source)

    def taken(self, pairs: NDArray[np.bool_]) -> Neighbours:
        """Only some of the pairs."""
        kept = np.flatnonzero(pairs)
        lengths = np.diff(self.offsets)[kept]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.intp)
        at = spans(self.offsets[kept], lengths)
        return replace(
            self,
            source=self.source[kept],
            destination=self.destination[kept],
            offsets=offsets,
            links=self.links[at],
            share=self.share[at],
        )


@lru_cache(maxsize=16)
def neighbours_of(topology: Topology, ranks: int) -> Neighbours:
    """The neighbours among the first `ranks` ranks. Other ranks take no part, but pass on what is routed over them."""
    return _over_routes(unsplit(topology), ranks, *_adjacent(topology, ranks))


def pairs_of(topology: Topology, ranks: int) -> Neighbours:
    """The pairs over which whatever the first `ranks` ranks can do may be thought to go (`needed_pairs`)."""
    return _over_routes(unsplit(topology), ranks, *needed_pairs(topology, ranks))


def _over_routes(topology: Topology, ranks: int, source: Numbers, destination: Numbers) -> Neighbours:
    routes = topology.routes(source, destination)
    lengths = routes.lengths
    pair = np.repeat(np.arange(len(source)), lengths)
    limits = np.isfinite(topology.bandwidth[routes.links])
    names, links = np.unique(routes.links[limits], return_inverse=True)
    offsets = np.zeros(len(source) + 1, np.intp)
    np.cumsum(np.bincount(pair[limits], minlength=len(source)), out=offsets[1:])
    return Neighbours(
        ranks,
        source.astype(np.int32),
        destination.astype(np.int32),
        offsets,
        links.astype(np.int32),
        names.astype(np.int32),
        chunks_per_round(topology.bandwidth[names]),
        topology.bandwidth[names],
        routes.loads(np.ones(len(source)))[limits],
    )


def _adjacent(topology: Topology, ranks: int) -> tuple[Numbers, Numbers]:
    router = topology.router
    everyone = np.arange(ranks, dtype=np.int32)
    if isinstance(router, Grid) and ranks == topology.ranks:  # known without a look at all pairs
        ends = []
        for dimension, side in enumerate(router.shape):
            stride = int(np.prod(router.shape[dimension + 1 :]))
            along = everyone // stride % side
            for step in (1, -1):
                there = (along + step) % side
                fits = there == along + step if router.place is not None else there != along
                ends.append(np.stack([everyone, everyone + (there - along) * stride])[:, fits])
        # On a ring of two, up and down lead to the same rank.
        both = np.unique(np.concatenate(ends, axis=1), axis=1)
        return both[0], both[1]
    source, destination = every_pair(ranks)
    if isinstance(router, Graph):
        passes = np.zeros(len(source), bool)
        node = source
        while (travels := node != destination).any():
            node = np.where(travels, router.edge_end[router.step[node, destination]], node)
            passes |= (node < ranks) & (node != destination)
        return source[~passes], destination[~passes]
    if ranks <= _MOST_COMPARED:
        return needed_pairs(topology, ranks)
    network = network_of(topology, ranks)
    at_rank = np.zeros(len(topology.links) + 1, np.int64)
    at_rank[network.link] = network.head < ranks
    routes = topology.routes(source, destination)
    # One rank at the end of its links is the destination; a port that is no edge of the network ends nowhere.
    passes = np.add.reduceat(at_rank[routes.links], routes.offsets[:-1]) > 1
    near = source[~passes], destination[~passes]
    # Routes by which everybody is reached only through others leave somebody without a neighbour.
    return near if _reaches_all(ranks, *near) else (source, destination)


def _reaches_all(ranks: int, source: Numbers, destination: Numbers) -> bool:
    for tail, head in ((source, destination), (destination, source)):
        reached = np.arange(ranks) == 0
        while (new := (np.bincount(head[reached[tail]], minlength=ranks) > 0) & ~reached).any():
            reached |= new
        if not reached.all():
            return False
    return True


def chunks_per_round(bandwidth: NDArray[np.float64]) -> Numbers:
    """Whole numbers in the proportion of the bandwidths, as small as possible; never more than they allow, by 1 %."""
    if not len(bandwidth):
        return np.zeros(0, np.int32)
    parts = bandwidth / bandwidth.min()
    for finer in range(1, _FINEST + 1):
        whole = np.floor(parts * finer * (1 + _NEAR))
        if (whole >= parts * finer * (1 - _NEAR)).all():
            break
    else:
        whole = np.floor(parts * (1 + _NEAR))
    chunks: Numbers = np.minimum(whole, 2**20).astype(np.int32)
    return chunks
