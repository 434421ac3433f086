"""Random networks as topologies, and the tightest cut by looking at all of them."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from allfold.price import Topology
from allfold.price.topology.network import Network


def written(ranks: int, edges: list[tuple[Any, Any, float]], nodes: tuple[str, ...] = ()) -> Topology:
    """A topology of direct links and switches, without latency."""
    links = [{"name": f"{a}→{b} {i}", "latency": 0, "bandwidth": speed} for i, (a, b, speed) in enumerate(edges)]
    lines = [{"from": a, "to": b, "link": f"{a}→{b} {i}"} for i, (a, b, _) in enumerate(edges)]
    return Topology.from_json(
        {
            "format": "allfold-topology",
            "version": 1,
            "name": "written",
            "ranks": ranks,
            "port": {"latency": 0, "bandwidth": "inf"},
            "links": links,
            "graph": {"nodes": list(nodes), "edges": lines},
        }
    )


@st.composite
def topologies(draw: st.DrawFn, most: int = 8) -> Topology:
    """Up to `most` vertices: ranks in a circle, so that all are reached, more one-way links, and perhaps a switch."""
    ranks = draw(st.integers(2, most - 1))
    speed = st.sampled_from([1e9, 2e9, 3e9, 5e9, 12.5e9])
    edges: list[tuple[Any, Any, float]] = [(rank, (rank + 1) % ranks, draw(speed)) for rank in range(ranks)]
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b and (a + 1) % ranks != b]
    edges += [(a, b, draw(speed)) for a, b in draw(st.lists(st.sampled_from(pairs), unique=True))] if pairs else []
    if draw(st.booleans()):
        for rank in draw(st.lists(st.integers(0, ranks - 1), min_size=2, unique=True)):
            fast = draw(speed)
            edges += [(rank, "switch", fast), ("switch", rank, fast)]
        return written(ranks, edges, ("switch",))
    return written(ranks, edges)


def worst_of_all(network: Network, parts: dict[int, int], sinks: set[int]) -> Fraction:
    """The most `parts` per byte per second that leaves, over all sets of vertices that lack a sink."""
    worst = Fraction(0)
    for size in range(1, network.vertices):
        for chosen in combinations(range(network.vertices), size):
            inside = set(chosen)
            if sinks <= inside:
                continue
            leaving = sum(
                Fraction(speed)
                for a, b, speed in zip(network.tail, network.head, network.bandwidth.tolist(), strict=True)
                if int(a) in inside and int(b) not in inside
            )
            held = sum(parts.get(vertex, 0) for vertex in inside)
            if held:
                worst = max(worst, Fraction(held) / leaving)
    return worst
