"""Topologies: ranks on hosts, and links with latency and bandwidth that messages share.

A link is one direction of something that carries bytes. The route of a message is the links it crosses, from the
sender's outgoing port to the receiver's incoming one. Whatever is shared (a memory bus, a network card, a switch port,
an oversubscribed uplink) is a link that several routes cross; there is no other notion of contention.

How routes are found differs from network to network and is a function given to the topology (see `routing`). The named
constructors are in `machines`, topologies written by hand in `files`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ...documents import parse
from ...errors import UsageError

Ranks = NDArray[np.int32]
Place = dict[str, int | str]
Row = tuple[float, float, float]
"""Messages of at least this many bytes have this latency, in seconds, and this bandwidth, in bytes per second."""

PLACES: tuple[tuple[str, ...], ...] = (
    ("rank", "way"),  # a port; the way is out or in
    ("host",),  # a bus
    ("host", "card", "way"),  # a network card, out or in
    ("host", "card", "leaf", "way"),  # and the leaf that it connects to
    ("leaf", "uplink", "way"),  # to and from the spines, up or down
    ("node", "dimension", "down"),  # a cable of a torus or a mesh; 1 is downwards
    ("group", "router", "to"),  # between two routers of a group of a dragonfly
    ("group", "cable"),  # to another group
    ("from", "to"),  # a cable from one rank to another
    ("rank", "switch", "way"),  # a cable between a rank and a switch of its host
)
"""The keys of a link's place, by kind of link. The page uses them to draw topologies."""


@dataclass(frozen=True)
class Link:
    """One direction of something that carries bytes and that transfers share: a port, a bus, a network card, an uplink.

    >>> link = price.Link("cable", kind="link", latency=1e-6, bandwidth=12.5e9)
    >>> f"{link.latency + 2**20 / link.bandwidth:.3e} s for 1 MiB"
    '8.489e-05 s for 1 MiB'
    """

    name: str
    kind: str
    latency: float
    """Seconds a message spends on it besides its bytes."""
    bandwidth: float
    """Bytes per second, shared by all transfers that cross it at the time."""
    place: Place | None = field(default=None, compare=False)
    """Its position in the network, `{"host": 3, "card": 0, "way": "out"}` (see `PLACES`); None if unknown."""
    sizes: tuple[Row, ...] = ()
    """Latency and bandwidth by message size, from 0 bytes up, where they depend on it. Those above are then the best."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """`sizes`, or the one row of a link whose figures depend on nothing."""
        return self.sizes or ((0.0, self.latency, self.bandwidth),)


@dataclass(frozen=True)
class Block:
    """Links that are alike, an array of the given `shape`; `template` makes the name of a link from its index."""

    template: str
    kind: str
    latency: float
    bandwidth: float
    shape: tuple[int, ...]
    axes: tuple[str, ...] = ()
    """The names of the indices in `shape`, as in ("host", "card")."""
    common: Mapping[str, int | str] = field(default_factory=dict, compare=False)
    """The part of the place that all of them share."""
    leaf: Ranks | None = field(default=None, compare=False)
    """For network cards: the leaf that each connects to."""
    kept: Ranks | None = field(default=None, compare=False)
    """If links of the array are missing: the places in it of those that are there, in order."""
    rows: tuple[Row, ...] = ()
    """As in `Link`."""

    @staticmethod
    def alone(link: Link, part: float = 1.0) -> Block:
        """A block of one link, with this part of its bandwidth."""
        name = link.name.replace("{", "{{").replace("}", "}}")  # a name with braces is a name, not a template
        rows = tuple((start, latency, bandwidth * part) for start, latency, bandwidth in link.sizes)
        return Block(name, link.kind, link.latency, link.bandwidth * part, (1,), common=link.place or {}, rows=rows)

    @property
    def count(self) -> int:
        return prod(self.shape) if self.kept is None else len(self.kept)

    def link(self, index: int) -> Link:
        if self.kept is not None:
            index = int(self.kept[index])
        numbers = [int(number) for number in np.unravel_index(index, self.shape)]
        place: Place = {**dict(zip(self.axes, numbers, strict=False)), **self.common}
        if self.leaf is not None:
            place["leaf"] = int(self.leaf[index])
        return Link(self.template.format(*numbers), self.kind, self.latency, self.bandwidth, place or None, self.rows)


class Links(Sequence[Link]):
    """Blocks of links in a row. A link is made when it is asked for, so that a million of them cost nothing."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = tuple(block for block in blocks if block.count)
        counts = np.asarray([block.count for block in self.blocks], np.intp)
        self._ends = np.cumsum(counts)
        self.latency = np.repeat(np.asarray([block.latency for block in self.blocks], np.float64), counts)
        self.bandwidth = np.repeat(np.asarray([block.bandwidth for block in self.blocks], np.float64), counts)
        self.latency.setflags(write=False)
        self.bandwidth.setflags(write=False)

    def __len__(self) -> int:
        return len(self.latency)

    @overload
    def __getitem__(self, index: int) -> Link: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Link]: ...
    def __getitem__(self, index: int | slice) -> Link | Sequence[Link]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"link {index} of {len(self)}")
        block = int(np.searchsorted(self._ends, place, side="right"))
        return self.blocks[block].link(place - int(self._ends[block]) + self.blocks[block].count)

    def __iter__(self) -> Iterator[Link]:
        return (block.link(index) for block in self.blocks for index in range(block.count))

    def by_kind(self, figures: NDArray[np.float64]) -> dict[str, float]:
        """A figure per link, added up for each kind of link."""
        found: dict[str, float] = {}
        for block, end in zip(self.blocks, self._ends.tolist(), strict=True):
            found[block.kind] = found.get(block.kind, 0.0) + float(figures[end - block.count : end].sum())
        return found

    @cached_property
    def tables(self) -> list[tuple[int, int, NDArray[np.float64]]]:
        """Of links whose figures depend on the size of a message: the first, the end, and their rows."""
        starts = self._ends - [block.count for block in self.blocks]
        return [
            (int(start), int(end), np.asarray(block.rows))
            for start, end, block in zip(starts, self._ends, self.blocks, strict=True)
            if block.rows
        ]

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """By link: equal numbers where the figures depend on sizes in the same way."""
        number: dict[tuple[Row, ...], int] = {}
        each = [number.setdefault(block.rows, len(number)) for block in self.blocks]
        return np.repeat(np.asarray(each, np.int64), [block.count for block in self.blocks])

    def figures(
        self, link: NDArray[np.integer[Any]], bytes: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of messages of this many bytes on these links: the latency, and how much longer than at best they take."""
        latency, stretch = self.latency[link], np.ones(len(link))
        for start, end, rows in self.tables:
            here = (start <= link) & (link < end)
            row = rows[np.searchsorted(rows[:, 0], bytes[here] * (1 + SAME_SIZE), side="right") - 1]
            latency[here], stretch[here] = row[:, 1], self.bandwidth[start] / row[:, 2]
        return latency, stretch


def spans(starts: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
    """The places `starts[i]`, `starts[i] + 1`, … up to `lengths[i]` of them, for one i after the other."""
    ends = np.cumsum(lengths, dtype=np.intp)
    places: NDArray[np.intp] = np.repeat(starts - ends + lengths, lengths)
    return places + np.arange(len(places))


@dataclass(frozen=True, eq=False)
class Routes:
    """The links of many pairs of ranks in compressed rows: those of pair i are `links[offsets[i]:offsets[i + 1]]`.

    Where a message is split over several paths, its row is one path after the other, each from port to port, and
    `share` says how much of the message crosses each link of the row.

    >>> routes = price.ring(4).routes(np.array([0, 0]), np.array([1, 2]))
    >>> routes.lengths.tolist()  # the ports and the cables
    [3, 4]
    """

    offsets: NDArray[np.intp]
    links: NDArray[np.int32]
    share: NDArray[np.float64] | None = None
    """Per entry of `links`; None if no message is split."""
    paths: NDArray[np.intp] | None = None
    """The start of every path, and the end of the last one; None if no message is split."""
    waits: NDArray[np.float64] | None = None
    """Seconds per entry of `links`; None if the latency of a link is the same for all messages."""
    stretch: NDArray[np.float64] | None = None
    """The factor by which the bytes take longer than at best, per entry of `links`; None if they all go as fast as they can."""

    @property
    def lengths(self) -> NDArray[np.intp]:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, pair: int) -> NDArray[np.int32]:
        return self.links[self.offsets[pair] : self.offsets[pair + 1]]

    def by_path(self, pair: NDArray[np.int64]) -> tuple[NDArray[np.int64], Routes, NDArray[np.float64]]:
        """Every path as a route of its own: the pair of each (row i is `pair[i]`), the paths, and their shares."""
        if self.paths is None or self.share is None:
            return pair, self, np.ones(len(self))
        row = np.searchsorted(self.offsets, self.paths[:-1], side="right") - 1
        return pair[row], Routes(self.paths, self.links), self.share[self.paths[:-1]]

    def loads(self, amount: NDArray[np.float64]) -> NDArray[np.float64]:
        """The load of each entry of `links` if pair i sends `amount[i]`."""
        each = np.repeat(amount, self.lengths)
        return each if self.share is None else each * self.share

    def stretched(self, loads: NDArray[np.float64]) -> NDArray[np.float64]:
        """Loads, as if those that take longer than they would at best were more."""
        return loads if self.stretch is None else loads * self.stretch

    def latency(self, latency: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of every pair: the sum over its links, the slowest path of a split message. No row may be empty."""
        waits = latency[self.links] if self.waits is None else self.waits
        if self.paths is None:
            return np.add.reduceat(waits, self.offsets[:-1])
        each = np.add.reduceat(waits, self.paths[:-1])
        return np.maximum.reduceat(each, np.searchsorted(self.paths[:-1], self.offsets[:-1]))

    def slowest(self, bandwidth: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of every pair: the bandwidth that it gets alone. No row may be empty."""
        if self.share is None:
            alone = bandwidth[self.links] if self.stretch is None else bandwidth[self.links] / self.stretch
            return np.minimum.reduceat(alone, self.offsets[:-1])
        # Paths of one message may cross the same link, as they do its ports: shares add up first.
        many = len(bandwidth)
        key = np.repeat(np.arange(len(self)), self.lengths) * np.int64(many) + self.links
        crossed, which = np.unique(key, return_inverse=True)
        share = np.bincount(which, self.stretched(self.share))
        first = np.searchsorted(crossed, np.arange(len(self)) * np.int64(many))
        return np.minimum.reduceat(bandwidth[crossed % many] / share, first)


@dataclass(frozen=True, eq=False)
class Cut:
    """A division of the ranks into groups, none of which can send, or receive, more than `bandwidth` bytes per second.

    The bytes that must cross it give a lower bound for every algorithm. `name` says what is at the border: `network
    cards of a host`.

    >>> [(cut.name, cut.bandwidth) for cut in price.hosts(2, ranks_per_host=4).cuts]
    [('network cards of a host', 12500000000.0)]
    """

    name: str
    group: Ranks
    bandwidth: float


Router = Callable[[Ranks, Ranks], Routes]


@dataclass(frozen=True, eq=False)
class Topology:
    """Ranks, their hosts, and the links between them. Every route starts with a port of kind "port" and ends with one.

    >>> topology = price.dgx_h100(nodes=2)
    >>> topology.ranks, int(topology.host[9]), topology.links[0].kind
    (16, 1, 'port')
    """

    name: str
    ranks: int
    host: Ranks
    """The host of every rank."""
    links: Links
    overhead: float
    """The part of α that is not the route: seconds a rank takes to start one message."""
    reduction: float
    """Bytes per second that one rank combines (1/γ); inf = free."""
    source: str
    """The source of the figures."""
    router: Router = field(repr=False)
    recipe: dict[str, Any] = field(default_factory=dict, repr=False)
    """Its form in JSON: a constructor with its parameters, or everything that was written by hand."""
    cuts: tuple[Cut, ...] = field(default=(), repr=False)
    folding: frozenset[int] = frozenset()
    """Nodes of its graph that combine and copy messages on the way."""
    throughput: float = inf
    """Bytes per second that all messages together cannot exceed (the sum of all memory buses)."""
    repeats: bool = False
    """True if a route may cross the same link more than once."""

    def __post_init__(self) -> None:
        self.host.setflags(write=False)
        if self.ranks < 1:
            raise UsageError(f"topology {self.name}: {self.ranks} ranks; expected at least 1")
        if self.host.shape != (self.ranks,) or (self.host < 0).any():
            raise UsageError(f"topology {self.name}: expected a host for each of {self.ranks} ranks")
        for block in self.links.blocks:
            check_link(self.name, f"link {block.template!r}", block.latency, block.bandwidth)
        check_rank(self.name, self.overhead, self.reduction)

    @property
    def latency(self) -> NDArray[np.float64]:
        """Of every link, as an array."""
        return self.links.latency

    @property
    def bandwidth(self) -> NDArray[np.float64]:
        """Of every link, as an array."""
        return self.links.bandwidth

    @cached_property
    def hosts(self) -> int:
        return len(np.unique(self.host))

    @property
    def splits(self) -> bool:
        """True if it may split a message over several paths."""
        return bool(getattr(self.router, "splits", False))

    @property
    def by_size(self) -> bool:
        """True if the figures of any link depend on the size of a message."""
        return bool(self.links.tables)

    def routes(
        self,
        source: NDArray[np.integer[Any]],
        destination: NDArray[np.integer[Any]],
        bytes: NDArray[np.float64] | None = None,
    ) -> Routes:
        """The routes of many pairs at once; with the bytes of their messages, what these wait and take on each link.

        A rank reaches itself without a link.
        """
        ends = [np.atleast_1d(np.asarray(side)).astype(np.int32) for side in (source, destination)]
        if ends[0].shape != ends[1].shape:
            raise UsageError(f"routes: {len(ends[0])} sources, but {len(ends[1])} destinations")
        for side in ends:
            if len(side) and not (side.min() >= 0 and side.max() < self.ranks):
                raise UsageError(
                    f"topology {self.name} has the ranks 0–{self.ranks - 1}, not {side.min()}–{side.max()}"
                )
        found = self.router(*ends)
        if self.repeats and found.share is None:
            found = replace(found, share=np.ones(len(found.links)))  # so that what crosses a link twice is added up
        if bytes is None or not self.by_size:
            return found
        waits, stretch = self.links.figures(found.links, np.repeat(bytes, found.lengths))
        return replace(found, waits=waits, stretch=stretch)

    def require(self, ranks: int) -> None:
        """Raise for more ranks than the topology has, or fewer than one."""
        if isinstance(ranks, bool) or not isinstance(ranks, (int, np.integer)):
            raise UsageError(f"ranks must be a whole number, not {ranks!r:.60}")
        if ranks < 1:
            raise UsageError(f"you asked for {ranks} ranks; expected at least 1")
        if ranks > self.ranks:
            raise UsageError(f"topology {self.name} has {self.ranks} ranks; you asked for {ranks}")

    def to_json(self) -> dict[str, Any]:
        return {"format": "allfold-topology", "version": 1, **self.recipe}

    @staticmethod
    def from_json(document: str | bytes | dict[str, Any]) -> Topology:
        """The topology that `to_json` wrote, or one written by hand. Anything else raises a `UsageError`."""
        from .files import read  # it builds on this module, and on the named constructors

        return read(parse(document) if isinstance(document, (str, bytes)) else document)


SAME_SIZE = 1e-12
"""Sizes of messages are shares of buffers, and rounded."""
_LONGEST, _SLOWEST = 1e9, 1e-6  # beyond these, times of long schedules and large buffers are no longer finite
_FASTEST = 1e18  # a limit beyond this is none, and sums of bandwidths must be exact enough to compare


def check_link(topology: str, what: str, latency: float, bandwidth: float) -> None:
    _check_seconds(f"topology {topology}: {what} has a latency of {latency} s", latency)
    _check_speed(f"topology {topology}: {what} has a bandwidth of {bandwidth} B/s", bandwidth, ", or inf for no limit")


def check_rank(topology: str, overhead: float, reduction: float) -> None:
    _check_seconds(f"topology {topology}: an overhead of {overhead} s a message", overhead)
    _check_speed(f"topology {topology}: a rank combines {reduction} B/s", reduction, ", or inf for free")


def _check_seconds(claim: str, seconds: float) -> None:
    if not 0 <= seconds <= _LONGEST:
        expected = "0 or more" if not seconds > _LONGEST else f"at most {_LONGEST:g}"
        raise UsageError(f"{claim}; expected {expected}")


def _check_speed(claim: str, bytes_a_second: float, otherwise: str) -> None:
    if not (_SLOWEST <= bytes_a_second <= _FASTEST or bytes_a_second == inf):
        nearest = f"at least {_SLOWEST:g}" if bytes_a_second < _SLOWEST else f"at most {_FASTEST:g}"
        expected = nearest if bytes_a_second > 0 else "more than 0"
        raise UsageError(f"{claim}; expected {expected}{otherwise}")


def require(topology: Topology, ranks: int) -> None:
    """Raise for what is no topology, or has no room for this number of ranks."""
    if not isinstance(topology, Topology):
        raise UsageError(
            f"expected a topology, as of price.find_topology('laptop', ranks=4), not {topology!r:.60}"  # may be a name
        )
    topology.require(ranks)
