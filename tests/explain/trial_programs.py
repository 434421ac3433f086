"""Random programs of torch.distributed with one seeded fault: the text of a program, and what its records should show."""

from __future__ import annotations

import random
from dataclasses import dataclass

RANKS = 3
KINDS = ("left out", "one more", "shape", "type", "operation", "reduction", "root", "order", "late", "dead")
"""The nine kinds of the issue; "operation" is another collective, and "reduction" another reduction operation."""

NAMED = {
    "left out": ("left out", "absent"),
    "one more": ("one more",),
    "order": ("circle",),
    "late": ("late",),
    "dead": ("dead", "missing"),
}
"""The kinds of findings that name a fault, where they are not the fault's own name."""

_HEAD = """\
import os, signal, time
import torch
import torch.distributed as dist


def ones(size, dtype=torch.float32):
    return torch.ones(size, dtype=dtype)


def many(size):
    return [ones(size) for _ in range(3)]


def main(rank, a, b, patience):
"""


@dataclass(frozen=True)
class Trial:
    """A program, and its fault: the kind, the rank that does it, and the lines that may be named."""

    seed: int
    kind: str
    culprit: int
    text: str
    lines: tuple[int, ...]


def make_trial(seed: int) -> Trial:
    chance = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    culprit = chance.randrange(RANKS)
    before = [_call(chance) for _ in range(chance.randint(1, 6))]
    after = [_call(chance) for _ in range(chance.randint(3, 6))]
    loop = chance.random() < 0.4
    lines: list[str] = []
    if loop:
        lines.append(f"    for step in range({chance.randint(1, 3)}):")
    lines += [f"    {'    ' * loop}{one}" for one in before]
    own, size = f"rank == {culprit}", chance.choice([4, 16, 1000])
    fault = _fault(kind, own, size, chance)
    at = _HEAD.count("\n") + len(lines) + 1
    named = tuple(at + place for place, line in enumerate(fault) if "#" in line)
    lines += [f"    {line}" for line in fault]
    # Everybody is needed here, so a fault that a rank could run past shows at the latest now.
    lines += [f"    {one}" for one in [*after, "dist.all_reduce(ones(7))", "dist.barrier()"]]
    return Trial(seed, kind, culprit, _HEAD + "\n".join(lines) + "\n", named)


def _call(chance: random.Random, size: int | None = None) -> str:
    size = size or chance.choice([1, 4, 100, 2000])
    return chance.choice(
        [
            f"dist.all_reduce(ones({size}))",
            f"dist.broadcast(ones({size}), {chance.randrange(RANKS)})",
            f"dist.all_gather(many({size}), ones({size}))",
            f"dist.reduce(ones({size}), {chance.randrange(RANKS)})",
            f"dist.all_reduce(ones({size}), group=a)",
            "dist.barrier()",
        ]
    )


def _fault(kind: str, own: str, size: int, chance: random.Random) -> list[str]:
    """The lines with the fault; those that may be named have a comment."""
    call = chance.choice([f"dist.all_reduce(ones({size}))", f"dist.all_gather(many({size}), ones({size}))"])
    if kind == "left out":
        return [f"if not {own}:", f"    {call}  # here"]
    if kind == "one more":
        return [f"if {own}:", f"    {call}  # here"]
    if kind == "shape":
        return [f"dist.all_reduce(ones({size} + ({own})))  # here"]
    if kind == "type":
        return [f"dist.all_reduce(ones({size}, torch.float64 if {own} else torch.float32))  # here"]
    if kind == "operation":
        return [f"if {own}:", f"    dist.broadcast(ones({size}), 0)  # here", "else:", f"    {call}"]
    if kind == "reduction":
        return [f"dist.all_reduce(ones({size}), dist.ReduceOp.MAX if {own} else dist.ReduceOp.SUM)  # here"]
    if kind == "root":
        return [f"dist.broadcast(ones({size}), 1 if {own} else 0)  # here"]
    if kind == "order":
        first, second = "dist.all_reduce(ones(3), group=a)", "dist.all_reduce(ones(3), group=b)"
        return [f"if {own}:", f"    {second}  # here", f"    {first}", "else:", f"    {first}", f"    {second}"]
    if kind == "late":
        return [f"if {own}:", "    time.sleep(patience)  # here", call + "  # or where the others wait"]
    return [f"if {own}:", "    os.kill(os.getpid(), signal.SIGKILL)", call + "  # where the others wait"]
