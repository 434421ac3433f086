"""What is found in calls: the kind of fault, the ranks, the line; one sentence with the last call that all made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from each import each

from allfold.explain.calls import CallFacts, CodeLine, GroupFacts, RankFacts, RunFacts, Tensor
from allfold.explain.findings import Finding, findings

WORLD = "0"


def call(what: str, line: int, size: int = 4, dtype: str = "float32", **more: Any) -> CallFacts:
    group = more.pop("group", WORLD)
    stack = (CodeLine("/x/train.py", line, "main"),) if line else ()
    return CallFacts(group, 0, what, 0, (Tensor(dtype, (size,)),), stack=stack, **more)


def a_run(
    programs: Sequence[Sequence[CallFacts] | None], groups: Mapping[str, tuple[int, ...]] | None = None
) -> RunFacts:
    """Each rank's calls, numbered by group; None for a rank without a record."""
    members = {WORLD: tuple(range(len(programs))), **(groups or {})}
    run = RunFacts(
        {},
        {
            key: GroupFacts(key, "the world" if key == WORLD else f"group {key}", ranks)
            for key, ranks in members.items()
        },
    )
    for number, program in enumerate(programs):
        if program is None:
            continue
        made: dict[str, int] = {}
        calls = []
        for order, one in enumerate(program):
            made[one.group] = made.get(one.group, 0) + 1
            values = {name: getattr(one, name) for name in CallFacts.__slots__}
            calls.append(CallFacts(**values | {"number": made[one.group], "order": order}))
        run.ranks[number] = RankFacts(number, calls)
    return run


def the_finding(run: RunFacts) -> Finding:
    found = findings(run)
    assert found, "nothing was found"
    return found[0]


A, B, C = call("all_reduce", 8), call("broadcast", 9), call("all_gather", 10)
COMMON = "; the last call that all made is call 1, all_reduce(float32[4]) at train.py:8"


def test_nothing_is_wrong() -> None:
    assert findings(a_run([[A, B, C]] * 3)) == []
    assert findings(a_run([[A], [call("all_reduce", 0)], [A]])) == []  # a rank without lines


def test_a_call_left_out_is_told_from_the_calls_after_it() -> None:
    found = the_finding(a_run([[A, B, C], [A, C], [A, B]]))
    assert (found.kind, found.ranks, found.waiting, found.place) == ("left out", (1,), (0, 2), "train.py:9")
    assert found.sentence == (
        "rank 1 left out broadcast(float32[4]) at train.py:9 (call 2 of the world), which ranks 0 and 2 made; "
        "it went on to all_gather(float32[4]) at train.py:10" + COMMON
    )


def test_a_call_left_out_is_told_from_the_lines() -> None:
    found = the_finding(a_run([[A, B], [A, C], [A, B]]))
    assert (found.kind, found.ranks, found.place) == ("left out", (1,), "train.py:9")


def test_a_call_left_out_before_calls_that_look_the_same() -> None:
    first, second, third = (call("all_reduce", line) for line in (10, 11, 12))
    found = the_finding(a_run([[A, first, second, third], [A, second, third], [A, first, second, third]]))
    assert (found.kind, found.ranks, found.place, found.number) == ("left out", (1,), "train.py:10", 2)


def test_an_extra_call() -> None:
    extra = call("barrier", 7)
    found = the_finding(a_run([[A, B, C], [A, extra], [A, B, C]]))
    assert (found.kind, found.ranks, found.place) == ("one more", (1,), "train.py:7")
    assert found.sentence.startswith(
        "rank 1 made an extra call, barrier(float32[4]) at train.py:7 (call 2 of the world), "
        "where ranks 0 and 2 made broadcast(float32[4]) at train.py:9"
    )


def test_in_a_loop_the_iterations_before_say_what_was_left_out() -> None:
    # The body is A at line 8, then lines 5 and 6 (in a function above): the numbers of the lines alone would mislead.
    body = [A, call("broadcast", 5), call("barrier", 6)]
    found = the_finding(a_run([[*body, *body, A], [*body, *body, body[1]], [*body, *body, A]]))
    assert (found.kind, found.ranks, found.place) == ("left out", (1,), "train.py:8")


@each(
    ("kind", "other", "says"),
    [
        ("shape", call("broadcast", 9, 5), "different size"),
        ("type", call("broadcast", 9, dtype="int32"), "different type"),
        ("operation", call("all_gather", 9), "different operation"),
        ("root", call("broadcast", 9, root=1), "different root"),
        ("reduction", call("broadcast", 9, reduction="max"), "different reduction"),
    ],
)
def test_another_argument(kind: str, other: CallFacts, says: str) -> None:
    usual = call("broadcast", 9, root=0, reduction="sum")
    found = the_finding(a_run([[A, usual], [A, usual], [A, other]]))
    assert (found.kind, found.ranks, found.place) == (kind, (2,), "train.py:9")
    assert says in found.sentence and found.sentence.endswith(COMMON)


def test_two_shapes_with_as_many_elements_are_the_same_call() -> None:
    square = CallFacts(WORLD, 0, "broadcast", 0, (Tensor("float32", (2, 2)),))
    assert findings(a_run([[B], [square]])) == []


def test_what_a_record_does_not_know_is_no_difference() -> None:
    unknown = CallFacts(WORLD, 0, "broadcast", 0)
    assert findings(a_run([[call("broadcast", 9, root=0)], [unknown]])) == []


TWO = {"1": (0, 1, 2), "2": (0, 1, 2)}


def test_a_circle_between_groups() -> None:
    a, b = (call("all_reduce", 12, group=group) for group in ("1", "2"))  # for group in groups: …
    found = the_finding(a_run([[A, a], [A, b], [A, a]], TWO))
    assert (found.kind, found.ranks, found.circle, found.place) == ("circle", (1, 0), (1, 0), "train.py:12")
    assert found.sentence == (
        "circular wait between groups: rank 1 is in call 1 of group 2, all_reduce(float32[4]) at train.py:12, and rank 0 is in "
        "call 1 of group 1, all_reduce(float32[4]) at train.py:12 (as is rank 2); each waits for the other"
    )


def test_a_call_left_out_before_one_in_another_group() -> None:
    found = the_finding(a_run([[A, B], [A, call("all_reduce", 14, group="1")], [A, B]], TWO))
    assert (found.kind, found.ranks, found.circle, found.place) == ("left out", (1,), (1, 0), "train.py:9")
    assert found.sentence == (
        "rank 1 left out broadcast(float32[4]) at train.py:9 (call 2 of the world), which ranks 0 and 2 made; it went on to "
        "all_reduce(float32[4]) at train.py:14 (call 1 of group 1), and waits there" + COMMON
    )


def test_an_extra_call_in_another_group() -> None:
    found = the_finding(a_run([[A, C], [A, call("all_reduce", 9, group="1")], [A, C]], TWO))
    assert (found.kind, found.ranks, found.circle, found.place) == ("one more", (1,), (1, 0), "train.py:9")
    assert found.sentence == (
        "rank 1 made an extra call, all_reduce(float32[4]) at train.py:9 (call 1 of group 1), and waits at train.py:9; ranks 0 "
        "and 2 wait in all_gather(float32[4]) at train.py:10 (call 2 of the world)"
    )


def test_an_extra_call_that_looks_like_the_next_one() -> None:
    alike, other = call("all_reduce", 9), call("all_reduce", 21, group="1")
    found = the_finding(a_run([[A, alike, other], [A, A, alike], [A, alike, other]], TWO))
    assert (found.kind, found.ranks) == ("one more", (1,))
    assert found.sentence.startswith(
        "rank 1 made an extra call, all_reduce(float32[4]) at train.py:8 (call 2 of the world), and waits at train.py:9"
    )


def test_a_circle_after_different_calls_stays_a_circle() -> None:
    alone, last = call("barrier", 11, group="2"), call("all_reduce", 14, group="1")
    found = the_finding(a_run([[A, B], [A, alone, last], [A, B]], {"1": (0, 1, 2), "2": (1,)}))
    assert (found.kind, found.ranks) == ("circle", (1, 0))


def test_an_extra_call_after_the_others_have_ended() -> None:
    run = a_run([[A], [A, A], [A]])
    for rank in (0, 2):
        run.ranks[rank].ended = "ended"
    found = the_finding(run)
    assert (found.kind, found.ranks, found.place) == ("one more", (1,), "train.py:8")
    assert found.sentence == (
        "rank 1 made an extra call, all_reduce(float32[4]) at train.py:8 (call 2 of the world); ranks 0 and 2 ended without it"
        + COMMON
    )


def test_a_circle_of_three_groups() -> None:
    groups = {"1": (0, 1), "2": (1, 2), "3": (2, 0)}
    run = a_run(
        [[call("barrier", 1, group="1")], [call("barrier", 2, group="2")], [call("barrier", 3, group="3")]], groups
    )
    found = the_finding(run)
    assert found.kind == "circle" and found.ranks == (0, 1, 2) and "each waits for the next" in found.sentence


def test_a_chain_of_waits_leads_to_the_rank_that_waits_for_nobody() -> None:
    # Rank 0 waits for 1 in group 1; rank 1 waits for 2 in group 2; rank 2 has come to neither.
    a, b = call("all_reduce", 12, group="1"), call("all_reduce", 14, group="2")
    run = a_run([[A, a], [A, b], [A]], {"1": (0, 1), "2": (1, 2)})
    run.ranks[2].at, run.ranks[2].in_call = (CodeLine("/x/data.py", 31, "load"),), False
    found = the_finding(run)
    assert (found.kind, found.ranks, found.waiting, found.place) == ("late", (2,), (1,), "data.py:31")
    assert found.sentence.startswith("rank 2 is late: it is at data.py:31 in load, and has not made all_reduce")


def test_a_rank_that_came_after_the_others_gave_up() -> None:
    times = [call("all_reduce", 8, begun=moment, timeout=4.0) for moment in (100.0, 100.1, 112.0)]
    found = the_finding(a_run([[A, one] for one in times]))
    assert (found.kind, found.ranks) == ("late", (2,)) and "12.0 s after rank 0, which waits for 4 s" in found.sentence


def test_a_rank_without_a_record() -> None:
    found = the_finding(a_run([[A, B], None, [A, B]]))
    assert (found.kind, found.ranks, found.waiting) == ("missing", (1,), (0, 2))
    assert found.sentence.startswith(
        "there is no record of rank 1: dead, or its file is elsewhere; the last call of ranks 0"
    )


def test_a_rank_without_a_record_is_missed_where_the_others_wait() -> None:
    run = a_run([[call("barrier", 5, group="1"), B], None, [call("barrier", 5, group="1"), B]], {"1": (0, 1, 2)})
    assert [(found.group, found.place) for found in findings(run)] == [(WORLD, "train.py:9")]


def test_a_rank_that_has_not_come_yet_did_not_die_with_another() -> None:
    run = a_run([[A, B], [A], [A], [A]])
    run.ranks[2].ended = "died (process 7)"
    found = the_finding(run)
    assert found.ranks == (2,)
    assert found.sentence.startswith("rank 2 died (process 7) and never made broadcast(float32[4]) at train.py:9"), (
        found
    )
    run.ranks[1].ended = "died (process 6)"
    assert the_finding(run).sentence.startswith("rank 1 died (process 6), rank 2 died (process 7) and never made")


def test_a_rank_that_died() -> None:
    run = a_run([[A, B], [A], [A, B]])
    run.ranks[1].ended = "was killed by signal 9"
    found = the_finding(run)
    assert (found.kind, found.ranks) == ("dead", (1,))
    assert found.sentence.startswith("rank 1 was killed by signal 9 and never made broadcast(float32[4]) at train.py:9")


def test_records_that_begin_late_are_compared_where_they_overlap() -> None:
    run = a_run([[A, B, C, A], [A, B, C, A]])
    run.ranks[1].calls = run.ranks[1].calls[2:]
    run.ranks[1].starts = {WORLD: 3, "": 2**63}
    assert findings(run) == []
    run.ranks[1].calls = run.ranks[1].calls[:1]
    assert the_finding(run).number == 4


def test_all_are_in_the_same_call() -> None:
    run = a_run([[A, B]] * 2)
    run.lacks = ("the root",)
    for rank in run.ranks.values():
        rank.in_call = True
    found = the_finding(run)
    assert found.kind == "stuck" and "these records do not contain the root" in found.sentence


def test_ranks_that_fail_in_a_call_that_others_come_out_of() -> None:
    # As with another root, which gloo does not record: rank 1 is in the next call, the others never left this one.
    run = a_run([[A, B], [A, B, C], [A, B]])
    run.lacks = ("the root",)
    for number in (0, 2):
        run.ranks[number].at, run.ranks[number].ended = B.stack, "raised RuntimeError: Timed out"
    found = the_finding(run)
    assert (found.kind, found.ranks, found.waiting, found.place) == ("stuck", (), (0, 2), "train.py:9")
    assert found.sentence.startswith(
        "ranks 0 and 2 did not return from broadcast(float32[4]) at train.py:9 (call 2 of the world)"
    )


def test_a_receive_without_a_send() -> None:
    receive = CallFacts(WORLD, 1, "recv", 0, (Tensor("float32", (4,)),), peer=1, stack=(CodeLine("/x/train.py", 20),))
    run = a_run([[], [], []])
    run.ranks[0].calls = [receive]
    found = the_finding(run)
    assert (found.kind, found.ranks, found.waiting) == ("message", (1,), (0,))
    assert found.sentence.startswith("rank 0 receives from rank 1 at train.py:20, and rank 1 has made no matching send")


def test_a_message_of_another_size() -> None:
    run = a_run([[], []])
    for rank, name, size in ((0, "send", 4), (1, "recv", 5)):
        stack = (CodeLine("/x/train.py", 20 + rank),)
        run.ranks[rank].calls = [
            CallFacts(WORLD, 1, name, 0, (Tensor("float32", (size,)),), peer=1 - rank, stack=stack)
        ]
    found = the_finding(run)
    assert (found.kind, found.ranks) == ("message", (1, 0))
    assert found.sentence == (
        "rank 0 made send(float32[4], to rank 1) at train.py:20, and rank 1 receives it with "
        "recv(float32[5], from rank 0) at train.py:21: different size"
    )


def test_a_circle_of_messages() -> None:
    ranks = {
        rank: RankFacts(rank, [CallFacts(WORLD, 1, "recv", 0, peer=(rank + 1) % 3, stack=(CodeLine("/x/ring.py", 5),))])
        for rank in range(3)
    }
    found = the_finding(RunFacts(ranks, {WORLD: GroupFacts(WORLD, "the world", (0, 1, 2))}))
    assert found.kind == "circle"
    assert found.sentence.startswith("circular wait of messages: rank 0 is in recv(from rank 1)")


def test_a_rank_that_came_after_the_others_had_given_up_and_went_on() -> None:
    run = a_run([[A, call("all_reduce", 12), B], [A, call("all_reduce", 12)], [A, call("all_reduce", 12)]])
    for rank in run.ranks.values():
        first, late, *rest = rank.calls
        begun = 100.0 + (7.5 if rank.number == 0 else 0)
        rank.calls = [replace(first, done=True), replace(late, begun=begun, timeout=3.0, done=rank.number == 0), *rest]
    run.ranks[1].said = [
        "CollectiveTimeout: all_reduce: rank 0 did not arrive within 3 s (call 2 of the world); rank 0 (process 31) has done "
        "call 1, all_reduce(float32[4] sum); it is at data.py:31 in load, called from train.py:11 in main"
    ]
    found = the_finding(run)
    assert (found.kind, found.ranks, found.place) == ("late", (0,), "data.py:31")
    assert found.sentence == (
        "rank 0 was late: it made all_reduce(float32[4]) at train.py:12 (call 2 of the world) 7.5 s after rank 1, which waits "
        "for 3 s; before that, it was at data.py:31 in load" + COMMON
    )


def test_of_two_ranks_the_one_that_others_wait_for_elsewhere_is_the_odd_one() -> None:
    # Rank 0 made A twice; rank 1 waits for it in group 1, of which rank 2 is no member.
    inner = call("all_reduce", 9, group="1")
    found = the_finding(a_run([[A, A], [A, inner], [A, C]], {"1": (0, 1)}))
    assert found.ranks == (0,) and found.place == "train.py:8", found
