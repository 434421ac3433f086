"""The phases and sentences of every algorithm: declared, or derived from the schedule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from each import each

import allfold as af
from allfold.collectives import COLLECTIVES
from allfold.errors import UsageError
from allfold.registry import Phase, algorithm, find_algorithm
from allfold.view.phases import phases_of, sentence_of

EVERY = [(collective, name) for collective in COLLECTIVES for name in af.algorithms(collective)]


@each(("collective", "name"), EVERY)
def test_every_step_has_its_sentence_and_phase(collective: str, name: str) -> None:
    declared = find_algorithm(collective, name).phases
    for ranks in (1, 2, 3, 5, 8, 12):
        schedule = af.schedule(collective, name, ranks)
        phases = phases_of(schedule, declared)
        assert [one["first"] for one in phases] == [
            sum(before["steps"] for before in phases[:place]) for place in range(len(phases))
        ]
        assert sum(one["steps"] for one in phases) == schedule.steps
        assert all(len(one["sentences"]) == one["steps"] and all(one["sentences"]) for one in phases)
        if ranks > 1:  # what is declared adds up, and is what is shown: phases that have steps
            names = [phase.name for phase in declared]
            assert [name for name in names if name in {one["name"] for one in phases}] == [
                one["name"] for one in phases
            ]


@each(("collective", "name"), EVERY)
def test_every_algorithm_declares_its_phases(collective: str, name: str) -> None:
    declared = find_algorithm(collective, name).phases
    names = [one.name for one in declared]
    assert declared and len(set(names)) == len(names)
    assert all(one.sentence == "" or one.sentence.endswith(".") for one in declared)
    if collective == "all_reduce":  # twelve ranks: guests, groups and trees that are cut off
        assert len(names) > 1 or name == "naive"
        shown = [one["name"] for one in phases_of(af.schedule(collective, name, 12), declared)]
        assert shown == names


@each("groups", [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1], [2, 3, 4], [5, 6, 7]], [list(range(8))]])
@each(("collective", "name"), [one for one in EVERY if find_algorithm(*one).takes_groups])
def test_phases_follow_the_groups(collective: str, name: str, groups: list[list[int]]) -> None:
    declared = find_algorithm(collective, name).phases
    schedule = af.schedule(collective, name, 8, groups=groups)
    shown = [one["name"] for one in phases_of(schedule, declared, groups)]
    assert shown and set(shown) <= {one.name for one in declared}
    assert len(shown) == len(declared) or len(groups) == 1


def test_declared_phases_end_where_adding_ends() -> None:
    for name in ("ring", "tree", "driver"):
        schedule = af.schedule("all_reduce", name, 8)
        adding, handing = phases_of(schedule, find_algorithm("all_reduce", name).phases)
        assert (adding["name"], handing["name"]) == ("add up", "hand out")
        kinds = [schedule.columns["reduces"][schedule.starts[step]] != 0 for step in range(schedule.steps)]
        assert kinds == [True] * adding["steps"] + [False] * handing["steps"]


@pytest.mark.parametrize(
    ("collective", "name", "ranks", "step", "sentence"),
    [
        ("all_gather", "bruck", 8, 0, "Every rank sends to the rank to its left; the receiver keeps what comes."),
        (
            "all_reduce",
            "recursive_doubling",
            8,
            2,
            "All ranks exchange in pairs 4 apart; the receiver adds what comes.",
        ),
        ("broadcast", "chain", 4, 1, "Rank 1 sends to rank 2; the receiver keeps what comes."),
        ("gather", "driver", 4, 0, "Ranks 1, 2 and 3 send to rank 0; the receiver keeps what comes."),
        ("all_to_all", "direct", 4, 0, "Every rank sends to every other rank; the receiver keeps what comes."),
        ("barrier", "dissemination", 8, 1, "Every rank sends to the rank 2 further on: a signal, without data."),
    ],
)
def test_a_sentence_says_who_sends_to_whom(collective: str, name: str, ranks: int, step: int, sentence: str) -> None:
    assert sentence_of(af.schedule(collective, name, ranks), step) == sentence


def test_a_new_algorithm_gets_both_without_a_line() -> None:
    def star(ranks: int) -> Iterator[list[af.Move]]:
        yield [af.reduce(0, r, 0) for r in range(1, ranks)]
        yield [af.copy(0, 0, r) for r in range(1, ranks)]

    phases = phases_of(af.schedule("all_reduce", star, 4))
    assert [(one["name"], one["sentences"]) for one in phases] == [
        ("add up", ["Ranks 1, 2 and 3 send to rank 0; the receiver adds what comes."]),
        ("hand out", ["Rank 0 sends to ranks 1, 2 and 3; the receiver keeps what comes."]),
    ]


def test_phases_that_do_not_add_up_are_not_shown() -> None:
    schedule = af.schedule("all_reduce", "ring", 4)
    wrong = (Phase("all at once", "Nobody knows.", lambda p: p + 100),)
    assert [one["name"] for one in phases_of(schedule, wrong)] == ["add up", "hand out"]


def test_what_is_no_phase_is_refused() -> None:
    with pytest.raises(UsageError, match="phases must be Phase"):
        algorithm("all_reduce", "refused", phases=["add up"])  # type: ignore[list-item]
