"""The document behind the page: which algorithms there are, the entries that are embedded, where to begin.

`web/` draws it, and the same document serves the file, the notebook and the studio. It holds nothing about the machine
it was made on: source files go by their names without folders, and measurements are included only if given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from os.path import basename
from typing import TYPE_CHECKING, Any

from ..collectives import COLLECTIVES
from ..errors import AllfoldError, ScheduleError, UsageError
from ..registry import Algorithm, Steps, algorithms, find_algorithm
from ..registry import schedule as make
from ..schedules import Schedule
from . import TOPOLOGY
from .entry import NO_TOPOLOGY, check_size, describe_topology, entry, key_of, schedule_up_to_error
from .wins import table

if TYPE_CHECKING:
    from ..communicator.trace import Trace
    from ..price.topology.topology import Topology

__all__ = ["document", "entry", "key_of", "page_of", "schedule_up_to_error", "topologies"]

TABLE_RANKS = (2, 4, 8, 16, 32, 64)
SIZE = 2**20
_OFFERED = (
    TOPOLOGY,
    "one_host",
    "laptop",
    "fat_tree:ranks_per_host=4,hosts_per_leaf=2,oversubscription=2",
    "dgx1",
    "dgx2",
    "dgx_a100",
    "dgx_h100",
    "mi250",
    "ndv2",
    "ethernet_cloud:ranks_per_node=4",
    "torus",
    "mesh",
    "hypercube",
    "ring",
    "dragonfly:routers=4,ranks_per_router=2",
)
_MOST_COUNTED = 128  # ranks; who wins where among more takes too long to price
_MOST_MOVES = 20_000  # in total, of the collective's other algorithms that a file includes
_MOST_EXPORTED = 2_000  # moves of a schedule that a file also includes as MSCCL XML
_RIVALS = ("naive", "driver", "ring", "tree", "halving_doubling", "direct")
_MOST_RIVALS = 3


def document(
    entries: Sequence[dict[str, Any]],
    *,
    mode: str = "file",
    token: str | None = None,
    view: str = "holds",
    step: int | None = None,
    rivals: Iterable[str] | None = None,
    follow: str | int | None = None,
    values: Sequence[Sequence[float]] | None = None,
    op: str = "sum",
    against: str | None = None,
    cases: Sequence[dict[str, Any]] = (),
    all_topologies: bool = False,
) -> dict[str, Any]:
    """The whole document. The page opens with the first entry; the others can be chosen and raced.

    `cases` say who wins where (see `wins`). Without `rivals` the page chooses by what they take. `follow` is what is lit
    in the pictures: "cut", the limiting cut, or k, the k-th tree. `values` are the numbers that the grid shows, one row
    per rank, combined by `op`. `against` is what the first entry is compared with in every view: another entry's
    algorithm, or "measured", its own recording.
    """
    if not entries:
        raise UsageError("a page needs at least one entry")
    known = [one["name"] for one in views()]
    if view not in known:
        raise UsageError(f"the page has no view {view!r}; known: {', '.join(known)}")
    first = entries[0]
    schedule = first["schedule"]
    if step is not None and not 0 <= step <= len(schedule["steps"]):
        raise UsageError(f"the page cannot begin with {step} steps done; there are {len(schedule['steps'])}")
    collective, ranks = schedule["collective"], schedule["ranks"]
    page: dict[str, Any] = {"format": "allfold-page", "version": 1, "mode": mode}
    if token is not None:
        page["studio"] = {"token": token}
    proof = first["proof"]
    begin = 0 if proof["ok"] else min(proof.get("step", 0) + 1, len(schedule["steps"]))
    page |= {
        "state": {
            "collective": collective,
            "algorithm": schedule["algorithm"],
            "ranks": ranks,
            "root": schedule["root"],
            "topology": first["topology"]["name"] if "topology" in first else NO_TOPOLOGY,
            "size": size_of(first),
            "step": begin if step is None else step,
            "view": view,
            "clock": "measured" if "recording" in first else "modelled" if "timeline" in first else "steps",
            "rivals": None if rivals is None else list(rivals),
            "follow": follow,
            "values": None if values is None else "; ".join(" ".join(f"{one:.17g}" for one in row) for row in values),
            "op": op,
            "against": against,
        },
        "catalogue": catalogue(),
        "entries": list(entries),
        "table": list(cases),
        "topologies": topologies(ranks) if all_topologies else _topologies_of(entries),
        "measured": [point for one in entries if "recording" in one for point in _measured(one)],
    }
    return page


@cache
def views() -> list[dict[str, Any]]:
    """The page's views in the order of their tabs: name, title, and the parts of the document that each needs."""
    from .html import built

    found: list[dict[str, Any]] = json.loads(built("views.json"))
    return found


def page_of(
    schedule: Schedule,
    topology: Topology | str | None = TOPOLOGY,
    size: int = SIZE,
    *,
    others: Sequence[Schedule] | None = None,
    recording: Trace | dict[str, Any] | None = None,
    function: Callable[..., Steps] | Algorithm | None = None,
    parameters: dict[str, Any] | None = None,
    error: ScheduleError | None = None,
    table_ranks: Sequence[int] = TABLE_RANKS,
    **options: Any,
) -> dict[str, Any]:
    """The document of one schedule, with `others` beside it (default: the collective's other algorithms).

    By default only as many are included as stay small. `function`, `parameters` and `error` are as for `entry`, further
    options as for `document`. Who wins where is priced for `table_ranks` and for the schedule's own number of ranks.
    """
    check_size(size)
    everywhere = topology  # a name grows with the number of ranks
    if isinstance(topology, str):
        from ..price.topology.parse import find_topology

        name: str | None = topology if ":" in topology or "." not in topology else basename(topology)
        topology = find_topology(topology, schedule.ranks)
        everywhere = name if name == everywhere else topology
    elif topology is not None:
        from ..price.topology.topology import require

        require(topology, schedule.ranks)
        name = topology.name
    else:
        name = None
    first = entry(
        schedule,
        topology,
        size,
        topology_name=name,
        function=function,
        parameters=parameters,
        recording=recording,
        error=error,
    )
    first |= _msccl(schedule, first)
    beside = [(one, {}) for one in others] if others is not None else _others(schedule, topology)
    rest = []
    for one, given in beside:
        if one.algorithm != schedule.algorithm:
            made = entry(one, topology, size, topology_name=name, parameters=given)
            rest.append(made | _msccl(one, made))
    unknown = schedule.algorithm not in algorithms(schedule.collective) or parameters
    own = schedule if first["proof"]["ok"] and unknown else None
    counted = sorted({*table_ranks, *([schedule.ranks] if 2 <= schedule.ranks <= _MOST_COUNTED else [])})
    if schedule.promise.ends.in_pieces:
        counted = []  # a graph has its own number of ranks
    cases = table(schedule.collective, everywhere, counted, name, own)
    if others is not None:
        options.setdefault("rivals", [one["schedule"]["algorithm"] for one in rest][:_MOST_RIVALS])
    return document([first, *rest], cases=cases, **options)


def _msccl(schedule: Schedule, made: dict[str, Any]) -> dict[str, Any]:
    """The schedule as MSCCL XML, or why there is none: a page without a server can only hand on what it holds."""
    if not made["proof"]["ok"]:
        return {}
    if schedule.moves > _MOST_EXPORTED:
        command = f"allfold export {schedule.algorithm} --collective {schedule.collective} --ranks {schedule.ranks}"
        return {
            "msccl": {"error": f"This file does not hold it, which would be large: {command} --to msccl-xml writes it."}
        }
    from ..export.msccl.msccl import write

    try:
        return {"msccl": {"text": write(schedule)}}
    except AllfoldError as error:
        return {"msccl": {"error": str(error)}}


def _others(schedule: Schedule, topology: Topology | None) -> list[tuple[Schedule, dict[str, Any]]]:
    """The collective's other algorithms as `plan` takes them, with their parameters."""
    found: list[tuple[Schedule, dict[str, Any]]] = []
    # None of these schedules has more moves than a few exchanges of all chunks between all pairs.
    if schedule.ranks > 64:
        return found
    for name in sorted(algorithms(schedule.collective), key=lambda name: name not in _RIVALS):
        try:
            given = planned(schedule.collective, name, schedule.ranks, schedule.root, topology)
            other = make(schedule.collective, name, schedule.ranks, schedule.root, **given)
        except AllfoldError:
            continue  # a user's algorithm that does not support this number of ranks
        if name != schedule.algorithm and sum(one.moves for one, _ in found) + other.moves <= _MOST_MOVES:
            found.append((other, given))
    return found


def planned(collective: str, algorithm: str, ranks: int, root: int | None, topology: Topology | None) -> dict[str, Any]:
    """The parameters with which `allfold plan` takes an algorithm on this topology."""
    if topology is None:
        return {}
    from ..price.cost.plan import Planner

    return Planner(collective, topology, ranks, [algorithm], root=root).parameters(algorithm)


def size_of(one: dict[str, Any]) -> int:
    """The buffer size in bytes that an entry is priced for."""
    return int(one["key"].rpartition("/")[2])


def catalogue() -> list[dict[str, Any]]:
    return [
        {
            "collective": collective.name,
            "algorithm": name,
            "summary": find_algorithm(collective.name, name).summary,
            "rooted": collective.rooted,
        }
        for collective in COLLECTIVES.values()
        for name in algorithms(collective.name)
    ]


def topologies(ranks: int) -> list[dict[str, Any]]:
    """The topologies to choose from, each with room for this many ranks."""
    from ..price.topology.machines import CONSTRUCTORS
    from ..price.topology.parse import find_topology

    return [
        {
            "name": name,
            "summary": " ".join((CONSTRUCTORS[name.partition(":")[0]].__doc__ or "").partition("\n\n")[0].split()),
            "topology": describe_topology(find_topology(name, ranks), name, ranks),
        }
        for name in _OFFERED
    ]


def _topologies_of(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = {one["topology"]["name"]: one["topology"] for one in entries if "topology" in one}
    return [{"name": name, "summary": topology["source"], "topology": topology} for name, topology in found.items()]


def _measured(one: dict[str, Any]) -> list[dict[str, Any]]:
    """The duration of each recorded call, from the first rank's start to the last rank's end."""
    calls: dict[tuple[int, str], tuple[int, int]] = {}
    for event in one["recording"]["events"]:
        call = (event["call"], event["memory"])
        end = event["start"] + event["waited"] + event["worked"]
        first, last = calls.get(call, (event["start"], end))
        calls[call] = (min(first, event["start"]), max(last, end))
    schedule, size = one["schedule"], size_of(one)
    head = {"collective": schedule["collective"], "algorithm": schedule["algorithm"], "ranks": schedule["ranks"]}
    return [
        {**head, "size": size, "seconds": (last - first) * 1e-9, "memory": memory}
        for (_, memory), (first, last) in calls.items()
    ]
