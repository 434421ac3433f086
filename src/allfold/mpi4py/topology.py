"""Communicators whose ranks have neighbours: grids and graphs, and the collectives between neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import constants as c
from .collectives import Made, with_forms
from .comm import COMM_NULL, Comm, Intracomm
from .data.pickling import packed, pickle
from .data.specs import BufferSpec, simple, vector, vector_of_types
from .failures import error
from .records import NEIGHBOURS, CommunicatorState


class CartesianTopology:
    """The ranks as points of a grid, in row-major order."""

    kind = c.CART

    def __init__(self, dims: Sequence[int], periods: Sequence[bool]) -> None:
        self.dims, self.periods = [int(one) for one in dims], [bool(one) for one in periods]

    def rank_of(self, place: Sequence[int]) -> int:
        """The rank at a place; PROC_NULL beyond an edge."""
        rank = 0
        for at, length, is_round in zip(place, self.dims, self.periods, strict=True):
            if not 0 <= at < length and not is_round:
                return c.PROC_NULL
            rank = rank * length + at % length
        return rank

    def place_of(self, rank: int) -> list[int]:
        place = []
        for length in reversed(self.dims):
            rank, at = divmod(rank, length)
            place.append(at)
        return place[::-1]

    def shifted(self, rank: int, dimension: int, by: int) -> int:
        place = self.place_of(rank)
        place[dimension] += by
        return self.rank_of(place)

    def neighbours(self, rank: int) -> tuple[list[int], list[int]]:
        both = [self.shifted(rank, dimension, by) for dimension in range(len(self.dims)) for by in (-1, 1)]
        return both, both


class GraphTopology:
    """The neighbours of every rank, known to all."""

    kind = c.GRAPH

    def __init__(self, index: Sequence[int], edges: Sequence[int]) -> None:
        self.index, self.edges = list(index), list(edges)

    def of(self, rank: int) -> list[int]:
        return self.edges[self.index[rank - 1] if rank else 0 : self.index[rank]]

    def neighbours(self, rank: int) -> tuple[list[int], list[int]]:
        return self.of(rank), self.of(rank)


class Edges:
    """The neighbours of this rank: those that it receives from, and those that it sends to."""

    kind = c.DIST_GRAPH

    def __init__(self, sources: Sequence[int], targets: Sequence[int], weights: tuple[Any, Any] | None) -> None:
        self.sources, self.targets, self.weights = list(sources), list(targets), weights

    def neighbours(self, rank: int) -> tuple[list[int], list[int]]:
        return self.sources, self.targets


@with_forms(
    "Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv", "Neighbor_alltoallw"
)
class Topocomm(Intracomm):
    """A communicator whose ranks have neighbours."""

    @classmethod
    def _fits(cls, what: Any) -> bool:
        own = next(one for one in cls.__mro__ if one is Topocomm or one in KINDS.values())
        return what is None or issubclass(KINDS.get(type(what.topology), Intracomm), own)

    def _neighbours(self) -> tuple[CommunicatorState, list[int], list[int]]:
        shared: CommunicatorState = self._need()
        return shared, *shared.topology.neighbours(shared.rank)

    @property
    def degrees(self) -> tuple[int, int]:
        _, sources, targets = self._neighbours()
        return len(sources), len(targets)

    @property
    def indegree(self) -> int:
        return self.degrees[0]

    @property
    def outdegree(self) -> int:
        return self.degrees[1]

    @property
    def inoutedges(self) -> tuple[list[int], list[int]]:
        _, sources, targets = self._neighbours()
        return list(sources), list(targets)

    @property
    def inedges(self) -> list[int]:
        return self.inoutedges[0]

    @property
    def outedges(self) -> list[int]:
        return self.inoutedges[1]

    def _neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared, sources, targets = self._neighbours()
        own, part = simple(sendbuf, False), simple(recvbuf, True, max(1, len(sources)))
        return _exchange(shared, [own] * len(targets), targets, _parts_of(part, len(sources)), sources)

    def _neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared, sources, targets = self._neighbours()
        own, parts = simple(sendbuf, False), vector(recvbuf, True, len(sources)).parts
        return _exchange(shared, [own] * len(targets), targets, parts, sources)

    def _neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared, sources, targets = self._neighbours()
        given = _parts_of(simple(sendbuf, False, max(1, len(targets))), len(targets))
        parts = _parts_of(simple(recvbuf, True, max(1, len(sources))), len(sources))
        return _exchange(shared, given, targets, parts, sources)

    def _neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared, sources, targets = self._neighbours()
        given, parts = vector(sendbuf, False, len(targets)).parts, vector(recvbuf, True, len(sources)).parts
        return _exchange(shared, given, targets, parts, sources)

    def _neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared, sources, targets = self._neighbours()
        given = vector_of_types(sendbuf, False, len(targets))
        parts = vector_of_types(recvbuf, True, len(sources))
        return _exchange(shared, given, targets, parts, sources)

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        _, _, targets = self._neighbours()
        return self.neighbor_alltoall([sendobj] * len(targets))

    def neighbor_alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        shared, sources, targets = self._neighbours()
        given = list(sendobj)
        if len(given) != len(targets):
            raise ValueError(f"neighbor_alltoall: expecting {len(targets)} items, got {len(given)}")
        messages = shared.messages
        tags = _tags(shared, sources, targets)

        def call() -> list[Any]:
            data = [packed(one) for one in given]
            sends = [
                messages.start(True, one, target, tag, None, NEIGHBOURS)
                for one, target, tag in zip(data, targets, tags[1], strict=True)
                if target != c.PROC_NULL
            ]
            found = [
                None if source == c.PROC_NULL else pickle.loads(messages.take(source, tag, None, NEIGHBOURS)[3])
                for source, tag in zip(sources, tags[0], strict=True)
            ]
            for one in sends:
                messages.wait(one, None)
            return found

        return self._value(call)  # type: ignore[no-any-return]


class Cartcomm(Topocomm):
    """A communicator whose ranks are the points of a grid."""

    @property
    def _grid(self) -> CartesianTopology:
        grid = self._need().topology
        if not isinstance(grid, CartesianTopology):
            raise error("ERR_TOPOLOGY", "this communicator has no grid")
        return grid

    def Get_dim(self) -> int:
        return len(self._grid.dims)

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        grid = self._grid
        return list(grid.dims), [int(one) for one in grid.periods], grid.place_of(self.Get_rank())

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        rank = self._grid.rank_of(list(coords))
        if rank == c.PROC_NULL:
            raise error("ERR_RANK", f"there is no rank at {list(coords)}")
        return rank

    def Get_coords(self, rank: int) -> list[int]:
        if not 0 <= rank < self.Get_size():
            raise error("ERR_RANK", f"there is no rank {rank}")
        return self._grid.place_of(rank)

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        grid, rank = self._grid, self.Get_rank()
        if not 0 <= direction < len(grid.dims):
            raise error("ERR_DIMS", f"the grid has {len(grid.dims)} dimensions, and no dimension {direction}")
        return grid.shifted(rank, direction, -disp), grid.shifted(rank, direction, disp)

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        grid, rank = self._grid, self.Get_rank()
        kept = [number for number, remains in enumerate(remain_dims) if remains]
        place = grid.place_of(rank)
        left = [at for number, at in enumerate(place) if number not in kept]
        ranks = [
            one
            for one in range(self.Get_size())
            if [at for number, at in enumerate(grid.place_of(one)) if number not in kept] == left
        ]
        shared = self._group(ranks)
        assert shared is not None
        shared.topology = CartesianTopology([grid.dims[one] for one in kept], [grid.periods[one] for one in kept])
        return Cartcomm._of(shared)

    dim, topo = property(Get_dim), property(Get_topo)
    ndim = dim
    dims = property(lambda self: self.Get_topo()[0])
    periods = property(lambda self: self.Get_topo()[1])
    coords = property(lambda self: self.Get_topo()[2])


class Graphcomm(Topocomm):
    """A communicator whose ranks are the vertices of a graph that all ranks know."""

    @property
    def _graph(self) -> GraphTopology:
        graph = self._need().topology
        if not isinstance(graph, GraphTopology):
            raise error("ERR_TOPOLOGY", "this communicator has no graph")
        return graph

    def Get_dims(self) -> tuple[int, int]:
        return len(self._graph.index), len(self._graph.edges)

    def Get_topo(self) -> tuple[list[int], list[int]]:
        return list(self._graph.index), list(self._graph.edges)

    def Get_neighbors_count(self, rank: int) -> int:
        return len(self.Get_neighbors(rank))

    def Get_neighbors(self, rank: int) -> list[int]:
        if not 0 <= rank < self.Get_size():
            raise error("ERR_RANK", f"there is no rank {rank}")
        return self._graph.of(rank)

    dims, topo = property(Get_dims), property(Get_topo)
    nnodes = property(lambda self: self.Get_dims()[0])
    nedges = property(lambda self: self.Get_dims()[1])
    index = property(lambda self: self.Get_topo()[0])
    edges = property(lambda self: self.Get_topo()[1])
    nneighbors = property(lambda self: self.Get_neighbors_count(self.Get_rank()))
    neighbors = property(lambda self: self.Get_neighbors(self.Get_rank()))


class Distgraphcomm(Topocomm):
    """A communicator whose ranks each know their own neighbours."""

    @property
    def _edges(self) -> Edges:
        edges = self._need().topology
        if not isinstance(edges, Edges):
            raise error("ERR_TOPOLOGY", "this communicator has no distributed graph")
        return edges

    def Get_dist_neighbors_count(self) -> tuple[int, int, bool]:
        edges = self._edges
        return len(edges.sources), len(edges.targets), edges.weights is not None

    def Get_dist_neighbors(self) -> tuple[list[int], list[int], tuple[list[int], list[int]] | None]:
        edges = self._edges
        return list(edges.sources), list(edges.targets), edges.weights


KINDS: dict[type, type[Topocomm]] = {CartesianTopology: Cartcomm, GraphTopology: Graphcomm, Edges: Distgraphcomm}
"""The class of the communicators with each kind of neighbours."""


def create_cart(comm: Intracomm, dims: Sequence[int], periods: Any) -> Any:
    try:
        lengths = [int(one) for one in dims]
    except TypeError:
        lengths = [int(dims)]  # type: ignore[call-overload]
    rounds = [False] * len(lengths) if periods is None else periods
    rounds = [bool(rounds)] * len(lengths) if isinstance(rounds, (bool, int)) else [bool(one) for one in rounds]
    if len(rounds) != len(lengths):
        raise ValueError(f"Create_cart: {len(lengths)} dimensions and {len(rounds)} periods")
    size = int(np.prod(lengths)) if lengths else 1
    if any(one <= 0 for one in lengths) or size > comm.Get_size():
        comm._fail(error("ERR_DIMS", f"a grid of {lengths} needs {size} ranks, and there are {comm.Get_size()}"))
    return _with(comm, size, CartesianTopology(lengths, rounds), Cartcomm)


def ends_of(index: Sequence[int], edges: Sequence[int]) -> list[int]:
    """The end of each rank's neighbours in `edges`; `index` may also begin with the start of the first rank's, 0."""
    ends = list(index)
    return ends[1:] if ends and ends[0] == 0 and ends[-1] == len(edges) else ends


def create_graph(comm: Intracomm, index: Sequence[int], edges: Sequence[int]) -> Any:
    ends = ends_of(index, edges)
    if len(ends) > comm.Get_size():
        comm._fail(
            error("ERR_ARG", f"a graph of {len(ends)} vertices needs as many ranks, and there are {comm.Get_size()}")
        )
    return _with(comm, len(ends), GraphTopology(ends, edges), Graphcomm)


def _with(comm: Intracomm, size: int, topology: Any, kind: type[Comm]) -> Any:
    shared = comm._group(range(size) if comm.Get_rank() < size else None) if size else comm._group(None)
    if shared is None:
        return COMM_NULL
    shared.topology = topology
    return kind._of(shared)


def create_adjacent(
    comm: Intracomm, sources: Sequence[int] | None, targets: Sequence[int] | None, *weights: Any
) -> Distgraphcomm:
    into, out = list(sources or ()), list(targets or ())
    given = None
    for ends, weight in zip((into, out), weights, strict=True):
        if isinstance(weight, int) and weight == c.WEIGHTS_EMPTY and ends:
            raise ValueError(f"WEIGHTS_EMPTY, but there are {len(ends)} neighbours")
    if not all(one is None or (isinstance(one, int) and one == c.UNWEIGHTED) for one in weights):
        given = tuple([] if one is None or isinstance(one, int) else [int(weight) for weight in one] for one in weights)
    shared = comm._group(range(comm.Get_size()))
    assert shared is not None
    shared.topology = Edges(into, out, given)  # type: ignore[arg-type]
    return Distgraphcomm._of(shared)


def create_distributed(
    comm: Intracomm, sources: Sequence[int], degrees: Sequence[int], destinations: Sequence[int], weights: Any
) -> Distgraphcomm:
    ends = iter(destinations)
    is_weighted = weights is not None and not isinstance(weights, int)
    values = iter(weights if is_weighted else ())
    own = [
        (source, next(ends), next(values) if is_weighted else 1)
        for source, degree in zip(sources, degrees, strict=True)
        for _ in range(degree)
    ]
    rows = [edge for row in comm.allgather((own, is_weighted or weights == c.WEIGHTS_EMPTY)) for edge in row[0]]
    rank = comm.Get_rank()
    into = [(source, weight) for source, target, weight in rows if target == rank]
    out = [(target, weight) for source, target, weight in rows if source == rank]
    shared = comm._group(range(comm.Get_size()))
    assert shared is not None
    both = ([one for _, one in into], [one for _, one in out])
    has_weights = is_weighted or (isinstance(weights, int) and weights == c.WEIGHTS_EMPTY)
    shared.topology = Edges([one for one, _ in into], [one for one, _ in out], both if has_weights else None)
    return Distgraphcomm._of(shared)


def _parts_of(part: BufferSpec, many: int) -> list[BufferSpec]:
    length = part.count * part.layout.extent
    return [
        BufferSpec(part.raw, part.start + one * length, part.count, part.datatype, part.owner) for one in range(many)
    ]


def _tags(shared: CommunicatorState, sources: list[int], targets: list[int]) -> tuple[list[int], list[int]]:
    """The tags of the messages from each source and to each target.

    In a grid of one or two ranks in a row, both neighbours are the same rank: a message sent up arrives from below.
    """
    if shared.topology.kind != c.CART:
        return [0] * len(sources), [0] * len(targets)
    return [number ^ 1 for number in range(len(sources))], list(range(len(targets)))


def _exchange(
    shared: CommunicatorState, given: list[BufferSpec], targets: list[int], parts: list[BufferSpec], sources: list[int]
) -> Made:
    messages = shared.messages
    into, out = _tags(shared, sources, targets)

    def call() -> None:
        arriving = []
        for block, source, tag in zip(parts, sources, into, strict=True):
            if source != c.PROC_NULL:
                data = block.read()
                arriving.append((block, data, messages.start(False, data, source, tag, None, NEIGHBOURS)))
        sends = [
            messages.start(True, block.read(), target, tag, None, NEIGHBOURS)
            for block, target, tag in zip(given, targets, out, strict=True)
            if target != c.PROC_NULL
        ]
        for block, data, operation in arriving:
            _, _, length = messages.wait(operation, None)
            if not block.is_plain:
                block.write(data[:length])
        for one in sends:
            messages.wait(one, None)

    return call


def Compute_dims(nnodes: int, dims: int | Sequence[int]) -> list[int]:
    """Lengths of a grid for this many ranks, as equal as possible; those that are not 0 are kept."""
    lengths = [0] * dims if isinstance(dims, int) else [int(one) for one in dims]
    fixed = int(np.prod([one for one in lengths if one > 0])) if any(lengths) else 1
    free = [number for number, one in enumerate(lengths) if one == 0]
    if nnodes < 1 or any(one < 0 for one in lengths) or nnodes % fixed or (not free and nnodes != fixed):
        raise error("ERR_DIMS", f"{nnodes} ranks do not fill a grid of {lengths}")
    for place, length in zip(free, _divided(nnodes // fixed, len(free)), strict=True):
        lengths[place] = length
    return lengths


def _divided(ranks: int, parts: int) -> list[int]:
    made = [1] * parts
    primes, factor = [], 2
    while ranks > 1:
        while ranks % factor == 0:
            primes.append(factor)
            ranks //= factor
        factor += 1
    for prime in reversed(primes):
        made[made.index(min(made))] *= prime
    return sorted(made, reverse=True)
