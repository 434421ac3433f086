"""The board and the digest of the check, without torch."""

from __future__ import annotations

import mmap
import os
import random
import struct

import numpy as np

from allfold import _native

_KEYS = (0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3)
_ENDS = (0x2D358DCCAA6C78A5, 0x8BB84B93962EACC9)
_MASK = 2**64 - 1


def _product(left: int, right: int) -> int:
    product = left * right
    return (product & _MASK) ^ (product >> 64)


def _expected(data: bytes, seed: int) -> int:
    """The digest, from its description."""
    lanes = [seed ^ _KEYS[(lane + 1) % 4] for lane in range(4)]
    padded = data + bytes(-len(data) % 16)
    for place in range(0, len(padded), 16):
        lane = place // 16 % 4
        one, two = (int.from_bytes(padded[place + 8 * half : place + 8 * half + 8], "little") for half in (0, 1))
        lanes[lane] = _product(one ^ _KEYS[lane], two ^ lanes[lane])
    found = len(data) ^ seed
    for value in lanes:
        found = _product(found ^ _ENDS[0], value ^ _ENDS[1])
    return found


def _digest(data: np.ndarray, seed: int = 0) -> int:
    return _native.digest(data.ctypes.data, data.nbytes, seed)


def test_digest_is_that_of_its_description() -> None:
    draw = random.Random(1)
    for count in [0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 128, 1000]:
        data, seed = draw.randbytes(count), draw.getrandbits(64)
        assert _digest(np.frombuffer(data, np.uint8), seed) == _expected(data, seed), count


def test_digests_of_short_texts_differ() -> None:
    texts = [b"%d" % number for number in range(20_000)] + [bytes(count) for count in range(1, 100)]
    found = {_native.digest(np.frombuffer(text, np.uint8).ctypes.data, len(text), 0) for text in texts}
    assert len(found) == len(texts)


def test_digest_sees_swaps_and_pairs_of_flips() -> None:
    data = np.random.default_rng(1).standard_normal(512)
    before = _digest(data)
    for i, j in [(0, 1), (0, 2), (1, 9), (3, 8), (10, 500)]:
        swapped = data.copy()
        swapped[[i, j]] = swapped[[j, i]]
        assert _digest(swapped) != before, (i, j)
        for bit in (0, 31, 52, 63):
            flipped = data.view(np.uint64).copy()
            flipped[[i, j]] ^= np.uint64(1 << bit)
            assert _digest(flipped) != before, (i, j, bit)


def _boards(ranks: int) -> list[_native.CheckBoard]:
    descriptor = os.memfd_create("board")
    os.ftruncate(descriptor, _native.check_board_bytes(ranks))
    boards = [_native.CheckBoard(descriptor, ranks, rank) for rank in range(ranks)]
    os.close(descriptor)
    return boards


def test_the_last_to_come_sees_a_difference() -> None:
    boards = _boards(3)
    groups = [board.group(7, b"all", [0, 1, 2], rank) for rank, board in enumerate(boards)]
    assert [group.enter(5, b"one") for group in groups] == ["waiting", "waiting", "agreed"]
    assert groups[0].meet(0.0) == "agreed"
    assert groups[0].enter(6, b"two") == "waiting"
    assert groups[0].meet(0.01) == "waiting"
    assert [(rank, group, call) for rank, _, group, call in boards[1].waits()] == [(0, 7, 2)]
    assert groups[1].enter(8, b"other") == "differs"
    assert groups[0].meet(10.0) == "differs"
    assert boards[1].look(7).calls(0)[-1][3] == b"two"
    assert [group.last(2) for group in groups] == [1, 1, 1]


def test_only_the_first_failure_counts() -> None:
    first, second = _boards(2)
    group = second.group(9, b"all", [0, 1], 1)
    assert first.failure() is None
    assert first.fail(b"x" * 20_000)
    assert not second.fail(b"later")
    assert second.failure() == b"x" * 8000
    assert group.enter(1, b"call") == "failed"


def test_a_failure_is_there_when_fail_returns_even_if_another_rank_fails_at_the_same_time() -> None:
    pairs = [_boards(2) for _ in range(300)]
    turns = mmap.mmap(-1, 16)  # shared with the child

    def fail_together(own: int) -> int:
        absent = 0
        for number, pair in enumerate(pairs, 1):
            struct.pack_into("Q", turns, 8 * own, number)
            while struct.unpack_from("Q", turns, 8 * (1 - own))[0] < number:
                pass
            pair[own].fail(b"x" * 8000)
            absent += pair[own].failure() is None
        return absent

    child = os.fork()
    if child == 0:
        os._exit(min(fail_together(1), 100))
    absent = fail_together(0)
    assert (absent, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) == (0, 0)


def test_texts_and_calls_that_were_overwritten_are_gone_and_not_wrong() -> None:
    board, other = _boards(2)
    group = board.group(3, b"all", [0, 1], 0)
    for number in range(1000):
        group.enter(number, b"%d " % number + b"y" * 3000)
    calls = other.look(3).calls(0)
    assert [number for number, *_ in calls] == list(range(873, 1001))
    assert all(text in (b"", b"%d " % (number - 1) + b"y" * 3000) for number, _, _, text in calls)
    assert calls[-1][3] == b"999 " + b"y" * 3000


def test_groups_are_found_by_all_ranks_and_the_board_may_be_full() -> None:
    board, other = _boards(2)
    assert board.group(11, b"one", [0, 1], 0).id() == other.group(11, b"one", [0, 1], 1).id() == 11
    assert other.look(12) is None
    made = [board.group(100 + number, b"many", [0, 1], 0) for number in range(4500)]
    assert None in made
    assert len(board.groups()) == 1 + sum(group is not None for group in made)
