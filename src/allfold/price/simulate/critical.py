"""The critical path: from the last message back to the beginning, always along what was waited for last.

A message can be delayed twice: before it leaves (by the data it carries, or by the port) and before it lands (by the
chunk, or because the rank is combining something else). For both, the simulation records the last message that was
waited for, and which moment of that message ended the wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .fairness import Floats, Ints

NOBODY = -1
AT_POSTED, AT_SENT, AT_ACCEPTED, AT_TAKEN, AT_END = range(5)
"""Waiting for message m until one of these moments is encoded as 5 · m + moment.

Its sender posts it, and it starts when its receiver has accepted it. Sent and taken are the same time: `AT_TAKEN` is
used by those who wait at its destination.
"""


def walk(
    moments: tuple[Floats, Floats, Floats, Floats],
    ends: tuple[Sequence[int], Sequence[int]],
    before: Sequence[int],
    behind: Sequence[int],
) -> tuple[Ints, Ints, Floats]:
    """The messages of the path in order of time, how far each is shifted, and from when to when it delayed the end.

    `moments` are the times at which each message was posted, started, was sent and ended; `ends` are its ranks. Where
    one message stands for several, the one meant is the one that met its follower, at the rank where the follower left
    or landed.
    """
    posted, started, sent, ended = moments
    when = {AT_POSTED: posted, AT_SENT: sent, AT_ACCEPTED: started, AT_TAKEN: sent, AT_END: ended}
    path: list[int] = []
    shifts: list[int] = []
    times = [float(ended.max(initial=0.0))]
    held = int(ended.argmax()) * 5 + AT_END if len(before) else NOBODY
    shift = 0
    while held != NOBODY:
        message, moment = divmod(held, 5)
        path.append(message)
        shifts.append(shift)
        lands = moment == AT_END and behind[message] != NOBODY
        held = behind[message] if lands else before[message]
        if held != NOBODY:
            at_destination = held % 5 >= AT_ACCEPTED
            met_there = lands or held % 5 in (AT_ACCEPTED, AT_TAKEN)
            shift += ends[met_there][message] - ends[at_destination][held // 5]
        times.append(0.0 if held == NOBODY else min(times[-1], float(when[held % 5][held // 5])))
    edges = np.asarray(times[::-1])
    return (
        np.asarray(path[::-1], np.int64),
        np.asarray(shifts[::-1], np.int64),
        np.stack([edges[:-1], edges[1:]], axis=1),
    )
