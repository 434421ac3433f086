"""The shapes that networks have, built from plain figures: hosts under switches, grids of cables, dragonflies."""

from __future__ import annotations

from math import inf, prod

import numpy as np

from ...errors import UsageError
from .routing import Dragonfly, Grid, Switched
from .topology import Block, Cut, Links, Topology, check_link

MOST = 2**24  # ranks, or links of one kind


def switched(
    name: str,
    hosts: int,
    ranks_per_host: int,
    port: float,
    port_latency: float,
    bus: float,
    overhead: float,
    reduction: float,
    source: str,
    cards: int = 1,
    bandwidth: float = 1.0,
    latency: float = 0.0,
    hosts_per_leaf: int | None = None,
    oversubscription: float = 1.0,
    switch_latency: float = 0.0,
    rails: bool = False,
) -> Topology:
    """Hosts with ports, a bus and cards, under leaves and spines where `hosts_per_leaf` says so.

    With `rails`, card i of every host of a unit connects to leaf i of that unit; otherwise all cards of a host connect
    to one leaf.
    """
    counts = {"hosts": hosts, "ranks_per_host": ranks_per_host, "cards": cards}
    counts |= {} if hosts_per_leaf is None else {"hosts_per_leaf": hosts_per_leaf}
    for what, value in counts.items():
        check_whole(name, what, value)
    check_link(name, "a network card", latency, bandwidth)  # even if a single host leaves it unused
    if not 0 < oversubscription < inf:
        raise UsageError(f"topology {name}: oversubscription is {oversubscription}; expected more than 0, 1 for none")
    cards = min(cards, ranks_per_host)
    ranks, all_cards = hosts * ranks_per_host, hosts * cards
    check_whole(name, "the number of ranks", ranks)
    rank, card = np.arange(ranks, dtype=np.int32), np.arange(all_cards, dtype=np.int32)
    host = rank // ranks_per_host
    per_leaf = hosts_per_leaf or hosts
    unit, within = card // cards // per_leaf, card // cards % per_leaf
    leaf = unit * cards + card % cards if rails else unit
    place = within if rails else within * cards + card % cards
    leaves = int(leaf.max()) + 1
    below = per_leaf * (1 if rails else cards)  # cards per leaf
    has_spines = hosts_per_leaf is not None and leaves > 1 and hosts > 1
    if has_spines and below / oversubscription * leaves > MOST:
        raise UsageError(f"topology {name}: an oversubscription of {oversubscription} means more than {MOST} uplinks")
    uplinks = max(1, round(below / oversubscription)) if has_spines else 1
    blocks = ports(ranks, port_latency, port)
    first: dict[str, int] = {}
    parts = {
        "bus": Block("host {} memory bus", "bus", 0.0, bus, (hosts,), ("host",)) if bus != inf else None,
    }
    if hosts > 1:
        for way in ("out", "in"):
            parts[way] = Block(
                f"host {{}} card {{}} {way}",
                "nic",
                latency,
                bandwidth,
                (hosts, cards),
                ("host", "card"),
                {"way": way},
                leaf if has_spines else None,
            )
    if has_spines:
        passed = bandwidth * below / oversubscription / uplinks
        for way in ("up", "down"):
            parts[way] = Block(
                f"leaf {{}} {way} {{}}",
                "uplink",
                switch_latency,
                passed,
                (leaves, uplinks),
                ("leaf", "uplink"),
                {"way": way},
            )
    for key, block in parts.items():
        if block is not None:
            first[key] = sum(one.count for one in blocks)
            blocks.append(block)
    cuts = []
    if hosts > 1:
        cuts.append(Cut("network cards of a host", host, bandwidth * cards))
    if has_spines and not rails:
        cuts.append(Cut("uplinks of a leaf", host // np.int32(per_leaf), bandwidth * below / oversubscription))
    return Topology(
        name=name,
        ranks=ranks,
        host=host,
        links=Links(blocks),
        overhead=overhead,
        reduction=reduction,
        source=source,
        router=Switched(
            host=host,
            card=host * np.int32(cards) + rank % ranks_per_host * cards // ranks_per_host,
            leaf=leaf,
            place=place,
            uplinks=uplinks,
            ports=(0, ranks),
            buses=first.get("bus"),
            cards=(first["out"], first["in"]) if hosts > 1 else None,
            spines=(first["up"], first["down"]) if has_spines else None,
        ),
        cuts=tuple(cuts),
        throughput=bus if hosts == 1 else inf,
    )


def grid(
    name: str,
    shape: tuple[int, ...],
    cable: float,
    latency: float,
    port: float,
    overhead: float,
    reduction: float,
    source: str,
    closed: bool = True,
) -> Topology:
    """A torus of any number of dimensions, or a mesh if its rows are not `closed`. Every rank is a host of its own."""
    if not shape:
        raise UsageError(f"topology {name}: an empty shape; expected one number a dimension, as in 8x8x4")
    for side in shape:
        check_whole(name, "ranks" if name == "ring" else "shape", side)
    ranks, longest = prod(shape), max(shape)
    check_whole(name, "the number of ranks", ranks)
    rank = np.arange(ranks, dtype=np.int32)
    along = np.stack(np.unravel_index(rank, shape), axis=1)
    kept, place = None, None
    if not closed:  # the first node of a row has no cable downwards, and the last one none upwards
        there = np.stack([along < np.asarray(shape) - 1, along > 0], axis=2).ravel()
        kept = np.flatnonzero(there).astype(np.int32)
        place = (np.cumsum(there) - 1).astype(np.int32)
    template = "node {} dimension {} cable {}" if name != "ring" else "node {} ring {} cable {}"
    cables = Block(template, "cable", latency, cable, (ranks, len(shape), 2), ("node", "dimension", "down"), kept=kept)
    # Cut the longest dimension in the middle: each of its rings is cut twice, each row of a mesh once.
    half = (along[:, shape.index(longest)] >= (longest + 1) // 2).astype(np.int32)
    across = (2 if closed else 1) * ranks // longest
    most = sum(side > 1 if closed else min(side - 1, 2) / 2 for side in shape) * 2  # cables of a node
    return Topology(
        name=name,
        ranks=ranks,
        host=rank,
        links=Links([*ports(ranks, 0.0, port), cables]),
        overhead=overhead,
        reduction=reduction,
        source=source,
        router=Grid(shape, (0, ranks), 2 * ranks, place),
        cuts=(
            *([Cut("cables of a node", rank, cable * most)] if most else []),
            *([Cut("cables between the halves", half, cable * across)] if longest > 1 else []),
        ),
    )


def ports(ranks: int, latency: float, bandwidth: float) -> list[Block]:
    return [
        Block(f"rank {{}} {way}", "port", latency, bandwidth, (ranks,), ("rank",), {"way": way})
        for way in ("out", "in")
    ]


def check_whole(name: str, what: str, value: object, most: int = MOST) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise UsageError(f"topology {name}: {what} is {value!r:.40}; expected a whole number from 1 to {most}")


def groups_of_routers(
    name: str,
    groups: int,
    routers: int,
    ranks_per_router: int,
    bandwidth: float,
    local: float,
    across: float,
    latency: float,
    overhead: float,
    reduction: float,
    source: str,
) -> Topology:
    """A dragonfly: a router's ranks count as one host."""
    for what, value in (("groups", groups), ("routers", routers), ("ranks_per_router", ranks_per_router)):
        check_whole(name, what, value)
    ranks, others = groups * routers * ranks_per_router, max(1, groups - 1)
    check_whole(name, "the number of links", max(ranks, groups * max(routers * routers, others)))
    first = 2 * ranks
    place = np.arange(ranks, dtype=np.int32)
    return Topology(
        name=name,
        ranks=ranks,
        host=place // np.int32(ranks_per_router),
        links=Links(
            [
                *ports(ranks, latency, bandwidth),
                Block(
                    "group {} router {} to router {}",
                    "cable",
                    latency,
                    local,
                    (groups, routers, routers),
                    ("group", "router", "to"),
                ),
                Block("group {} cable {}", "uplink", 2 * latency, across, (groups, others), ("group", "cable")),
            ]
        ),
        overhead=overhead,
        reduction=reduction,
        source=source,
        router=Dragonfly(groups, routers, ranks_per_router, (0, ranks), first, first + groups * routers * routers),
        cuts=(Cut("cables of a group", place // np.int32(routers * ranks_per_router), across * others),)
        if groups > 1
        else (),
    )
