"""Random schedules on the real engine: every rank draws the same call from a seed, makes it, and checks its result.

Integers are compared with plain NumPy, which knows nothing about schedules; floating types with the reference engine,
bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from random_schedules import COLLECTIVES, REDUCING, SLICED, Drawn, draw

import allfold
from allfold.communicator.communicator import Communicator
from allfold.dtypes import DTYPES, narrow
from allfold.registry import Algorithm

Array = NDArray[Any]

LENGTHS = (0, 1, 2, 3, 5, 7, 16, 17, 64, 999, 4097, 70_001, 300_001)  # the last ones in several segments
INTEGERS = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum, "bxor": np.bitwise_xor}
FLOATING = ("sum", "avg", "product", "min", "max")


@dataclass(frozen=True)
class Call:
    """What one seed means."""

    seed: int
    schedule: Drawn
    elements: int
    dtype: str
    op: str
    shared: tuple[bool, ...]
    offset: int
    waits: bool
    own: bool

    def __str__(self) -> str:
        one = self.schedule
        kind = f"{self.dtype}[{self.elements}] {self.op}{' of its own' if self.own else ''}"
        how = f"shared {[int(one) for one in self.shared]}, {'blocking' if self.waits else 'async'}"
        return f"seed {self.seed}: {one.collective} of {kind} between {one.ranks} ranks, root {one.root}, {how}"


def call_of(seed: int, ranks: int) -> Call:
    rng = random.Random(f"{seed} {ranks}")
    schedule = draw(rng, rng.choice(COLLECTIVES), ranks)
    elements = rng.choice(LENGTHS)
    if schedule.collective in SLICED:
        elements = elements // ranks * ranks
    dtype = rng.choice(["int8", "int32", "int64", "uint16", "float16", "bfloat16", "float32", "float64", "complex64"])
    floating = DTYPES[dtype].kind != "integer"
    op = rng.choice(FLOATING if floating else list(INTEGERS))
    if dtype == "complex64":
        op = rng.choice(("sum", "avg", "product"))
    everywhere = rng.choice([True, False, None])
    shared = tuple(rng.random() < 0.5 if everywhere is None else everywhere for _ in range(ranks))
    own = op == "sum" and dtype in ("int32", "int64", "float64") and rng.random() < 0.3
    return Call(seed, schedule, elements, dtype, op, shared, rng.choice([0, 0, 1, 3]), rng.random() < 0.7, own)


def inputs_of(call: Call) -> list[Array]:
    """The input of every rank: the whole buffer, or its slice of it."""
    dtype, ranks = DTYPES[call.dtype], call.schedule.ranks
    comes_in_slices = call.schedule.collective in ("gather", "all_gather")
    length = call.elements // ranks if comes_in_slices else call.elements
    inputs = []
    for rank in range(ranks):
        rng = np.random.default_rng([call.seed, rank])
        if dtype.kind == "integer":
            inputs.append(np.frombuffer(rng.bytes(length * dtype.itemsize), dtype.carrier).copy())
            continue
        numbers = rng.standard_normal(2 * length if dtype.kind == "complex" else length).astype(np.float32)
        inputs.append(
            numbers.view(np.complex64)
            if dtype.kind == "complex"
            else narrow(numbers.astype(dtype.accumulates_in), dtype)
        )
    return inputs


def expected(call: Call, inputs: list[Array]) -> list[Array | None]:
    """The expected result of every rank; None where it gets nothing."""
    schedule = call.schedule
    ranks, collective, root = schedule.ranks, schedule.collective, schedule.root
    if collective == "barrier":
        return [None] * ranks
    if collective in REDUCING and DTYPES[call.dtype].kind != "integer":
        made = allfold.schedule(collective, algorithm_of(call), ranks, root)
        return list(allfold.replay(made, inputs, op=call.op, dtype=call.dtype))
    if collective in REDUCING:
        total = inputs[0].copy()
        with np.errstate(over="ignore"):
            for array in inputs[1:]:
                total = INTEGERS[call.op](total, array)
        if collective == "reduce":
            return [total if rank == root else None for rank in range(ranks)]
        return list(np.split(total, ranks)) if collective == "reduce_scatter" else [total] * ranks
    if collective == "broadcast":
        assert root is not None
        return [inputs[root]] * ranks
    if collective in ("gather", "all_gather"):
        whole = np.concatenate(inputs)
        return [whole if collective == "all_gather" or rank == root else None for rank in range(ranks)]
    if collective == "scatter":
        assert root is not None
        return list(np.split(inputs[root], ranks))
    parts = [np.split(array, ranks) for array in inputs]
    return [np.concatenate([part[rank] for part in parts]) for rank in range(ranks)]


def algorithm_of(call: Call) -> Algorithm:
    name = f"drawn from {call.seed} for {call.schedule.ranks}"
    return Algorithm(call.schedule.collective, name, call.schedule.generate, call.schedule.chunks)


def perform(comm: Communicator, call: Call, inputs: list[Array]) -> Array | None:
    """Make the call; returns this rank's result."""
    schedule, rank = call.schedule, comm.rank
    own, shared = inputs[rank], call.shared[rank]

    def array(length: int) -> Array:
        whole = comm.empty(length + call.offset, call.dtype) if shared else np.empty(length + call.offset, own.dtype)
        whole.view(np.uint8)[...] = 0xA5
        return whole[call.offset :]

    def loaded(content: Array) -> Array:
        made = array(len(content))
        made[...] = content
        return made

    rest: dict[str, Any] = {"algorithm": algorithm_of(call), "async_op": not call.waits}
    if schedule.root is not None:
        rest["root"] = schedule.root
    if schedule.collective in REDUCING and schedule.collective != "barrier":
        rest["op"] = allfold.op(np.add, commutative=True, name="mine") if call.own else call.op
    if schedule.collective != "barrier" and call.dtype == "bfloat16":
        rest["dtype"] = "bfloat16"
    work = getattr(comm, schedule.collective)
    is_root = schedule.root in (None, rank)
    result: Array | None = None
    if schedule.collective == "barrier":
        handle = work(**rest)
    elif schedule.collective in ("all_reduce", "reduce", "broadcast"):
        result = loaded(own)
        handle = work(result, **rest)
    else:
        source = loaded(own) if schedule.collective != "scatter" or is_root else None
        length = {"scatter": len(own) // comm.size, "reduce_scatter": len(own) // comm.size, "all_to_all": len(own)}
        if schedule.collective != "gather" or is_root:
            result = array(length.get(schedule.collective, len(own) * comm.size))
        handle = work(array=source, output=result, **rest)
    if handle is not None:
        handle.wait()
    return None if schedule.collective == "reduce" and not is_root else result


def try_seeds(comm: Communicator, seeds: Iterable[int]) -> list[str]:
    """What this rank found wrong, one line per seed."""
    wrong = []
    for seed in seeds:
        call = call_of(seed, comm.size)
        inputs = inputs_of(call)
        got, wanted = perform(comm, call, inputs), expected(call, inputs)[comm.rank]
        if (got is None) != (wanted is None):
            wrong.append(f"{call}: rank {comm.rank} got {got!r}")
        elif got is not None and wanted is not None:
            bits = np.dtype(f"u{got.dtype.itemsize}") if got.dtype.itemsize <= 8 else np.dtype("u8")
            different = np.flatnonzero(got.view(bits) != np.ascontiguousarray(wanted).reshape(-1).view(bits))
            if len(different):
                first = different[0]
                wrong.append(f"{call}: rank {comm.rank} differs in {len(different)} elements, first in {first}")
    return wrong
