"""What a fault trial is: some ranks, their calls, which rank fails, how, and when. All of it from a seed.

A trial is fully planned before anything runs, so that every rank, and the judge, can derive all of it independently.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import allfold

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "gather",
    "scatter",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
)
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
MESSAGES = ("shift", "collect")
DTYPES = ("float32", "float64", "int32", "int64", "int16")
OPS = ("sum", "max", "min")

DEATHS = ("kill", "segfault", "exit", "raise", "leave")
STUCK = ("stop", "sleep", "hold the interpreter")
MISMATCHES = ("collective", "dtype", "count", "op", "root", "algorithm", "one call more", "order", "group")
MEMORY = ("address space", "file size", "descriptors", "arena")
SLOW = ("slow", "stop and go on")

PATIENT, IMPATIENT = 30.0, 1.5  # timeouts in seconds: where nobody should time out, and where some rank must
MEETING = 2.0  # seconds that ranks wait for one that never comes


@dataclass(frozen=True)
class Call:
    """One call of all ranks of a communicator. `elements` is the length of one rank's part."""

    kind: str
    where: int = 0  # 0 is the world, i the i-th group
    algorithm: str | None = None
    elements: int = 0
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    shared: bool = False
    background: bool = False
    salt: int = 0

    def __str__(self) -> str:
        what = f"{self.kind} of {self.dtype}[{self.elements}] {self.op} root {self.root} by {self.algorithm}"
        return f"{what}{' shared' * self.shared}{' in the background' * self.background}, communicator {self.where}"


@dataclass(frozen=True)
class Plan:
    """One trial. `moment` is "before" or "during" the meeting of the ranks, "inside" or "between" their calls."""

    seed: int
    ranks: int
    groups: tuple[tuple[int, ...], ...]
    calls: tuple[Call, ...]
    family: str
    fault: str
    victim: int
    at: int
    moment: str
    delay: float  # from the moment to the fault, in seconds
    timeout: float
    afterwards: str  # what a rank does after it has heard of it: "exit", "stay" or "shrink"
    buried: bool  # the victim's process is reaped at once, so that the others find no trace of it
    finalizes: bool  # the survivors' interpreters shut down normally

    def members(self, where: int) -> tuple[int, ...]:
        return self.groups[where - 1] if where else tuple(range(self.ranks))

    def calls_of(self, rank: int) -> list[tuple[int, Call]]:
        """What one rank calls, in order, each with its number in the plan; the victim of a mismatch differs."""
        calls = list(enumerate(self.calls))
        if self.family == "mismatch" and rank == self.victim:
            meant = self.calls[self.at]
            if self.fault == "one call more":
                calls.insert(self.at, (self.at, another_call(meant)))
            elif self.fault == "order":
                calls[self.at : self.at + 2] = [(self.at, self.calls[self.at + 1]), (self.at + 1, meant)]
            else:
                calls[self.at] = (self.at, altered(meant, self.fault, len(self.members(meant.where))))
        return [(number, call) for number, call in calls if rank in self.members(call.where)]


def plan(seed: int) -> Plan:
    dice = random.Random(seed)
    ranks = dice.choice((2, 2, 3, 3, 4, 4, 5, 6, 7, 8))
    families = {"death": 44, "stuck": 14, "mismatch": 22, "memory": 9, "slow": 11}
    family = dice.choices(list(families), list(families.values()))[0]
    kinds = {"death": DEATHS, "stuck": STUCK, "mismatch": MISMATCHES, "memory": MEMORY, "slow": SLOW}
    weights = {"death": (10, 3, 4, 4, 2)}.get(family)
    fault = dice.choices(kinds[family], weights)[0]
    groups = [tuple(dice.sample(range(ranks), dice.randint(1, ranks))) for _ in range(dice.choice((0, 0, 1, 2)))]
    calls = [Call("group", salt=number) for number in range(len(groups))]
    calls += [_call(dice, ranks, groups) for _ in range(dice.randint(2, 9))]
    if fault == "arena":  # it has room only for the engine's own data
        groups, calls = [], [replace(call, where=0, shared=False) for call in calls if call.kind != "group"]
        calls = [replace(call, root=call.root % ranks) for call in calls]
    victim = dice.randrange(ranks)
    at = dice.randrange(len(groups), len(calls))
    if family == "mismatch":
        calls, at, groups = _with_a_place_to_differ(dice, ranks, groups, calls, at, fault)
        victim = dice.choice(groups[calls[at].where - 1] if calls[at].where else range(ranks))
    calls.append(Call("barrier"))
    moment = dice.choice(("before", "during", "inside", "inside", "inside", "between", "between"))
    if family == "mismatch" or fault in ("leave", "arena") or (family == "stuck" and moment in ("before", "during")):
        moment = "between"
    if family == "memory" and fault != "arena":
        moment = "before"
    timeout = IMPATIENT if family == "stuck" else PATIENT
    if moment in ("before", "during") and family in ("death", "memory"):
        timeout = MEETING
    afterwards = dice.choice(("exit", "exit", "stay", "shrink"))
    if afterwards == "shrink" and (family not in ("death", "mismatch") or moment in ("before", "during")):
        afterwards = "stay"
    return Plan(
        seed,
        ranks,
        tuple(groups),
        tuple(calls),
        family,
        fault,
        victim,
        at,
        moment,
        delay=10 ** dice.uniform(-6, -1.7),
        timeout=timeout,
        afterwards=afterwards,
        buried=dice.random() < 0.5,
        finalizes=dice.random() < 0.5,
    )


def _call(dice: random.Random, ranks: int, groups: list[tuple[int, ...]]) -> Call:
    where = dice.choice((0, 0, *range(len(groups) + 1)))
    size = len(groups[where - 1]) if where else ranks
    kind = dice.choice((*COLLECTIVES, *COLLECTIVES, *MESSAGES))
    dtype = dice.choice(DTYPES)
    # Small, up to 1 MiB, and sometimes large enough to be fetched out of the other process.
    exponent = dice.choices((dice.uniform(0, 12), dice.uniform(12, 20), dice.uniform(22, 23)), (10, 8, 1))[0]
    parted = kind in ("gather", "scatter", "all_gather", "reduce_scatter", "all_to_all")
    elements = int(2**exponent) // {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "int16": 2}[dtype]
    algorithm = None
    if kind in COLLECTIVES and dice.random() < 0.5:
        algorithm = dice.choice(allfold.algorithms(kind))
    return Call(
        kind,
        where,
        algorithm,
        elements // size if parted else elements,
        dtype,
        dice.choice(OPS),
        dice.randrange(size),
        shared=dice.random() < 0.3,
        background=kind in COLLECTIVES and dice.random() < 0.3,
        salt=dice.randrange(1000),
    )


def _with_a_place_to_differ(
    dice: random.Random, ranks: int, groups: list[tuple[int, ...]], calls: list[Call], at: int, fault: str
) -> tuple[list[Call], int, list[tuple[int, ...]]]:
    """The same calls, including one at which a rank can differ in the wanted way."""
    if fault == "group":
        groups = [tuple(range(ranks))]  # one with all ranks; the victim names another group
        return [Call("group"), *(replace(call, where=0) for call in calls if call.kind != "group")], 0, groups
    groups = [group if len(group) > 1 else tuple(range(ranks)) for group in groups]  # a lone rank cannot differ
    kinds = {
        "op": REDUCING,
        "root": ROOTED,
        "collective": COLLECTIVES,
        "one call more": COLLECTIVES,
        "order": COLLECTIVES,
    }
    kind = dice.choice(kinds.get(fault, COLLECTIVES[:-1]))
    where = dice.randrange(len(groups) + 1)
    root = dice.randrange(len(groups[where - 1]) if where else ranks)
    meant = replace(calls[at], kind=kind, where=where, algorithm=None, root=root, background=False)
    calls = [*calls[:at], meant, *calls[at + 1 :]]
    if fault == "order":
        calls.insert(at + 1, another_call(meant))
    return calls, at, groups


def another_call(call: Call) -> Call:
    """A call that clearly differs from this one."""
    return replace(call, kind="all_gather" if call.kind != "all_gather" else "all_reduce", elements=call.elements + 1)


def altered(call: Call, how: str, size: int) -> Call:
    if how == "collective":
        return another_call(call)
    if how == "dtype":
        return replace(call, dtype={"float32": "int32", "int32": "float32"}.get(call.dtype, "float32"))
    if how == "count":
        return replace(call, elements=call.elements + 1)
    if how == "op":
        return replace(call, op={"sum": "max", "max": "min", "min": "sum"}[call.op])
    if how == "root":
        return replace(call, root=(call.root + 1) % size)
    if how == "algorithm":
        return replace(call, algorithm=allfold.algorithms(call.kind)[-1])
    return replace(call, salt=-1)  # of a group: see who reads it
