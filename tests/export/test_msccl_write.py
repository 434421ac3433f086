"""Schedules as MSCCL XML: within the limits of its runtime, and the same when they come back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from each import each
from export_cases import EVERY, cases, grid

import allfold as af
from allfold.export.equivalence import check_equivalent
from allfold.export.msccl import msccl
from allfold.export.msccl import xml as msccl_xml
from allfold.export.msccl.lower import lower
from allfold.export.msccl.xml import COLLECTIVES, check_limits, parse

WRITTEN = [(collective, name) for collective, name in EVERY if collective in COLLECTIVES.values()]


def test_what_msccl_has_no_word_for_is_refused() -> None:
    for collective in ("scan", "exscan", "barrier"):
        with pytest.raises(af.UsageError, match=f"MSCCL XML has no {collective}; it has all_reduce, "):
            msccl.write(af.schedule(collective, "direct", 3))


@each(("collective", "name", "ranks"), grid(WRITTEN, (3,), (1, 2, 4, 5)))
def test_msccl_comes_back_as_the_same(collective: str, name: str, ranks: int) -> None:
    for plan in cases(collective, name, ranks):
        text = msccl.write(plan)
        algorithm = parse(text)
        check_limits(algorithm)
        assert algorithm.to_xml() == text
        facts = af.verify(plan)
        for in_place in [True, False] if algorithm.in_place else [False]:
            again = msccl.read(text, root=plan.root, in_place=in_place)
            check_equivalent(plan, again)
            proof = af.verify(again)
            assert (proof.same_bits, proof.rank_order) == (facts.same_bits, facts.rank_order)


FORMS = [(False, False, None), (False, True, None), (True, False, 3)]
# Each form with every third algorithm; all of them in make test-all.
IN_TURN = [
    pytest.param(*algorithm, *form, marks=[pytest.mark.exhaustive] if (number - turn) % len(FORMS) else [])
    for number, algorithm in enumerate(WRITTEN)
    for turn, form in enumerate(FORMS)
]


@each(("collective", "name", "fused", "aside", "share"), IN_TURN)
def test_msccl_in_every_form(collective: str, name: str, fused: bool, aside: bool, share: int | None) -> None:
    plan = af.schedule(collective, name, 5)
    text = lower(plan, fused, aside, share).to_xml()
    check_equivalent(plan, msccl.read(text, root=plan.root))


def test_msccl_ring_is_the_ring_that_everybody_runs() -> None:
    """One thread block per rank: send, combine and forward, forward, receive; no waits between thread blocks."""
    for rank, gpu in enumerate(parse(msccl.write(af.schedule("all_reduce", "ring", 4))).gpus):
        (block,) = gpu.blocks
        assert (block.send, block.receive) == ((rank + 1) % 4, (rank - 1) % 4)
        assert [step.type for step in block.steps] == ["s", "rrcs", "rrcs", "rrcs", "rcs", "rcs", "r"]
        assert gpu.scratch_chunks == 0


def test_msccl_uses_more_channels_where_thread_blocks_get_too_long() -> None:
    algorithm = parse(msccl.write(af.schedule("all_reduce", "ring", 40)))
    assert algorithm.channels == 2
    assert max(len(block.steps) for gpu in algorithm.gpus for block in gpu.blocks) <= 64


def test_msccl_sends_neighbours_together() -> None:
    """Within its group of three, a rank of two_level sends four of twelve chunks at a time."""
    first = parse(msccl.write(af.schedule("all_reduce", "two_level", 5))).gpus[0]
    to_next = next(block for block in first.blocks if block.send == 1)
    assert [step.count for step in to_next.steps if step.type == "s"] == [4, 4, 4, 4]


def test_msccl_leaves_the_input_alone() -> None:
    for collective, name in WRITTEN:
        for gpu in parse(msccl.write(af.schedule(collective, name, 4))).gpus:
            for block in gpu.blocks:
                written = [step.destination for step in block.steps if step.type not in ("s", "rrs", "nop")]
                assert all(buffer in ("o", "s") for buffer, _ in written)


def test_msccl_lays_aside_what_would_deadlock() -> None:
    """Eight ranks exchange four chunks in one step, before any chunk is free: no connection has room for that."""
    plan = af.schedule("all_to_all", "bruck", 8)
    with pytest.raises(af.ScheduleError, match=r"deadlock: .* has no room to send until"):
        msccl.read(lower(plan, fused=False).to_xml())
    check_equivalent(plan, msccl.read(msccl.write(plan)))


def test_what_msccl_cannot_express_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(af.UsageError, match="MSCCL XML has no barrier"):
        msccl.write(af.schedule("barrier", "dissemination", 4))
    with pytest.raises(af.UsageError, match="rank 0 has 39 peers to send on a channel, and at most 32 fit"):
        msccl.write(af.schedule("all_reduce", "naive", 40))
    monkeypatch.setattr(msccl_xml, "MOST_STEPS", 10)
    with pytest.raises(af.UsageError, match="has 15 steps, and at most 10 are taken"):
        msccl.write(af.schedule("all_reduce", "ring", 8))
    monkeypatch.setattr(msccl_xml, "MOST_NODES", 10)
    with pytest.raises(af.UsageError, match="rank 0 has 13 elements, and the parser keeps 10"):
        msccl.write(af.schedule("all_reduce", "ring", 4))


def test_msccl_refuses_a_wrong_schedule() -> None:
    def nobody(ranks: int) -> Iterator[list[af.Move]]:
        yield [af.copy(0, 0, 1)]

    with pytest.raises(af.ScheduleError, match="lacks"):
        msccl.write(af.schedule("all_reduce", nobody, 2))
