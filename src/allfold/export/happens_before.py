"""The order of events in threads that wait for each other, and races between them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ScheduleError, UsageError

Place = TypeVar("Place", bound=Hashable)

_MOST_CLOCKS = 2**27  # numbers in all clocks; half a gigabyte


@dataclass(frozen=True)
class Happening:
    """An order in which all actions can happen. If there is none, `stuck` waits forever for `blocking`."""

    order: list[int]
    stuck: int
    blocking: int
    thread: Sequence[int]
    position: Sequence[int]
    clocks: NDArray[np.int32]  # by action and thread: how many actions of the thread are certainly done

    def before(self, first: int, second: int) -> bool:
        """Is the first action done before the second begins, however fast the threads are?"""
        return bool(self.clocks[second, self.thread[first]] > self.position[first])


class Accesses(Generic[Place]):
    """The uses of every place of memory so far. Two uses that nothing orders, one of them a write, are a race."""

    def __init__(self, happening: Happening, race: Callable[[int, int, Place], ScheduleError]) -> None:
        self._happening, self._race = happening, race
        self._writer: dict[Place, int] = {}
        self._readers: dict[Place, list[int]] = defaultdict(list)

    def take(self, action: int, reads: Iterable[Place], writes: Iterable[Place]) -> None:
        """Note what an action uses; actions come in an order in which they can happen."""
        for places, is_written in ((reads, False), (writes, True)):
            for place in places:
                before = [self._writer[place]] if place in self._writer else []
                for other in before + (self._readers[place] if is_written else []):
                    if other != action and not self._happening.before(other, action):
                        raise self._race(other, action, place)
                if is_written:
                    self._writer[place], self._readers[place] = action, []
                else:
                    self._readers[place].append(action)


def run_threads(
    thread: Sequence[int], position: Sequence[int], needs: Sequence[Sequence[int]], space: Sequence[Sequence[int]]
) -> Happening:
    """Run all actions: `thread` and `position` say whose they are, `needs` what each waits for.

    The actions in `space` must also be done first, but do not order memory accesses: they only make room.
    """
    total = len(thread)
    threads = max(thread, default=-1) + 1
    if total * threads > _MOST_CLOCKS:
        raise UsageError(f"{total} actions of {threads} thread blocks are too many to follow here")
    followers: list[list[int]] = [[] for _ in range(total)]
    missing = [0] * total
    for action in range(total):
        for other in {*needs[action], *space[action]}:
            followers[other].append(action)
            missing[action] += 1
    ready = deque(action for action, count in enumerate(missing) if count == 0)
    clocks = np.zeros((total, threads), np.int32)
    rows = list(clocks)
    order = []
    while ready:
        action = ready.popleft()
        order.append(action)
        clock = rows[action]
        for other in needs[action]:
            np.maximum(clock, rows[other], out=clock)
        clock[thread[action]] = position[action] + 1
        for follower in followers[action]:
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    stuck = blocking = -1
    if len(order) < total:
        done = set(order)
        # The first action of a thread that is not done and does not wait for its own thread.
        stuck = next(
            action for action in range(total) if action not in done and (position[action] == 0 or action - 1 in done)
        )
        blocking = next(other for other in [*needs[stuck], *space[stuck]] if other not in done)
    return Happening(order, stuck, blocking, thread, position, clocks)
