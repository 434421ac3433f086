"""The processes of the other ranks of an island: which have ended, and a wait that an end of one interrupts."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable, Mapping

from ... import _native

_LOOK_SECONDS = 0.1  # also for what nothing wakes the thread for: timeouts, connections that have ended
_BLIND_SECONDS = (
    0.02  # if the kernel does not report the end of a process: it is in another container, or this is an old kernel
)


class IslandWatch:
    """Notices that other ranks of the island have ended. Only one thread waits here."""

    def __init__(self, bell: int, arenas: Mapping[int, _native.Arena]) -> None:
        """`arenas`: of the ranks that are processes. `bell`: a descriptor that also ends a wait when it can be read."""
        self._bell, self._arenas = bell, dict(arenas)
        self._poll = select.poll()  # select() takes no descriptor above 1023
        self._poll.register(bell, select.POLLIN)
        self._ends: dict[int, int] = {}  # by descriptor of a process: its rank
        for rank, arena in self._arenas.items():
            with contextlib.suppress(OSError):
                if process := _native.process_of(arena):
                    self._ends[os.pidfd_open(process)] = rank
        for descriptor in self._ends:
            self._poll.register(descriptor, select.POLLIN)
        self._is_blind = len(self._ends) < len(self._arenas)

    def wait(self) -> bytes:
        """Wait until it is time to look again. Returns the signals that were written to the bell."""
        ready = self._poll.poll(1000 * (_BLIND_SECONDS if self._is_blind else _LOOK_SECONDS))
        for descriptor, _ in ready:
            if descriptor != self._bell:
                self._forget(descriptor)
        return os.read(self._bell, 4096) if any(one == self._bell for one, _ in ready) else b""

    def dead(self, ranks: Iterable[int]) -> list[int]:
        """Those of the ranks whose processes have ended."""
        return [rank for rank in ranks if rank in self._arenas and not _native.is_alive(self._arenas[rank])]

    def close(self) -> None:
        for descriptor in list(self._ends):
            self._forget(descriptor)

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)
        del self._ends[descriptor]
