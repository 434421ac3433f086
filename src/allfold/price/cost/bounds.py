"""Lower bounds on a topology: from starting messages, from distances, from the bytes that must cross links, and from
combining."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import comb, inf

import numpy as np
from numpy.typing import NDArray

from ...collectives import Collective, find_collective
from ...errors import BoundError
from ..topology.network import network_of
from ..topology.pairs import crossing, every_pair, needed_pairs
from ..topology.routing import Grid
from ..topology.sizes import at_best
from ..topology.topology import Cut, Ranks, Topology
from .certificate import LinkPrices
from .cuts import TightestCut, tightest_cut
from .program import least_by_program


@dataclass(frozen=True)
class LowerBounds:
    """Times in seconds that no algorithm of the collective can beat. Each bound holds by itself; they do not add up."""

    latency: float
    bandwidth: float
    reduction: float
    cut: str
    """The source of the bandwidth bound: the name of the cut that the bytes must cross."""

    @cached_property
    def time(self) -> float:
        return max(self.latency, self.bandwidth, self.reduction)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "time": self.time}


_ROUNDING = 1e-9  # prices are sums of floats


def require_not_below(bound: float, time: float, what: str, topology: str) -> None:
    """Raise for a price below the bound: one of the two is wrong."""
    if time < bound * (1 - _ROUNDING):
        raise BoundError(
            f"{what} takes {time:.9g} s on {topology}, less than the lower bound of {bound:.9g} s. Either it does "
            "less than it should (check with allfold verify), or this is a bug in allfold: please report it, with the topology"
        )


@lru_cache(maxsize=64)  # a plan compares many algorithms, which have the same bounds
def lower_bounds(collective: str, topology: Topology, ranks: int, size: float, root: int | None = None) -> LowerBounds:
    promise = find_collective(collective)
    if ranks == 1:
        return LowerBounds(0.0, 0.0, 0.0, "nothing")
    topology = at_best(topology, most_useful(promise.name, ranks, size))
    if promise.ends.in_pieces:
        return _between_neighbours(promise, topology, ranks, size)
    own = np.arange(ranks, dtype=np.int32)
    cuts = [Cut("the port of a rank", own, float(topology.bandwidth[: 2 * topology.ranks].max())), *topology.cuts]
    # Where switches fold, a group need not send what it has combined more than once.
    once = 1.0 if topology.folding and promise.round_trip else inf
    crossing = [
        (min(once, must_cross(collective, cut.group[:ranks], root)) * size / cut.bandwidth, cut.name) for cut in cuts
    ]
    exact = exact_cut(promise.name, topology, ranks, root)
    if exact is not None:
        crossing.append((exact.time(size), str(exact)))
    crossing.append((float(promise.bounds(ranks).bytes) * size / topology.throughput, "the memory bus"))
    if "constructor" not in topology.recipe and not topology.folding:  # a constructor names what is shared in it
        shared = shared_by_all(promise.name, topology, ranks, root)
        if shared is not None:
            crossing.append((float(shared.per_byte) * size, topology.links[next(iter(shared.prices))].name))
        program = _by_program(promise.name, topology, ranks, root)
        if program is not None:
            crossing.append((float(program.per_byte) * size, "the links, however they are shared"))
    slowest = crossing[0]
    for found in crossing[1:]:
        if found[0] > slowest[0] * (1 + 1e-9):  # of equal ones the first, which has the shortest name
            slowest = found
    combines = promise.takes_op and not topology.folding
    return LowerBounds(
        latency=max(
            0.0 if topology.folding else least_spread(topology, ranks)[0],
            least_distance(promise.name, topology, ranks, root)[0],
        ),
        bandwidth=slowest[0],
        reduction=promise.combinations(ranks) / ranks * size / topology.reduction if combines else 0.0,
        cut=slowest[1],
    )


def _between_neighbours(promise: Collective, topology: Topology, ranks: int, size: float) -> LowerBounds:
    """Most ranks do not depend on each other, so only the ports and the memory bus bound it, and a single message."""
    least = promise.bounds(ranks)
    crossing = [
        (float(least.busiest_port_bytes) * size / float(topology.bandwidth.max()), "the port of a rank"),
        (float(least.bytes) * size / topology.throughput, "the memory bus"),
    ]
    bandwidth, cut = max(crossing)
    return LowerBounds(topology.overhead if least.messages else 0.0, bandwidth, 0.0, cut)


def most_useful(collective: str, ranks: int, size: float) -> float:
    """The most useful bytes in a message: the buffer; in an all_to_all, where every rank has its own, all buffers."""
    return ranks * size if find_collective(collective).exchanges else size


_MOST_SEARCHED = 128
"""Ranks up to which the tightest cut of any topology is searched: some milliseconds. Beyond, the constructors of large
topologies know their cuts; those written by hand do not, and are searched further."""
_MOST_WRITTEN = 512


@lru_cache(maxsize=64)
def exact_cut(collective: str, topology: Topology, ranks: int, root: int | None) -> TightestCut | None:
    """The tightest cut, where finding it takes only a moment."""
    if ranks > (_MOST_SEARCHED if "constructor" in topology.recipe else _MOST_WRITTEN):
        return None
    return tightest_cut(collective, network_of(topology, ranks), root)


_MOST_PROGRAMMED = 16  # ranks, if nobody asked for a search
_SECONDS = 1.0


@lru_cache(maxsize=64)
def _by_program(collective: str, topology: Topology, ranks: int, root: int | None) -> LinkPrices | None:
    if ranks > _MOST_PROGRAMMED:
        return None
    crossed = crossing(topology, needed_pairs(topology, ranks))[1]
    if (np.count_nonzero(crossed, axis=0) <= 1).all() and (crossed <= 1).all():
        return None  # nothing is shared; to load a solver for an all_reduce takes longer than to plan it
    return least_by_program(collective, topology, ranks, root, _SECONDS)


@lru_cache(maxsize=64)
def shared_by_all(collective: str, topology: Topology, ranks: int, root: int | None) -> LinkPrices | None:
    """The slowest of the links that every message crosses, such as a bus or a hub."""
    promise = find_collective(collective)
    if not 2 <= ranks <= _MOST_WRITTEN or not promise.carries_data:
        return None
    routes = topology.routes(*every_pair(ranks))
    pair = np.repeat(np.arange(len(routes)), routes.lengths)
    bandwidth = np.where(
        np.bincount(routes.links, minlength=len(topology.links)) < len(routes), inf, topology.bandwidth
    )
    for link in np.argsort(bandwidth, kind="stable").tolist():
        if bandwidth[link] == inf:
            break
        through = routes.links == link
        share = np.ones(len(pair)) if routes.share is None else routes.share
        if (np.bincount(pair[through], share[through], len(routes)) >= 1).all():
            alone = [[rank] for rank in range(ranks)]
            if not promise.combines_all:  # what each must receive, rather than what it must send
                alone = [[one for one in range(ranks) if one != rank] for [rank] in alone]
            sets = (
                []
                if promise.one_way or promise.round_trip
                else [(one, Fraction(1)) for one in alone if promise.must_leave(ranks, root, one)]
            )
            demand = promise.bounds(ranks).bytes
            return LinkPrices(topology, {link: 1}, sets, demand, f"every message crosses {topology.links[link].name}")
    return None


def ratio_of(time: float, bound: float) -> float | None:
    """The time divided by the bound; None if only the bound is 0."""
    if bound:
        return time / bound
    return None if time else 1.0


def must_cross(collective: str, group: Ranks, root: int | None) -> float:
    """The part of S that the busiest group of ranks must send or receive, whatever the algorithm.

    A group counts as one rank that holds everything its members hold. If every rank is a group of its own, this is the
    least that the busiest port carries.
    """
    sizes = np.unique(group, return_counts=True)[1]
    groups, ranks = len(sizes), len(group)
    promise = find_collective(collective)
    if groups == 1 or not promise.carries_data:
        return 0.0
    if promise.round_trip:
        return 2 * (groups - 1) / groups  # all groups together must send 2(G−1) times S
    if not promise.sliced:
        return 1.0
    if promise.rooted:
        return float(ranks - np.count_nonzero(group == group[root or 0])) / ranks
    if promise.exchanges:
        return float((sizes * (ranks - sizes)).max()) / ranks
    return float(ranks - sizes.min()) / ranks


@lru_cache(maxsize=16)
def least_spread(topology: Topology, ranks: int) -> tuple[float, str]:
    """The least time in which one rank can inform all others, if a rank starts one message after the other.

    An informed rank can inform another one every `overhead` seconds, and its message arrives a route's latency later.
    Between hosts it is the same, except that all ranks of an informed host send at the same time. Also returned:
    whether `ranks` or `hosts` are the limit.
    """
    near, far = _latencies(topology, ranks)
    hosts, members = np.unique(topology.host[:ranks], return_counts=True)
    between = _spread(len(hosts), int(members.max()), topology.overhead, far) if len(hosts) > 1 else 0.0
    among = _spread(ranks, 1, topology.overhead, min(near, far))
    return (between, "hosts") if between > among else (among, "ranks")


def least_distance(collective: str, topology: Topology, ranks: int, root: int | None) -> tuple[float, int, int]:
    """The most expensive of the cheapest paths that data must take: its seconds, its start and its end.

    A path is a chain of messages, each of which takes `overhead` and the latency of its route.
    """
    if ranks == 1:
        return 0.0, 0, 0
    far = _distances(topology, ranks)
    if far is None:
        return _across_the_grid(topology, ranks, root)
    promise = find_collective(collective)
    if promise.starts.root_only:
        source, destination = root or 0, int(far[root or 0].argmax())
    elif promise.ends.root_only:
        source, destination = int(far[:, root or 0].argmax()), root or 0
    else:
        wanted = np.zeros_like(far, dtype=bool)  # from where something must come, by destination
        for rank in range(ranks):
            wanted[promise.contributors(rank, ranks), rank] = True
        source, destination = divmod(int(np.where(wanted, far, 0.0).argmax()), ranks)
    return float(far[source, destination]), source, destination


@lru_cache(maxsize=4)
def _distances(topology: Topology, ranks: int) -> NDArray[np.float64] | None:
    """The cheapest path from every rank to every other; None for many ranks."""
    if ranks > _MOST_WRITTEN:
        return None
    source, destination = every_pair(ranks)
    way = np.zeros((ranks, ranks))
    way[source, destination] = topology.overhead + topology.routes(source, destination).latency(topology.latency)
    for over in range(ranks):
        np.minimum(way, way[:, over, None] + way[over], out=way)
    return way


def _across_the_grid(topology: Topology, ranks: int, root: int | None) -> tuple[float, int, int]:
    """On a large torus or mesh the route is the shortest way; other large networks have few hops between any two."""
    router = topology.router
    if not isinstance(router, Grid) or ranks < topology.ranks:
        return 0.0, 0, 1
    start = np.asarray(np.unravel_index(root or 0, router.shape))
    sides = np.asarray(router.shape)
    end = (start + sides // 2) % sides if router.place is None else np.where(start < sides / 2, sides - 1, 0)
    ends = np.asarray([root or 0], np.int32), np.asarray([np.ravel_multi_index(tuple(end), router.shape)], np.int32)
    latency = topology.routes(*ends).latency(topology.latency)[0] if ends[0] != ends[1] else 0.0
    return topology.overhead + float(latency), int(ends[0][0]), int(ends[1][0])


def _spread(all_of_them: int, voices: int, overhead: float, latency: float) -> float:
    """The time until all are informed, if each informs `voices` others every `overhead` seconds, `latency` later.

    At time t, Σᵢ voicesⁱ·C(i+w, i) are informed: i is the number of hops, and w = ⌊(t − i·(overhead+latency))/overhead⌋
    is how many times somebody on the way informed others first.
    """
    if all_of_them <= 1:
        return 0.0
    hop = overhead + latency
    if overhead == 0:
        return hop

    def know(time: float) -> int:
        total, hops = 0, 0
        while hops * hop <= time and total < all_of_them:
            total += voices**hops * comb(hops + int(min((time - hops * hop) / overhead, all_of_them)), hops)
            hops += 1
        return total

    low, high = 0.0, all_of_them * hop
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if know(middle) >= all_of_them else (middle, high)
    return low


def _latencies(topology: Topology, ranks: int) -> tuple[float, float]:
    """The least latency of a route within a host, and of one between hosts; inf where there is none."""
    if ranks <= 512:
        source, destination = every_pair(ranks)
    elif "constructor" in topology.recipe and "without" not in topology.recipe:
        # Hosts are alike, so the routes from one host (of at most 16 GPUs) are enough.
        first = np.flatnonzero(topology.host[:ranks] == topology.host[0])[:16].astype(np.int32)
        source, destination = (side.ravel() for side in np.meshgrid(first, np.arange(ranks, dtype=np.int32)))
    else:
        least = float(topology.latency[: 2 * topology.ranks].min()) * 2
        return least, least
    other = source != destination
    source, destination = source[other], destination[other]
    routes = topology.routes(source, destination)
    latency = routes.latency(topology.latency)
    same = topology.host[source] == topology.host[destination]
    return float(latency[same].min(initial=inf)), float(latency[~same].min(initial=inf))
