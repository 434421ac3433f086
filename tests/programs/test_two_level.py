"""Programs in two levels: what calls across hosts follow by default is sound, and what is not sound is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from allfold.collectives import COLLECTIVES
from allfold.engines.islands.crossing import BUILT_IN
from allfold.errors import ScheduleError
from allfold.programs.check_messages import check_messages, check_segments, goes_along
from allfold.programs.messages import InstructionKind, MessagePrograms, lower
from allfold.programs.two_level import Islands
from allfold.proved import two_level_programs_of
from allfold.registry import schedule
from allfold.schedules import Schedule
from allfold.symbolic import State

ISLANDS: list[Islands] = [
    ((0,), (1, 2, 3)),
    ((0, 1), (2, 3)),
    ((0, 2), (1, 3)),
    ((0, 3), (1,), (2,)),
    ((0, 4), (1, 2, 6), (3,), (5,)),
]


def defaults(islands: Islands) -> Iterator[Schedule]:
    """What calls that name no algorithm follow, where that is in two levels."""
    ranks = sum(map(len, islands))
    for collective, promise in COLLECTIVES.items():
        for bytes in (0, 3 << 20):
            name, parameters = BUILT_IN.schedule(collective, islands, bytes)
            for root in (range(ranks) if promise.rooted else (None,)) if "groups" in parameters else ():
                yield schedule(collective, name, ranks, root, **parameters)


@pytest.mark.parametrize("islands", ISLANDS)
def test_what_calls_across_hosts_follow_is_proved_with_collectives_of_islands(islands: Islands) -> None:
    host = {rank: number for number, island in enumerate(islands) for rank in island}
    for one in defaults(islands):
        made = lower(one, islands)
        check_messages(made)
        assert all(host[message.source] != host[message.destination] for message in made.messages)
        assert {call.island for call in made.collectives} == {island for island in islands if len(island) > 1}
        if one.promise.in_place and one.promise.carries_data and not one.promise.has_order:
            for ahead in (2, None):
                check_segments(made, State(one).run_to_end(), ahead)


def changed(made: MessagePrograms, draw: random.Random) -> MessagePrograms | None:
    """The same programs, with one thing about a collective of an island wrong."""
    places = [
        (rank, at)
        for rank, program in enumerate(made.programs)
        for at, one in enumerate(program)
        if one.kind == InstructionKind.COLLECTIVE
    ]
    rank, at = draw.choice(places)
    program = list(made.programs[rank])
    one, call = program[at], made.collectives[program[at].message]
    how = draw.choice(["left out", "twice", "another root", "another place", "another order", "another collective"])
    if how == "left out":
        del program[at]
    elif how == "twice":
        program.insert(at, one)
    elif how == "another place" and one.into:
        program[at] = one._replace(into=tuple(place._replace(at=place.at + 1) for place in one.into))
    elif how == "another order" and at + 1 < len(program) and program[at + 1].kind == InstructionKind.SEND:
        program[at : at + 2] = program[at + 1], one
    elif how == "another root" and call.root is not None:
        collectives = list(made.collectives)
        collectives[one.message] = call._replace(root=(call.root + 1) % len(call.island))
        return replace(made, collectives=tuple(collectives))
    elif how == "another collective":
        other = {"reduce": "broadcast", "broadcast": "reduce", "gather": "scatter", "all_gather": "reduce_scatter"}
        if call.name not in other:
            return None
        collectives = list(made.collectives)
        collectives[one.message] = call._replace(name=other[call.name])
        return replace(made, collectives=tuple(collectives))
    else:
        return None
    programs = list(made.programs)
    programs[rank] = tuple(program)
    return replace(made, programs=tuple(programs))


def test_collectives_of_islands_with_something_wrong_are_refused() -> None:
    draw, refused = random.Random(35), 0
    built = [(one, islands) for islands in ISLANDS for one in defaults(islands) if one.promise.carries_data]
    for _ in range(250):
        one, islands = draw.choice(built)
        wrong = changed(lower(one, islands), draw)
        if wrong is not None:
            with pytest.raises(ScheduleError):
                check_messages(wrong)
                pytest.fail(f"{one.collective} {one.title} was accepted:\n{wrong.describe(0)}")
            refused += 1
    assert refused > 100


def test_a_result_is_not_completed_inside_an_island() -> None:
    # There an average is a sum, and nobody would divide it.
    made = lower(schedule("reduce", "driver", 3), ((0, 1, 2),))
    with pytest.raises(ScheduleError, match="averages are not divided"):
        check_messages(made)


@pytest.mark.parametrize(
    ("built", "islands", "why"),
    [
        (schedule("all_reduce", "ring", 4), ((0, 1), (2, 3)), "inside islands and between them"),
        (
            schedule("all_reduce", "hierarchical", 6, groups=[[0, 1, 2], [3, 4, 5]]),
            ((0, 1, 2), (3, 4, 5)),
            "collective",
        ),
    ],
)
def test_a_schedule_that_is_not_in_two_levels_is_refused(built: Schedule, islands: Islands, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        lower(built, islands)


def all_reduce(name: str, **parameters: str) -> tuple[MessagePrograms, State]:
    islands = ((0, 1), (2, 3), (4, 5))
    groups = [list(island) for island in islands]
    built = schedule("all_reduce", name, 6, groups=groups, **parameters)
    return lower(built, islands), State(built).run_to_end()


def test_a_buffer_is_cut_only_where_every_element_is_computed_alike() -> None:
    made, state = all_reduce("hierarchical", up="driver", across="ring", down="driver")
    check_messages(made, state)
    with pytest.raises(ScheduleError, match="would change its results"):
        check_segments(made, state, 2)


def test_ranks_that_wait_forever_between_two_segments_are_named() -> None:
    made, state = all_reduce("two_level", scatter="direct", across="direct", gather="direct")
    check_segments(made, state, 2)
    # Rank 1 begins a segment with the last collective of its island, rank 0 with the first alone.
    begins = (made.begins[0], len(made.programs[1]), *made.begins[2:])
    with pytest.raises(ScheduleError, match=r"in segments, rank [0-5] waits forever"):
        check_segments(replace(made, begins=begins), state, 2)


def test_one_message_from_each_leader_to_each_other_one_travels_with_the_comparison_of_the_call() -> None:
    made, _ = all_reduce("hierarchical", up="driver", across="naive", down="driver")
    assert goes_along(made, [0, 2, 4])
    assert not goes_along(made, [0, 2, 5])
    for across in ("direct", "ring"):
        made, _ = all_reduce("hierarchical", up="driver", across=across, down="driver")
        assert not goes_along(made, [0, 2, 4])


def test_a_rank_that_sends_only_after_a_message_has_arrived_sends_no_data_with_the_comparison_of_the_call() -> None:
    groups = ((0, 1), (2, 3), (4, 5), (6, 7))

    def broadcast(root: int, across: str) -> MessagePrograms:
        by = (("across", across), ("down", "driver"))
        return two_level_programs_of("broadcast", "hierarchical", root, groups, by, None).programs

    assert goes_along(broadcast(2, "driver"), [0, 2, 4, 6])
    assert not goes_along(broadcast(3, "driver"), [0, 2, 4, 6])
    assert not goes_along(broadcast(2, "tree"), [0, 2, 4, 6])
