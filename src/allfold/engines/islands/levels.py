"""What the two levels of a call are made of: a collective inside the island, and messages of some ranks across."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...fabrics.fabric import FOREVER
from ...ops import OPS, Op
from ...programs.messages import MessagePrograms
from ..arrays import Flat
from ..engine import Call
from .job import Job
from .wire import Run, folding

if TYPE_CHECKING:
    from .engine import Islands


def inside(
    engine: Islands,
    job: Job,
    collective: str,
    input: Flat | None,
    output: Flat | None,
    op: Op | None = None,
    root: int = 0,
) -> None:
    """A collective of this island. An average divides later, where the last contribution comes in.

    It has no limit of its own: whoever watches over the call ends it.
    """
    if len(engine.island_ranks) == 1:
        if input is not None and output is not None:
            output[...] = input
        return
    op = OPS["sum"] if op is not None and op.averages else op
    dtype = None if input is None and output is None else job.dtype.name
    engine.island.run(
        Call(collective, input=input, output=output, op=op, root=root, timeout=FOREVER, dtype=dtype), False
    )


def compare_all(engine: Islands, job: Job) -> None:
    """Let no rank of the island go on before its first one has compared the call with the others.

    For calls in which a rank may have nothing to wait for: it too must hear if the ranks make different calls.
    """
    engine.compare(job)
    inside(engine, job, "barrier", None, None)


def across_by(
    engine: Islands,
    job: Job,
    made: MessagePrograms,
    ranks: Sequence[int],
    input: Flat | None,
    output: Flat | None,
    elements: int,
    tag: int | None = None,
) -> Run:
    """A message program of some of the ranks."""
    tag = job.tag() if tag is None else tag
    fold = folding(job.call.op, job.dtype, engine.size)
    number = list(ranks).index(engine.rank)
    return Run(
        made, number, ranks, engine.links, engine.memory, tag, input, output, elements, job.dtype, fold, job.left
    )


def speakers_of(engine: Islands, root: int) -> tuple[list[int], int]:
    """The rank of each island that crosses in a rooted collective: the root, elsewhere the first; and that of this one."""
    speakers = [root if root in island else island[0] for island in engine.islands]
    return speakers, speakers[engine.islands.index(engine.island_ranks)]


def as_bytes(array: Flat) -> Flat:
    return array.reshape(-1).view(np.uint8)
