"""One schedule as the page shows it: what it moves, whether it is right, what it costs, and what happens when.

An entry is plain JSON. Besides the schedule's own fields it holds

    starts, ends          the datum of each cell at the start, and the one required at the end; −1 is nothing, or anything
    sources, code, also   the lines that made the moves, the algorithm's own file, other files that made moves
    lines                 the generator's line in `code` at each step (absent if not known)
    proof                 that it is right, with facts, or what is wrong and where
    phases                the parts of the algorithm by name, with a sentence for every step
    counts, bounds        what it sends, and the lower bounds for any schedule
    topology              name, hosts and figures of the topology (present only with a topology, like what follows)
    timeline              the messages of a simulation: `move` is the first move of a message, `moves` how many; `parts` is what
                          its critical path spends its time on
    modelled              what `allfold plan` says it takes, and in how many segments
    links, bottleneck     what crosses every link, and which one limits it
    pairs                 bytes between pairs of ranks, and the links (as indices into `links`) that they take
    cut                   the ranks that can send no more to the rest than some links let through, if that is known
    recording             a real run, instruction by instruction
    msccl                 in files: `text`, the schedule as MSCCL XML, or `error`, why there is none (`page.page_of` adds it)

The page invents no numbers: everything it draws is in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from os.path import basename
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from ..collectives import NOTHING, Bounds, find_collective
from ..errors import ScheduleError, UsageError
from ..proof import Proof, verify
from ..registry import Algorithm, Phase, Steps, algorithm_of, algorithms, find_algorithm
from ..registry import schedule as make
from ..schedules import Move, Schedule
from ..wording import counted
from .phases import phases_of
from .source import sites_of, source_of

if TYPE_CHECKING:
    from ..communicator.trace import Trace
    from ..price.topology.topology import Topology

NO_TOPOLOGY = "none"
MOST_SIMULATED = 70_000  # messages; takes a few seconds
_MOST_PROGRAMS = 300_000  # moves; beyond, proving the compiled programs takes too long for a page
_MOST_LINKS = 4096
_MOST_PAIRS = 4096


def key_of(collective: str, algorithm: str, ranks: int, root: int | None, topology: str, size: int) -> str:
    """`all_reduce/ring/8/null/laptop/1048576`: how the page asks for an entry."""
    return "/".join([collective, algorithm, str(ranks), "null" if root is None else str(root), topology, str(size)])


def entry(
    schedule: Schedule,
    topology: Topology | None = None,
    size: int = 2**20,
    *,
    topology_name: str | None = None,
    function: Callable[..., Steps] | Algorithm | None = None,
    parameters: dict[str, Any] | None = None,
    recording: Trace | dict[str, Any] | None = None,
    error: ScheduleError | None = None,
) -> dict[str, Any]:
    """The entry of one schedule. `error` is what kept it from being complete: see `schedule_up_to_error`."""
    name = NO_TOPOLOGY if topology is None else topology_name or topology.name
    source = source_of(schedule, function, parameters)
    proof = refusal(schedule.collective, error) if error is not None else _prove(schedule)
    width = schedule.chunks + schedule.scratch
    bounds = schedule.promise.bounds(schedule.ranks)
    document: dict[str, Any] = {
        "key": key_of(schedule.collective, schedule.algorithm, schedule.ranks, schedule.root, name, size),
        "schedule": schedule.to_json(),
        "promise": promise_of(schedule),
        "starts": _widened(schedule.promise.starts_with(schedule.ranks, schedule.root, schedule.chunks), width),
        "ends": _widened(schedule.promise.ends_with(schedule.ranks, schedule.root, schedule.chunks), width),
        "sources": sites_of(schedule),
        "code": source.own,
        "also": list(source.files[1:]),
        "proof": proof,
        "phases": phases_of(schedule, _declared(schedule, function), (parameters or {}).get("groups")),
        "counts": schedule.counts.to_json(),
        "bounds": bounds_as_json(bounds),
    }
    if source.lines is not None:
        document["lines"] = list(source.lines)
    if topology is not None:
        document |= _priced(schedule, topology, name, size, proof["ok"])
    if recording is not None:
        document["recording"] = _since_the_first(recording if isinstance(recording, dict) else recording.to_json())
    return document


def promise_of(schedule: Schedule) -> dict[str, Any]:
    """The facts of the collective, and by rank whose contributions it wants, [first, end); None: everybody's."""
    promise, ranks = schedule.promise, schedule.ranks
    wanted = [promise.contributors(rank, ranks) for rank in range(ranks)] if promise.reduces else []
    everyone = promise.combines_all or not promise.reduces
    return {**promise.facts(), "contributors": None if everyone else [[one.start, one.stop] for one in wanted]}


def schedule_up_to_error(
    collective: str,
    algorithm: str | Callable[..., Steps] | Algorithm,
    ranks: int,
    root: int | None = None,
    **parameters: Any,
) -> tuple[Schedule, ScheduleError | None]:
    """A schedule, or as much of it as could be made, and the error that stopped it."""
    try:
        return make(collective, algorithm, ranks, root, **parameters), None
    except ScheduleError as error:
        wrong = error  # the name `error` ends with this block
    chosen = algorithm_of(collective, algorithm)

    def until(*arguments: Any, **keywords: Any) -> Steps:
        done = 0
        try:
            for step in chosen.function(*arguments, **keywords):
                if done >= (wrong.step or 0):
                    return
                moves = list(step)
                done += any(move.moves for move in moves)
                yield moves
        except (Exception, SystemExit):
            return  # the error is in `wrong`

    begun = Algorithm(collective, chosen.name, until, chosen.chunks)
    return make(collective, begun, ranks, root, **parameters), wrong


class TooManyMoves(ScheduleError):
    """An algorithm makes more moves than can be used."""


def within(algorithm: Algorithm, most: int) -> Algorithm:
    """The same algorithm, stopped when it has made more moves than this."""

    @wraps(algorithm.function)  # keeps its signature visible
    def limited(*arguments: Any, **parameters: Any) -> Steps:
        title = f"{algorithm.name}(ranks={arguments[0]})"
        steps = algorithm.function(*arguments, **parameters)
        if not isinstance(steps, Iterable):
            raise ScheduleError(f"{title} returns {steps!r:.40} and no steps: an algorithm needs a yield")
        made = 0
        for step in steps:
            # What is no list of moves is refused when the schedule is built.
            moves = step if isinstance(step, Move) or not isinstance(step, Iterable) else list(step)
            many = sum(move.moves if isinstance(move, Move) else 1 for move in moves) if isinstance(moves, list) else 1
            made += many or 1  # an empty step counts as one
            if made > most:
                frame = getattr(steps, "gi_frame", None)
                site = None if frame is None else f"{basename(frame.f_code.co_filename)}:{frame.f_lineno}"
                where = "does not end" if frame is None else f"is still in line {frame.f_lineno}"
                said = f"{title} has made {most:,} moves and {where}: does its loop end? If it does, take fewer ranks"
                raise TooManyMoves(said, site=site)
            yield moves

    return Algorithm(algorithm.collective, algorithm.name, limited, algorithm.chunks)


def _declared(schedule: Schedule, function: Callable[..., Steps] | Algorithm | None) -> tuple[Phase, ...]:
    """The phases that the algorithm declares, if it is the one that is registered under this name."""
    if schedule.algorithm not in algorithms(schedule.collective):
        return ()
    known = find_algorithm(schedule.collective, schedule.algorithm)
    own = function.function if isinstance(function, Algorithm) else function
    return known.phases if own in (None, known.function) else ()


# The proof -----------------------------------------------------------------------------------------------------------


def _prove(schedule: Schedule) -> dict[str, Any]:
    programs = schedule.moves <= _MOST_PROGRAMS
    try:
        proof = verify(schedule, programs)
    except ScheduleError as error:
        return refusal(schedule.collective, error)
    facts = _facts(proof)
    if programs:
        facts.append("The compiled programs cannot deadlock and have no unordered access.")
    else:
        facts.append("The compiled programs of a schedule this large are not checked here; allfold verify checks them.")
    return {"ok": True, "message": str(proof).splitlines()[0], "facts": facts}


def refusal(collective: str, error: ScheduleError) -> dict[str, Any]:
    """What is wrong with a schedule, and where, as an entry's `proof`."""
    place = {name: getattr(error, name) for name in ("rank", "chunk", "step", "site")}
    known = {name: value for name, value in place.items() if value is not None}
    return {"ok": False, "message": f"{collective} {error}", **known, "facts": []}


def _facts(proof: Proof) -> list[str]:
    facts = []
    if proof.same_bits is not None:
        facts += [
            "All ranks get the same bits."
            if proof.same_bits
            else "Ranks may get different bits: each adds in another order.",
            "Rank order is kept, so the operation need not be commutative."
            if proof.rank_order
            else "Rank order is not kept, so the operation must be commutative.",
            "A result is the same for any length of the buffer."
            if proof.uniform
            else "A result may change in its last bits with the length of the buffer.",
        ]
    return facts


def bounds_as_json(bounds: Bounds) -> dict[str, Any]:
    return {
        "rounds": bounds.rounds,
        "messages": bounds.messages,
        "bytes": float(bounds.bytes),
        "busiest_port_bytes": float(bounds.busiest_port_bytes),
    }


def _widened(layout: NDArray[np.int32], width: int) -> list[list[int]]:
    cells = np.full((len(layout), width), NOTHING, np.int32)
    cells[:, : layout.shape[1]] = layout
    return cells.tolist()


# The price -----------------------------------------------------------------------------------------------------------


def describe_topology(topology: Topology, name: str, ranks: int) -> dict[str, Any]:
    """A topology for drawing: its recipe, the host of every rank, and the latency and bandwidth of a route."""
    far = topology.routes(np.asarray([0]), np.asarray([ranks - 1]))
    return {
        **topology.to_json(),
        "name": name,
        "ranks": topology.ranks,
        "host": topology.host[:ranks].tolist(),
        "overhead": topology.overhead,
        "reduction": _number(topology.reduction),
        "latency": float(far.latency(topology.latency)[0]) if ranks > 1 else 0.0,
        "bandwidth": _number(float(far.slowest(topology.bandwidth)[0]) if ranks > 1 else np.inf),
        "source": topology.source,
    }


def _priced(schedule: Schedule, topology: Topology, name: str, size: int, right: bool) -> dict[str, Any]:
    from ..price.cost.bounds import exact_cut
    from ..price.cost.cost import cost
    from ..price.simulate.simulate import simulate

    topology.require(schedule.ranks)
    found: dict[str, Any] = {"topology": describe_topology(topology, name, schedule.ranks)}
    size = size if find_collective(schedule.collective).carries_data else 0
    found |= _links(schedule, topology, size)
    if not right:
        return found  # what it sends is known; how long it takes to do the wrong thing is of no interest
    if schedule.counts.messages <= MOST_SIMULATED:
        timeline = simulate(schedule, topology, size)
        columns = ("ready", "start", "sent", "arrived", "landed", "end")
        found["timeline"] = {
            "duration": timeline.duration,
            "move": timeline.move.tolist(),
            "moves": timeline.moves.tolist(),
            "segment": timeline.segment.tolist(),
            **{column: _seconds(getattr(timeline, column)) for column in columns},
            "critical": timeline.critical.tolist(),
            "parts": {name: round(part, 11) for name, part in timeline.critical_parts().items()},
            "idle": _seconds(timeline.idle()),
        }
    priced = cost(schedule, topology, size)
    found["modelled"] = {
        "seconds": priced.time,
        "segments": priced.segments,
        "parts": priced.parts,
        "least": priced.bounds.time,
        "limit": {"kind": priced.limit.kind, "name": str(priced.limit), "part": priced.limit.part},
    }
    took = found["timeline"]["duration"] if "timeline" in found else priced.time
    found["bottleneck"] = {"link": priced.busiest, "sentence": _bottleneck(priced, found["links"], took)}
    cut = exact_cut(schedule.collective, topology, schedule.ranks, schedule.root)
    if cut is not None and size:
        found["cut"] = {**cut.to_json(), "seconds": cut.time(size)}
    return found


def _links(schedule: Schedule, topology: Topology, size: int) -> dict[str, Any]:
    """The bytes of every link and of every pair of ranks. In large networks, links that carry nothing are left out."""
    from ..price.cost.folding import patterns_on
    from ..price.cost.load import Load

    source, destination = (schedule.columns[side].astype(np.int64) for side in ("source", "destination"))
    travels = source != destination
    pair, chunks = np.unique((source * schedule.ranks + destination)[travels], return_counts=True)
    source, destination = np.divmod(pair, schedule.ranks)
    bytes_of_pair = chunks.astype(np.float64) * (size / schedule.chunks)
    routes = topology.routes(source, destination)
    load = Load.of(patterns_on(schedule, topology), topology, schedule.ranks).at(size)
    of_link, busy = load.link_share * size, load.link_time * size
    shown = np.arange(len(of_link)) if len(of_link) <= _MOST_LINKS else np.flatnonzero(of_link)
    place = np.full(len(of_link), -1, np.int64)
    place[shown] = np.arange(len(shown))
    links = []
    for number in shown.tolist():
        link = topology.links[number]
        links.append(
            {
                "name": link.name,
                "kind": link.kind,
                **({} if link.place is None else {"place": link.place}),
                "bytes": float(of_link[number]),
                "seconds": float(busy[number]),
                "latency": link.latency,
                "bandwidth": _number(link.bandwidth),
            }
        )
    found: dict[str, Any] = {"links": links}
    if len(pair) <= _MOST_PAIRS:
        found["pairs"] = {
            "source": source.tolist(),
            "destination": destination.tolist(),
            "bytes": bytes_of_pair.tolist(),
            "links": [place[routes[one]].tolist() for one in range(len(routes))],
        }
    return found


def _bottleneck(priced: Any, links: list[dict[str, Any]], took: float) -> str:
    """A sentence about what limits it; for a link, with the same share of the time as in the list of links."""
    limit = priced.limit
    busy = {link["name"]: link["seconds"] for link in links}
    part = busy[limit.name] / took if limit.name in busy and took else limit.part
    share = f"{100 * part:.0f} %"
    busiest = f"; the busiest link is {priced.busiest}" if any(busy.values()) else ""
    if limit.kind == "latency":
        return f"Starting messages and waiting for them takes {share} of the time{busiest}."
    if limit.kind == "reduction":
        return f"Combining takes {share} of the time{busiest}."
    others = counted(limit.alike - 1, "link")
    alike = f" and {others} like it" if limit.alike > 1 else ""
    return f"The largest part of the time is for bytes on {limit.name}{alike}: {share}."


def _since_the_first(recording: dict[str, Any]) -> dict[str, Any]:
    """Times relative to the first event: the raw clock would reveal how long the machine has been running."""
    begin = min((event["start"] for event in recording["events"]), default=0)
    return {**recording, "events": [{**event, "start": event["start"] - begin} for event in recording["events"]]}


def _seconds(column: NDArray[np.float64]) -> list[float]:
    """Rounded to a hundredth of a nanosecond, which keeps the page small."""
    return np.round(column, 11).tolist()  # type: ignore[no-any-return]


def _number(value: float) -> float | str:
    """JSON has no infinity."""
    return "inf" if np.isinf(value) else value


def check_size(size: int) -> int:
    if isinstance(size, bool) or not isinstance(size, SupportsIndex) or not 0 <= size.__index__() <= 2**50:
        raise UsageError(f"a buffer of {size!r:.40} bytes; expected between 0 and 1 PiB")
    return size
