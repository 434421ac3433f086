"""Happens-before between the instructions of all ranks, with vector clocks.

An instruction's clock says, for every rank, how many of its instructions are known to be done before it: those before
it in its own program, and, through each wait, all that the awaited instruction knew. Progress only grows and a wait
only asks for "at least", so it does not matter in which order ranks run; here everybody runs as soon as it can, and
what runs at the same time is a *round*.

Instruction i of rank r is row `starts[r] + i`; a wait (q, n) is met when rank q has done n instructions. The extension
follows the clocks (`native/proof/happens_before.cpp`): there are as many as instructions, each with a number per rank.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import ScheduleError
from .rows import Ints, Lists


def rounds_of(starts: Ints, waits: Lists) -> Ints:
    """By instruction: the round in which it runs. Raises `ScheduleError` if a rank would wait forever."""
    when = _native.rounds(starts, *waits.columns)
    if when.min(initial=0) < 0:
        _refuse_cycle(starts, waits, when)
    return when


def needed_waits(starts: Ints, waits: Lists, when: Ints, horizon: int) -> NDArray[np.bool_]:
    """By wait: True if it is not implied by the waits before it.

    `horizon` limits for how many rounds a clock is remembered, and so the memory. A wait for an older instruction then
    only implies that this instruction is done. So some implied waits may be missed, but none is wrongly called implied.
    """
    return _native.needed_waits(starts, *waits.columns, when, horizon)


def first_unordered(starts: Ints, waits: Lists, when: Ints, earlier: Ints, later: Ints) -> int | None:
    """The place of a pair (earlier, later) of instructions that nothing orders; None if all are ordered.

    If there are several: one whose later instruction runs in the first round, and of those the first.
    """
    found = _native.first_unordered(starts, *waits.columns, when, earlier, later)
    return None if found < 0 else found


def _refuse_cycle(starts: Ints, waits: Lists, when: Ints) -> NoReturn:
    runs = np.concatenate([[0], np.cumsum(when >= 0)])
    done = runs[starts[1:]] - runs[starts[:-1]]
    blocked = (done < starts[1:] - starts[:-1]).nonzero()[0]
    rank = int(blocked[0])
    peer, count = next((peer, count) for peer, count in waits.of(int(starts[rank] + done[rank])) if count > done[peer])
    waiting = ", ".join(map(str, blocked[:8])) + (", …" if len(blocked) > 8 else "")
    message = (
        f"a cycle of waits: none of the ranks {waiting} can go on; rank {rank} at instruction {done[rank]} "
        f"waits until rank {peer} has done {count}, and it has done {done[peer]}"
    )
    raise ScheduleError(message, rank=rank)
