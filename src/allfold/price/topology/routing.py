"""Routers, which find many routes at once: through switches by arithmetic, on a grid dimension by dimension, or by a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from .topology import Block, Link, Links, Ranks, Routes, Topology, spans

ABSENT = -1


def compress(columns: Sequence[NDArray[np.integer[Any]]]) -> Routes:
    """Routes from columns of links, one column per position on the route; ABSENT where a pair has no link there."""
    table = np.stack(columns, axis=1).astype(np.int32)
    there = table != ABSENT
    offsets = np.zeros(len(table) + 1, np.intp)
    np.cumsum(there.sum(axis=1), out=offsets[1:])
    return Routes(offsets, table[there])


def split(pairs: int, paths: Sequence[tuple[NDArray[np.integer[Any]], Routes, NDArray[np.float64]]]) -> Routes:
    """Routes with several paths per pair: (the pair of every path, the paths, their shares), in any order.

    A pair with no path is a rank that reaches itself.
    """
    pair = np.concatenate([which for which, _, _ in paths])
    share = np.concatenate([part for _, _, part in paths])
    lengths = np.concatenate([routes.lengths for _, routes, _ in paths])
    links = np.concatenate([routes.links for _, routes, _ in paths])
    order = np.argsort(pair, kind="stable")
    begin = (np.cumsum(lengths) - lengths)[order]
    pair, share, lengths = pair[order], share[order], lengths[order]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.intp)
    at = spans(begin, lengths)
    offsets = np.zeros(pairs + 1, np.intp)
    np.cumsum(np.bincount(pair, lengths, pairs).astype(np.intp), out=offsets[1:])
    return Routes(offsets, links[at], np.repeat(share, lengths), ends[np.append(lengths > 0, True)])


def exact_shares(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares, or where they end, as multiples of 2⁻⁴⁰: so those of a message add up to 1 without rounding."""
    return np.asarray(np.round(shares * 2.0**40) / 2.0**40)


@lru_cache(maxsize=8)
def unsplit(topology: Topology) -> Topology:
    """The same for methods that count whole chunks: a message is not split, but crosses all links of all its paths.

    A link that carries at most half of any message has twice the bandwidth in return, so no link seems faster than it is.
    What of that a message really takes is still in `Routes.share`.
    """
    if not topology.splits:
        return topology
    everyone = np.arange(topology.ranks, dtype=np.int32)
    routes = topology.routes(np.repeat(everyone, topology.ranks), np.tile(everyone, topology.ranks))
    pair = np.repeat(np.arange(len(routes)), routes.lengths)
    key, which = np.unique(pair * np.int64(len(topology.links)) + routes.links, return_inverse=True)
    share = np.zeros(len(topology.links))
    np.maximum.at(share, key % len(topology.links), np.bincount(which, routes.loads(np.ones(len(routes)))))
    most = np.where(share, share, 1.0)
    blocks = [
        Block.alone(Link(link.name, link.kind, link.latency, link.bandwidth / part))
        for link, part in zip(topology.links, most.tolist(), strict=True)
    ]
    return replace(topology, links=Links(blocks), router=Whole(topology, most))


@dataclass(frozen=True, eq=False)
class Whole:
    """Every message crosses all links of all its paths."""

    split: Topology
    most: NDArray[np.float64]
    """By link: the most of a message that crosses it."""

    def __call__(self, source: Ranks, destination: Ranks) -> Routes:
        routes, ranks = self.split.router(source, destination), self.split.ranks
        pair, links = np.repeat(np.arange(len(routes)), routes.lengths), routes.links.astype(np.int64)
        place = np.where(links < ranks, 0, np.where(links < 2 * ranks, 2, 1))  # from port to port
        many = len(self.split.links)
        key, which = np.unique((pair * np.int64(3) + place) * many + links, return_inverse=True)
        offsets = np.searchsorted(key, np.arange(len(routes) + 1) * np.int64(3 * many)).astype(np.intp)
        share = np.bincount(which, routes.loads(np.ones(len(routes))), len(key)) / self.most[key % many]
        return Routes(offsets, (key % many).astype(np.int32), share)


@dataclass(frozen=True, eq=False)
class Switched:
    """Hosts with network cards under leaf switches under one row of spines; any of these stages may be absent.

    Inside a host: port, bus (if any), port. Between hosts: port, card, up and down (between leaves), card, port. Each
    rank uses the card `card[rank]`; a leaf's uplink and the spine's downlink are chosen by the receiving card, so that
    messages to different cards of a leaf never meet on the way down.
    `ports`, `buses`, `cards` and `spines` are the first link numbers: outgoing and incoming, up and down.
    """

    host: Ranks
    card: Ranks
    leaf: Ranks
    """The leaf of every card."""
    place: Ranks
    """The number of every card within its leaf."""
    uplinks: int
    ports: tuple[int, int]
    buses: int | None
    cards: tuple[int, int] | None
    spines: tuple[int, int] | None

    def __call__(self, source: Ranks, destination: Ranks) -> Routes:
        elsewhere = self.host[source] != self.host[destination]
        itself = source == destination
        columns = [np.where(itself, ABSENT, self.ports[0] + source)]
        if self.buses is not None:
            columns.append(np.where(elsewhere | itself, ABSENT, self.buses + self.host[source]))
        if self.cards is not None:
            start, end = self.card[source], self.card[destination]
            columns.append(np.where(elsewhere, self.cards[0] + start, ABSENT))
            if self.spines is not None:
                up, down = self.leaf[start], self.leaf[end]
                spine = self.place[end] % self.uplinks
                climbs = elsewhere & (up != down)
                columns.append(np.where(climbs, self.spines[0] + up * self.uplinks + spine, ABSENT))
                columns.append(np.where(climbs, self.spines[1] + down * self.uplinks + spine, ABSENT))
            columns.append(np.where(elsewhere, self.cards[1] + end, ABSENT))
        columns.append(np.where(itself, ABSENT, self.ports[1] + destination))
        return compress(columns)


def all_alike(topology: Topology) -> bool:
    """True if all pairs have equal routes: all ranks on one host, or one rank per host, and no leaf switches."""
    router = topology.router
    if not isinstance(router, Switched) or router.spines is not None:
        return False
    return router.cards is None or topology.hosts == topology.ranks


@dataclass(frozen=True, eq=False)
class Grid:
    """A torus or a mesh: one dimension after the other, on a torus the shorter way round each.

    Where both ways are equally short, the coordinates decide, so that as many pairs go upwards as downwards. The cable
    of a node in dimension d, upwards or downwards, is number (node · dimensions + d) · 2 + downwards of all that a torus
    has. A mesh lacks some of them: `place` is then the number of each among those that are there.
    """

    shape: tuple[int, ...]
    ports: tuple[int, int]
    cables: int
    """The first link number of the cables."""
    place: NDArray[np.int32] | None = None
    """None for a torus."""

    def __call__(self, source: Ranks, destination: Ranks) -> Routes:
        pairs, dimensions = len(source), len(self.shape)
        start, end = (np.stack(np.unravel_index(side, self.shape)) for side in (source, destination))
        shape = np.asarray(self.shape)[:, None]
        if self.place is None:
            forward = (end - start) % shape
            # At a tie, the parity of where it starts, and of where it ends in the other dimensions.
            odd = (start.sum(axis=0) + end.sum(axis=0) - end) % 2 == 1
            down = (2 * forward > shape) | ((2 * forward == shape) & odd)
            hops = np.where(down, shape - forward, forward)
        else:
            down = end < start
            hops = abs(end - start)
        moves = hops.sum(axis=0) > 0
        offsets = np.zeros(pairs + 1, np.intp)
        np.cumsum(hops.sum(axis=0) + 2 * moves, out=offsets[1:])
        links = np.empty(offsets[-1], np.int32)
        links[offsets[:-1][moves]] = self.ports[0] + source[moves]
        links[offsets[1:][moves] - 1] = self.ports[1] + destination[moves]
        at = offsets[:-1] + 1
        here = start.copy()
        for d in range(dimensions):
            pair = np.repeat(np.arange(pairs), hops[d])
            hop = np.arange(len(pair)) - np.repeat(np.cumsum(hops[d]) - hops[d], hops[d])
            coordinates = here[:, pair]
            coordinates[d] = (coordinates[d] + np.where(down[d, pair], -hop, hop)) % self.shape[d]
            node = np.ravel_multi_index(tuple(coordinates), self.shape)
            number = (node * dimensions + d) * 2 + down[d, pair]
            links[at[pair] + hop] = self.cables + (number if self.place is None else self.place[number])
            at = at + hops[d]
            here[d] = end[d]
        return Routes(offsets, links)


@dataclass(frozen=True, eq=False)
class Dragonfly:
    """The direct route: to the router with the cable to the other group, across it, to the receiver's router.

    Routers of a group are all connected with each other; each pair of groups has one cable. Router k of a group has the
    cables to the groups that are k·h+1 to k·h+h further on.
    """

    groups: int
    routers: int
    ranks_per_router: int
    ports: tuple[int, int]
    locals: int
    globals: int

    def __call__(self, source: Ranks, destination: Ranks) -> Routes:
        many = self.routers
        (from_group, start), (to_group, end) = (
            divmod(side // self.ranks_per_router, many) for side in (source, destination)
        )
        each = -(-max(1, self.groups - 1) // many)  # cables to other groups per router
        out, back = (to_group - from_group - 1) % self.groups, (from_group - to_group - 1) % self.groups
        abroad, itself = from_group != to_group, source == destination
        leave = np.where(abroad, out // each, end)
        arrive = np.where(abroad, back // each, end)

        def within(group: Ranks, one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
            return np.where(one == other, ABSENT, self.locals + (group * many + one) * many + other)

        return compress(
            [
                np.where(itself, ABSENT, self.ports[0] + source),
                within(from_group, start, leave),
                np.where(abroad, self.globals + from_group * max(1, self.groups - 1) + out, ABSENT),
                np.where(abroad, within(to_group, arrive, end), ABSENT),
                np.where(itself, ABSENT, self.ports[1] + destination),
            ]
        )


@dataclass(frozen=True, eq=False)
class RoutingTable:
    """Every pair's route stored in compressed rows: that of (s, d) is row s · ranks + d."""

    ranks: int
    offsets: NDArray[np.intp]
    links: NDArray[np.int32]

    def __call__(self, source: Ranks, destination: Ranks) -> Routes:
        row = source.astype(np.int64) * self.ranks + destination
        lengths = self.offsets[row + 1] - self.offsets[row]
        offsets = np.zeros(len(row) + 1, np.intp)
        np.cumsum(lengths, out=offsets[1:])
        return Routes(offsets, self.links[spans(self.offsets[row], lengths)])


@dataclass(frozen=True, eq=False)
class Paths:
    """Every pair's paths: those of (s, d) are `first[row]` to `first[row + 1]` for row s · ranks + d, each with its share."""

    ranks: int
    first: NDArray[np.intp]
    starts: NDArray[np.intp]
    links: NDArray[np.int32]
    share: NDArray[np.float64]

    splits = True

    @staticmethod
    def of(ranks: int, rows: Sequence[Sequence[tuple[Sequence[int], float]]]) -> Paths:
        """From the links and the share of every path of every pair; shares are made to add up to 1 exactly."""
        ends = [
            exact_shares(np.cumsum([share for _, share in row]) / sum(share for _, share in row)) for row in rows if row
        ]
        paths = [links for row in rows for links, _ in row]
        return Paths(
            ranks,
            np.cumsum([0, *map(len, rows)]).astype(np.intp),
            np.cumsum([0, *map(len, paths)]).astype(np.intp),
            np.asarray([link for links in paths for link in links], np.int32),
            np.concatenate([np.zeros(0), *(np.diff(one, prepend=0.0) for one in ends)]),
        )

    def __call__(self, source: Ranks, destination: Ranks) -> Routes:
        row = source.astype(np.int64) * self.ranks + destination
        many = self.first[row + 1] - self.first[row]
        pair = np.repeat(np.arange(len(row)), many)
        path = spans(self.first[row], many)
        lengths = self.starts[path + 1] - self.starts[path]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.intp)
        links = self.links[spans(self.starts[path], lengths)]
        return split(len(row), [(pair, Routes(offsets, links), self.share[path])])


_MOST_PATHS = 32  # of one message


@dataclass(frozen=True, eq=False)
class Graph:
    """The fewest hops; ranks are the first nodes. `step[node, rank]` is the edge from `node` towards `rank`.

    Where several edges lead from one node to the next, a message is split over them in the ratio of their bandwidths.
    """

    step: NDArray[np.int32]
    edge_start: NDArray[np.int32]
    edge_end: NDArray[np.int32]
    edge_link: NDArray[np.int32]
    ports: tuple[int, int]
    widths: NDArray[np.float64]
    """The shares of the paths of a split message."""
    link_of: NDArray[np.int32]
    """By path and edge: the link that the path takes for this edge."""

    @property
    def splits(self) -> bool:
        return len(self.widths) > 1

    def __call__(self, source: Ranks, destination: Ranks) -> Routes:
        edges, node = [], source.copy()
        while (travels := node != destination).any():
            edge = np.where(travels, self.step[node, destination], ABSENT)
            edges.append(edge)
            node = np.where(travels, self.edge_end[edge], node)
        if not self.splits:
            return self._path(source, destination, edges, self.edge_link)
        several = (self.link_of != self.edge_link).any(axis=0)
        parallel = np.zeros(len(source), bool)
        for edge in edges:
            parallel |= (edge != ABSENT) & several[edge]
        if not parallel.any():
            return self._path(source, destination, edges, self.edge_link)
        one, some = np.flatnonzero(~parallel), np.flatnonzero(parallel)
        paths = [(one, self._path(source[one], destination[one], [edge[one] for edge in edges], self.edge_link), 1.0)]
        for width, links in zip(self.widths.tolist(), self.link_of, strict=True):
            here = [edge[some] for edge in edges]
            paths.append((some, self._path(source[some], destination[some], here, links), width))
        return split(len(source), [(pair, routes, np.full(len(pair), share)) for pair, routes, share in paths])

    def _path(
        self, source: Ranks, destination: Ranks, edges: Sequence[NDArray[np.int32]], link: NDArray[np.int32]
    ) -> Routes:
        stays = source == destination
        return compress(
            [
                np.where(stays, ABSENT, self.ports[0] + source),
                *(np.where(edge == ABSENT, ABSENT, link[edge]) for edge in edges),
                np.where(stays, ABSENT, self.ports[1] + destination),
            ]
        )


class NoPath(UsageError):
    """There is no path from one rank to another."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(f"rank {end} cannot be reached from rank {start}")
        self.start, self.end = start, end


def fewest_hops(
    nodes: int,
    ranks: int,
    edges: Sequence[tuple[int, int, int]],
    bandwidth: NDArray[np.float64] | None = None,
) -> Graph:
    """The router of a graph with edges (from node, to node, link or ABSENT); among equally short ways, the one whose
    edges are listed first.

    With the `bandwidth` of every link, edges between the same two nodes share messages; without it, the first has them.
    """
    step = np.full((nodes, ranks), -1, np.int32)
    reached = np.zeros((nodes, ranks), bool)
    reached[np.arange(ranks), np.arange(ranks)] = True
    while True:  # breadth first, towards all ranks at once: a node with an edge to a reached node is reached
        before = reached.copy()
        for number, (start, end, _) in enumerate(edges):
            new = before[end] & ~reached[start]
            step[start, new] = number
            reached[start] |= new
        if (before == reached).all():
            break
    if not reached[:ranks].all():
        raise NoPath(*(int(number) for number in np.argwhere(~reached[:ranks])[0]))
    table = np.asarray([*edges, (0, 0, 0)], np.int32)  # one more, so that there is something to index
    widths, link_of = _paths_beside(edges, bandwidth)
    return Graph(step, table[:, 0], table[:, 1], table[:, 2], (0, ranks), widths, link_of)


def _paths_beside(
    edges: Sequence[tuple[int, int, int]], bandwidth: NDArray[np.float64] | None
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """The paths over which messages are split: the share of each, and by path and edge the link that it takes.

    The whole message is the interval from 0 to 1. Edges side by side divide it in the ratio of their bandwidths, and a
    path is a part that none of them divides further.
    """
    first: dict[tuple[int, int], int] = {}
    beside: dict[int, list[int]] = {}
    for number, (start, end, link) in enumerate(edges):
        own = beside.setdefault(first.setdefault((start, end), number), [])
        if link not in own:
            own.append(link)
    link_of = np.asarray([*(link for _, _, link in edges), 0], np.int32)
    marks: dict[int, tuple[list[int], NDArray[np.float64]]] = {}
    for number, links in beside.items():
        if len(links) == 1 or bandwidth is None:
            continue
        free = [link for link in links if link == ABSENT or bandwidth[link] == np.inf]
        if free:  # it can take everything
            link_of[number] = free[0]
            continue
        speed = bandwidth[links]
        marks[number] = links, exact_shares(np.cumsum(speed)[:-1] / speed.sum())
    ends = np.unique(np.concatenate([np.zeros(0), *(cut for _, cut in marks.values()), [1.0]]))
    if len(ends) > _MOST_PATHS:
        raise UsageError(
            f"edges side by side divide messages in {len(ends)} ways; at most {_MOST_PATHS} are taken. Give the edges between "
            "two nodes bandwidths in the same ratio everywhere, or make them one link"
        )
    table = np.tile(link_of, (len(ends), 1))
    starts = np.concatenate([[0.0], ends[:-1]])
    for number, (links, cut) in marks.items():
        table[:, number] = np.asarray(links)[np.searchsorted(cut, starts, side="right")]
    return np.diff(ends, prepend=0.0), table


def all_shortest(
    nodes: int, ranks: int, edges: Sequence[tuple[int, int, int]], bandwidth: NDArray[np.float64]
) -> Paths:
    """The router of a graph in which every node divides what it passes on equally among the next nodes of all shortest
    ways (ECMP), and among edges side by side in the ratio of their bandwidths."""
    fewest_hops(nodes, ranks, edges)  # so that what cannot be reached is said in the same way
    after: list[dict[int, list[int]]] = [{} for _ in range(nodes)]
    before: list[set[int]] = [set() for _ in range(nodes)]
    for start, end, link in edges:
        own = after[start].setdefault(end, [])
        if link not in own:
            own.append(link)
        before[end].add(start)

    def hops_to(rank: int) -> list[int]:
        far, ahead = [-1] * nodes, [rank]
        far[rank] = 0
        for node in ahead:
            for other in before[node]:
                if far[other] < 0:
                    far[other] = far[node] + 1
                    ahead.append(other)
        return far

    def side_by_side(links: list[int]) -> list[tuple[int, float]]:
        free = [link for link in links if link == ABSENT or bandwidth[link] == np.inf]
        return [(free[0], 1.0)] if free else [(link, float(bandwidth[link] / bandwidth[links].sum())) for link in links]

    def paths(node: int, rank: int, far: list[int]) -> list[tuple[tuple[int, ...], float]]:
        if node == rank:
            return [((), 1.0)]
        nearer = [other for other in after[node] if far[other] == far[node] - 1]
        found = [
            ((*(() if link == ABSENT else (link,)), *rest), share * part / len(nearer))
            for other in nearer
            for rest, share in paths(other, rank, far)
            for link, part in side_by_side(after[node][other])
        ]
        if len(found) > _MOST_PATHS:
            raise UsageError(
                f"more than {_MOST_PATHS} shortest paths lead to rank {rank}; a message is split over that many"
            )
        return found

    rows: list[list[tuple[tuple[int, ...], float]]] = [[] for _ in range(ranks * ranks)]
    for rank in range(ranks):
        far = hops_to(rank)
        for start in range(ranks):
            if start != rank:
                every = paths(start, rank, far)
                rows[start * ranks + rank] = [((start, *links, ranks + rank), share) for links, share in every]
    return Paths.of(ranks, rows)
