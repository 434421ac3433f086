"""The plan of a fault trial: an engine, some ranks, their calls, the rank that fails, how, and when. All of it from a seed.

A trial is fully planned before anything runs, so that every rank, and the judge, can derive all of it independently.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / room) for room in ("programs", "engines/stream")]
from random_schedules import COLLECTIVES as DRAWN
from random_schedules import Drawn, draw

import allfold
from allfold.collectives import COLLECTIVES as TABLE
from allfold.engines.stream.ways import has_alike

ENGINES = ("shared_memory", "islands", "gpu")
# Schedules are drawn for all but the prefixes (scan, exscan).
COLLECTIVES, PREFIXES = DRAWN, tuple(name for name, one in TABLE.items() if one.has_order)
REDUCING = tuple(name for name, one in TABLE.items() if one.takes_op)
ROOTED = tuple(name for name, one in TABLE.items() if one.rooted)
PARTED = tuple(name for name, one in TABLE.items() if one.sliced)
ALIKE = tuple(name for name, one in TABLE.items() if one.carries_data and has_alike(one))
FIRST_WITH_PREFIXES = 5_000_000  # plans of earlier seeds stay as they were: tests name some of them
MESSAGES = ("shift", "collect")

INTEGERS = {"int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8}
FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
BYTES = {"bool": 1, **INTEGERS, **FLOATS, "complex64": 8}
OWN = "own"  # a function of the user's, which adds
OWN_FIRST = "own first"  # another one, which is not commutative: it keeps the left operand

DEATHS = ("kill", "segfault", "exit", "raise", "leave")
LATE = ("late", "stop", "hold the interpreter", "operation waits", "stream waits")
FAILS = ("interrupt", "abort", "operation raises", "generator raises")
MISMATCHES = (
    "collective",
    "dtype",
    "count",
    "op",
    "root",
    "algorithm",
    "code of the operation",
    "code of the generator",
    "one call more",
    "order",
    "group",
)
MEMORY = ("address space", "file size", "descriptors", "arena")
SLOW = ("slow", "stop and go on")
FAMILIES = {"death": DEATHS, "late": LATE, "fails": FAILS, "mismatch": MISMATCHES, "memory": MEMORY, "slow": SLOW}
WEIGHTS = {"death": 26, "late": 32, "fails": 12, "mismatch": 20, "memory": 4, "slow": 6}

PATIENT = 30.0  # timeout in seconds where nobody should time out
MEETING = 2.0  # seconds that ranks wait for one that never comes


@dataclass(frozen=True)
class Call:
    """One call of all ranks of a communicator. `elements` is the length of one rank's part."""

    kind: str
    where: int = 0  # 0 is the world, i the i-th group
    algorithm: str | None = None  # a name; "drawn N" or "function N": the random schedule of seed N
    elements: int = 0
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    arrays: tuple[str, ...] = ()  # the kind of memory, by rank of the communicator; without any, ordinary memory
    background: bool = False
    salt: int = 0
    code: int = 0  # which of two functions the user's operation is

    def memory(self, rank: int) -> str:
        return self.arrays[rank % len(self.arrays)] if self.arrays else "ordinary"

    def __str__(self) -> str:
        what = f"{self.kind} of {self.dtype}[{self.elements}] {self.op} root {self.root} by {self.algorithm}"
        arrays = " ".join(self.arrays) or "ordinary"
        return f"{what}, {arrays}{', in the background' * self.background}, communicator {self.where}"


@dataclass(frozen=True)
class Plan:
    """One trial. `moment` is "before" or "during" the meeting of the ranks, "inside" or "between" their calls."""

    engine: str
    seed: int
    ranks: int
    hosts: tuple[int, ...]  # how many ranks each simulated host has; without any, they are on one
    groups: tuple[tuple[int, ...], ...]
    calls: tuple[Call, ...]
    family: str
    fault: str
    victim: int
    at: int
    moment: str
    delay: float  # from the moment to the fault, in seconds
    comes: str  # a late rank: "racing" its peers' timeouts, after the "first" or "all" have failed, or "never"
    lateness: float  # in seconds, of a rank that races
    timeouts: tuple[float, ...]  # by rank, from call `at` on; before it everybody is patient
    reactions: tuple[str, ...]  # by rank, with its arrays after an error: "keep", "rewrite" or "drop"
    afterwards: str  # then: "exit", "stay" or "shrink"
    buried: bool  # the victim's process is reaped at once, so that the others find no trace of it
    finalizes: bool  # the survivors' interpreters shut down normally
    staged_up_to: int  # GPU: bytes, see engines/stream/ways.py
    takes_turns: bool  # GPU
    warm: bool  # GPU: the first call, which connects the GPUs, is made before everything else

    @property
    def timeout(self) -> float:
        """The shortest."""
        return min(self.timeouts)

    def members(self, where: int) -> tuple[int, ...]:
        return self.groups[where - 1] if where else tuple(range(self.ranks))

    def size(self, call: Call) -> int:
        return len(self.members(call.where))

    def calls_of(self, rank: int) -> list[tuple[int, Call]]:
        """The calls of one rank, in order, each with its number in the plan; the victim of a mismatch differs."""
        calls = list(enumerate(self.calls))
        if self.family == "mismatch" and rank == self.victim:
            meant = self.calls[self.at]
            if self.fault == "one call more":
                calls.insert(self.at, (self.at, another_call(meant)))
            elif self.fault == "order":
                calls[self.at : self.at + 2] = [(self.at, self.calls[self.at + 1]), (self.at + 1, meant)]
            else:
                calls[self.at] = (self.at, altered(meant, self.fault, self.size(meant)))
        return [(number, call) for number, call in calls if rank in self.members(call.where)]


def plan(seed: int, engine: str) -> Plan:
    dice = random.Random(f"{engine} {seed}")
    ranks = dice.choice((2, 2, 3, 3, 3, 4, 4, 5, 6))
    hosts: tuple[int, ...] = ()
    if engine == "islands":
        cuts = sorted(dice.sample(range(1, ranks), min(ranks - 1, dice.choice((1, 1, 2)))))
        hosts = tuple(end - start for start, end in zip([0, *cuts], [*cuts, ranks], strict=True))
    family, fault = _fault(dice, engine)
    groups = [tuple(dice.sample(range(ranks), dice.randint(1, ranks))) for _ in range(dice.choice((0, 0, 0, 1, 2)))]
    calls = [Call("group", salt=number) for number in range(len(groups))]
    kinds = (*COLLECTIVES, *PREFIXES) if seed >= FIRST_WITH_PREFIXES else COLLECTIVES
    calls += [_call(dice, engine, kinds, ranks, groups) for _ in range(dice.randint(1, 7))]
    if fault == "arena":  # it has room only for the engine's own data
        groups, calls = [], [replace(call, where=0, arrays=()) for call in calls if call.kind != "group"]
        calls = [replace(call, root=call.root % ranks, algorithm=None) for call in calls]
    at = dice.randrange(len(groups), len(calls))
    if fault == "group":
        groups = [tuple(range(ranks))]  # one with all ranks; the victim names another group
        calls = [Call("group"), *(_in_the_world(call) for call in calls if call.kind != "group")]
        at = 0
    elif family == "mismatch" or fault in ("operation waits", "operation raises", "generator raises", "stream waits"):
        groups = [group if len(group) > 1 else tuple(range(ranks)) for group in groups]  # a lone rank cannot differ
        calls[at] = _place_for(dice, engine, ranks, groups, calls[at], fault)
        if fault == "order":
            calls.insert(at + 1, another_call(calls[at]))
    elif family == "late" and dice.random() < 0.6:
        calls[at] = _worth_waiting_for(dice, engine, ranks, groups, calls[at])
    victim = dice.choice(groups[calls[at].where - 1] if calls[at].where else range(ranks))
    calls.append(Call("barrier"))
    moment = dice.choice(("before", "during", *("inside",) * 5, *("between",) * 4))
    meets = engine == "shared_memory" and family in ("death", "memory", "slow")
    if moment in ("before", "during") and not meets:
        moment = "inside"
    here_and_now = ("late", "leave", "arena", "operation waits", "stream waits", "operation raises", "generator raises")
    if fault in here_and_now or family == "mismatch":
        moment = "between"
    elif fault == "interrupt":
        moment = "inside"
    elif family == "memory":
        moment = "before"
    comes = dice.choice(("racing", "racing", "first", "all", "all"))
    if fault in ("stop", "hold the interpreter") and dice.random() < 0.3:
        comes = "never"
    timeouts = [PATIENT] * ranks
    if family == "late":
        short = dice.choice((0.3, 0.5, 0.8))
        impatient = {dice.choice([rank for rank in range(ranks) if rank != victim])}
        impatient |= {
            rank for rank in range(ranks) if dice.random() < 0.5 or groups
        }  # groups do not hear of each other
        timeouts = [short if rank in impatient else PATIENT for rank in range(ranks)]
    elif moment in ("before", "during") and family in ("death", "memory"):
        timeouts = [MEETING] * ranks
    lateness = min(timeouts) * dice.uniform(0.9, 1.3)
    afterwards = dice.choice(("exit", "stay", "shrink", "shrink"))
    cannot = family in ("memory", "slow") or moment in ("before", "during") or (family, comes) == ("late", "never")
    if afterwards == "shrink" and cannot:
        afterwards = "stay"
    return Plan(
        engine,
        seed,
        ranks,
        hosts,
        tuple(groups),
        tuple(calls),
        family,
        fault,
        victim,
        at,
        moment,
        delay=10 ** dice.uniform(-6, -1.7),
        comes=comes,
        lateness=lateness,
        timeouts=tuple(timeouts),
        reactions=tuple(dice.choice(("keep", "rewrite", "drop")) for _ in range(ranks)),
        afterwards=afterwards,
        buried=dice.random() < 0.5,
        finalizes=dice.random() < 0.3,
        staged_up_to=dice.choice((-1, -1, 10_000, 1 << 60)),
        takes_turns=dice.random() < 0.5,
        warm=dice.random() < 0.9,
    )


def _fault(dice: random.Random, engine: str) -> tuple[str, str]:
    while True:
        family = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        weights = {"death": (10, 3, 4, 4, 3), "late": (10, 5, 3, 2, 3)}.get(family)
        fault = dice.choices(FAMILIES[family], weights)[0]
        if not (family == "memory" and engine != "shared_memory") and not (fault == "stream waits" and engine != "gpu"):
            return family, fault


def _call(dice: random.Random, engine: str, kinds: Sequence[str], ranks: int, groups: list[tuple[int, ...]]) -> Call:
    where = dice.choice((0, 0, *range(len(groups) + 1)))
    size = len(groups[where - 1]) if where else ranks
    kind = dice.choice((*kinds, *kinds, *MESSAGES))
    dtype = dice.choice(list(BYTES))
    ops = [OWN, "avg", "sum", "sum", "sum", "product"]
    if dtype != "complex64":
        ops += ["min", "max", OWN_FIRST]
    if dtype in INTEGERS or dtype == "bool":
        ops += ["band", "bor", "bxor"]
        ops.remove("avg")
    op = dice.choice(ops)
    # Small, up to 1 MiB, and sometimes large enough to be fetched out of the other process.
    exponents = (0, dice.uniform(0, 12), dice.uniform(12, 18), dice.uniform(18, 20), dice.uniform(21, 22.5))
    elements = int(2 ** dice.choices(exponents, (1, 12, 5, 2, 1))[0]) // BYTES[dtype]
    if engine == "gpu":
        elements //= 4  # the device made of NumPy is slow
    if kind in PARTED:
        elements //= size
    algorithm, root, draws = None, dice.randrange(size), dice.random()
    if kind in TABLE and draws < 0.3:
        algorithm = dice.choice(allfold.algorithms(kind))
    elif kind in COLLECTIVES and draws < 0.6:
        algorithm = f"{dice.choice(('drawn', 'function'))} {dice.randrange(10**6)}"
    call = Call(
        kind,
        where,
        algorithm,
        elements,
        dtype,
        op,
        root,
        _arrays(dice, engine, kind, algorithm, where, size),
        background=kind in TABLE and dice.random() < 0.35,
        salt=dice.randrange(1000),
    )
    return _consistent(call)


def _arrays(
    dice: random.Random, engine: str, kind: str, algorithm: str | None, where: int, size: int
) -> tuple[str, ...]:
    """The kinds of memory that the ranks' arrays lie in: the same everywhere, or mixed."""
    if engine == "gpu" and kind in TABLE and kind != "barrier" and dice.random() < 0.8:
        # Memory of the device that all ranks reach comes from a collective call, so all ranks have it or none.
        return ("reached" if kind in ALIKE and where == 0 and dice.random() < 0.3 else "device",)
    kinds = ("ordinary", "ordinary", "shared", "shared", "slice", "strided")
    return (dice.choice(kinds),) if dice.random() < 0.6 else tuple(dice.choice(kinds) for _ in range(size))


def _consistent(call: Call) -> Call:
    """The call, changed where parts of it do not go together."""
    if call.kind in REDUCING and call.op == OWN_FIRST and call.algorithm is not None:
        return replace(call, op="sum")  # not every schedule keeps the order of the ranks
    if call.kind in PREFIXES and call.op == "avg":
        return replace(call, op="sum")
    return call


def _in_the_world(call: Call) -> Call:
    return replace(call, where=0)


def _place_for(
    dice: random.Random, engine: str, ranks: int, groups: list[tuple[int, ...]], call: Call, fault: str
) -> Call:
    """A call at which a rank can fail in the wanted way."""
    reducing = [kind for kind in COLLECTIVES if kind in REDUCING]
    kinds: dict[str, Sequence[str]] = {
        "op": reducing,
        "code of the operation": reducing,
        "operation waits": reducing,
        "operation raises": reducing,
        "root": ROOTED,
        "collective": COLLECTIVES,
        "one call more": COLLECTIVES,
        "order": COLLECTIVES,
        "code of the generator": COLLECTIVES,
        "generator raises": COLLECTIVES,
    }
    kind = dice.choice(kinds.get(fault, COLLECTIVES[:-1]))
    where = dice.randrange(len(groups) + 1)
    size = len(groups[where - 1]) if where else ranks
    own = fault in ("code of the operation", "operation waits", "operation raises")
    algorithm = f"function {dice.randrange(10**6)}" if "generator" in fault else None
    arrays = _arrays(dice, engine, kind, None, where, size)
    if fault == "stream waits" or arrays == ("reached",):
        arrays = ("device",)
    changed = replace(
        call,
        kind=kind,
        where=where,
        algorithm=algorithm,
        root=dice.randrange(size),
        op=OWN if own else "sum" if call.op in (OWN, OWN_FIRST) or fault == "dtype" else call.op,
        arrays=arrays,
        elements=max(1, call.elements) if own else call.elements,
        background=False,
    )
    return _consistent(changed)


def _worth_waiting_for(dice: random.Random, engine: str, ranks: int, groups: list[tuple[int, ...]], call: Call) -> Call:
    """A call with so much data in memory that peers reach that one that comes late would do harm there."""
    if call.kind in MESSAGES or call.kind == "barrier":
        return call
    size = len(groups[call.where - 1]) if call.where else ranks
    elements = int(2 ** dice.uniform(14, 22)) // BYTES[call.dtype]
    elements //= (size if call.kind in PARTED else 1) * (4 if engine == "gpu" else 1)
    kind = dice.choice(("shared", "shared", "slice", "ordinary"))
    arrays = call.arrays if call.memory(0) in ("device", "reached") else (kind,)
    return replace(call, elements=elements, arrays=arrays)


def another_call(call: Call) -> Call:
    """A call that clearly differs from this one."""
    kind = "all_gather" if call.kind != "all_gather" else "all_reduce"
    return replace(call, kind=kind, elements=call.elements + 1, algorithm=None)


def altered(call: Call, how: str, size: int) -> Call:
    if how == "collective":
        return another_call(call)
    if how == "dtype":
        return replace(call, dtype={"float32": "int32", "int32": "float32"}.get(call.dtype, "float32"))
    if how == "count":
        return replace(call, elements=call.elements + 1)
    if how == "op":
        return replace(call, op={"sum": "product", "product": "sum"}.get(call.op, "sum"))
    if how == "root":
        return replace(call, root=(call.root + 1) % size)
    if how == "algorithm":
        return replace(call, algorithm=f"drawn {_another(call, size)}")
    if how == "code of the operation":
        return replace(call, code=1)
    if how == "code of the generator":
        return replace(call, algorithm=f"function {_another(call, size)}")
    return replace(call, salt=-1)  # of a group: see who reads it


# Random schedules -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _drawn(seed: int, kind: str, size: int, root: int) -> Drawn:
    return draw(random.Random(seed), kind, size, most_steps=3, root=root)


def schedule_of(call: Call, size: int) -> Drawn | None:
    """The random schedule that a call follows, if it follows one."""
    if call.algorithm is None or " " not in call.algorithm:
        return None
    return _drawn(int(call.algorithm.split()[1]), call.kind, size, call.root)


def _another(call: Call, size: int) -> int:
    """The seed of a random schedule that differs from the one of a call."""
    meant, seed = schedule_of(call, size), 10**6
    while meant is not None and _drawn(seed, call.kind, size, call.root).steps == meant.steps:
        seed += 1
    return seed
