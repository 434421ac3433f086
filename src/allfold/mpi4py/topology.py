"""Communicators whose ranks have neighbours: grids and graphs, and the collectives between neighbours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..algorithms.between_neighbours import NEIGHBOURHOODS, name_of
from ..collectives import find_collective
from ..proof import verify
from ..registry import schedule as schedule_of
from ..schedules import Schedule
from . import constants as c
from .collectives import Made, with_forms
from .comm import COMM_NULL, Comm, Intracomm
from .data.pickling import packed, pickle
from .data.specs import BufferSpec, simple, vector, vector_of_types
from .failures import error
from .records import NEIGHBOURS, CommunicatorState

_ALLGATHER, _ALLTOALL = NEIGHBOURHOODS

Slots = list[int | None]
"""By place among a rank's neighbours: the chunk that goes there or comes from there; None beyond an edge of a grid."""


class Exchange(NamedTuple):
    """The part of one rank in a neighbourhood collective, as its schedule says it."""

    schedule: Schedule
    sends: list[tuple[int, int]]
    """(chunk, target)"""
    receives: list[tuple[int, int]]
    """(chunk, source)"""
    given: dict[int, int]
    """By chunk: the place of a target that it is for."""
    taken: dict[int, list[int]]
    """By chunk: the places of the sources where it belongs."""


class Topology(ABC):
    """The neighbours of every rank."""

    kind: int

    @abstractmethod
    def neighbours(self, rank: int) -> tuple[list[int], list[int]]:
        """The ranks that a rank receives from, and those that it sends to."""

    def opposite(self, place: int) -> int | None:
        """The place among the target's sources where an edge arrives that leaves here at `place`; None: in order."""
        return None

    def exchange(self, name: str, rank: int, size: int) -> Exchange:
        """The part of this rank in a neighbourhood collective; made once, from a schedule that is proved."""
        found = self._exchanges.get(name)
        if found is None:
            found = self._exchanges[name] = self._planned(name, rank, size)
        return found

    @cached_property
    def _exchanges(self) -> dict[str, Exchange]:
        return {}

    def schedule(self, name: str, size: int, algorithm: str = "direct") -> Schedule:
        edges, _ = self._edges(size)
        return schedule_of(name_of(name, edges), algorithm, size)

    def _planned(self, name: str, rank: int, size: int) -> Exchange:
        _, (into, out) = self._edges(size)
        made = self.schedule(name, size)
        verify(made, programs=False, uneven=True)
        rows = list(zip(*(made.columns[one].tolist() for one in ("chunk", "source", "destination")), strict=True))
        if find_collective(made.collective).starts.sliced:  # an allgather: a chunk is named by its rank
            sources, targets = self.neighbours(rank)
            slots: tuple[Slots, Slots] = (
                [None if one == c.PROC_NULL else one for one in sources],
                [None if one == c.PROC_NULL else rank for one in targets],
            )
        else:
            slots = into[rank], out[rank]
        taken: dict[int, list[int]] = {}
        for place, chunk in enumerate(slots[0]):
            if chunk is not None:
                taken.setdefault(chunk, []).append(place)
        return Exchange(
            made,
            [(chunk, target) for chunk, source, target in rows if source == rank],
            [(chunk, source) for chunk, source, target in rows if target == rank],
            {chunk: place for place, chunk in enumerate(slots[1]) if chunk is not None},
            taken,
        )

    def _edges(self, size: int) -> tuple[list[tuple[int, int]], tuple[list[Slots], list[Slots]]]:
        """All edges, and by rank and place the number of the edge that arrives there, and of that which leaves there."""
        both = [self.neighbours(rank) for rank in range(size)]
        into: list[Slots] = [[None] * len(sources) for sources, _ in both]
        out: list[Slots] = [[None] * len(targets) for _, targets in both]
        edges: list[tuple[int, int]] = []
        for rank, (_, targets) in enumerate(both):
            for place, target in enumerate(targets):
                if target == c.PROC_NULL:
                    continue
                there = self.opposite(place)
                if there is None:
                    free = [at for at, one in enumerate(both[target][0]) if one == rank and into[target][at] is None]
                    there = free[0] if free else self._unpaired(rank, target)
                into[target][there] = out[rank][place] = len(edges)
                edges.append((rank, target))
        for rank, (sources, _) in enumerate(both):
            for place, source in enumerate(sources):
                if source != c.PROC_NULL and into[rank][place] is None:
                    self._unpaired(source, rank)
        return edges, (into, out)

    def _unpaired(self, source: int, target: int) -> NoReturn:
        out, into = self.neighbours(source)[1].count(target), self.neighbours(target)[0].count(source)
        raise error(
            "ERR_TOPOLOGY",
            f"the neighbours do not match: rank {source} sends to rank {target} {_times(out)}, and "
            f"rank {target} receives from rank {source} {_times(into)}",
        )


class CartesianTopology(Topology):
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

    def opposite(self, place: int) -> int | None:
        return place ^ 1  # what is sent up arrives from below


class GraphTopology(Topology):
    """The neighbours of every rank, known to all."""

    kind = c.GRAPH

    def __init__(self, index: Sequence[int], edges: Sequence[int]) -> None:
        self.index, self.edges = list(index), list(edges)

    def of(self, rank: int) -> list[int]:
        return self.edges[self.index[rank - 1] if rank else 0 : self.index[rank]]

    def neighbours(self, rank: int) -> tuple[list[int], list[int]]:
        return self.of(rank), self.of(rank)


class Edges(Topology):
    """A graph of which every rank named its own part. `every`: the sources and the targets of each rank."""

    kind = c.DIST_GRAPH

    def __init__(self, every: Sequence[tuple[list[int], list[int]]], weights: tuple[Any, Any] | None) -> None:
        self.every, self.weights = every, weights

    def neighbours(self, rank: int) -> tuple[list[int], list[int]]:
        return self.every[rank]


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

    def Get_schedule(self, collective: str = "neighbor_alltoall", algorithm: str = "direct") -> Schedule:
        """allfold's: the schedule of a neighbourhood collective on these neighbours, to prove, show and price.

        `neighbor_allgather` or `neighbor_alltoall`. The calls do what `direct` says; `rounds` divides it into steps in
        which no rank sends or receives twice.
        """
        shared, _, _ = self._neighbours()
        if collective not in NEIGHBOURHOODS:
            raise ValueError(f"Get_schedule: expected {' or '.join(NEIGHBOURHOODS)}, not {collective!r}")
        return shared.topology.schedule(collective, shared.size, algorithm)  # type: ignore[no-any-return]

    @property
    def inedges(self) -> list[int]:
        return self.inoutedges[0]

    @property
    def outedges(self) -> list[int]:
        return self.inoutedges[1]

    def _neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared, sources, targets = self._neighbours()
        own, part = simple(sendbuf, False), simple(recvbuf, True, max(1, len(sources)))
        return _exchange(shared, _ALLGATHER, [own] * len(targets), _parts_of(part, len(sources)))

    def _neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared, sources, targets = self._neighbours()
        own, parts = simple(sendbuf, False), vector(recvbuf, True, len(sources)).parts
        return _exchange(shared, _ALLGATHER, [own] * len(targets), parts)

    def _neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared, sources, targets = self._neighbours()
        given = _parts_of(simple(sendbuf, False, max(1, len(targets))), len(targets))
        parts = _parts_of(simple(recvbuf, True, max(1, len(sources))), len(sources))
        return _exchange(shared, _ALLTOALL, given, parts)

    def _neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared, sources, targets = self._neighbours()
        given, parts = vector(sendbuf, False, len(targets)).parts, vector(recvbuf, True, len(sources)).parts
        return _exchange(shared, _ALLTOALL, given, parts)

    def _neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared, sources, targets = self._neighbours()
        given = vector_of_types(sendbuf, False, len(targets))
        parts = vector_of_types(recvbuf, True, len(sources))
        return _exchange(shared, _ALLTOALL, given, parts)

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        _, _, targets = self._neighbours()
        return self.neighbor_alltoall([sendobj] * len(targets))

    def neighbor_alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        shared, sources, targets = self._neighbours()
        given = list(sendobj)
        if len(given) != len(targets):
            raise ValueError(f"neighbor_alltoall: expecting {len(targets)} items, got {len(given)}")
        plan = shared.topology.exchange(_ALLTOALL, shared.rank, shared.size)

        def call() -> list[Any]:
            data = {chunk: np.frombuffer(packed(given[place]), np.uint8) for chunk, place in plan.given.items()}
            sends = [
                shared.messages.start(True, data[chunk], target, chunk, None, NEIGHBOURS)
                for chunk, target in plan.sends
            ]
            for chunk, source in plan.receives:
                data[chunk] = shared.messages.take(source, chunk, None, NEIGHBOURS)[3]
            found = [None] * len(sources)
            for chunk, (place,) in plan.taken.items():
                found[place] = pickle.loads(data[chunk])
            for one in sends:
                shared.messages.wait(one, None)
            return found

        return self._run(call)  # type: ignore[no-any-return]


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
        return *self.degrees, self._edges.weights is not None

    def Get_dist_neighbors(self) -> tuple[list[int], list[int], tuple[list[int], list[int]] | None]:
        return *self.inoutedges, self._edges.weights


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
    if sorted(ends) != ends or any(one < 0 for one in ends) or (ends[-1] if ends else 0) != len(edges):
        comm._fail(error("ERR_ARG", f"Create_graph: the index {list(index)} does not divide {len(edges)} edges"))
    _check_neighbours(comm, "Create_graph", edges, len(ends))
    if len(ends) > comm.Get_size():
        comm._fail(
            error("ERR_ARG", f"a graph of {len(ends)} vertices needs as many ranks, and there are {comm.Get_size()}")
        )
    return _with(comm, len(ends), GraphTopology(ends, edges), Graphcomm)


def _check_neighbours(comm: Intracomm, name: str, ranks: Sequence[int], size: int | None = None) -> None:
    """Refuse neighbours that do not exist; all ranks know them, so all raise."""
    most = comm.Get_size() if size is None else size
    for rank in ranks:
        if not 0 <= rank < most and rank != c.PROC_NULL:
            comm._fail(error("ERR_RANK", f"{name}: neighbours are ranks from 0 to {most - 1}, not {rank}"))


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
    every = comm.allgather((into, out))
    _check_neighbours(comm, "Create_dist_graph_adjacent", [rank for both in every for one in both for rank in one])
    shared = comm._group(range(comm.Get_size()))
    assert shared is not None
    shared.topology = Edges(every, given)  # type: ignore[arg-type]
    return Distgraphcomm._of(shared)


def create_distributed(
    comm: Intracomm, sources: Sequence[int], degrees: Sequence[int], destinations: Sequence[int], weights: Any
) -> Distgraphcomm:
    if len(sources) != len(degrees) or sum(degrees) != len(destinations):
        facts = f"{len(sources)} sources, {len(degrees)} degrees and {len(destinations)} destinations"
        raise ValueError(f"Create_dist_graph: {facts}; expected a degree per source, and their sum in destinations")
    ends = iter(destinations)
    is_weighted = weights is not None and not isinstance(weights, int)
    values = iter(weights if is_weighted else ())
    own = [
        (source, next(ends), next(values) if is_weighted else 1)
        for source, degree in zip(sources, degrees, strict=True)
        for _ in range(degree)
    ]
    rows = [edge for row in comm.allgather((own, is_weighted or weights == c.WEIGHTS_EMPTY)) for edge in row[0]]
    _check_neighbours(comm, "Create_dist_graph", [rank for source, target, _ in rows for rank in (source, target)])
    rank = comm.Get_rank()
    into = [(source, weight) for source, target, weight in rows if target == rank]
    out = [(target, weight) for source, target, weight in rows if source == rank]
    every = [
        ([start for start, end, _ in rows if end == one], [end for start, end, _ in rows if start == one])
        for one in range(comm.Get_size())
    ]
    shared = comm._group(range(comm.Get_size()))
    assert shared is not None
    both = ([one for _, one in into], [one for _, one in out])
    has_weights = is_weighted or (isinstance(weights, int) and weights == c.WEIGHTS_EMPTY)
    shared.topology = Edges(every, both if has_weights else None)
    return Distgraphcomm._of(shared)


def _parts_of(part: BufferSpec, many: int) -> list[BufferSpec]:
    length = part.count * part.layout.extent
    return [
        BufferSpec(part.raw, part.start + one * length, part.count, part.datatype, part.owner) for one in range(many)
    ]


def _exchange(shared: CommunicatorState, name: str, given: list[BufferSpec], parts: list[BufferSpec]) -> Made:
    """Send and receive what the schedule says. A message has the number of its chunk as its tag."""
    messages, plan = shared.messages, shared.topology.exchange(name, shared.rank, shared.size)

    def call() -> None:
        arriving = []
        for chunk, source in plan.receives:
            block = parts[plan.taken[chunk][0]]
            data = block.read()
            arriving.append((chunk, block, data, messages.start(False, data, source, chunk, None, NEIGHBOURS)))
        sends = [
            messages.start(True, given[plan.given[chunk]].read(), target, chunk, None, NEIGHBOURS)
            for chunk, target in plan.sends
        ]
        here = {chunk: given[plan.given[chunk]].read() for chunk in plan.taken if chunk in plan.given}
        for chunk, block, data, operation in arriving:
            _, _, length = messages.wait(operation, None)
            if not block.is_plain:
                block.write(data[:length])
            here[chunk] = data[:length]
        for chunk, places in plan.taken.items():
            is_own = chunk in plan.given
            for place in places if is_own else places[1:]:
                if here[chunk].size > parts[place].bytes:
                    raise error(
                        "ERR_TRUNCATE",
                        f"{name}: neighbour {place} sends {here[chunk].size} bytes, and there is room for {parts[place].bytes}",
                    )
                parts[place].write(here[chunk])
        for one in sends:
            messages.wait(one, None)

    return call


def _times(many: int) -> str:
    return "once" if many == 1 else f"{many} times"


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
