"""Random networks of every kind that a file can describe, and bounds by looking at all sets of ranks."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from random import Random
from typing import Any

import numpy as np

from allfold.price import Topology

SPEEDS = (1e9, 2e9, 3e9, 5e9, 10e9)


def network(seed: int, most: int = 5) -> Topology:
    """A small network: routes or a graph; switches, one-way, shared and parallel links, and links without a limit."""
    random = Random(seed)
    ranks = random.randint(2, most)
    times = random.choice([(0.0,), (0.0, 1e-6, 5e-6)])
    speeds = [*SPEEDS, *(["inf"] if random.random() < 0.3 else [])]
    document: dict[str, Any] = {
        "format": "allfold-topology",
        "version": 1,
        "name": f"network {seed}",
        "ranks": ranks,
        "hosts": [random.randint(0, 1) if seed % 3 else 0 for _ in range(ranks)],
        "overhead": random.choice(times),
        "reduction": random.choice(["inf", "inf", 4e9]),
        "port": {"latency": random.choice(times), "bandwidth": random.choice(["inf", "inf", 4e9])},
    }
    make = _routes if random.random() < 0.5 else _graph
    document |= make(random, ranks)
    names = sorted({name for part in document.pop("used") for name in part})
    document["links"] = [
        {"name": name, "bandwidth": random.choice(speeds), "latency": random.choice(times)} for name in names
    ]
    if random.random() < 0.3:
        document["sizes"] = _sizes(random, document)
    return Topology.from_json(document)


def _sizes(random: Random, document: dict[str, Any]) -> dict[str, Any]:
    """Messages of some sizes are faster or slower, on the links or on the ports too."""
    limits = [link["bandwidth"] == "inf" for link in document["links"]]
    kinds = [] if any(limits) else ["link"]
    kinds += ["port"] if document["port"]["bandwidth"] != "inf" else []
    return {
        kind: [
            {"bytes": start, "latency": random.choice([0, 1e-6, 3e-6]), "bandwidth": random.choice(SPEEDS)}
            for start in sorted(random.sample([0, 1, 100, 300, 10**5, 3 * 10**5, 10**6, 10**8], random.randint(1, 4)))
        ]
        for kind in kinds
    }


def _routes(random: Random, ranks: int) -> dict[str, Any]:
    """Every pair has any links, which may be those of others."""
    pool = [f"link {number}" for number in range(random.randint(1, 3 * ranks))]
    routes = [
        {"from": a, "to": b, "links": random.sample(pool, min(len(pool), random.randint(0 if seldom else 1, 3)))}
        for a in range(ranks)
        for b in range(ranks)
        if a != b
        for seldom in [random.random() < 0.05]
    ]
    used = [route["links"] for route in routes]
    for route in random.sample(routes, len(routes) // 4) if random.random() < 0.3 else ():
        other = random.sample(pool, min(len(pool), 2))
        route["paths"] = [{"links": route.pop("links"), "share": random.choice([1, 2])}, {"links": other}]
        used.append(other)
    return {"routes": routes, "used": used}


def _graph(random: Random, ranks: int) -> dict[str, Any]:
    """A ring over some of the nodes, and more edges; any of them may share a link, lie side by side, or go one way."""
    nodes: list[Any] = [*range(ranks), *(f"switch {number}" for number in range(random.randint(0, 2)))]
    order = random.sample(nodes, len(nodes))
    ends = [*zip(order, order[1:] + order[:1], strict=True)]
    ends += [tuple(random.sample(nodes, 2)) for _ in range(random.randint(0, 2 * len(nodes)))]
    ends += [random.choice(ends) for _ in range(random.randint(0, 2))]
    edges: list[dict[str, Any]] = []
    for number, (a, b) in enumerate(ends):
        shares = edges and random.random() < 0.2
        name = random.choice(edges)["link"] if shares else f"link {number}"
        edges.append({"from": a, "to": b, "link": name})
    return {
        "graph": {
            "nodes": [node for node in nodes if isinstance(node, str)],
            "edges": edges,
            **({"ties": "split"} if random.random() < 0.3 else {}),
            **({"folds": [node for node in nodes if isinstance(node, str)]} if random.random() < 0.25 else {}),
        },
        "used": [[edge["link"]] for edge in edges],
    }


def by_all_sets(collective: str, topology: Topology, root: int | None, size: int) -> Fraction:
    """Seconds per byte by the worst cut: over all sets of ranks, and all links that no route out of the set avoids.

    Slow, and written without a look at how allfold does it.
    """
    ranks = topology.ranks
    pays: dict[tuple[int, int], dict[int, Fraction]] = {}
    for a in range(ranks):
        for b in range(ranks):
            if a != b:
                route = topology.routes(np.array([a]), np.array([b]))
                share = route.share if route.share is not None else np.ones(len(route.links))
                crossed: dict[int, Fraction] = {}
                for link, part in zip(route.links.tolist(), share.tolist(), strict=True):
                    crossed[link] = crossed.get(link, Fraction(0)) + Fraction(part)
                pays[a, b] = {link: part for link, part in crossed.items() if part >= 1}
    useful = size * (ranks if collective == "all_to_all" else 1)
    speed = {
        link: _fastest(topology, link, useful)
        for crossed in pays.values()
        for link in crossed
        if np.isfinite(topology.bandwidth[link])
    }
    worst = Fraction(0)
    for many in range(1, ranks):
        for inside in combinations(range(ranks), many):
            wanted_above = Fraction(
                inside != tuple(range(ranks - many, ranks))
            )  # some rank outside comes after one inside
            need = {
                "scan": wanted_above,
                "exscan": wanted_above,
                "all_gather": Fraction(many, ranks),
                "reduce_scatter": Fraction(ranks - many, ranks),
                "all_to_all": Fraction(many * (ranks - many), ranks),
                "broadcast": Fraction(root in inside),
                "reduce": Fraction(root not in inside),
                "scatter": Fraction(ranks - many if root in inside else 0, ranks),
                "gather": Fraction(0 if root in inside else many, ranks),
                "all_reduce": Fraction(1),
            }[collective]
            leaving = [
                {link for link in crossed if link in speed}
                for (a, b), crossed in pays.items()
                if a in inside and b not in inside
            ]
            if need and all(leaving):
                worst = max(worst, need / _cheapest_hit(leaving, speed))
    return worst


def _fastest(topology: Topology, link: int, useful: int) -> Fraction:
    """Useful bytes per second, at most: a message may be made longer than it need be, where longer ones are faster."""
    own = topology.links[link]
    rows = topology.recipe.get("sizes", {}).get(own.kind, [])
    speeds = [Fraction(own.rows[0][2]) if not rows or rows[0]["bytes"] else Fraction(0)]
    speeds += [Fraction(row["bandwidth"]) * min(1, Fraction(useful, max(1, row["bytes"]))) for row in rows]
    return max(speeds)


def _cheapest_hit(rows: list[set[int]], speed: dict[int, Fraction]) -> Fraction:
    """The least total speed of links of which every row has one, by trying."""
    best: list[Fraction] = [sum(speed.values(), Fraction(0))]

    def choose(missed: list[set[int]], total: Fraction) -> None:
        if total >= best[0]:
            return
        if not missed:
            best[0] = total
            return
        for link in min(missed, key=len):
            choose([row for row in missed if link not in row], total + speed[link])

    choose(rows, Fraction(0))
    return best[0]
