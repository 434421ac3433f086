"""Memory on a GPU that all ranks of a group reach: a call on arrays in it copies nothing.

A block is made by all ranks together, each its own part, and opened by all. It is given back when every rank has let
its part go, with the next block that is made. The arrays of a call may use it directly if they are at the same place of
the same block on every rank, which the ranks compare like everything else about a call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...errors import DeviceError, UsageError
from ...wording import name_ranks
from ..buffer import Buffer
from .driver import GpuDriver

_BLOCK_SHIFT = 42  # a place is a number of a block, and a byte in it
_MOST_BLOCKS = 1024
_MADE = struct.Struct("=64sq?")  # handle, bytes, whether all went well


class SharedBlock(NamedTuple):
    bytes: int
    pointers: list[int]  # by rank; the rank's own one is where its part is


class Reached(NamedTuple):
    """The arrays of a call, on all ranks."""

    where: int
    pointers: tuple[list[int], list[int]]  # of the input and of the output, by rank


class Blocks:
    """The blocks of one group on one GPU."""

    def __init__(self, device: GpuDriver, context: int, rank: int, exchanged: Callable[[bytes], list[bytes]]) -> None:
        self._device, self._context, self._rank, self._exchanged = device, context, rank, exchanged
        self._blocks: dict[int, SharedBlock] = {}
        self._released: set[int] = set()

    def new(self, bytes: int) -> tuple[int, int]:
        """Make a block, together with all ranks: its number, for `let_go`, and the address of this rank's part."""
        device = self._device
        with device.within(self._context):
            self._give_back()
            number = next(one for one in range(1, _MOST_BLOCKS) if one not in self._blocks)
            trouble, own, handle = "", 0, b""
            try:
                own = device.allocate(max(bytes, 1))
                handle = device.handle_of(own)
            except DeviceError as error:
                trouble = str(error)
            made = [_MADE.unpack(one) for one in self._exchanged(_MADE.pack(handle, bytes, not trouble))]
            if len({one[1] for one in made}) > 1:
                trouble = (
                    f"the ranks asked for {', '.join(str(one[1]) for one in made)} bytes; expected the same of all"
                )
            pointers: list[int] = []
            try:
                if all(one[2] for one in made) and not trouble:
                    for rank, (theirs, _, _) in enumerate(made):
                        pointers.append(own if rank == self._rank else device.open(theirs))
            except DeviceError as error:
                trouble = str(error)
            well = [one[0] for one in self._exchanged(struct.pack("=?", len(pointers) == len(made)))]
            if not all(well):
                self._close(pointers)
                self._exchanged(b"\0")
                if own:
                    device.free(own)
                failed = [rank for rank, is_well in enumerate(well) if not is_well]
                raise UsageError(f"empty on the GPU: {trouble or f'{name_ranks(failed)} could not'}")
        self._blocks[number] = SharedBlock(bytes, pointers)
        return number, own

    def let_go(self, number: int) -> None:
        """This rank no longer uses its part."""
        self._released.add(number)

    def find(self, source: Buffer | None, target: Buffer | None) -> Reached | None:
        """The addresses of a call's arrays on all ranks, if all of them are in blocks."""
        where, pointers = 0, list[list[int]]()
        for array in (source, target):
            if array is None:
                pointers.append([])
                continue
            number = self._block_of(array)
            if not number:
                return None
            block = self._blocks[number]
            start = array.pointer - block.pointers[self._rank]
            where = where * 31 + (number << _BLOCK_SHIFT) + start
            pointers.append([pointer + start for pointer in block.pointers])
        return Reached(where % (1 << 62), (pointers[0], pointers[1]))

    def _block_of(self, array: Buffer) -> int:
        for number, block in self._blocks.items():
            start = array.pointer - block.pointers[self._rank]
            if start >= 0 and start + array.bytes <= block.bytes:
                return number
        return 0

    def _give_back(self) -> None:
        """Free the blocks that all ranks have let go."""
        own = np.zeros(_MOST_BLOCKS, bool)
        own[list(self._released)] = True
        everybody = [np.unpackbits(np.frombuffer(one, np.uint8)) for one in self._exchanged(np.packbits(own).tobytes())]
        gone = [int(number) for number in np.flatnonzero(np.logical_and.reduce(everybody))]
        if gone:
            # What this rank's calls do with them must be over before any rank frees its part.
            self._device.synchronize(self._device.lane(self._context).stream)
            for number in gone:
                self._close(self._blocks[number].pointers)
            self._exchanged(b"\0")
            for number in gone:
                self._device.free(self._blocks.pop(number).pointers[self._rank])
                self._released.discard(number)
        if len(self._blocks) >= _MOST_BLOCKS - 1:
            raise UsageError(f"empty on the GPU: there are {len(self._blocks)} tensors already, the most there can be")

    def _close(self, pointers: list[int]) -> None:
        for rank, pointer in enumerate(pointers):
            if rank != self._rank:
                self._device.close(pointer)

    def leave(self) -> None:
        """Close the other ranks' parts of all blocks: this rank's stream no longer uses them."""
        for block in self._blocks.values():
            self._close(block.pointers)

    def free(self) -> bool:
        """Free this rank's parts, which no other rank uses any more; True once none is held by a tensor."""
        for number in [one for one in self._blocks if one in self._released]:
            self._device.free(self._blocks.pop(number).pointers[self._rank])
        return not self._blocks
