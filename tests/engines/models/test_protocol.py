"""The engine's protocols, tried in every possible order: nobody sleeps forever, reads what was overwritten, or decides
differently. And if a part of a protocol is left out, the models notice."""

from __future__ import annotations

from dataclasses import replace

import protocol_calls
import protocol_shrink
import pytest
from protocol import Broken, Rules, try_everything
from protocol_arrays import ArrayRules, try_arrays
from protocol_calls import Call, try_calls
from protocol_ends import EndRules, try_ends
from protocol_shrink import try_agreement

import allfold
from allfold.collectives import COLLECTIVES

# Ends: native/collectives/communicator_wait.cpp -----------------------------------------------------------------------


def test_a_rank_that_has_done_its_part_is_not_lost() -> None:
    assert try_ends() > 20


@pytest.mark.parametrize("rule", ["reads_the_standing_first", "reads_again_after_death"])
def test_what_is_not_read_in_this_order_loses_a_rank(rule: str) -> None:
    with pytest.raises(Broken, match="has done its part is called lost"):
        try_ends(EndRules(**{rule: False}))


# Waiting and waking: native/shared/wait.hpp ---------------------------------------------------------------------------

SHAPES = [("one", 2), ("one", 3), ("one", 4), ("twice", 2), ("twice", 3), ("ring", 2), ("ring", 3), ("all", 3)]


# In every run each shape with both orders and with both fences, and each order with both fences; the rest at night.
PAIRWISE = [
    pytest.param(*shape, order, fenced, marks=[pytest.mark.exhaustive] if (number + weak + fenced) % 2 else [])
    for number, shape in enumerate(SHAPES)
    for weak, order in enumerate(("tso", "weak"))
    for fenced in (False, True)
]


@pytest.mark.parametrize(("shape", "ranks", "order", "fenced_by_sleepers"), PAIRWISE)
def test_no_wake_up_is_lost(shape: str, ranks: int, order: str, fenced_by_sleepers: bool) -> None:
    assert try_everything(shape, ranks, Rules(order, fenced_by_sleepers)) > 20


# In every run the order with the most states has three ranks (the ring above), and four at night.
@pytest.mark.parametrize("order", ["tso", pytest.param("weak", marks=pytest.mark.exhaustive)])
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
    """Why each of these exists nevertheless: for the other memory order, to save a call, for the other kind of
    fence."""
    assert try_everything("one", 3, rules) > 100


# A row of calls: native/collectives/communicator.cpp ------------------------------------------------------------------

ROOTED = ("reduce", "broadcast", "gather", "scatter")


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_calls_follow_each_other_without_harm(collective: str, ranks: int) -> None:
    for algorithm in allfold.algorithms(collective):
        roots = range(ranks) if collective in ROOTED else [None]
        for memory in ("private", "shared"):
            calls = [Call(collective, algorithm, root, memory=memory) for root in roots] * 4
            assert try_calls(ranks, calls[:4]) > 10
        long = [Call(collective, algorithm, roots[0], segments=count) for count in (3, 1, 2)]
        assert try_calls(ranks, long) > 10


def test_different_calls_follow_each_other_without_harm() -> None:
    row = [BROADCAST, Call("all_reduce", "naive"), Call("reduce", "driver", 1), SHARED, Call("gather", "driver", 2)]
    for shift in range(len(row)):
        assert try_calls(3, row[shift:] + row[:shift]) > 100


@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_with_one_work_area_and_with_two_follow_each_other_without_harm(ranks: int) -> None:
    row = [ONE_AREA, LONG, Call("all_reduce", "naive"), replace(ONE_AREA, segments=2)]
    for shift in range(len(row)):
        assert try_calls(ranks, row[shift:] + row[:shift]) > 100
        assert try_calls(ranks, [*row[shift:], *row[:shift]][::-1]) > 100


# With fewer calls under way than in the engine, so that all orders of three ranks can be tried.
FEW = protocol_calls.Rules(calls_ahead=3, small_areas=4, chains_kept=4)


@pytest.mark.parametrize("collective", ROOTED)
def test_ranks_run_ahead_in_small_calls_without_harm(collective: str) -> None:
    for algorithm in allfold.algorithms(collective):
        for roots in ([0], [0, 1]):
            two = [Call(collective, algorithm, root, small=True) for root in roots] * 12
            assert try_calls(2, two[:12]) > 100
        three = [Call(collective, algorithm, root, small=True) for root in (0, 0, 2)] * 2
        assert try_calls(3, three, FEW) > 100
        large = Call(collective, algorithm, 0, segments=2)
        assert try_calls(3, [three[0], large, *three[1:3], Call("all_reduce", "naive"), three[3]], FEW) > 100


BROADCAST = Call("broadcast", "driver", 0)
SMALL = replace(BROADCAST, small=True)
REDUCE = Call("reduce", "direct", 0)  # where others wait for the last instruction of some ranks
LONG = Call("broadcast", "driver", 0, segments=4)
ONE_AREA = Call("all_reduce", "direct", segments=3)
SHARED = Call("all_reduce", "direct", memory="shared")


@pytest.mark.parametrize(
    ("changed", "calls", "what"),
    [
        ({"keeps_its_end": "always"}, [BROADCAST] * 4, "nobody can go on"),
        ({"keeps_its_end": "awaited"}, [REDUCE] * 4, "nobody can go on"),
        ({"uses_behind": 2}, [BROADCAST] * 4, "finds"),
        ({"small_areas": 6}, [SMALL] * 9, "finds"),
        ({"calls_ahead": 9}, [SMALL] * 10, "finds"),
        ({"calls_ahead": 2, "chains_kept": 2}, [SMALL] * 5, "chain"),
        ({"areas": 1}, [BROADCAST] * 3, "finds"),
        ({"areas": 1}, [Call("all_reduce", "naive")] * 3, "finds"),
        ({"chains_kept": 2}, [BROADCAST] * 4, "chain"),
        ({"settles_with_segments": False}, [LONG, LONG], "finds"),
        ({"waits_in_second_segment": False}, [LONG, LONG], "finds"),
        ({"waits_for_reuse": False}, [LONG], "finds"),
        ({"waits_to_leave": False}, [SHARED] * 2, "finds"),
        ({"one_area_for_all": True}, [LONG], "finds"),
    ],
)
def test_calls_that_do_not_wait_as_they_should_are_caught(
    changed: dict[str, object], calls: list[Call], what: str
) -> None:
    assert try_calls(3, calls) > 10
    with pytest.raises(Broken, match=what):
        try_calls(3, calls, protocol_calls.Rules(**changed))  # type: ignore[arg-type]


# Going on with the survivors: engines/shared_memory/shrink.py --------------------------------------------------------


# A rank that is lost from the start stands for those that crash before they have written anything: few states.
AGREEMENTS = [(2, 1, 0), (3, 1, 0), (3, 2, 0), (4, 2, 1), pytest.param(4, 1, 0, marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize(("ranks", "crashes", "lost"), AGREEMENTS)
def test_survivors_agree_whoever_crashes_when(ranks: int, crashes: int, lost: int) -> None:
    assert try_agreement(ranks, crashes, lost=lost) > 50


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"waits_for_equal_views": False}, "ranks decide on 011 and on 111"),
        ({"heeds_the_dead": False}, "ranks decide on"),
        ({"looks_first": False}, "they do not come to an end"),
    ],
)
def test_survivors_that_are_hasty_are_caught(changed: dict[str, bool], what: str) -> None:
    with pytest.raises(Broken, match=what):
        try_agreement(3, 2, protocol_shrink.Rules(**changed))


def test_looking_once_more_saves_a_view_and_not_the_agreement() -> None:
    """A rank that writes a smaller view looks for decisions again before it can decide on it."""
    assert try_agreement(3, 2, protocol_shrink.Rules(looks_once_more=False)) > 1000


@pytest.mark.parametrize("keeps", [True, False])
def test_survivors_agree_although_some_try_again(keeps: bool) -> None:
    """Even if they had forgotten whom they saw gone: they would see it again, and decisions first."""
    assert try_agreement(3, 1, protocol_shrink.Rules(keeps_its_view=keeps), tries=2) > 1000


# Arrays of a rank that gives up: native/collectives/communicator_wait.cpp --------------------------------------------


@pytest.mark.parametrize("fenced_by_owner", [False, True], ids=["fence", "membarrier"])
@pytest.mark.parametrize("order", ["tso", "weak"])
@pytest.mark.parametrize("peer", ["writer", "reader"])
def test_nobody_writes_into_an_array_or_believes_it_after_its_owner_gave_up(
    peer: str, order: str, fenced_by_owner: bool
) -> None:
    assert try_arrays(peer, ArrayRules(order, fenced_by_owner)) > 5


@pytest.mark.parametrize(
    ("peer", "rules"),
    [
        ("writer", ArrayRules(owner_fences=False)),
        ("writer", ArrayRules(peer_fences=False)),
        ("writer", ArrayRules(fenced_by_owner=True, owner_fences_for_all=False)),
        ("writer", ArrayRules(owner_waits=False)),
        ("writer", ArrayRules(peer_marks=False)),
        ("reader", ArrayRules("weak", owner_fences=False)),
        ("reader", ArrayRules(looks_after_reading=False)),
    ],
)
def test_a_rank_that_gives_up_needs_every_part_of_the_protocol(peer: str, rules: ArrayRules) -> None:
    with pytest.raises(Broken):
        try_arrays(peer, rules)
