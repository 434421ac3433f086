"""Test cases for the engines: over the whole registry, with their data and the results of the reference engine.

The data of a rank depends only on the case, so that every rank can make its own and a test can make all of it.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

import allfold
from allfold.collectives import COLLECTIVES
from allfold.communicator.communicator import Communicator
from allfold.dtypes import DTYPES, find_dtype, narrow
from allfold.engines.reference.replay import replay
from allfold.engines.shared_memory.choice import ALWAYS, choices
from allfold.engines.shared_memory.programs import MEMORIES
from allfold.ops import OPS, check_supported
from allfold.proved import programs_of
from allfold.schedules import Move

Array = NDArray[Any]

RANKS = (1, 2, 3, 4, 5, 7, 8, 13)
SIZES = (0, 1, 3, 64, 1000, 65537)
SLICED = [name for name, one in COLLECTIVES.items() if one.sliced]
REDUCING = [name for name, one in COLLECTIVES.items() if one.takes_op]


@dataclass(frozen=True)
class Case:
    """One call on all ranks. `elements` is the length of the buffer, or of a slice where the collective has slices."""

    collective: str
    algorithm: str | None
    root: int | None
    elements: int
    dtype: str
    op: str
    shared: bool = False

    def __str__(self) -> str:
        where = "shared" if self.shared else "ordinary"
        root = "" if self.root is None else f" root {self.root}"
        return f"{self.collective} by {self.algorithm} of {self.dtype}[{self.elements}] {self.op}{root}, {where} memory"


# The grid ------------------------------------------------------------------------------------------------------------


def _supports(name: str, dtype: str) -> bool:
    try:
        check_supported(OPS[name], DTYPES[dtype])
    except allfold.UsageError:
        return False
    return True


PAIRS = [(dtype, name) for dtype in DTYPES for name in OPS if _supports(name, dtype)]
"""Every operation on every type that it is defined for."""


def algorithms(collective: str) -> list[str | None]:
    """Every registered algorithm, and None, the engine's own choice."""
    return [*allfold.algorithms(collective), None]


def roots(collective: str, ranks: int) -> list[int | None]:
    if not COLLECTIVES[collective].rooted:
        return [None]
    return [*range(ranks)] if ranks <= 5 else [0, 1, ranks - 1]


def by_size(ranks: int, sizes: Sequence[int] = SIZES, every: bool = False) -> list[Case]:
    """Every collective by every algorithm at every size, the types in turn; `every` root in both kinds of memory, or
    these in turn as well.

    In turn, every algorithm and every size meets every root and both memories, here or with another number of ranks. In a
    random but fixed order, so that calls of all kinds and sizes follow each other.
    """
    pairs = itertools.cycle(random.Random(ranks).sample(PAIRS, len(PAIRS)))
    cases = []
    for collective in COLLECTIVES:
        starts = roots(collective, ranks)
        for (first, algorithm), (second, size) in itertools.product(
            enumerate(algorithms(collective)), enumerate(sizes)
        ):
            turn, root = divmod(first + second + ranks, len(starts))
            elements = size // ranks if size > 10_000 and collective in SLICED else size
            for place in itertools.product(starts, (False, True)) if every else [(starts[root], turn % 2 == 1)]:
                if every and size > 10_000 and place[0] not in (None, 0, ranks - 1):
                    continue
                dtype, op = next(pairs)
                op = "sum" if op == "avg" and COLLECTIVES[collective].has_order else op
                cases.append(Case(collective, algorithm, place[0], elements, dtype, op, place[1]))
    return random.Random(ranks).sample(cases, len(cases))


def by_type(ranks: int, elements: int) -> list[Case]:
    """Every operation on every type, by every algorithm of every collective that reduces, the two memories in turn."""
    cases = []
    for collective in REDUCING:
        starts = roots(collective, ranks)
        for number, algorithm in enumerate(algorithms(collective)):
            for turn, (dtype, op) in enumerate(PAIRS):
                if op == "avg" and COLLECTIVES[collective].has_order:
                    continue
                root = starts[(number + turn) % len(starts)]
                cases.append(Case(collective, algorithm, root, elements, dtype, op, (number + turn) % 2 == 1))
    return cases


# The data ------------------------------------------------------------------------------------------------------------


def input_of(case: Case, rank: int, ranks: int) -> Array:
    """The input of a rank; must not be changed. A window of the numbers of its type, another one for other cases."""
    whole = case.collective in SLICED and not COLLECTIVES[case.collective].starts.sliced
    length = case.elements * ranks if whole else case.elements
    numbers = (_kept if length <= _FEW else _kept_a_while)(
        max(_FEW, 1 << length.bit_length()) + _SHIFT, case.dtype, rank
    )
    start = crc32(f"{length} {case.op}".encode()) % _SHIFT
    return numbers[start : start + length]


_FEW, _SHIFT = 1 << 14, 1 << 10


def _data(length: int, name: str, rank: int) -> Array:
    """Ordinary numbers, mixed with all special values of a type."""
    generator = np.random.default_rng([crc32(f"{length} {name}".encode()), rank])
    dtype = DTYPES[name]
    if dtype.kind == "bool":
        return generator.integers(0, 2, length).astype(np.bool_)
    if dtype.kind == "integer":
        return np.frombuffer(generator.bytes(length * dtype.itemsize), dtype.carrier)
    parts = 2 if dtype.kind == "complex" else 1
    numbers = generator.standard_normal(length * parts, np.float32).astype(np.float64)
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 6e-8, 6e4, 3e38]
    chosen = generator.random(length * parts) < 0.02
    numbers[chosen] = generator.choice(special, int(chosen.sum()))
    with np.errstate(over="ignore"):
        if dtype.kind == "complex":
            return numbers.astype(np.float32 if dtype.itemsize == 8 else np.float64).view(dtype.carrier)
        return narrow(numbers.astype(dtype.accumulates_in), dtype)


_kept, _kept_a_while = cache(_data), lru_cache(64)(_data)


def perform(comm: Communicator, case: Case) -> Array | None:
    """Make the call and return this rank's result; also checks that inputs are unchanged."""
    if case.collective == "barrier":
        comm.barrier(algorithm=case.algorithm)
        return None
    own = input_of(case, comm.rank, comm.size)
    rest: dict[str, Any] = {"algorithm": case.algorithm}
    if case.dtype == "bfloat16":
        rest["dtype"] = "bfloat16"
    if case.collective in REDUCING:
        rest["op"] = case.op
    if case.root is not None:
        rest["root"] = case.root

    def array(length: int) -> Array:
        made = comm.empty(length, case.dtype) if case.shared else np.empty(length, own.dtype)
        made.view(np.uint8)[...] = 0xA5 if own.dtype != np.bool_ else 0
        return made

    def loaded(content: Array) -> Array:
        made = array(len(content))
        made[...] = content
        return made

    if COLLECTIVES[case.collective].in_place:
        buffer = loaded(own)
        getattr(comm, case.collective)(buffer, **rest)
        return None if case.collective == "reduce" and comm.rank != case.root else buffer
    is_root, promise = case.root in (None, comm.rank), COLLECTIVES[case.collective]
    source = loaded(own) if promise.reads(is_root) else None
    wide = not promise.ends.sliced
    target = array(case.elements * (comm.size if wide else 1)) if promise.writes(is_root) else None
    getattr(comm, case.collective)(array=source, output=target, **rest)
    assert source is None or source.tobytes() == own.tobytes(), f"rank {comm.rank}: {case} changed its input"
    return target


def fetch_all(comm: Communicator) -> None:
    """Have ordinary arrays of every size fetched out of their processes, where otherwise only large ones are."""
    for code, name in enumerate(COLLECTIVES):
        chosen = [(ALWAYS, choices(name, comm.size)[-1][1], name != "barrier")]
        comm.engine.native.choose(code, chosen, [(ALWAYS, True, 0)])


# What must come out --------------------------------------------------------------------------------------------------


@cache
def _schedule(collective: str, algorithm: str, ranks: int, root: int | None) -> allfold.Schedule:
    return allfold.schedule(collective, algorithm, ranks, root)


def expected(case: Case, ranks: int) -> list[Array | None]:
    """What the reference engine gives every rank."""
    if case.collective == "barrier":
        return [None] * ranks
    # The engine's own choice changes with the size, but its bits must not: compare with the choice for large buffers.
    algorithm = case.algorithm or choices(case.collective, ranks)[-1][1]
    inputs: list[Array | None] = [input_of(case, rank, ranks) for rank in range(ranks)]
    if case.collective == "scatter":
        inputs = [one if rank == case.root else None for rank, one in enumerate(inputs)]
    return replay(_schedule(case.collective, algorithm, ranks, case.root), inputs, case.op, case.dtype)


def bits(array: Array | None, dtype: str) -> bytes:
    """The bytes of an array, with all NaNs made equal: which NaN an operation gives is not defined."""
    if array is None:
        return b"nothing"
    kind = find_dtype(dtype)
    array = np.array(array).reshape(-1)
    if kind.kind == "complex":
        array = array.view(np.float32 if kind.itemsize == 8 else np.float64)
    if kind.name == "bfloat16":
        array[(array & 0x7FFF) > 0x7F80] = 0x7FC0
    elif array.dtype.kind == "f":
        array[np.isnan(array)] = np.nan
    return array.tobytes()


def digest(array: Array | None, dtype: str) -> bytes:
    return blake2b(bits(array, dtype), digest_size=16).digest()


def expected_digests(case: Case, ranks: int) -> tuple[bytes, ...]:
    """Of what the reference engine gives every rank: once for both kinds of memory."""
    return _expected_digests(replace(case, shared=False), ranks)


@cache
def _expected_digests(case: Case, ranks: int) -> tuple[bytes, ...]:
    return tuple(digest(one, case.dtype) for one in expected(case, ranks))


PATIENCE = 30.0  # seconds after which something that should happen at once is taken not to happen


def fails(function: Callable[..., Any], *arguments: Any, **named: Any) -> Exception:
    """What a call raises."""
    try:
        function(*arguments, **named)
    except Exception as error:
        return error
    raise AssertionError(f"{function} did not raise")


def turned_ring(ranks: int) -> Iterator[list[Move]]:
    """An all_reduce of the test's own: a ring, the other way round."""
    for step in range(ranks - 1):
        yield [allfold.reduce((r + step) % ranks, r, (r - 1) % ranks) for r in range(ranks)]
    for step in range(ranks - 1):
        yield [allfold.copy((r + step - 1) % ranks, r, (r - 1) % ranks) for r in range(ranks)]


# Proofs --------------------------------------------------------------------------------------------------------------

PROVES = "ALLFOLD_TEST_PROVES"
"""A number of ranks. The process from which they are forked imports this module, and proves the programs of the grid
once, for all of them; otherwise each would prove all programs itself, as in any other run."""


def prove(ranks: int) -> None:
    done = set()
    for case in by_size(ranks, (1,), every=True):
        chosen = [name for _, name, _ in choices(case.collective, ranks)]
        for name in [case.algorithm] if case.algorithm else chosen:
            for memory in MEMORIES:
                key = (case.collective, name, case.root, memory)
                if key not in done and (memory != "readable" or case.algorithm is None):
                    programs_of(case.collective, name, ranks, case.root, memory)
                done.add(key)


if PROVES in os.environ:
    prove(int(os.environ[PROVES]))
