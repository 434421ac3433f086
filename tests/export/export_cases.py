"""What the tests of several formats share: all schedules, and MSCCL XML that is written by hand."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest

import allfold as af
from allfold.collectives import COLLECTIVES

EVERY = [
    (collective, name) for collective in COLLECTIVES for name in af.algorithms(collective) if collective != "barrier"
]
RANKS = (1, 2, 3, 4, 5, 8)


def grid(algorithms: list[tuple[str, str]], always: tuple[int, ...], in_turn: tuple[int, ...]) -> list[Any]:
    """Each algorithm with the ranks of `always` and one of `in_turn`; in make test-all with every number of ranks."""
    return [
        pytest.param(collective, name, ranks, marks=[] if ranks in (*always, turn) else [pytest.mark.exhaustive])
        for (collective, name), turn in zip(algorithms, cycle(in_turn), strict=False)
        for ranks in RANKS
    ]


def cases(collective: str, name: str, ranks: int) -> list[af.Schedule]:
    roots = [0, ranks - 1] if COLLECTIVES[collective].rooted else [None]
    return [af.schedule(collective, name, ranks, root) for root in roots]


def xml(*gpus: str, head: str = "") -> str:
    """Two GPUs that all_reduce two chunks, out of place unless told otherwise."""
    attributes = {"name": "mine", "proto": "LL", "nchannels": "1", "nchunksperloop": "2", "ngpus": str(len(gpus))}
    attributes |= {"coll": "allreduce", "inplace": "0", "outofplace": "1"}
    attributes |= dict(pair.split("=") for pair in head.split())
    words = " ".join(f'{key}="{value}"' for key, value in attributes.items())
    return f"<algo {words}>" + "".join(gpus) + "</algo>"


def gpu(rank: int, *blocks: str, sizes: tuple[int, int, int] = (2, 2, 2)) -> str:
    inputs, outputs, scratch = sizes
    inner = "".join(block.replace("TB", str(number)) for number, block in enumerate(blocks))
    return f'<gpu id="{rank}" i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="{scratch}">{inner}</gpu>'


def block(send: int, receive: int, *steps: str, channel: int = 0) -> str:
    """Steps as `type source destination [count] [waits thread-block.step] [!]`, `!` if another step waits for it."""
    lines = []
    for number, step in enumerate(steps):
        kind, source, target, *rest = step.split()
        count = next((word for word in rest if word.isdecimal()), "1")
        depid, deps = next((word.split(".") for word in rest if "." in word), ("-1", "-1"))
        lines.append(
            f'<step s="{number}" type="{kind}" srcbuf="{source[0]}" srcoff="{source[1:]}" dstbuf="{target[0]}" '
            f'dstoff="{target[1:]}" cnt="{count}" depid="{depid}" deps="{deps}" hasdep="{int("!" in rest)}"/>'
        )
    return f'<tb id="TB" send="{send}" recv="{receive}" chan="{channel}">{"".join(lines)}</tb>'
