"""What a rank comes with to a call, for engines that are written in Python, and how two ranks differ in it."""

from __future__ import annotations

from typing import NamedTuple

from ..collectives import COLLECTIVES
from ..dtypes import Dtype, describe
from ..proved import check_rank_order, schedule_of
from ..registry import AnyAlgorithm
from ..schedule import Schedule
from .arrays import Flat, arrays_of
from .engine import Call


class Came(NamedTuple):
    """A call, its arrays taken and checked."""

    call: Call
    schedule: Schedule | None  # of the algorithm, if one is named: what is compared, and what is run
    dtype: Dtype
    elements: int
    input: Flat | None
    output: Flat | None

    @classmethod
    def with_call(cls, call: Call, ranks: int, algorithm: AnyAlgorithm | None) -> Came:
        arrays = arrays_of(call, ranks)
        if algorithm is None:
            return cls(call, None, *arrays)
        root = call.root if COLLECTIVES[call.collective].rooted else None
        schedule = schedule_of(call.collective, algorithm, ranks, root)
        if call.op is not None:
            check_rank_order(call.collective, schedule, ranks, root, call.op)
        return cls(call, schedule, *arrays)

    @property
    def signature(self) -> tuple[object, ...]:
        """What must be the same on all ranks."""
        call, op = self.call, self.call.op and (self.call.op.is_builtin, self.call.op.digest)
        root = call.root if COLLECTIVES[call.collective].rooted else None
        return call.collective, self.dtype.name, self.elements, op, root, self.schedule and self.schedule.digest

    @property
    def text(self) -> str:
        """What it is in a line, and in a second one what tells apart operations or schedules of the same name."""
        call, promise = self.call, COLLECTIVES[self.call.collective]
        facts, digests = [call.collective], []
        if promise.carries_data:
            facts.append(describe(self.dtype, (self.elements,)))
        if call.op is not None:
            facts.append(call.op.name if call.op.is_builtin else f"custom operation {call.op.name}")
            digests.append(f"operation {call.op.digest & 0xFFFFFFFF:08x}")
        if promise.rooted:
            facts.append(f"root {call.root}")
        if self.schedule is not None:
            facts.append(f"by {self.schedule.algorithm}")
            digests.append(f"schedule {int.from_bytes(self.schedule.digest[:4], 'little'):08x}")
        return " ".join(facts) + "\n" + ", ".join(digests)


def difference(rank: int, text: str, other_rank: int, other_text: str) -> str:
    """How two ranks differ, given the texts of what they came with."""
    (here, details), (there, other_details) = (one.split("\n", 1) for one in (text + "\n", other_text + "\n"))
    if here == there:
        here, there = f"{here} ({details.strip()})", f"{there} ({other_details.strip()})"
    return f"rank {rank} came with {here}, rank {other_rank} with {there}"
