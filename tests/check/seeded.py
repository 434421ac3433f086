"""Random programs with one fault: what a rank does differently, at which line, and what the error must name."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FAULTS = ("left out", "one more", "shape", "type", "operation", "root", "order", "late", "dead")
ENDS_A_RANK = ("dead",)
LIMIT = 30.0

_CALLS = {
    "all_reduce": "dist.all_reduce(x({n}), group=g({n}){background})",
    "broadcast": "dist.broadcast(x({n}), root({n}), group=g({n}){background})",
    "all_gather": "dist.all_gather([x({n}) for _ in range(size({n}))], x({n}), group=g({n}){background})",
    "reduce": "dist.reduce(x({n}), root({n}), group=g({n}){background})",
    "all_gather_single": "dist.all_gather_into_tensor(wide({n}), x({n}), group=g({n}){background})",
}
_ROOTED = ("broadcast", "reduce")


@dataclass(frozen=True)
class Trial:
    """One program. `line` is where the fault is, `rank` who does it; `groups[n]` are the ranks of call n."""

    seed: int
    fault: str
    rank: int
    ranks: int
    call: int
    round: int
    line: int
    source: str
    groups: list[list[int]]


def trial(seed: int, ranks: int = 3) -> Trial:
    """The program of a seed: a few rounds of some calls in some groups, each call on a line of its own."""
    draw = random.Random(seed)
    fault = FAULTS[seed % len(FAULTS)]
    everybody = list(range(ranks))
    subset = sorted(draw.sample(everybody, ranks - 1))
    count = draw.randrange(3, 7)
    operations = [draw.choice(list(_CALLS)) for _ in range(count)]
    # The last call is of all ranks: whoever left one out arrives there.
    groups = [everybody if draw.random() < 0.7 else subset for _ in range(count - 1)] + [everybody]
    background = [draw.random() < 0.3 and seed >= 100 for _ in range(count)]
    call = draw.randrange(count)
    if fault == "root":
        operations[call] = draw.choice(_ROOTED)
    # gloo keeps a background call that never ends until its timeout, even when the group is destroyed.
    may_stay = seed >= 100 and seed % 4 == 0 and fault in ("shape", "type", "root", "one more")
    background[call] = background[call] and may_stay
    groups[call] = everybody
    rank = draw.randrange(ranks)
    lines, number_of = ["def program(round, x, g, root, size, wide, times, other, order, late, dead):"], {}
    for n, operation in enumerate(operations):
        if n == call and fault == "order":
            lines.append(f"    for group in order({n}): dist.all_reduce(x({n}), group=group)")
            number_of[n] = len(lines)
            continue
        words = _CALLS[operation].format(n=n, background=", async_op=True" if background[n] else "")
        wait = ".wait()" if background[n] else ""
        lines.append(f"    late({n}); dead({n})")
        if n == call and fault == "operation":
            different = "broadcast" if operation != "broadcast" else "all_reduce"
            lines.append(f"    if other({n}):")
            lines.append(f"        {_CALLS[different].format(n=n, background='')}")
            number_of[n] = len(lines)
            lines.append("    else:")
            lines.append(f"        {words}{wait}")
            continue
        lines.append(f"    for _ in range(times({n})): {words}{wait}")
        number_of[n] = len(lines)
    line = number_of[call] - (fault in ("late", "dead"))
    return Trial(seed, fault, rank, ranks, call, draw.randrange(1, 3), line, "\n".join(lines) + "\n", groups)


def run_trial(one: Trial, backend: str, store: Any, rank: int) -> str:
    """One rank's part: the error that it got, or what it said on stderr about a rank that was late."""
    said = _Said(store)
    warnings.simplefilter("ignore")  # torch's go to stderr, too
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(said):
        path = Path(folder) / "program.py"
        path.write_text(one.source)
        limit = timedelta(seconds=LIMIT)  # of every group: without one, a group waits for half an hour
        dist.init_process_group(backend, rank=rank, world_size=one.ranks, store=store, timeout=limit)
        made: dict[tuple[int, ...], Any] = {}
        for ranks in one.groups:
            made.setdefault(tuple(ranks), dist.new_group(ranks, limit) if tuple(ranks) not in made else None)
        orders = [dist.new_group(list(range(one.ranks)), limit) for _ in range(2)]
        space: dict[str, Any] = {"dist": dist}
        exec(compile(one.source, str(path), "exec"), space)

        try:
            for number in range(3):
                is_faulty = rank == one.rank and number == one.round

                def here(n: int, fault: str, is_faulty: bool = is_faulty) -> bool:
                    return is_faulty and n == one.call and one.fault == fault

                def x(n: int) -> Any:
                    dtype = torch.float64 if here(n, "type") else torch.float32
                    return torch.ones(4 + 2 * n + here(n, "shape"), dtype=dtype)

                def wide(n: int) -> Any:
                    return torch.cat([x(n)] * len(one.groups[n]))

                def times(n: int) -> int:
                    if rank not in one.groups[n]:
                        return 0
                    return 0 if here(n, "left out") else 2 if here(n, "one more") else 1

                def late(n: int, number: int = number) -> None:
                    if here(n, "late"):
                        store.wait(["somebody spoke"], timedelta(seconds=LIMIT))

                def dead(n: int) -> None:
                    if here(n, "dead"):
                        os._exit(0)

                space["program"](
                    number,
                    x,
                    lambda n: made[tuple(one.groups[n])],
                    lambda n: one.groups[n][1 if here(n, "root") else 0],
                    lambda n: len(one.groups[n]),
                    wide,
                    times,
                    lambda n: here(n, "operation"),
                    lambda n: orders[::-1] if here(n, "order") else orders,
                    late,
                    dead,
                )
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
    return said.getvalue()


class _Said(io.StringIO):
    """stderr of a rank. When it says who is late, the late rank goes on."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store

    def write(self, text: str) -> int:
        if "late" in text:
            self._store.set("somebody spoke", "1")
        return super().write(text)


def names_it(one: Trial, sentence: str) -> bool:
    """True if a sentence names the rank that is faulty, and the line of the fault.

    A rank that leaves a call out, or makes one more, may then wait in another group: that is a circular wait.
    """
    if "circular wait" in sentence and one.fault in ("order", "left out", "one more"):
        return re.search(rf"\brank {one.rank} is in\b", sentence) is not None and _line(one, sentence)
    named = re.search(rf"(^|: |, )rank {one.rank} (left out|made|is late|died|ended|has)", sentence)
    return named is not None and _line(one, sentence)


def _line(one: Trial, sentence: str) -> bool:
    lines = {one.line, one.line + 1} if one.fault in ("late", "dead") else {one.line}  # the call that it did not make
    return any(f"program.py:{line}" in sentence for line in lines)


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        print(trial(number).source)
