"""The operations of torch.distributed: what their arguments mean, and what all ranks must agree on.

A C++ process group passes every call to an operator of the dispatcher, whatever its backend. Names of
operations are those of `allfold explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
"""By the number that torch gives an operation."""

_NAMES = {
    "_allgather_base_": "all_gather_single",
    "_reduce_scatter_base_": "reduce_scatter_single",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_single_coalesced",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "barrier": "barrier",
    "broadcast_": "broadcast",
    "gather_": "gather",
    "monitored_barrier_": "monitored_barrier",
    "recv_": "recv",
    "recv_any_source_": "recv",
    "reduce_": "reduce",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_single_coalesced",
    "scatter_": "scatter",
    "send": "send",
}
_TARGETS = ("output_tensors", "output_tensor", "outputs", "output", "output_lists")
_SOURCES = ("input_tensors", "input_tensor", "inputs", "input", "input_list")
_IN_PLACE = ("tensors", "tensor")
_NO_DATA = ("barrier", "monitored_barrier")
POINT_TO_POINT = ("send", "recv")
_DEFAULT_SECONDS = 1800.0


class Made(NamedTuple):
    """One call that a rank is about to make."""

    operation: str
    group: dist.ProcessGroup
    source: Any = ()  # a tensor, or lists of tensors
    target: Any = ()
    reduction: int | None = None
    root: int | None = None
    peer: int | None = None  # its rank in the group; None in a receive from any
    splits: bool = False  # parts of different lengths
    background: bool = True
    milliseconds: int = -1  # its timeout; -1: that of the group
    returns: int | None = None  # the number of values that its operator returns; None: a method in Python

    def answer(self, work: dist.Work) -> Any:
        """The value to return to the caller, so that it waits for this work."""
        if self.returns is None:
            return work
        if self.returns == 0:
            return None
        return work.boxed() if self.returns == 1 else (self.target, work.boxed())

    @property
    def read(self) -> list[torch.Tensor]:
        """The tensors that the call reads. In a broadcast, ranks other than the root only write."""
        if self.operation == "broadcast" and self.group.rank() != self.root:
            return []
        return tensors_of(self.source)

    @property
    def agreed(self) -> Sequence[torch.Tensor]:
        """The tensors that must have the same type and number of elements on all ranks."""
        if self.operation in ("scatter", "scatter_single"):
            return tensors_of(self.target)
        if self.splits or self.operation == "all_to_all":
            return ()
        if self.operation == "all_gather":
            parts = tensors_of(self.target)
            if len({one.numel() for one in parts}) > 1:
                return parts  # as allfold and NCCL take them: all ranks have the same list
        return tensors_of(self.source)

    @property
    def key(self) -> tuple[Any, ...]:
        """Everything in its description except the line that makes it."""
        tensors = tuple([(one.shape, one.dtype) for one in self.agreed])
        return self.operation, tensors, self.reduction, self.root, self.peer


def tensors_of(tensors: Any) -> list[torch.Tensor]:
    """All tensors in lists of lists."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    if len(tensors) == 1 and isinstance(tensors[0], torch.Tensor):  # as in most calls
        return [tensors[0]]
    return [one for part in tensors for one in ([part] if isinstance(part, torch.Tensor) else tensors_of(part))]


class Operator:
    """An operator of the dispatcher, and the places of its arguments."""

    def __init__(self, name: str) -> None:
        self.overload = getattr(torch.ops.c10d, name).default
        self.name = name
        self._operation = _NAMES.get(name, name.strip("_"))
        names = [argument.name for argument in self.overload._schema.arguments]
        place = {argument: number for number, argument in enumerate(names)}

        def first(wanted: Sequence[str]) -> int | None:
            return next((place[argument] for argument in wanted if argument in place), None)

        self._group = place["process_group"]
        self._source, self._target = first(_SOURCES), first(_TARGETS)
        if self._operation in _NO_DATA:
            self._source = self._target = None
        elif self._target is None:  # in place
            both = first(_IN_PLACE)
            self._source = None if self._operation == "recv" else both
            self._target = None if self._operation == "send" else both
        self._reduction, self._root = place.get("reduce_op"), place.get("root_rank")
        self._peer = first(("dst", "src"))
        self._splits = place.get("input_split_sizes")
        self._returns = len(self.overload._schema.returns)
        self._background, self._timeout = place.get("async_op"), place.get("timeout")

    def made(self, arguments: Sequence[Any]) -> Made:
        """The call with these arguments. Trailing arguments with default values are missing."""
        count = len(arguments)
        source, target, reduction, root, peer = self._source, self._target, self._reduction, self._root, self._peer
        splits, background, timeout = self._splits, self._background, self._timeout
        return tuple.__new__(  # Made(…) would call a function in Python, and this runs in every call
            Made,
            (
                self._operation,
                dist.ProcessGroup.unbox(arguments[self._group]),
                () if source is None else arguments[source],
                () if target is None else arguments[target],
                None if reduction is None else arguments[reduction]._get_method("op")(),  # .op() looks for it longer
                None if root is None else arguments[root],
                None if peer is None else arguments[peer],
                splits is not None and splits < count and bool(arguments[splits]),
                background is None or background >= count or arguments[background],
                arguments[timeout] if timeout is not None and timeout < count else -1,
                self._returns,
            ),
        )


def work_of(result: Any) -> dist.Work | None:
    """The Work object in the result of a call."""
    boxed = result[-1] if isinstance(result, tuple) else result
    return boxed if boxed is None or isinstance(boxed, dist.Work) else dist.Work.unbox(boxed)


def seconds_of(group: Any) -> float:
    """The timeout of a group, if one of its backends has it; else torch's default."""
    for device in ("cpu", "cuda"):
        try:
            backend = group._get_backend(torch.device(device))
        except RuntimeError:
            continue
        timeout = getattr(getattr(backend, "options", None), "_timeout", None) or getattr(backend, "_timeout", None)
        if isinstance(timeout, timedelta):
            return timeout.total_seconds()
    return _DEFAULT_SECONDS


def all_operators() -> list[Operator]:
    """The operators that this version of torch has."""
    return [Operator(name) for name in _NAMES if hasattr(torch.ops.c10d, name)]


class Method(NamedTuple):
    """A method of a process group that is written in Python, which calls no operator of the dispatcher."""

    operation: str
    source: int | None = None
    target: int | None = None
    options: int = 1
    peer: int | None = None
    splits: int | None = None

    def made(self, group: Any, arguments: Sequence[Any], given: dict[str, Any]) -> Made:
        options = arguments[self.options] if self.options < len(arguments) else given.get("opts")
        reduction = getattr(options, "reduceOp", None)
        return Made(
            self.operation,
            group,
            _given(arguments, self.source),
            _given(arguments, self.target),
            None if reduction is None else int(reduction.op if hasattr(reduction, "op") else reduction),
            getattr(options, "rootRank", None) if self.operation in _ROOTED else None,
            None if self.peer is None else arguments[self.peer],
            self.splits is not None and self.splits < len(arguments) and bool(arguments[self.splits]),
            getattr(options, "asyncOp", True),
        )


def _given(arguments: Sequence[Any], place: int | None) -> Any:
    """An argument; the ranks that are not the root may give None."""
    given = None if place is None else arguments[place]
    return () if given is None else given


_ROOTED = ("broadcast", "reduce", "gather", "scatter")
METHODS: dict[str, Method] = {
    "allreduce": Method("all_reduce", 0, 0),
    "allreduce_coalesced": Method("all_reduce_coalesced", 0, 0),
    "reduce": Method("reduce", 0, 0),
    "reduce_scatter": Method("reduce_scatter", 1, 0, 2),
    "reduce_scatter_single": Method("reduce_scatter_single", 1, 0, 2),
    "reduce_scatter_single_coalesced": Method("reduce_scatter_single_coalesced", 1, 0, 2),
    "broadcast": Method("broadcast", 0, 0),
    "allgather": Method("all_gather", 1, 0, 2),
    "allgather_coalesced": Method("all_gather_coalesced", 1, 0, 2),
    "all_gather_single": Method("all_gather_single", 1, 0, 2),
    "all_gather_single_coalesced": Method("all_gather_single_coalesced", 1, 0, 2),
    "gather": Method("gather", 1, 0, 2),
    "scatter": Method("scatter", 1, 0, 2),
    "alltoall": Method("all_to_all", 1, 0, 2),
    "all_to_all_single": Method("all_to_all_single", 1, 0, 4, splits=3),
    "send": Method("send", 0, None, 9, peer=1),
    "recv": Method("recv", None, 0, 9, peer=1),
    "recv_anysource": Method("recv", None, 0, 9),
    "barrier": Method("barrier", options=0),
    "monitored_barrier": Method("monitored_barrier", options=9),
}
"""The methods of `allfold.torch.group.Group`, by name."""

Go = Callable[[], Any]
Watcher = Callable[[Made, Go], Any]
"""Called in place of every call; makes the call with `go()`."""
