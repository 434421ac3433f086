"""Topologies written by hand, as JSON: links, and the routes over them, pair by pair or as a graph.

```json
{"format": "allfold-topology", "version": 1, "name": "two hosts", "ranks": 4, "hosts": [0, 0, 1, 1],
 "overhead": 1e-6, "reduction": 1e10, "source": "measured by hand", "port": {"latency": 1e-7, "bandwidth": 1e10},
 "links": [{"name": "bus 0", "kind": "bus", "latency": 0, "bandwidth": 2e10}, …],
 "graph": {"nodes": ["host 0", …], "edges": [{"from": 0, "to": "host 0", "link": "bus 0"}, …]}}
```

The ports need not be listed: every route starts and ends with one. A node of the graph is a rank, by its number, or a
name; an edge is one direction, and several edges may cross the same link, which they then share. An edge without a link
costs nothing. The route is the one with the fewest edges; among equally short ones, the one whose edges are listed
first, or with `"ties": "split"` all of them (ECMP). Edges between the same two nodes share messages in the ratio of their
bandwidths. Nodes in `"folds": ["switch 0"]` combine and copy messages on the way, as NVLink SHARP does. Instead of a graph
there may be `"routes": [{"from": 0, "to": 1, "links": ["bus 0"]}, …]`, for every pair. A route over several paths has
`"paths": [{"links": ["a"], "share": 2}, {"links": ["b"], "share": 1}]`; shares are relative to their sum.

Where latency and bandwidth depend on the size of a message, there is a table for a kind of link, also beside a constructor:
`"sizes": {"nic": [{"bytes": 65536, "latency": 2e-5, "bandwidth": 1e9}, …]}`. A row holds from its size on; shorter messages
have the figures of the link itself.

A link may say where it is, `"place": {"host": 0}`: see `PLACES`. The page draws a topology whose links all do. Links that
have failed are named in `"without": ["bus 0"]`, also beside a constructor; routes lead round them.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...documents import DocumentError, check_keys, head_of, list_at, object_at, whole_at
from ...errors import UsageError
from .parse import construct
from .routing import ABSENT, NoPath, Paths, RoutingTable, all_shortest, fewest_hops
from .shapes import ports
from .sizes import with_sizes
from .topology import PLACES, Block, Link, Links, Place, Router, Row, Topology, check_link, check_rank
from .without import without

_MOST = 4096  # ranks, and nodes of a graph: table sizes grow with the square
_KEYS = ("name", "ranks", "hosts", "overhead", "reduction", "source", "port", "links", "graph", "routes")


def read(data: object) -> Topology:
    """The topology of a JSON document; nothing in the document is trusted."""
    try:
        document = head_of(data, "allfold-topology", 1)
    except DocumentError as error:
        raise UsageError(f"this is not a topology: {error}") from None
    rest = {key: value for key, value in document.items() if key not in ("format", "version", "without", "sizes")}
    missing = list_at(document.get("without", []), "without")
    if not all(isinstance(name, str) for name in missing):
        raise UsageError(f"without is {missing!r:.60}; expected the names of links")
    if "constructor" in rest:
        check_keys(rest, ("constructor", "parameters"), "a topology with a constructor")
        found = construct(rest["constructor"], object_at(rest.get("parameters", {}), "parameters"))
    else:
        found = _read_links(rest)
    return without(with_sizes(found, _sizes(document), document.get("sizes")), missing)


def _sizes(document: dict[str, Any]) -> dict[str, list[Row]]:
    """The tables by kind of link."""
    tables: dict[str, list[Row]] = {}
    for kind, rows in object_at(document.get("sizes", {}), "sizes").items():
        tables[kind] = []
        for row in list_at(rows, f"sizes of {kind}"):
            one, where = object_at(row, f"a row of the sizes of {kind}"), f"sizes of {kind}"
            check_keys(one, ("bytes", "latency", "bandwidth"), where)
            start = whole_at(one.get("bytes"), f"{where}: bytes", 0, 2**62)
            latency = _number(one.get("latency"), f"{where}: latency")
            tables[kind].append(
                (float(start), latency, _number(one.get("bandwidth"), f"{where}: bandwidth", limits=True))
            )
    return tables


def _read_links(data: dict[str, Any]) -> Topology:
    name = data.get("name")
    if not isinstance(name, str) or not name:
        raise UsageError(f"this is not a topology: name is {name!r}, expected a text")
    where = f"topology {name}"
    check_keys(data, _KEYS, where)
    ranks = whole_at(data.get("ranks"), f"{where}: ranks", 1, _MOST)
    hosts = data.get("hosts", [0] * ranks)
    if not isinstance(hosts, list) or len(hosts) != ranks:
        raise UsageError(f"{where}: expected a host for each of {ranks} ranks, got {hosts!r:.60}")
    host = np.asarray([whole_at(one, f"{where}: a host", 0, 2**24) for one in hosts], np.int32)
    overhead = _number(data.get("overhead", 0), f"{where}: overhead")
    reduction = _number(data.get("reduction", "inf"), f"{where}: reduction", limits=True)
    check_rank(name, overhead, reduction)
    port = object_at(data.get("port"), f"{where}: port")
    check_keys(port, ("latency", "bandwidth"), f"{where}: port")
    latency, bandwidth = _figures(name, "a port", port)
    blocks = ports(ranks, latency, bandwidth)
    taken = {f"rank {rank} {side}" for rank in range(ranks) for side in ("out", "in")}
    numbers: dict[str, int] = {}
    for link in list_at(data.get("links", []), f"{where}: links"):
        block = _block(name, object_at(link, f"{where}: a link"))
        title = link["name"]
        if title in numbers or title in taken:
            raise UsageError(f"{where}: there are two links {title!r}; names must be unique")
        numbers[title] = 2 * ranks + len(numbers)
        blocks.append(block)
    if ("graph" in data) == ("routes" in data):
        raise UsageError(f"{where}: expected either a graph or routes, to say how ranks reach each other")
    reach = _graph if "graph" in data else _table
    router = reach(where, ranks, data, numbers, Links(blocks).bandwidth)
    return Topology(
        name=name,
        ranks=ranks,
        host=host,
        links=Links(blocks),
        overhead=overhead,
        reduction=reduction,
        source=str(data.get("source", "written by hand")),
        router=router,
        recipe=dict(data),
        folding=_folding(where, ranks, data, router),
        repeats=_repeats(data),
    )


def _repeats(data: dict[str, Any]) -> bool:
    """True if edges share a link, so that a route may cross it several times, or if a written route does."""
    if "graph" in data:
        named = [edge["link"] for edge in data["graph"]["edges"] if "link" in edge]
        return len(set(named)) < len(named)
    paths = [path["links"] for route in data["routes"] for path in route.get("paths", [route])]
    return any(len(set(links)) < len(links) for links in paths)


def _block(topology: str, link: dict[str, Any]) -> Block:
    name, kind = link.get("name"), link.get("kind", "link")
    if not isinstance(name, str) or not name or not isinstance(kind, str):
        raise UsageError(f"topology {topology}: a link has the name {name!r} and the kind {kind!r}; expected texts")
    where = f"topology {topology}: link {name!r}"
    check_keys(link, ("name", "kind", "latency", "bandwidth", "place"), where)
    latency, bandwidth = _figures(topology, f"link {name!r}", link)
    place = _place(link["place"], where) if "place" in link else {}
    return Block.alone(Link(name, kind, latency, bandwidth, place))


_WRITTEN = PLACES[1:]  # ports are not written


def _place(value: object, where: str) -> Place:
    place = object_at(value, f"{where}: place")
    if sorted(place) not in [sorted(keys) for keys in _WRITTEN]:
        known = "; ".join(", ".join(keys) for keys in _WRITTEN)
        raise UsageError(f"{where}: the place says {', '.join(place) or 'nothing'}; expected one of: {known}")
    ways = ("up", "down") if "uplink" in place else ("out", "in")
    for key, number in place.items():
        if key != "way":
            whole_at(number, f"{where}: {key}", 0, 1 if key == "down" else _MOST)
        elif number not in ways:
            raise UsageError(f"{where}: way is {number!r:.60}; expected {' or '.join(ways)}")
    return dict(place)


def _figures(topology: str, what: str, link: dict[str, Any]) -> tuple[float, float]:
    where = f"topology {topology}: {what}"
    latency = _number(link.get("latency", 0), f"{where}: latency")
    bandwidth = _number(link.get("bandwidth"), f"{where}: bandwidth", limits=True)
    check_link(topology, what, latency, bandwidth)
    return latency, bandwidth


# How ranks reach each other -------------------------------------------------------------------------------------------


def _table(
    where: str, ranks: int, data: dict[str, Any], numbers: dict[str, int], bandwidth: NDArray[np.float64]
) -> Router:
    rows: dict[int, list[tuple[list[int], float]]] = {rank * ranks + rank: [] for rank in range(ranks)}
    for route in list_at(data["routes"], f"{where}: routes"):
        route = object_at(route, f"{where}: a route")
        check_keys(route, ("from", "to", "links", "paths"), f"{where}: a route")
        start, end = (whole_at(route.get(key), f"{where}: a route's {key!r}", 0, ranks - 1) for key in ("from", "to"))
        if start * ranks + end in rows:
            raise UsageError(f"{where}: the route from {start} to {end} is given twice, or leads back to its start")
        between = f"from {start} to {end}"
        if ("links" in route) == ("paths" in route):
            raise UsageError(f"{where}: expected either links or paths {between}")
        paths = (
            [route] if "links" in route else list_at(route["paths"], f"{where}: the paths {between}", 1, _MOST_PATHS)
        )
        rows[start * ranks + end] = [
            ([start, *links, ranks + end], share)
            for links, share in (_path(where, between, one, numbers) for one in paths)
        ]
    if len(rows) < ranks * ranks:
        missing = next(pair for pair in range(ranks * ranks) if pair not in rows)
        raise UsageError(f"{where}: {NoPath(missing // ranks, missing % ranks)}")
    ordered = [rows[pair] for pair in range(ranks * ranks)]
    if any(len(row) > 1 for row in ordered):
        return Paths.of(ranks, ordered)
    single = [row[0][0] if row else [] for row in ordered]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in single])]).astype(np.intp)
    return RoutingTable(ranks, offsets, np.asarray([link for row in single for link in row], np.int32))


_MOST_PATHS = 32  # of one message


def _path(where: str, between: str, path: object, numbers: dict[str, int]) -> tuple[list[int], float]:
    """The links of one path, and its share of the messages."""
    one = object_at(path, f"{where}: a path {between}")
    check_keys(one, ("from", "to", "links", "share"), f"{where}: a path {between}")
    share = _number(one.get("share", 1), f"{where}: the share of a path {between}")
    if not 0 < share <= 1e9:
        raise UsageError(f"{where}: a path {between} has the share {share}; expected more than 0, and not very much")
    links = list_at(one.get("links"), f"{where}: the links {between}")
    return [_known(numbers, link, f"{where}: the route {between}") for link in links], share


def _graph(
    where: str, ranks: int, data: dict[str, Any], numbers: dict[str, int], bandwidth: NDArray[np.float64]
) -> Router:
    graph = object_at(data["graph"], f"{where}: graph")
    check_keys(graph, ("nodes", "edges", "ties", "folds"), f"{where}: graph")
    ties = graph.get("ties", "first")
    if ties not in ("first", "split"):
        raise UsageError(
            f"{where}: ties is {ties!r:.60}; expected first (one of equally short ways) or split (over all)"
        )
    nodes: dict[object, int] = {rank: rank for rank in range(ranks)}
    for node in list_at(graph.get("nodes", []), f"{where}: nodes"):
        if not isinstance(node, str) or node in nodes:
            raise UsageError(f"{where}: node {node!r}; expected names, each once (ranks are nodes by their number)")
        nodes[node] = len(nodes)
    if len(nodes) > _MOST:
        raise UsageError(f"{where}: {len(nodes)} nodes; at most {_MOST} are taken")
    edges: list[tuple[int, int, int]] = []
    for edge in list_at(graph.get("edges"), f"{where}: edges"):
        edge = object_at(edge, f"{where}: an edge")
        check_keys(edge, ("from", "to", "link"), f"{where}: an edge")
        ends: list[int] = []
        for key in ("from", "to"):
            end = edge.get(key)
            if isinstance(end, bool) or not isinstance(end, (int, str)) or end not in nodes:
                raise UsageError(
                    f"{where}: an edge goes {key} {end!r}, which is neither a rank below {ranks} nor a node"
                )
            ends.append(nodes[end])
        link = _known(numbers, edge["link"], f"{where}: an edge") if "link" in edge else ABSENT
        edges.append((ends[0], ends[1], link))
    try:
        return (fewest_hops if ties == "first" else all_shortest)(len(nodes), ranks, edges, bandwidth)
    except NoPath as error:
        raise UsageError(f"{where}: {error}") from None


def _folding(where: str, ranks: int, data: dict[str, Any], router: Router) -> frozenset[int]:
    """The switches that combine and copy messages."""
    graph = data.get("graph", {})
    names = list_at(graph.get("folds", []), f"{where}: folds")
    nodes = {name: ranks + number for number, name in enumerate(graph.get("nodes", []))}
    for name in names:
        if not isinstance(name, str) or name not in nodes:
            raise UsageError(f"{where}: folds names {name!r:.60}; expected names of nodes")
    if names and getattr(router, "splits", False):
        raise UsageError(
            f"{where}: a switch that folds takes whole messages; make parallel edges one link, and ties first"
        )
    return frozenset(nodes[name] for name in names)


# Nothing is trusted ---------------------------------------------------------------------------------------------------


def _number(value: object, where: str, limits: bool = False) -> float:
    if value == "inf":
        return inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300:
        otherwise = ', or "inf" for no limit' if limits else ""
        raise UsageError(f"{where} is {value!r:.60}; expected a number{otherwise}")
    return float(value)


def _known(numbers: dict[str, int], link: object, where: str) -> int:
    if not isinstance(link, str) or link not in numbers:
        raise UsageError(f"{where} names the link {link!r:.60}, which is not listed")
    return numbers[link]
