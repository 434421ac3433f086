"""Message programs: every algorithm's are sound, and what is not sound is refused."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

from allfold.collectives import COLLECTIVES
from allfold.errors import ScheduleError, UsageError
from allfold.programs.check_messages import check_messages
from allfold.programs.messages import InstructionKind, MessagePrograms, lower
from allfold.programs.versions import WORK
from allfold.registry import algorithms, schedule
from allfold.schedules import Schedule, build, copy, reduce
from allfold.symbolic import State

RANKS = (1, 2, 3, 4, 5, 8, 9)


def schedules(ranks: tuple[int, ...]) -> Iterator[Schedule]:
    for collective, promise in COLLECTIVES.items():
        for name in algorithms(collective):
            for count in ranks:
                for root in {0, count - 1} if promise.rooted else {None}:
                    try:
                        yield schedule(collective, name, count, root)
                    except UsageError:  # not for this number of ranks
                        continue


@pytest.mark.parametrize("ranks", [(2, 5, 9), pytest.param(RANKS, marks=pytest.mark.exhaustive)], ids=str)
def test_every_algorithm_runs_as_messages(ranks: tuple[int, ...]) -> None:
    """tests/language/test_algorithms.py proves the messages of other numbers of ranks, with all that `verify` proves."""
    proved = 0
    for one in schedules(ranks):
        check_messages(lower(one))
        proved += 1
    assert proved > 60 * len(ranks)


def test_what_one_rank_reads_of_another_in_a_step_is_one_message() -> None:
    built = schedule("all_reduce", "halving_doubling", 8)
    made = lower(built)
    pairs = [(message.step, message.source, message.destination) for message in made.messages]
    assert len(pairs) == len(set(pairs)) == 8 * built.steps


def lines_executed(work: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def long_pipeline(chunks: int, reduces: bool) -> Schedule:
    """Down a chain of three ranks, four chunks of one message per step; they come to the last rank in another order."""
    groups = [np.arange(first, first + 4)[::-1] for first in range(0, chunks, 4)]
    move = reduce if reduces else copy
    steps = [
        [move(groups[at], hop, hop + 1) for hop, at in ((0, step), (1, step - 1)) if 0 <= at < len(groups)]
        for step in range(len(groups) + 1)
    ]
    collective, root = ("reduce", 2) if reduces else ("broadcast", 0)
    return build(collective, "pipeline", 3, root, steps, chunks)


@pytest.mark.parametrize("reduces", [False, True])
def test_making_and_proving_takes_work_in_proportion_to_the_moves(reduces: bool) -> None:
    def prove(schedule: Schedule) -> None:
        check_messages(lower(schedule))

    work = [lines_executed(partial(prove, long_pipeline(size, reduces))) for size in (64, 512)]
    assert work[1] < 8 * work[0]


def changed(made: MessagePrograms, draw: random.Random) -> tuple[str, MessagePrograms]:
    """The same programs with one thing wrong."""
    rank = draw.choice([rank for rank, program in enumerate(made.programs) if program])
    program = list(made.programs[rank])
    at = draw.randrange(len(program))
    how = draw.choice(["left out", "twice", "early", "another chunk", "another order"])
    one = program[at]
    if how == "left out":
        del program[at]
    elif how == "twice":
        program.insert(at, one)
    elif how == "early":
        waits = [i for i, other in enumerate(program) if other.kind in (InstructionKind.AWAIT, InstructionKind.SENT)]
        if not waits:
            return "", made
        at = draw.choice(waits)
        del program[at]
    elif how == "another chunk" and one.kind == InstructionKind.FOLD:
        program[at] = one._replace(destination=one.destination._replace(at=one.destination.at + 1))
    elif how == "another order" and one.kind == InstructionKind.FOLD and len(one.sources) > 1:
        program[at] = one._replace(sources=one.sources[::-1])
    else:
        return "", made
    programs = list(made.programs)
    programs[rank] = tuple(program)
    return f"rank {rank}, instruction {at} ({one.kind.name}) {how}", MessagePrograms(
        made.schedule, made.messages, tuple(programs), made.work_slots
    )


def is_harmless(made: MessagePrograms, what: str) -> bool:
    """A fold may be made twice if it does not read what it writes, and left out if that is there already or nobody reads it,
    as what the last rank brings to an exscan."""
    rank, at = map(int, re.findall(r"\d+", what)[:2])
    one = made.programs[rank][at]
    if one.kind != InstructionKind.FOLD:
        return False
    if "twice" in what:
        return one.destination not in one.sources
    if "left out" not in what:
        return False
    read = {place for later in made.programs[rank][at + 1 :] for place in later.sources}
    read |= {place for message in made.messages if message.source == rank for place in message.places}
    if one.destination.space == WORK and one.destination not in read:
        return True
    return len(one.sources) == 1 and one.destination.at in told_twice(made.schedule, rank)


def told_twice(schedule: Schedule, rank: int) -> set[int]:
    """Chunks that a rank is sent though it has them: of the root of a broadcast, or a guest's slice that comes back."""
    state, told = State(schedule), set()
    while not state.done:
        before = state.expression.copy()
        target = state.advance().target
        again = target[(before[target] == state.expression[target]) & (target // state.width == rank)]
        told |= set((again % state.width).tolist())
    return told


def test_programs_with_something_wrong_are_refused() -> None:
    draw = random.Random(16)
    built = [one for one in schedules((2, 3, 4, 5)) if one.ranks > 1]
    refused = 0
    for _ in range(1500):
        made = lower(draw.choice(built))
        what, wrong = changed(made, draw)
        if not what or is_harmless(made, what):
            continue
        with pytest.raises(ScheduleError):
            check_messages(wrong)
            pytest.fail(f"{made.schedule.collective} {made.schedule.title}: {what} was accepted")
        refused += 1
    assert refused > 500


def test_ranks_that_wait_for_each_other_are_named() -> None:
    made = lower(schedule("all_gather", "direct", 2))
    # Both wait for the other's message before they send their own.
    programs = tuple(
        tuple(
            sorted(
                program,
                key=lambda one: (
                    (InstructionKind.POST, InstructionKind.AWAIT).index(one.kind) if one.kind in (0, 2) else 9
                ),
            )
        )
        for program in made.programs
    )
    with pytest.raises(ScheduleError, match=r"waits forever: message [01] from rank [01]"):
        check_messages(MessagePrograms(made.schedule, made.messages, programs, made.work_slots))
