"""Data-parallel training: every rank has the whole model and its own data, and gradients are averaged over the ranks.

Gradients lie in buckets, and the buckets in shared memory: a parameter's `.grad` is a view of its bucket, so the engine
averages gradients where they are and the optimizer reads the result there. The backward pass fills the buckets from the
last layer to the first; each is reduced in the background as soon as it is full, while the pass goes on. When the pass
has ended, so have the reductions: `optimizer.step()` may follow at once.

Buckets are reduced in a fixed order, whatever order they fill up in, because all ranks must make the same calls in the
same order. A parameter that a rank did not use contributes the gradient that it has, or zeros; one that no rank used
keeps the gradient that it has, or None.

The average is `op="avg"`: the ranks' gradients are added from rank 0 up and divided once. That rounds exactly as one
process would that takes the ranks' batches in turn, accumulates their gradients and divides them by the number of
ranks, so the bits are the same for any number of ranks. Dividing before adding would round once more on every rank.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import Variable

from ...errors import AllfoldError, UsageError
from ..shared import communicator_of
from .buckets import Bucket
from .same_model import check_module, check_same

BUCKET_BYTES = 2**23
"""A call wakes a thread on every rank; where ranks share cores, that costs more than smaller buckets gain. The last
bucket, which has nothing left to overlap with, still takes less than a millisecond."""


class DataParallel(torch.nn.Module):
    """A module whose gradients are averaged over all ranks by the time `backward()` returns.

    >>> model = allfold.torch.DataParallel(torch.nn.Linear(3, 1, bias=False), comm)
    >>> model(torch.full((1, 3), comm.rank + 1.0)).sum().backward()
    >>> model.module.weight.grad  # the average of 1 and 2
    tensor([[1.5000, 1.5000, 1.5000]])
    """

    def __init__(
        self,
        module: torch.nn.Module,
        communicator: Any = None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        compress: str | None = None,
        broadcast_buffers: bool = True,
    ) -> None:
        """Copy rank 0's parameters and buffers to all ranks, which all take part in the call.

        `communicator` is one of allfold's or a process group of torch's backend "allfold"; None takes torch's default
        group. Each instance works on a group of its own, so that calls on the communicator never mix with those in the
        background. `compress="bfloat16"` sends wider gradients rounded to bfloat16; the parameters keep their type.
        `broadcast_buffers` gives all ranks rank 0's buffers before every forward pass outside `no_sync`.
        """
        super().__init__()
        check_module(module, bucket_bytes, compress)
        everyone = communicator_of("DataParallel", communicator)
        check_same(everyone, module, bucket_bytes=bucket_bytes, compress=compress, broadcast_buffers=broadcast_buffers)
        group = everyone.group(range(everyone.size))
        assert group is not None  # every rank is in it
        self.module = module
        self.communicator = group
        self.bucket_bytes = bucket_bytes
        self.compress = compress
        self.broadcast_buffers = broadcast_buffers
        self._synchronising = True
        self._failed = False
        self._is_rearranged = False
        self._pass: weakref.ref[_Pass] | None = None
        self._trained = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
        self._touched = [False] * len(self._trained)  # by a backward pass since the last reduction
        self._arrange(range(len(self._trained) - 1, -1, -1))
        for tensor in (*module.parameters(), *module.buffers()):
            group.broadcast(tensor.detach())
        for index, (_, parameter) in enumerate(self._trained):
            parameter.register_post_accumulate_grad_hook(_hook(weakref.ref(self), index))  # type: ignore[no-untyped-call]

    @property
    def buckets(self) -> list[list[str]]:
        """The names of the parameters of every bucket, in the order in which they are reduced."""
        return [[self._trained[index][0] for index in bucket.members] for bucket in self._buckets]

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        if self._failed:
            raise UsageError(
                f"DataParallel: an earlier backward pass did not come to its end on rank {self.communicator.rank}, so the "
                "ranks no longer agree on what is reduced; make a new DataParallel of the module on all of them"
            )
        if self._synchronising and self.broadcast_buffers:
            for buffer in self.module.buffers():
                self.communicator.broadcast(buffer.detach())
        output = self.module(*inputs, **keywords)
        for tensor in _tensors(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._begin)  # type: ignore[no-untyped-call]
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate, on each rank for itself; the next one outside reduces it all."""
        before, self._synchronising = self._synchronising, False
        try:
            yield
        finally:
            self._synchronising = before

    # ---

    def _arrange(self, order: Sequence[int]) -> None:
        """Put the gradients, with their values, into buckets in this order. A bucket has one type."""
        filling: dict[torch.dtype, list[int]] = {}
        filled: dict[torch.dtype, int] = {}
        full: list[list[int]] = []
        for index in order:
            parameter = self._trained[index][1]
            dtype = parameter.dtype
            filling.setdefault(dtype, []).append(index)
            filled[dtype] = filled.get(dtype, 0) + parameter.nbytes
            if filled[dtype] >= self.bucket_bytes:
                full.append(filling.pop(dtype))
                filled[dtype] = 0
        full += filling.values()
        self._order = list(order)
        self._buckets = [
            Bucket(self.communicator, members, [self._trained[index][1] for index in members], self.compress)
            for members in full
        ]
        self._home: dict[int, tuple[int, torch.Tensor]] = {}
        for number, bucket in enumerate(self._buckets):
            for index, view in zip(bucket.members, bucket.views, strict=True):
                self._home[index] = number, view
                self._bring_home(index)

    def _bring_home(self, index: int) -> bool:
        """Whether there is a gradient; if so, it is now in its bucket."""
        parameter, (_, view) = self._trained[index][1], self._home[index]
        if parameter.grad is None:
            return False
        if parameter.grad is not view:  # after zero_grad(set_to_none=True) autograd makes a new one
            view.copy_(parameter.grad)
            parameter.grad = view
        return True

    def _accumulated(self, index: int) -> None:
        """A backward pass has added to the gradient of a parameter."""
        name, parameter = self._trained[index]
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout is not torch.strided:
            raise UsageError(
                f"DataParallel: the gradient of {name} is sparse, and only dense ones can be reduced; make its layer with "
                "sparse=False"
            )
        if gradient.requires_grad:
            raise UsageError(
                f"DataParallel: backward(create_graph=True) gave {name} a gradient with a graph of its own, which would "
                "not know of the other ranks; take such derivatives of the module itself, `.module`"
            )
        self._bring_home(index)
        self._touched[index] = True
        if self._synchronising:
            self._current_pass().count(index)

    def _begin(self, _: torch.Tensor) -> None:
        """A backward pass reached the module: this rank takes part in the reductions, even if it uses no parameter."""
        if self._synchronising and not self._failed:
            self._current_pass()

    def _current_pass(self) -> _Pass:
        current = self._pass() if self._pass is not None else None
        if current is None or current.is_finished:
            current = _Pass(self)
            self._pass = weakref.ref(current)
            Variable._execution_engine.queue_callback(current.launch_the_rest)
        return current

    def _rearrange(self, seen: Mapping[int, None]) -> None:
        """Once, after the first pass: buckets in the order in which rank 0 finished its gradients."""
        self._is_rearranged = True
        order = np.array([*seen, *(index for index in self._order if index not in seen)], np.int64)
        self.communicator.broadcast(order)
        if order.tolist() != self._order:
            self._arrange(order.tolist())


class _Pass:
    """One backward pass that reduces. The autograd engine has the only strong reference, as the pass's final callback.

    A pass that raises drops its callbacks unused, and this object with them: the only way to notice it at once.
    """

    def __init__(self, owner: DataParallel) -> None:
        self.owner = owner
        self.launched = 0
        self.is_finished = False
        self.seen: dict[int, None] = {}  # a set that keeps the order
        self.missing = [len(bucket.members) for bucket in owner._buckets]

    def count(self, index: int) -> None:
        """A gradient is ready; launch the buckets that are full and whose turn it is."""
        if index in self.seen:
            raise UsageError(
                f"DataParallel: one backward pass added to the gradient of {self.owner._trained[index][0]} twice, the second "
                "time when it may have been reduced; use checkpoints with use_reentrant=False"
            )
        self.seen[index] = None
        self.missing[self.owner._home[index][0]] -= 1
        while self.launched < len(self.missing) and self.missing[self.launched] == 0:
            self._launch()

    def launch_the_rest(self) -> None:
        """At the end of the pass: the buckets it did not use. Waiting begins after all modules have launched theirs.

        Otherwise two ranks could wait for two modules in different orders, each for what the other has yet to launch.
        """
        while self.launched < len(self.missing):
            self._launch()
        Variable._execution_engine.queue_callback(self.finish)

    def _launch(self) -> None:
        owner, bucket = self.owner, self.owner._buckets[self.launched]
        for view, index in zip(bucket.views, bucket.members, strict=True):
            if not owner._touched[index] and not owner._bring_home(index):
                view.zero_()
        bucket.launch(owner.communicator, [owner._touched[index] for index in bucket.members])
        self.launched += 1

    def finish(self) -> None:
        owner = self.owner
        for bucket in owner._buckets:
            for index, view, is_used in zip(bucket.members, bucket.views, bucket.wait(), strict=True):
                if is_used:
                    owner._trained[index][1].grad = view
        owner._touched = [False] * len(owner._touched)
        if not owner._is_rearranged:
            owner._rearrange(self.seen)
        self.is_finished = True

    def __del__(self) -> None:
        if self.is_finished:
            return
        self.owner._failed = True
        self.owner.communicator.abort()  # the others wait for buckets that will not come
        for bucket in self.owner._buckets[: self.launched]:
            with contextlib.suppress(AllfoldError):
                bucket.wait()


def _hook(owner: weakref.ref[DataParallel], index: int) -> Callable[[torch.Tensor], None]:
    """Weakly, because a parameter keeps its hooks, and may outlive the DataParallel that set them."""

    def accumulated(_: torch.Tensor) -> None:
        alive = owner()
        if alive is not None and not alive._failed:
            alive._accumulated(index)

    return accumulated


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (Mapping, list, tuple)):
        for one in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(one)
