"""Collectives on lists of tensors, and on parts of unequal length, made of the engine's own.

The engine's collectives take one array. A list that lies in one piece is used as it is; others are copied into one array
and out again, except large ones of an all_gather, which go one by one if they are equally long. What is decided here is
decided alike on all ranks, since it follows from lengths that they must agree on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import MismatchError, UsageError
from .device import Device, Reduction, ints
from .tensors import as_moved, check_alike, check_length, describe, in_a_row, joined, plain

_SMALL_BYTES = 256 * 1024  # of one tensor: up to here a copy costs less than another call


def all_gather(device: Device, tensor: Tensor, outputs: list[Tensor], timeout: float | None) -> None:
    """Place r of every rank's list becomes rank r's tensor. The tensors may differ in length from rank to rank."""
    check_length("all_gather", "output list", outputs, device.size)
    check_alike("all_gather", "output list", outputs, tensor)
    own = outputs[device.rank]
    if own.numel() != tensor.numel():
        raise UsageError(
            f"all_gather: rank {device.rank}'s input is {describe(tensor)}, and its place in the output list is {describe(own)}"
        )
    if _is_even(outputs):
        table = _table_of(outputs)
        if table is not None:
            return device.all_gather(tensor, table, timeout)
        if _bytes(tensor) <= _SMALL_BYTES:
            table = tensor.new_empty(device.size * tensor.numel())
            device.all_gather(tensor, table, timeout)
            return _hand_out(table, outputs)
    else:
        counts = [output.numel() for output in outputs]
        table = _table_of(outputs)
        if table is not None:
            return device.all_gather(tensor, table, timeout, counts)
        table = tensor.new_empty(sum(counts))
        device.all_gather(tensor, table, timeout, counts)
        return _hand_out(table, outputs)
    own.detach().copy_(tensor.detach().view_as(own) if tensor.shape != own.shape else tensor.detach())
    for root, output in enumerate(outputs):
        device.broadcast(output, root, timeout)
    return None


def reduce_scatter(
    device: Device, inputs: list[Tensor], output: Tensor, reduction: Reduction, timeout: float | None
) -> None:
    """Rank r's output becomes the combination of all ranks' places r. The places may differ in length."""
    check_length("reduce_scatter", "input list", inputs, device.size)
    check_alike("reduce_scatter", "input list", inputs, output)
    own = inputs[device.rank]
    if own.numel() != output.numel():
        raise UsageError(
            f"reduce_scatter: the output of rank {device.rank} is {describe(output)}, and its place in the input list is "
            f"{describe(own)}"
        )
    counts = None if _is_even(inputs) else [one.numel() for one in inputs]
    device.reduce_scatter(_one_piece(inputs), output, reduction, timeout, counts)


def gather(device: Device, tensor: Tensor, outputs: list[Tensor] | None, root: int, timeout: float | None) -> None:
    """Place r of the root's list becomes rank r's tensor."""
    _check_root("gather", "output list", outputs, device, root)
    if outputs is None:
        device.gather(tensor, None, root, timeout)
        return
    check_length("gather", "output list", outputs, device.size)
    check_alike("gather", "output list", outputs, tensor)
    _check_even("gather", "output list", outputs, tensor)
    table = _table_of(outputs)
    if table is not None:
        device.gather(tensor, table, root, timeout)
    else:
        table = tensor.new_empty(device.size * tensor.numel())
        device.gather(tensor, table, root, timeout)
        _hand_out(table, outputs)


def scatter(device: Device, output: Tensor, inputs: list[Tensor] | None, root: int, timeout: float | None) -> None:
    """Every rank's output becomes its place in the root's list."""
    _check_root("scatter", "input list", inputs, device, root)
    if inputs is not None:
        check_length("scatter", "input list", inputs, device.size)
        check_alike("scatter", "input list", inputs, output)
        _check_even("scatter", "input list", inputs, output)
    device.scatter(output, None if inputs is None else _one_piece(inputs), root, timeout)


def all_to_all(device: Device, inputs: list[Tensor], outputs: list[Tensor], timeout: float | None) -> None:
    """Place s of rank r's outputs becomes place r of rank s's inputs. All may differ in length."""
    check_length("all_to_all", "input list", inputs, device.size)
    check_length("all_to_all", "output list", outputs, device.size)
    check_alike("all_to_all", "input list", inputs, outputs[0])
    check_alike("all_to_all", "output list", outputs, outputs[0])
    counts = _agree_on_lengths(device, inputs, outputs, timeout)
    table = _table_of(outputs)
    if table is not None:
        return device.all_to_all(_one_piece(inputs), table, timeout, counts)
    table = inputs[0].new_empty(sum(output.numel() for output in outputs))
    device.all_to_all(_one_piece(inputs), table, timeout, counts)
    return _hand_out(table, outputs)


def all_to_all_split(
    device: Device, tensor: Tensor, output: Tensor, splits: list[int], output_splits: list[int], timeout: float | None
) -> None:
    """The same with the parts of two tensors, divided along their first dimension. No splits at all: equal parts."""
    if tensor.dtype != output.dtype:
        raise UsageError(
            f"all_to_all: the input is {describe(tensor)}, the output {describe(output)}; types must be equal"
        )
    if not splits and not output_splits:
        for what, one in (("input", tensor), ("output", output)):
            if one.dim() and one.size(0) % device.size:
                raise UsageError(
                    f"all_to_all: the {what} is {describe(one)}, and its first dimension does not divide equally by "
                    f"{device.size} ranks; give input_split_sizes and output_split_sizes on all ranks"
                )
        device.all_to_all(tensor, output, timeout)
        return
    inputs = _parts("input", tensor, splits, device.size)
    work = plain(output)
    outputs = _parts("output", work, output_splits, device.size)
    device.all_to_all(tensor, work, timeout, _agree_on_lengths(device, inputs, outputs, timeout))
    if work is not output:
        output.detach().copy_(work)


# ---


def _parts(what: str, tensor: Tensor, splits: list[int], size: int) -> list[Tensor]:
    rows = tensor.size(0) if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise UsageError(
                f"all_to_all: the {what} is {describe(tensor)}, and its first dimension does not divide equally by {size} "
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
    """By rank, the elements that it sends to each rank; None if all parts are equally long.

    Raises on all ranks unless everybody expects what is sent to it.
    """
    table = torch.empty((device.size, 2, device.size), dtype=torch.int64)
    device.all_gather(ints([part.numel() for part in (*inputs, *outputs)]), table, timeout)
    sends, expects = table[:, 0], table[:, 1].t()
    if not torch.equal(sends, expects):
        source, destination = (int(rank) for rank in (sends != expects).nonzero()[0])
        raise MismatchError(
            f"all_to_all: rank {source} sends {int(sends[source, destination])} elements to rank {destination}, which "
            f"expects {int(expects[source, destination])} from it"
        )
    return None if (sends == sends[0, 0]).all() else sends.tolist()


def _table_of(outputs: list[Tensor]) -> Tensor | None:
    """One tensor over all outputs, unless torch must be told of each that it has changed."""
    return None if any(output.requires_grad for output in outputs) else joined(outputs)


def _one_piece(tensors: list[Tensor]) -> Tensor:
    whole = joined(tensors)
    return in_a_row([plain(tensor).view(-1) for tensor in tensors]) if whole is None else whole


def _hand_out(table: Tensor, outputs: list[Tensor]) -> None:
    parts = table.split([output.numel() for output in outputs])  # type: ignore[no-untyped-call]
    for part, output in zip(parts, outputs, strict=True):
        output.detach().copy_(part.view(output.shape))


def _is_even(tensors: list[Tensor]) -> bool:
    return all(tensor.numel() == tensors[0].numel() for tensor in tensors)


def _check_root(call: str, what: str, tensors: list[Tensor] | None, device: Device, root: int) -> None:
    if (tensors is not None) != (device.rank == root):
        raise UsageError(f"{call}: only the root gives the {what}; this is rank {device.rank}, the root is {root}")


def _check_even(call: str, what: str, tensors: list[Tensor], like: Tensor) -> None:
    for place, tensor in enumerate(tensors):
        if tensor.numel() != like.numel():
            raise UsageError(
                f"{call}: place {place} of the {what} is {describe(tensor)}, expected {like.numel()} elements as in "
                f"{describe(like)}"
            )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * as_moved(tensor).element_size() if tensor.numel() else 0
