"""The time by closed form, where every message crosses the same kind of route; 65,536 ranks cost no more than 8."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ...collectives import find_collective
from ..topology.routing import Switched
from ..topology.topology import Topology
from .bounds import lower_bounds
from .cost import Cost, Limit
from .formulas import Form, closed_form
from .load import check_request, fewest_segments


@dataclass(frozen=True)
class Uniform:
    """A topology on which all routes are alike: their latency, and the bandwidth of a port, of the slowest link after it,
    and of what all messages share."""

    latency: float
    port: float
    link: float
    shared: float


def uniform(topology: Topology) -> Uniform | None:
    """What all routes of the topology have in common, or None where they differ."""
    router = topology.router
    if not isinstance(router, Switched) or router.spines is not None:
        return None
    ports = float(topology.bandwidth[0])
    if router.cards is None:
        return Uniform(2 * float(topology.latency[0]), ports, inf, topology.throughput)
    if topology.hosts < topology.ranks:
        return None
    card = router.cards[0]
    return Uniform(2 * float(topology.latency[0] + topology.latency[card]), ports, float(topology.bandwidth[card]), inf)


def uniform_cost(
    collective: str, algorithm: str, ranks: int, topology: Topology, size: int, segments: int | None = None
) -> Cost | None:
    """The cost on a uniform topology by closed form alone, or None where the topology or the algorithm has none."""
    form, plain = closed_form(collective, algorithm, ranks), uniform(topology)
    if form is None or plain is None:
        return None
    topology.require(ranks)
    check_request(size, segments)
    largest = max((float(phase.bytes) / phase.messages for phase in form.phases if phase.messages), default=0.0)

    def parts(many: int) -> dict[str, float]:
        return _parts(form, plain, topology, size, many)

    chosen = fewest_segments(lambda many: sum(parts(many).values()), largest * size) if segments is None else segments
    found = parts(chosen)
    time = sum(found.values())
    through, all_bytes = float(form.busiest_port_bytes), float(form.bytes)
    per_byte, name, kind = max(
        (through / plain.port, "the busiest port", "port"),
        (through / plain.link, "the busiest network card", "nic"),
        (all_bytes / plain.shared, "the memory bus", "bus"),
    )
    part, word, sort = max(
        (found["startup"] + found["latency"], "latency", "latency"),
        (found["transfer"], name, kind),
        (found["combining"], "reduction", "reduction"),
    )
    return Cost(
        collective=collective,
        algorithm=algorithm,
        ranks=ranks,
        size=size,
        topology=topology.name,
        segments=chosen,
        time=time,
        steps=form.steps,
        limit=Limit(sort, word, part / time if time else 0.0),
        parts=found,
        busiest=name,
        busiest_time=per_byte * size,
        busiest_port_bytes=through * size,
        bounds=lower_bounds(collective, topology, ranks, size, 0 if find_collective(collective).rooted else None),
        source="closed form",
    )


def _parts(form: Form, plain: Uniform, topology: Topology, size: int, segments: int) -> dict[str, float]:
    """As `Load.parts`, from the phases."""
    x = size / segments
    found = dict.fromkeys(("startup", "latency", "transfer", "combining"), 0.0)
    for phase in form.phases:
        startup = phase.messages * topology.overhead
        latency = plain.latency if phase.messages else 0.0
        transfer = x * max(float(phase.bytes) / min(plain.port, plain.link), float(phase.total) / plain.shared)
        combining = x * float(phase.combined) / topology.reduction
        meanwhile = x * float(phase.combined + phase.local) / topology.reduction if phase.local else 0.0
        found["startup"] += phase.steps * startup
        found["latency"] += phase.steps * latency
        found["transfer"] += phase.steps * transfer
        found["combining"] += phase.steps * max(combining, meanwhile - startup - latency - transfer)
    start = form.busiest_port_messages * topology.overhead
    # A port is taken by its bytes, or by its slowest message of every step alone on its route.
    alone = float(form.busiest_port_bytes) / max((phase.messages for phase in form.phases), default=1)
    port = x * max(float(form.busiest_port_bytes) / plain.port, alone / min(plain.port, plain.link, plain.shared))
    link = x * max(float(form.busiest_port_bytes) / min(plain.port, plain.link), float(form.bytes) / plain.shared)
    arithmetic = x * float(form.combined) / topology.reduction
    follow = segments - 1
    if link >= max(start + port, arithmetic):
        found["transfer"] += follow * link
    elif start + port >= arithmetic:
        found["startup"] += follow * start
        found["transfer"] += follow * port
    else:
        found["combining"] += follow * arithmetic
    return found
