"""Random programs of collectives and messages, whose inputs depend on what came before; and what each call saw, as bytes.

The log is made by the program itself, from copies, so that it can judge a record and a replay.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

Log = list[tuple[str, list[bytes], list[bytes]]]
"""(kind of step, inputs, outputs) of each step that this rank took part in."""


@dataclass(frozen=True)
class Step:
    """One call. `members` are the ranks of its group."""

    kind: str
    members: tuple[int, ...]
    root: int
    count: int
    background: bool


def program(seed: int, ranks: int, length: int = 24) -> list[Step]:
    draw = random.Random(seed)
    everybody = tuple(range(ranks))
    subset = tuple(sorted(draw.sample(everybody, max(2, ranks - 1))))
    kinds = [*KINDS]
    draw.shuffle(kinds)
    kinds = (kinds * (length // len(kinds) + 1))[:length]
    steps = []
    for kind in kinds:
        members = everybody if kind in _OF_ALL or draw.random() < 0.6 else subset
        steps.append(Step(kind, members, draw.choice(members), draw.randrange(1, 40), draw.random() < 0.4))
    return steps


def run_program(steps: list[Step], rank: int, flip: int | None = None, own: bool = True) -> Log:
    """The part of one rank, which flips a bit of its input before step `flip`. With `own`, it draws numbers of its own."""
    groups = {members: dist.new_group(list(members)) for members in sorted({step.members for step in steps})}
    x = torch.arange(8, dtype=torch.float32) * (rank + 1) + (random.random() + torch.rand(1).item() if own else 0)
    log: Log = []
    for number, step in enumerate(steps):
        if rank not in step.members:
            continue
        sent = (x.repeat(5)[: step.count] * 0.5 + number).clone()
        if number == flip:
            sent.view(torch.int32)[0] ^= 1 << 3
        before = [_bytes(sent)]
        received = KINDS[step.kind](_Call(step, groups[step.members], rank, sent))
        log.append((step.kind, before, [_bytes(one) for one in received]))
        for one in received:
            if one.is_floating_point() and one.numel():
                x = (x * 0.5 + torch.nan_to_num(one.flatten().float()).repeat(8)[:8] * 0.25).clamp(-1e6, 1e6)
    return log


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


@dataclass
class _Call:
    step: Step
    group: Any
    rank: int
    x: torch.Tensor

    @property
    def size(self) -> int:
        return len(self.step.members)

    @property
    def place(self) -> int:
        return self.step.members.index(self.rank)

    @property
    def root(self) -> int:
        return self.step.root

    def ended(self, call: Callable[..., Any], *arguments: Any, **given: Any) -> None:
        work = call(*arguments, **given, group=self.group, async_op=self.step.background)
        if self.step.background:
            work.wait()

    def neighbour(self, by: int) -> int:
        return self.step.members[(self.place + by) % self.size]


def _all_reduce(c: _Call) -> list[torch.Tensor]:
    c.ended(dist.all_reduce, c.x, op=dist.ReduceOp.MAX if c.step.count % 2 else dist.ReduceOp.SUM)
    return [c.x]


def _broadcast(c: _Call) -> list[torch.Tensor]:
    c.ended(dist.broadcast, c.x, c.root)
    return [c.x]


def _reduce(c: _Call) -> list[torch.Tensor]:
    c.ended(dist.reduce, c.x, c.root)
    return [c.x]


def _all_gather(c: _Call) -> list[torch.Tensor]:
    found = [torch.empty_like(c.x) for _ in range(c.size)]
    c.ended(dist.all_gather, found, c.x)
    return found


def _all_gather_single(c: _Call) -> list[torch.Tensor]:
    found = torch.empty(c.size * c.x.numel())
    c.ended(dist.all_gather_into_tensor, found, c.x)
    return [found]


def _reduce_scatter_single(c: _Call) -> list[torch.Tensor]:
    found = torch.empty_like(c.x)
    c.ended(dist.reduce_scatter_tensor, found, c.x.repeat(c.size))
    return [found]


def _all_to_all_single(c: _Call) -> list[torch.Tensor]:
    found = torch.empty(c.size * c.x.numel())
    c.ended(dist.all_to_all_single, found, c.x.repeat(c.size) * (c.rank + 1))
    return [found]


def _uneven(c: _Call) -> list[torch.Tensor]:
    counts = [1 + place for place in range(c.size)]
    found = torch.empty(c.size * counts[c.place])
    sent = torch.cat([c.x[:1].repeat(count) * (count + c.rank) for count in counts])
    c.ended(dist.all_to_all_single, found, sent, [counts[c.place]] * c.size, counts)
    return [found]


def _gather(c: _Call) -> list[torch.Tensor]:
    found = [torch.empty_like(c.x) for _ in range(c.size)] if c.rank == c.root else None
    c.ended(dist.gather, c.x, found, c.root)
    return found or []


def _scatter(c: _Call) -> list[torch.Tensor]:
    found = torch.empty_like(c.x)
    c.ended(dist.scatter, found, [c.x * place for place in range(c.size)] if c.rank == c.root else None, c.root)
    return [found]


def _columns(c: _Call) -> list[torch.Tensor]:
    """A tensor with gaps."""
    wide = torch.zeros(c.x.numel(), 2)
    wide[:, 1] = c.x
    c.ended(dist.broadcast, wide[:, 1].contiguous() if c.rank % 2 else wide.t().contiguous()[1], c.root)
    return []


def _functional(c: _Call) -> list[torch.Tensor]:
    found = functional.all_reduce(c.x, "sum", c.group)
    return [functional.wait_tensor(found) if isinstance(found, torch.Tensor) else found]


def _coalesced(c: _Call) -> list[torch.Tensor]:
    tensors = [c.x, c.x[:1] * 3]
    with dist._coalescing_manager(group=c.group, async_ops=True) as all_of_them:
        for one in tensors:
            dist.all_reduce(one, group=c.group)
    all_of_them.wait()
    return tensors


def _ring(c: _Call) -> list[torch.Tensor]:
    found = torch.empty_like(c.x)
    sending = dist.isend(c.x, c.neighbour(1), group=c.group)
    if c.step.background:
        dist.irecv(found, c.neighbour(-1), group=c.group).wait()
    else:
        dist.recv(found, c.neighbour(-1), group=c.group)
    sending.wait()
    return [found]


def _batch(c: _Call) -> list[torch.Tensor]:
    found = torch.empty_like(c.x)
    both = [
        dist.P2POp(dist.isend, c.x, c.neighbour(-1), c.group),
        dist.P2POp(dist.irecv, found, c.neighbour(1), c.group),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return [found]


def _from_any(c: _Call) -> list[torch.Tensor]:
    """Their order differs from run to run."""
    if c.rank != c.root:
        dist.send(c.x * (c.rank + 1), c.root)
        return []
    found = torch.zeros_like(c.x)
    parts = [torch.zeros_like(c.x) for _ in range(c.size - 1)]
    for part in parts:
        source = dist.recv(part)
        found += part * (source + 1)
    return [*parts, found]


def _objects(c: _Call) -> list[torch.Tensor]:
    everything: list[Any] = [None] * c.size
    dist.all_gather_object(everything, {"rank": c.rank, "x": c.x.tolist()}, group=c.group)
    one = [everything[c.place] if c.rank == c.root else None]
    dist.broadcast_object_list(one, c.root, group=c.group)
    return [torch.tensor([found["x"][0] for found in everything]), torch.tensor(one[0]["x"])]


def _barrier(c: _Call) -> list[torch.Tensor]:
    if c.step.background:
        dist.barrier(c.group, async_op=True).wait()
    else:
        dist.barrier(c.group)
    return []


def _store(c: _Call) -> list[torch.Tensor]:
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{c.step.count} {c.rank}", str(c.x[0].item()))
    store.wait([f"{c.step.count} {rank}" for rank in c.step.members])
    values = [float(store.get(f"{c.step.count} {rank}")) for rank in c.step.members]
    turn = store.add(f"turn {c.step.count}", 1)  # another one in each run
    dist.barrier(c.group)
    return [torch.tensor([*values, float(turn)])]


KINDS: dict[str, Callable[[_Call], list[torch.Tensor]]] = {
    function.__name__[1:]: function
    for function in (
        *(
            _all_reduce,
            _broadcast,
            _reduce,
            _all_gather,
            _all_gather_single,
            _reduce_scatter_single,
            _all_to_all_single,
        ),
        *(_uneven, _gather, _scatter, _columns, _functional, _coalesced, _ring, _batch, _from_any, _objects, _barrier),
        *(_store,),
    )
}
_OF_ALL = ("from_any",)
CHANGES_FROM_RUN_TO_RUN = ("from_any", "store")
