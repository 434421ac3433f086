"""The fastest algorithm by size and number of ranks, and the time of every other one, as `allfold plan` prices them.

A case is one number of ranks on one topology, as plain JSON:

    collective, topology, ranks     what it is a case of
    sizes, winners                  bytes of the buffer, and `plan`'s choice for each of them
    algorithms                      name, `times` in seconds by size, and `flat`

`flat` is what the page's "what if" needs: the algorithm on a network where every rank has one port and nothing else is
shared. It holds the kinds of steps as [how many, messages, bytes, combined, combined locally], the ports as [messages,
bytes], both per rank and as shares of the buffer, what the busiest rank combines, and the largest message.
`web/src/model.ts` prices it for any latency, bandwidth and combining speed as `price` does; a test holds both equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

from ..errors import AllfoldError, SolverMissing, UsageError
from ..registry import algorithms
from ..schedules import Schedule
from .entry import NO_TOPOLOGY

if TYPE_CHECKING:
    from ..price.cost.load import Load
    from ..price.cost.plan import Planner
    from ..price.topology.topology import Topology

SIZES = tuple(2**power for power in range(3, 31))


def table(
    collective: str,
    topology: Topology | str | None,
    ranks: Iterable[int],
    name: str | None = None,
    made: Schedule | None = None,
) -> list[dict[str, Any]]:
    """A case for every number of ranks that the topology has room for; `made` is a schedule to compare besides.

    `name` is what the page calls a topology that is given as such. Without a topology there is only `flat`.
    """
    cases = []
    for many in ranks:
        try:
            own = made is not None and made.ranks == many
            case = _case(collective, topology, many, made) if own else _known(collective, topology, many)
        except SolverMissing:
            raise
        except UsageError:
            continue  # more ranks than the topology has
        shown = name or (topology if isinstance(topology, str) else NO_TOPOLOGY)
        cases.append({"collective": collective, "topology": shown, "ranks": many, **case})
    return cases


@lru_cache(maxsize=256)
def _known(collective: str, topology: Topology | str | None, ranks: int) -> dict[str, Any]:
    return _case(collective, topology, ranks, None)


def _case(collective: str, topology: Topology | str | None, ranks: int, made: Schedule | None) -> dict[str, Any]:
    from ..price.cost.plan import Planner
    from ..price.topology.parse import find_topology

    if isinstance(topology, str):
        topology = find_topology(topology, ranks)
    root, besides = (None, ()) if made is None else (made.root, (made,))
    names = _names(Planner(collective, flat_network(ranks), ranks, root=root))
    flat = Planner(collective, flat_network(ranks), ranks, names, root=root, made=besides)
    rows: dict[str, dict[str, Any]] = {}
    for one in flat.names or ():
        load = flat.load(one)
        if load is not None:
            rows[one] = {"name": one, "times": [], "flat": _flat(load)}
    winners = []
    if topology is not None:
        planner = Planner(collective, topology, ranks, names, root=root, made=besides)
        for size in SIZES:
            plan = planner.plan(size)
            winners.append(plan.winner.algorithm)
            for cost in plan.costs:
                if cost.algorithm in rows:
                    rows[cost.algorithm]["times"].append(_short(cost.time))
    return {"sizes": list(SIZES), "winners": winners, "algorithms": list(rows.values())}


def flat_of(schedule: Schedule) -> dict[str, Any]:
    """What the page's "what if" needs to know of one schedule."""
    from ..price.cost.plan import Planner

    network = flat_network(schedule.ranks)
    planner = Planner(schedule.collective, network, schedule.ranks, [], root=schedule.root, made=(schedule,))
    load = planner.load(schedule.algorithm)
    assert load is not None
    return _flat(load)


def _names(planner: Planner) -> list[str]:
    """The algorithms of the collective, without those of a user that do not support this number of ranks."""
    known = []
    for name in algorithms(planner.collective):
        try:
            planner.load(name)
        except AllfoldError:
            continue
        known.append(name)
    return known


def flat_network(ranks: int, latency: float = 1.0, bandwidth: float = 1.0, reduction: float = 1.0) -> Topology:
    """One port per rank, which starts messages one after the other, `latency` each; nothing else takes time."""
    from ..price.topology.machines import one_host

    return one_host(ranks, bandwidth, latency=0.0, bus=inf, overhead=latency, reduction=reduction)


def _flat(load: Load) -> dict[str, Any]:
    columns = (load.times, load.startup, load.transfer, load.combining, load.local)
    starts, port_bytes, _, combined = load.resources
    return {
        "steps": [[int(times), *map(_short, figures)] for times, *figures in zip(*columns, strict=True)],
        "ports": [[_short(many), _short(size)] for many, size in zip(starts, port_bytes, strict=True)],
        "combined": _short(combined),
        "largest": _short(load.largest),
    }


def _short(number: float) -> float:
    """Rounded to nine digits, which keeps the page small."""
    return float(f"{number:.9g}")
