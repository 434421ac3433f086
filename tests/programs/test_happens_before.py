"""Rounds, needed waits and unordered pairs, against clocks that are written out plainly here."""

from __future__ import annotations

import random

import numpy as np
import pytest
from each import each

from allfold import ScheduleError, UsageError, _native, algorithms, schedule
from allfold.programs.compile import compile
from allfold.programs.happens_before import first_unordered, needed_waits, rounds_of
from allfold.programs.rows import Lists, lists_of
from allfold.symbolic import order_of

Wait = tuple[int, int]  # a rank, and how many instructions it must have done


def drawn(rng: random.Random, acyclic: bool = True) -> list[list[list[Wait]]]:
    """By rank, by instruction: its waits. Where they have no cycle, they follow an order of all instructions."""
    ranks = rng.randint(1, 6)
    turns = [rank for rank in range(ranks) for _ in range(rng.randint(0, 12))]
    rng.shuffle(turns)
    made: list[list[list[Wait]]] = [[] for _ in range(ranks)]
    lengths = [turns.count(rank) for rank in range(ranks)]
    for rank in turns:
        limits = [len(one) for one in made] if acyclic else lengths
        peers = [peer for peer in range(ranks) if peer != rank and limits[peer]]
        chosen = rng.sample(peers, rng.randint(0, min(3, len(peers))))
        made[rank].append([(peer, rng.randint(max(1, limits[peer] - 6), limits[peer])) for peer in sorted(chosen)])
    return made


def columns(made: list[list[list[Wait]]]) -> tuple[np.ndarray, Lists]:
    starts = np.cumsum([0, *map(len, made)])
    flat = [(row, *wait) for row, waits in enumerate(w for program in made for w in program) for wait in waits]
    row, rank, count = np.array(flat, np.int64).reshape(-1, 3).T
    return starts, lists_of(row.copy(), rank.copy(), count.copy(), int(starts[-1]))


def plain_rounds(made: list[list[list[Wait]]]) -> list[list[int]]:
    """By rank: the rounds of its instructions, as far as it comes."""
    rounds: list[list[int]] = [[] for _ in made]
    now = 0
    while True:
        done = [len(one) for one in rounds]
        ready = [
            rank
            for rank, program in enumerate(made)
            if done[rank] < len(program) and all(done[peer] >= count for peer, count in program[done[rank]])
        ]
        if not ready:
            return rounds
        for rank in ready:
            rounds[rank].append(now)
        now += 1


def plain_clocks(made: list[list[list[Wait]]]) -> dict[Wait, list[int]]:
    """By rank and instruction: how many instructions of every rank are done before it or are itself."""
    rounds = plain_rounds(made)
    clocks: dict[Wait, list[int]] = {}
    everything = sorted((when, rank, at) for rank, one in enumerate(rounds) for at, when in enumerate(one))
    for _, rank, at in everything:
        heard = [clocks[peer, count - 1] for peer, count in made[rank][at]]
        before = clocks[rank, at - 1] if at else [0] * len(made)
        clocks[rank, at] = [max(column) for column in zip(before, *heard, strict=True)]
        clocks[rank, at][rank] = at + 1
    return clocks


def plain_needed(made: list[list[list[Wait]]], horizon: int) -> list[bool]:
    """By wait: whether it tells something new, if what was known longer than `horizon` rounds ago is forgotten."""
    rounds = plain_rounds(made)
    known = [[0] * len(made) for _ in made]
    kept: dict[Wait, list[int]] = {}
    needed: dict[tuple[int, int, int], bool] = {}
    for now in range(max((one[-1] for one in rounds if one), default=-1) + 1):
        here = [(rank, one.index(now)) for rank, one in enumerate(rounds) if now in one]
        many = sum(len(made[rank][at]) for rank, at in here) > len(here)
        for rank, at in here:
            order = list(enumerate(made[rank][at]))
            if many:
                order.sort(key=lambda wait: -rounds[wait[1][0]][wait[1][1] - 1])
            for number, (peer, count) in order:
                needed[rank, at, number] = known[rank][peer] < count
                if needed[rank, at, number]:
                    known[rank][peer] = count
                    if now - rounds[peer][count - 1] <= horizon:
                        known[rank] = [max(pair) for pair in zip(known[rank], kept[peer, count - 1], strict=True)]
            known[rank][rank] = at + 1
            kept[rank, at] = list(known[rank])
    return [needed[key] for key in sorted(needed)]


@each("seed", range(200))
def test_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    made = drawn(rng)
    starts, waits = columns(made)
    when = rounds_of(starts, waits)
    assert when.tolist() == [now for one in plain_rounds(made) for now in one]
    for horizon in (0, 1, 4, 100):
        assert needed_waits(starts, waits, when, horizon).tolist() == plain_needed(made, horizon)
    clocks = plain_clocks(made)
    total = int(starts[-1])
    rank = np.arange(len(made)).repeat(np.diff(starts))
    pairs = [(a, b) for a in range(total) for b in range(total) if rank[a] != rank[b]]
    pairs = rng.sample(pairs, min(len(pairs), 60))
    earlier, later = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    unordered = [
        (int(when[b]), number)
        for number, (a, b) in enumerate(pairs)
        if clocks[int(rank[b]), int(b - starts[rank[b]])][rank[a]] <= a - starts[rank[a]]
    ]
    found = first_unordered(starts, waits, when, earlier, later)
    assert found == (min(unordered)[1] if unordered else None)


def test_who_waits_forever_is_named() -> None:
    stuck = 0
    for seed in range(300):
        made = drawn(random.Random(seed), acyclic=False)
        starts, waits = columns(made)
        done = [len(one) for one in plain_rounds(made)]
        blocked = [rank for rank, program in enumerate(made) if done[rank] < len(program)]
        if not blocked:
            rounds_of(starts, waits)
            continue
        stuck += 1
        rank = blocked[0]
        peer, count = next(wait for wait in made[rank][done[rank]] if wait[1] > done[wait[0]])
        with pytest.raises(ScheduleError) as error:
            rounds_of(starts, waits)
        assert f"none of the ranks {', '.join(map(str, blocked))} can go on" in str(error.value)
        assert f"rank {rank} at instruction {done[rank]} waits until rank {peer} has done {count}," in str(error.value)
    assert stuck > 50


def test_many_ranks_are_followed_in_parts() -> None:
    """Of more ranks than are followed at once, a missing wait is found wherever it is."""
    made = compile(schedule("all_reduce", "ring", 300))
    starts, waits = made.starts, made.waits
    when = rounds_of(starts, waits)
    rank = made.rank
    for row in (0, len(rank) // 2, len(rank) - 1):
        peer = (rank[row] + 1) % 300  # it hears of what the row has done, one round later and not before
        rows = np.arange(starts[peer], starts[peer + 1])
        told, untold = rows[when[rows] > when[row]], rows[when[rows] <= when[row]]
        if len(told):
            pair = np.array([row]), told[:1]
            assert first_unordered(starts, waits, when, *pair) is None
        assert first_unordered(starts, waits, when, np.full(len(untold), row), untold) == 0


def test_long_programs() -> None:
    """More instructions than 16 bits can count."""
    long = 70_000
    starts, waits = columns([[[] for _ in range(long)], [[(0, long - 1)], [(0, long)]]])
    when = rounds_of(starts, waits)
    assert when[-2:].tolist() == [long - 1, long]
    assert needed_waits(starts, waits, when, 4).all()
    earlier, later = np.array([long - 2, long - 1, long - 1]), np.array([long, long + 1, long])
    assert first_unordered(starts, waits, when, earlier[:2], later[:2]) is None
    assert first_unordered(starts, waits, when, earlier, later) == 2


def test_what_is_out_of_range_is_refused() -> None:
    starts, waits = columns([[[]], [[(0, 1)]]])
    when = rounds_of(starts, waits)
    outside = Lists(waits.starts, waits.rank, waits.value + 1)
    with pytest.raises(UsageError, match="instructions that do not exist"):
        rounds_of(starts, outside)
    with pytest.raises(UsageError, match="rows that do not exist"):
        first_unordered(starts, waits, when, np.array([0]), np.array([2]))
    with pytest.raises(UsageError, match="without a round"):
        needed_waits(starts, waits, when - 1, 4)
    with pytest.raises(UsageError, match="before what it waits for"):
        needed_waits(starts, waits, when[::-1].copy(), 4)
    with pytest.raises(UsageError, match="different lengths"):
        rounds_of(starts, Lists(waits.starts, waits.rank, waits.value[:0]))
    one, write = np.array([0]), np.array([True])
    with pytest.raises(UsageError, match="rows that do not exist"):
        _native.conflicts(one + 2, one, write, when, starts)
    with pytest.raises(UsageError, match="different lengths"):
        _native.conflicts(one, one, write, when[:1], starts)
    for count in (4, 6):
        with pytest.raises(TypeError, match=f"expected 5 arguments, got {count}"):
            _native.conflicts(*[one, one, write, when, starts, starts][:count])
    none, datum = np.zeros(0, np.int64), np.zeros(1, np.int32)
    with pytest.raises(UsageError, match="cells that do not exist"):
        _native.versions(np.array([0, 1]), np.array([0, 1]), np.array([0, 1]), one + 2, datum, datum, 2)
    with pytest.raises(UsageError, match="cells that hold nothing"):
        _native.versions(np.array([0, 1]), np.array([0, 1]), np.array([0, 1]), one + 1, datum, datum, 2)
    with pytest.raises(UsageError, match="a fold of nothing"):
        _native.versions(np.array([0, 1]), np.array([0, 1]), np.array([0, 0]), none, datum, datum, 2)
    move, cells = np.zeros(1, np.int32), np.zeros(2, np.int32)
    with pytest.raises(UsageError, match="cells that do not exist"):
        _native.folds_of(move, move, move, move + 2, move, 2, 1, 1, 1, cells, cells, np.zeros(2, np.int64), 2)


@each("spread", [1, 2**45])  # the second one needs keys of more than 64 bits
@each("seed", range(20))
def test_conflicts_are_those_of_a_plain_search(seed: int, spread: int) -> None:
    rng = random.Random(seed)
    starts = np.cumsum([0, *(rng.randint(0, 5) for _ in range(rng.randint(1, 4)))])
    rows = int(starts[-1])
    rank = np.arange(len(starts) - 1).repeat(np.diff(starts))
    when = [rng.randint(0, 6) * spread // 2**20 for _ in range(rows)]
    accesses = [(rng.randrange(rows), rng.randint(0, 4) * spread, rng.random() < 0.4) for _ in range(rows * 4)]
    ordered = sorted(accesses, key=lambda access: (access[1], when[access[0]], access[2]))
    after, before = [], []
    for at, (row, place, writes) in enumerate(ordered):
        last = [one for one, where, wrote in ordered[:at] if wrote][-1:]
        if last and [where for _, where, wrote in ordered[:at] if wrote][-1] == place:
            after.append((last[0], row))
        following = [(one, where) for one, where, wrote in ordered[at + 1 :] if wrote][:1]
        if not writes and following and following[0][1] == place:
            before.append((row, following[0][0]))
    wanted = [(one, other) for one, other in after + before if rank[one] != rank[other]]
    columns = [np.array([access[i] for access in accesses], kind) for i, kind in enumerate((np.int64, np.int64, bool))]
    found = _native.conflicts(*columns, np.array(when, np.int64), starts)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == wanted


@pytest.mark.parametrize("highest", [1, 2, 2000, 2**40, 2**62])
def test_order_is_stable(highest: int) -> None:
    rng = np.random.default_rng(highest)
    for count in (0, 1, 2, 1000, 5000):
        for spread in (1, 3, highest):
            keys = rng.integers(0, spread, count) * (highest // spread)
            assert (order_of(keys) == keys.argsort(kind="stable")).all()


def test_every_algorithm_needs_the_waits_that_it_keeps() -> None:
    """Waits that are left are needed: what is thrown away is implied, and no more than that is left."""
    for name in algorithms("all_reduce"):
        made = compile(schedule("all_reduce", name, 7))
        when = rounds_of(made.starts, made.waits)
        again = _native.needed_waits(made.starts, *made.waits.columns, when, 4)
        assert again.all(), name
