"""The arrays of a call, for engines that are written in Python: as NumPy arrays, checked; and the call's signature."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..collectives import COLLECTIVES
from ..dtypes import Dtype, find_dtype
from ..errors import UsageError
from ..ops import check_supported
from ..proved import check_rank_order, schedule_of
from ..registry import AnyAlgorithm
from ..schedules import Schedule
from .engine import Call, UnfitArray
from .signature import Signature

Flat = np.ndarray[Any, np.dtype[Any]]


class Taken(NamedTuple):
    """A call whose arguments were taken and checked."""

    call: Call
    signature: Signature
    schedule: Schedule | None  # of the algorithm, if one is named: the one that is compared and run
    dtype: Dtype
    elements: int  # of the whole buffer
    input: Flat | None
    output: Flat | None


def take(call: Call, ranks: int, algorithm: AnyAlgorithm | None) -> Taken:
    """`algorithm`: the one to run, if it is known already."""
    arrays = dtype, elements, _, _ = arrays_of(call, ranks)
    schedule = None
    if algorithm is not None:
        root = call.root if COLLECTIVES[call.collective].rooted else None
        schedule = schedule_of(call.collective, algorithm, ranks, root)
        if call.op is not None:
            check_rank_order(call.collective, schedule, ranks, root, call.op)
    return Taken(call, Signature.of(call, dtype, elements, schedule), schedule, *arrays)


def flat(what: str, array: Any, dtype: str | None, written: bool) -> tuple[Dtype, Flat]:
    """An array's type, and its memory as a flat array; `dtype` is the element type where the array does not say it."""
    if isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray):
            raise UsageError(
                f"{what}: a masked array's mask would be ignored; pass x.filled(…), or x.data for all elements"
            )
        seen, kind = np.asarray(array), find_dtype(array.dtype)
    elif (named := str(getattr(array, "dtype", ""))).startswith("torch."):  # NumPy has no bfloat16
        named = named.removeprefix("torch.")
        kind, detached = find_dtype(named), array.detach()
        if str(detached.layout) != "torch.strided":
            raise UsageError(f"{what}: the tensor is sparse ({detached.layout}); pass tensor.to_dense()")
        if detached.is_meta:
            raise UsageError(f"{what}: the tensor is on the meta device, and has no data")
        try:
            if not detached.is_contiguous():
                raise UnfitArray("the tensor is not contiguous")
            if detached.is_conj() or detached.is_neg():
                raise UnfitArray("the tensor is to be conjugated or negated first")
            seen = (detached.view(sys.modules["torch"].uint16) if named == "bfloat16" else detached).numpy()
        except (TypeError, RuntimeError) as error:  # on another device, or to be conjugated first
            raise UsageError(f"{what}: {error}") from None
        if written:
            mark_as_changed(array)
    else:
        try:
            name, seen = _native.view(array, written, dtype)
        except BufferError as error:
            raise UnfitArray(str(error)) from None
        except (TypeError, ValueError) as error:
            raise UsageError(f"{what}: {error}") from None
        return find_dtype(name), seen.view(find_dtype(name).carrier)
    if dtype is not None and (wanted := find_dtype(dtype)) != kind:
        if (wanted.name, kind.name) != ("bfloat16", "uint16"):
            raise UsageError(f"{what}: the array is {kind}, not {wanted}")
        kind = wanted
    if written and not seen.flags.writeable:
        raise UsageError(f"{what}: the array for the result is read-only")
    if not seen.flags.c_contiguous:
        raise UnfitArray("the array is not contiguous")
    return kind, seen if seen.ndim == 1 and seen.dtype == kind.carrier else seen.reshape(-1).view(kind.carrier)


def mark_as_changed(array: Any) -> None:
    """Have torch's backward refuse what was saved of a tensor before, as after every other operation in place."""
    if getattr(array, "requires_grad", False):
        sys.modules["torch"].autograd.graph.increment_version(array)


def arrays_of(call: Call, ranks: int) -> tuple[Dtype, int, Flat | None, Flat | None]:
    """A call's element type, the elements of the whole buffer, its input and its output; checked against each other."""
    taken = [
        None if array is None else flat(call.collective, array, call.dtype, written)
        for array, written in ((call.input, False), (call.output, True))
    ]
    kinds = [array[0] for array in taken if array is not None]
    if len(set(kinds)) > 1:
        raise UsageError(f"{call.collective}: the input is {kinds[0]}, the output {kinds[1]}")
    dtype = kinds[0] if kinds else find_dtype("uint8")
    input, output = (None if array is None else array[1] for array in taken)
    if input is not None and output is not None and np.shares_memory(input, output):
        raise UnfitArray("the input and the output overlap")
    promise = COLLECTIVES[call.collective]
    if (call.op is None) == promise.takes_op:
        what = "an operation is needed, not None" if call.op is None else "it takes no operation"
        raise UsageError(f"{call.collective}: {what}")
    if call.op is not None:
        check_supported(call.op, dtype)
    lengths = (None if array is None else array.size for array in (input, output))
    return dtype, promise.whole(ranks, *lengths), input, output
