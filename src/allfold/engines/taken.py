"""A call with its arguments read and checked, and its signature, for engines written in Python."""

from __future__ import annotations

from typing import NamedTuple

from ..collectives import COLLECTIVES
from ..dtypes import DTYPES, Dtype
from ..errors import UsageError
from ..ops import check_supported
from ..proved import check_rank_order, check_uneven, schedule_of
from ..registry import AnyAlgorithm
from ..schedules import Schedule
from .buffer import Buffer, Flat
from .engine import Call, UnfitArray
from .signature import Signature


class Taken(NamedTuple):
    """A call with its arguments read and checked."""

    call: Call
    signature: Signature
    schedule: Schedule | None  # of the algorithm, if one is named: the one that is compared and run
    dtype: Dtype
    elements: int  # of the whole buffer
    input: Flat | None
    output: Flat | None


def take(call: Call, rank: int, ranks: int, algorithm: AnyAlgorithm | None) -> Taken:
    """`algorithm`: the one to run, if it is known already."""
    input, output = buffers_of(call)
    elements = elements_of(call, input, output, rank, ranks)
    given = input or output
    dtype = DTYPES["uint8"] if given is None else given.dtype
    if input is not None and output is not None and input.overlaps(output):
        raise UnfitArray("the input and the output overlap")
    if (call.op is None) == COLLECTIVES[call.collective].takes_op:
        what = "expected an operation, got None" if call.op is None else "it takes no operation"
        raise UsageError(f"{call.collective}: {what}")
    if call.op is not None:
        check_supported(call.op, dtype)
    schedule = None
    if algorithm is not None:
        root = call.root if COLLECTIVES[call.collective].rooted else None
        schedule = schedule_of(call.collective, algorithm, ranks, root)
        if call.op is not None:
            check_rank_order(call.collective, schedule, ranks, root, call.op)
        if call.counts is not None:
            check_uneven(call.collective, schedule, ranks, root)
    arrays = (None if one is None else one.in_main_memory(call.collective) for one in (input, output))
    return Taken(call, Signature.of(call, dtype, elements, schedule), schedule, dtype, elements, *arrays)


def buffers_of(call: Call) -> tuple[Buffer | None, Buffer | None]:
    """The input and the output of a call."""
    input, output = call.input, call.output
    return (
        None if input is None else Buffer.of(call.collective, input, call.dtype, False),
        None if output is None else Buffer.of(call.collective, output, call.dtype, True),
    )


def elements_of(call: Call, input: Buffer | None, output: Buffer | None, rank: int, ranks: int) -> int:
    """The elements of the whole buffer; raises if the types or the lengths of the two do not go together."""
    if input is not None and output is not None and input.dtype != output.dtype:
        raise UsageError(f"{call.collective}: the input is {input.dtype}, the output {output.dtype}")
    given, taken = (None if one is None else one.elements for one in (input, output))
    promise = COLLECTIVES[call.collective]
    if call.counts is None:
        return promise.whole(ranks, given, taken)
    call.counts.check(promise, rank, given, taken)
    return call.counts.elements
