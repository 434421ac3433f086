"""The engine's protocols, tried in every order in which they can happen: nobody sleeps for ever, nobody reads what was overwritten,
nobody decides differently. And what leaves out a part of a protocol is caught, so the models can tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol import Broken, Rules, try_everything

# Waiting and waking: native/wait.hpp ----------------------------------------------------------------------------------

SHAPES = [("one", 2), ("one", 3), ("one", 4), ("twice", 2), ("twice", 3), ("ring", 2), ("ring", 3), ("all", 3)]


@pytest.mark.parametrize("fenced_by_sleepers", [False, True], ids=["fence", "membarrier"])
@pytest.mark.parametrize("order", ["tso", "weak"])
@pytest.mark.parametrize(("shape", "ranks"), SHAPES)
def test_no_wake_up_is_lost(shape: str, ranks: int, order: str, fenced_by_sleepers: bool) -> None:
    assert try_everything(shape, ranks, Rules(order, fenced_by_sleepers)) > 20


@pytest.mark.parametrize("order", ["tso", "weak"])
def test_no_wake_up_is_lost_between_four_that_all_publish(order: str) -> None:
    assert try_everything("ring", 4, Rules(order)) > 5000


@pytest.mark.parametrize("fenced_by_sleepers", [False, True], ids=["fence", "membarrier"])
@pytest.mark.parametrize("order", ["tso", "weak"])
def test_what_was_written_before_is_there(order: str, fenced_by_sleepers: bool) -> None:
    assert try_everything("twice", 3, Rules(order, fenced_by_sleepers, with_data=True)) > 1000


FENCE, MEMBARRIER = Rules(), Rules(fenced_by_sleepers=True)
WEAK = Rules("weak")


@pytest.mark.parametrize(
    ("rules", "ranks"),
    [
        (replace(FENCE, publisher_fences=False), 2),
        (replace(WEAK, publisher_fences=False), 2),
        (replace(WEAK, sleeper_fences=False), 2),
        (replace(MEMBARRIER, sleeper_fences_for_all=False), 2),
        (replace(MEMBARRIER, wake_is_a_fence=False), 2),
        (replace(FENCE, looks_after_the_store=False), 2),
        (replace(FENCE, counts=False), 2),
        (replace(FENCE, kernel_compares=False), 2),
        (replace(FENCE, wakes_all=False), 3),
    ],
)
def test_what_is_left_out_loses_a_wake_up(rules: Rules, ranks: int) -> None:
    with pytest.raises(Broken, match="nobody can go on"):
        try_everything("one", ranks, rules)


@pytest.mark.parametrize("change", ["releases", "acquires"])
def test_what_is_not_ordered_is_read_too_early(change: str) -> None:
    with pytest.raises(Broken, match="uses data of publication 0, not 1"):
        try_everything("one", 2, replace(WEAK, with_data=True, **{change: False}))


@pytest.mark.parametrize(
    "rules",
    [
        replace(FENCE, sleeper_fences=False),  # counting is a locked instruction on x86
        replace(WEAK, looks_after_counting=False),  # the kernel looks once more
        replace(FENCE, wake_is_a_fence=False),  # publishing has its own
    ],
)
def test_what_is_done_twice_can_be_left_out(rules: Rules) -> None:
    """Why each of these is there all the same: for the other order of memory, to save a call, for the other way to fence."""
    assert try_everything("one", 3, rules) > 100
