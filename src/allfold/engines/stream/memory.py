"""The memory through which the ranks of a group reach each other in calls on the GPU, from the first meeting to the end.

Every rank has an arena in its GPU's memory, with two work areas, and in main memory a page with one word per rank, its
sheet of the ledger, and one byte per peer. All ranks open all of them. A rank may let its group go before its peers do,
so its memory stays until each living peer has set its byte there: the peer no longer uses any of it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _native
from ...errors import DeviceError
from ...wording import name_ranks
from ..engine import Call
from ..shared_memory.engine import SharedMemory
from .blocks import Blocks
from .compose import AREA_BYTES, WORD_BYTES
from .driver import GpuDriver
from .retire import standstill

_PAGE = 4096
_MOST_RANKS = _PAGE // WORD_BYTES
_MEETING = struct.Struct("=64sq?")  # handle of the arena, page, whether all went well
_STANDING = _PAGE // 4 - 1  # the last word of a page: the state of its rank
LEFT, FAILED, LATE, MISMATCHED = range(1, 5)  # it left; it gave up: otherwise, not over in time, or calls differed
_LET_GO = 1 << 30  # more than any wait is ahead


class GroupMemory:
    """One rank's memory of a group on a GPU, and its view of that of the others."""

    def __init__(self, engine: SharedMemory, device: GpuDriver, context: int, timeout: float | None) -> None:
        self.rank, self.size = engine.rank, engine.size
        self.others = [rank for rank in range(engine.size) if rank != engine.rank]
        self.arenas: list[int] = []
        self.words: list[int] = []
        self.arena = self._page = 0
        self._members, self._device, self._context = engine.members, device, context
        self._flags: list[np.ndarray[Any, Any]] = []
        self._done_with: list[np.ndarray[Any, Any]] = []  # by rank: who no longer uses its memory
        self._has_left = False
        self._lock = threading.Lock()
        self.blocks = Blocks(device, context, engine.rank, _exchange(engine))
        self.is_drained: Callable[[], bool] = lambda: True
        """Tells whether this rank's stream is past all calls of the group."""
        with device.within(context):
            self.ledger = self._meet(_exchange(engine, timeout))

    def _meet(self, exchanged: Callable[[bytes], list[bytes]]) -> _native.Ledger:
        """Exchange arenas and pages with all ranks. If one cannot, all raise."""
        device, own_arena = self._device, self._members[self.rank].arena
        self._page = own_arena.allocate(2 * _PAGE + WORD_BYTES + _native.Ledger.sheet_bytes)
        trouble, handle = "", b""
        try:
            if self.size > _MOST_RANKS:
                raise DeviceError(f"there are {self.size} ranks, and programs on the GPU take at most {_MOST_RANKS}")
            if not device.can_fold("sum", "int32"):
                raise DeviceError("there is no run-time compiler for GPU kernels (NVRTC) in this environment")
            self.arena = device.allocate(2 * AREA_BYTES)
            handle = device.handle_of(self.arena)
        except DeviceError as error:
            trouble = str(error)
        met = [_MEETING.unpack(one) for one in exchanged(_MEETING.pack(handle, self._page, not trouble))]
        records = []
        if all(one[2] for one in met) and not trouble:
            try:
                for rank, (theirs, page, _) in enumerate(met):
                    # On another GPU only if the two have access to each other's memory.
                    self.arenas.append(self.arena if rank == self.rank else device.open(theirs))
                    # A whole page of its own in the middle of the two, since pages are what is registered.
                    start = -(-page // _PAGE) * _PAGE
                    memory = self._members[rank].arena.view(start, _PAGE + WORD_BYTES + _native.Ledger.sheet_bytes)
                    flags = memory[:_PAGE]
                    self._done_with.append(memory[_PAGE : _PAGE + WORD_BYTES])
                    records.append(memory[_PAGE + WORD_BYTES :])
                    device.register(flags.ctypes.data, _PAGE)
                    self._flags.append(flags.view(np.uint32))
                    self.words.append(device.reached_at(flags.ctypes.data))
            except DeviceError as error:
                trouble = str(error)
        well = exchanged(struct.pack("=?", not trouble))
        if not all(one[0] for one in well):
            self._leave()
            exchanged(b"\0")  # nobody has this rank's memory open any more
            self._free()
            failed = [rank for rank, one in enumerate(well) if not one[0]]
            raise DeviceError(trouble or f"{name_ranks(failed)} cannot reach the others' memory on the GPU")
        for memory in (self._flags[self.rank], self._done_with[self.rank], records[self.rank]):
            memory[:] = 0
        exchanged(b"\0")
        return _native.Ledger(self.rank, records)

    # What the ranks see of each other --------------------------------------------------------------------------------

    def standing(self, rank: int) -> int:
        return int(self._flags[rank][_STANDING]) if self._flags else 0

    def stand(self, standing: int) -> None:
        if self._flags:
            self._flags[self.rank][_STANDING] = standing

    def is_alive(self, rank: int) -> bool:
        return _native.is_alive(self._members[rank].arena)

    def all_have_come_to(self, progress: int) -> bool:
        """True if the streams of all other ranks have published this progress."""
        if not self._flags:
            return False
        own = self._flags[self.rank]
        return all((int(own[rank * WORD_BYTES // 4]) - progress) & 0x80000000 == 0 for rank in self.others)

    def held_up_before(self, progress: int) -> list[int]:
        """The ranks whose streams have not come as far as this progress."""
        words = [int(flags[rank * WORD_BYTES // 4]) for rank, flags in enumerate(self._flags)]
        return [rank for rank, word in enumerate(words) if (word - progress) & 0x80000000]

    def let_go(self, progress: int) -> None:
        """Release this rank's stream, which has this progress: all its waits are satisfied. Its results are undefined."""
        if self._flags:
            self._flags[self.rank][:: WORD_BYTES // 4][self.others] = (progress + _LET_GO) & 0xFFFFFFFF

    # The end ---------------------------------------------------------------------------------------------------------

    def give_back(self) -> bool:
        """See `Retired`. First what belongs to others, when this rank's stream is past all calls; then its own."""
        lane = self._device.lane(self._context)
        with self._lock, standstill(lane) as is_idle:
            if not is_idle or not self.is_drained():
                return False
            with self._device.within(self._context):
                if not self._has_left:
                    self._leave()
                    # The driver's locks order this behind all that the rank did with the memory of the others.
                    for rank in self.others:
                        self._done_with[rank][self.rank] = 1
                if self._page:
                    own = self._done_with[self.rank]
                    if any(not own[rank] and self.is_alive(rank) for rank in self.others):
                        return False
                    self._free()
                return self.blocks.free()

    def _leave(self) -> None:
        """Close what belongs to the other ranks."""
        self.blocks.leave()
        for rank, arena in enumerate(self.arenas):
            if rank != self.rank:
                self._device.close(arena)
        for flags in self._flags:
            self._device.unregister(flags.ctypes.data)
        self.arenas, self._flags, self._has_left = [], [], True

    def _free(self) -> None:
        if self.arena:
            self._device.free(self.arena)
            self.arena = 0
        if self._page:
            self._members[self.rank].arena.release(self._page)
            self._page, self._done_with = 0, []


def _exchange(engine: SharedMemory, timeout: float | None = None) -> Callable[[bytes], list[bytes]]:
    """A function by which all ranks get the bytes of all."""

    def exchanged(own: bytes) -> list[bytes]:
        given = np.frombuffer(own, np.uint8)
        table = np.empty((engine.size, len(own)), np.uint8)
        engine.run(Call("all_gather", input=given, output=table, timeout=timeout), False)
        return [row.tobytes() for row in table]

    return exchanged
