"""Collectives on lists of tensors and on parts of unequal length, built from the engine's collectives.

The engine's collectives take one array. Lists of tensors that are adjacent in memory are used directly; others are copied
into one array and back. Large tensors of equal length in an all_gather are broadcast one by one instead. The choice of
calls depends on lengths alone, in which all ranks must agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import MismatchError, UsageError
from .device import Device, Reduction
from .tensors import SMALL_BYTES, as_moved, check_alike, check_length, concatenated, describe, joined, plain


def all_gather(device: Device, tensor: Tensor, outputs: list[Tensor], timeout: float | None) -> None:
    """Place r of every rank's list becomes rank r's tensor. Ranks' tensors may differ in length."""
    check_length("all_gather", "output list", outputs, device.size)
    check_alike("all_gather", "output list", outputs, tensor)
    own = outputs[device.rank]
    if own.numel() != tensor.numel():
        raise UsageError(
            f"all_gather: rank {device.rank}'s input is {describe(tensor)}, but its place in the output list is {describe(own)}"
        )
    counts = None if _is_even(outputs) else [output.numel() for output in outputs]
    if counts is None and _bytes(tensor) > SMALL_BYTES:
        # Even if the tensors are adjacent here: they may not be on other ranks, and all must make the same calls.
        own.detach().copy_(tensor.detach().view(own.shape))
        for root, output in enumerate(outputs):
            device.collective("broadcast", None, output, root=root, timeout=timeout)
        return
    table, is_new = _table_for(outputs)
    device.collective("all_gather", tensor, table, timeout=timeout, counts=counts)
    if is_new:
        _hand_out(table, outputs)


def all_gather_several(
    device: Device, tensors: list[Tensor], outputs: list[list[Tensor]], timeout: float | None
) -> None:
    """An all_gather of several tensors: `outputs[r][i]` becomes tensor i of rank r."""
    for number, tensor in enumerate(tensors):
        all_gather(device, tensor, [places[number] for places in outputs], timeout)


def reduce_scatter(
    device: Device, inputs: list[Tensor], output: Tensor, reduction: Reduction, timeout: float | None
) -> None:
    """Rank r's output becomes the reduction of place r of all ranks' lists. The places may differ in length."""
    check_length("reduce_scatter", "input list", inputs, device.size)
    check_alike("reduce_scatter", "input list", inputs, output)
    own = inputs[device.rank]
    if own.numel() != output.numel():
        raise UsageError(
            f"reduce_scatter: rank {device.rank}'s output is {describe(output)}, but its place in the input list is "
            f"{describe(own)}"
        )
    counts = None if _is_even(inputs) else [one.numel() for one in inputs]
    device.collective("reduce_scatter", _one_piece(inputs), output, reduction, timeout=timeout, counts=counts)


def gather(device: Device, tensor: Tensor, outputs: list[Tensor] | None, root: int, timeout: float | None) -> None:
    """Place r of the root's list becomes rank r's tensor. All must have the same length, as with gloo and NCCL."""
    _check_root("gather", "output list", outputs, device, root)
    if outputs is None:
        device.collective("gather", tensor, None, root=root, timeout=timeout)
        return
    check_length("gather", "output list", outputs, device.size)
    check_alike("gather", "output list", outputs, tensor)
    _check_even("gather", "output list", outputs, tensor)
    table, is_new = _table_for(outputs)
    device.collective("gather", tensor, table, root=root, timeout=timeout)
    if is_new:
        _hand_out(table, outputs)


def scatter(device: Device, output: Tensor, inputs: list[Tensor] | None, root: int, timeout: float | None) -> None:
    """Every rank's output becomes its place in the root's list. All must have the same length, as in `gather`."""
    _check_root("scatter", "input list", inputs, device, root)
    if inputs is not None:
        check_length("scatter", "input list", inputs, device.size)
        check_alike("scatter", "input list", inputs, output)
        _check_even("scatter", "input list", inputs, output)
    whole = None if inputs is None else _one_piece(inputs)
    device.collective("scatter", whole, output, root=root, timeout=timeout)


def all_to_all(device: Device, inputs: list[Tensor], outputs: list[Tensor], timeout: float | None) -> None:
    """Place s of rank r's outputs becomes place r of rank s's inputs. All may differ in length."""
    check_length("all_to_all", "input list", inputs, device.size)
    check_length("all_to_all", "output list", outputs, device.size)
    check_alike("all_to_all", "input list", inputs, outputs[0])
    check_alike("all_to_all", "output list", outputs, outputs[0])
    counts = _agree_on_lengths(device, inputs, outputs, timeout)
    table, is_new = _table_for(outputs)
    device.collective("all_to_all", _one_piece(inputs), table, timeout=timeout, counts=counts)
    if is_new:
        _hand_out(table, outputs)


def all_to_all_split(
    device: Device, tensor: Tensor, output: Tensor, splits: list[int], output_splits: list[int], timeout: float | None
) -> None:
    """An all_to_all of two tensors, divided along their first dimension. Without splits, the parts are equal."""
    if tensor.dtype != output.dtype:
        raise UsageError(
            f"all_to_all: the input is {describe(tensor)}, the output {describe(output)}; both must have the same type"
        )
    if not splits and not output_splits:
        for what, one in (("input", tensor), ("output", output)):
            if one.dim() and one.size(0) % device.size:
                raise UsageError(
                    f"all_to_all: the {what} is {describe(one)}; its first dimension does not divide equally by "
                    f"{device.size} ranks; give input_split_sizes and output_split_sizes on all ranks"
                )
        device.collective("all_to_all", tensor, output, timeout=timeout)
        return
    inputs = _parts("input", tensor, splits, device.size)
    outputs = _parts("output", output, output_splits, device.size)
    counts = _agree_on_lengths(device, inputs, outputs, timeout)
    device.collective("all_to_all", tensor, output, timeout=timeout, counts=counts)


# ---


def _parts(what: str, tensor: Tensor, splits: list[int], size: int) -> list[Tensor]:
    rows = tensor.size(0) if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise UsageError(
                f"all_to_all: the {what} is {describe(tensor)}; its first dimension does not divide equally by {size} "
                f"ranks; give {what}_split_sizes"
            )
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise UsageError(
            f"all_to_all: {what}_split_sizes must be one number for each of {size} ranks with the sum {rows}, the first "
            f"dimension of the {what}; got {list(splits)}"
        )
    return list(plain(tensor).split(splits))  # type: ignore[no-untyped-call]


def _agree_on_lengths(
    device: Device, inputs: list[Tensor], outputs: list[Tensor], timeout: float | None
) -> list[list[int]] | None:
    """The elements that every rank sends to every rank; None if all parts have the same length.

    Raises on all ranks if a rank expects another length than is sent to it.
    """
    table = device.gather_numbers([part.numel() for part in (*inputs, *outputs)], timeout)
    table = table.view(device.size, 2, device.size)
    sends, expects = table[:, 0], table[:, 1].t()
    if not torch.equal(sends, expects):
        source, destination = (int(rank) for rank in (sends != expects).nonzero()[0])
        raise MismatchError(
            f"all_to_all: rank {source} sends {int(sends[source, destination])} elements to rank {destination}, which "
            f"expects {int(expects[source, destination])} from it"
        )
    return None if (sends == sends[0, 0]).all() else sends.tolist()


def _table_for(outputs: list[Tensor]) -> tuple[Tensor, bool]:
    """One tensor over the memory of all outputs, and False; or a new one of that length, and True: `_hand_out` it later."""
    # torch must learn that outputs with requires_grad have changed; copying into them does that.
    table = None if any(output.requires_grad for output in outputs) else joined(outputs)
    return (outputs[0].new_empty(sum(output.numel() for output in outputs)), True) if table is None else (table, False)


def _one_piece(tensors: list[Tensor]) -> Tensor:
    whole = joined(tensors)
    return concatenated([plain(tensor).view(-1) for tensor in tensors]) if whole is None else whole


def _hand_out(table: Tensor, outputs: list[Tensor]) -> None:
    parts = table.split([output.numel() for output in outputs])  # type: ignore[no-untyped-call]
    for part, output in zip(parts, outputs, strict=True):
        output.detach().copy_(part.view(output.shape))


def _is_even(tensors: list[Tensor]) -> bool:
    return all(tensor.numel() == tensors[0].numel() for tensor in tensors)


def _check_root(call: str, what: str, tensors: list[Tensor] | None, device: Device, root: int) -> None:
    if (tensors is not None) != (device.rank == root):
        raise UsageError(f"{call}: only the root passes the {what}; this is rank {device.rank}, the root is {root}")


def _check_even(call: str, what: str, tensors: list[Tensor], like: Tensor) -> None:
    for place, tensor in enumerate(tensors):
        if tensor.numel() != like.numel():
            raise UsageError(
                f"{call}: place {place} of the {what} is {describe(tensor)}, expected {like.numel()} elements as in "
                f"{describe(like)}"
            )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * as_moved(tensor).element_size() if tensor.numel() else 0
