"""Planted errors: each kind of error is caught, with the rank, the chunk, the step and the source line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import allfold as af
from allfold import Move, ScheduleError, copy, reduce
from allfold.programs.check import check
from allfold.programs.compile import compile
from allfold.programs.messages import MessagePrograms, lower
from allfold.programs.rows import Lists

Steps = Iterator[list[Move]]


def ring(ranks: int, chunk_at: Callable[[int, int, int], int]) -> Steps:
    for step in range(ranks - 1):
        yield [reduce(chunk_at(r, step, ranks), r, (r + 1) % ranks) for r in range(ranks)]
    for step in range(ranks - 1):
        yield [copy((r - step) % ranks, r, (r + 1) % ranks) for r in range(ranks)]


def right(r: int, step: int, ranks: int) -> int:
    return (r - 1 - step) % ranks


def error_of(
    algorithm: Callable[..., Any], collective: str = "all_reduce", ranks: int = 6, **more: Any
) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        af.verify(af.schedule(collective, algorithm, ranks, **more))
    return caught.value


def line_of(text: str) -> int:
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def test_the_right_ring_passes() -> None:
    af.verify(af.schedule("all_reduce", lambda ranks: ring(ranks, right), 6))


def test_a_doubled_contribution_is_an_error_where_it_happens() -> None:
    def doubled(ranks: int) -> Steps:
        yield [reduce(0, 0, 1)]
        yield [reduce(0, 1, 2)]
        yield [reduce(0, 0, 2)]  # planted: rank 0 is in rank 1's part already

    error = error_of(doubled, ranks=3)
    assert (error.rank, error.chunk, error.step) == (2, 0, 2)
    assert error.site == f"test_verify.py:{line_of('# planted: rank 0')}"
    assert "rank 2 chunk 0 has rank 0 twice" in str(error)


def test_a_doubled_and_a_missing_contribution_in_one_sentence() -> None:
    def confused(ranks: int) -> Steps:
        yield [reduce(0, 3, 4), reduce(0, 0, 2)]
        yield [reduce(0, 3, 2), reduce(0, 5, 4)]
        yield [reduce(0, 2, 4)]  # planted: 3 comes twice, 1 is forgotten

    error = error_of(confused)
    assert str(error) == (
        "confused(ranks=6): after step 3, rank 4 chunk 0 lacks rank 1 and has rank 3 twice "
        f"(test_verify.py:{line_of('# planted: 3 comes twice')})"
    )


def test_a_missing_contribution() -> None:
    def forgetful(ranks: int) -> Steps:
        yield [reduce(0, r, 0) for r in range(ranks) if r not in (0, 4)]
        yield [copy(0, 0, r) for r in range(1, ranks)]  # planted: rank 4 is missing

    error = error_of(forgetful)
    assert "rank 0 chunk 0 lacks rank 4" in str(error)
    assert "5 more chunks are wrong" in str(error)


def test_a_prefix_holds_exactly_the_ranks_below_it() -> None:
    def everything(ranks: int) -> Steps:
        yield [reduce(0, source, r) for r in range(ranks) for source in range(ranks) if source != r]

    def too_short(ranks: int) -> Steps:
        for r in range(1, ranks - 1):
            yield [reduce(0, r - 1, r)]

    def overlapping(ranks: int) -> Steps:
        for distance in (1, 1, 3):
            yield [reduce(0, r, r + distance) for r in range(ranks - distance)]

    def inclusive(ranks: int) -> Steps:
        for r in range(1, ranks):
            yield [reduce(0, r - 1, r)]

    for collective, wrong, rank, says in (
        ("scan", everything, 0, "rank 0 chunk 0 has ranks 1, 2 and 3, which it should not"),
        ("scan", too_short, 3, "rank 3 chunk 0 lacks ranks 0, 1 and 2"),
        ("scan", overlapping, 1, "rank 1 chunk 0 has rank 0 twice"),
        ("exscan", inclusive, 1, "rank 1 chunk 0 has rank 1, which it should not"),
        ("exscan", too_short, 1, "rank 1 chunk 0 has rank 1, which it should not"),
    ):
        error = error_of(wrong, collective, ranks=4)
        assert error.rank == rank and says in str(error), str(error)
        with pytest.raises(ScheduleError, match=f"rank {rank} chunk 0"):
            af.replay(af.schedule(collective, wrong, 4), [np.ones(2)] * 4)


def test_a_misplaced_contribution() -> None:
    def misplaced(ranks: int) -> Steps:
        yield [reduce(1, 0, 1, into=0)]

    error = error_of(misplaced, ranks=2)
    assert (error.rank, error.chunk, error.step) == (1, 0, 0)
    assert "mixes chunk 0 with chunk 1 in chunk 0 of rank 1" in str(error) or "mixes chunk 1 with chunk 0" in str(error)


def test_a_copy_that_lands_in_the_wrong_place() -> None:
    def crossed(ranks: int) -> Steps:
        yield [copy(0, 0, 1, into=1), copy(1, 1, 0, into=0)]

    error = error_of(crossed, "all_gather", ranks=2)
    assert "rank 0 chunk 0 holds slice 1 instead of slice 0" in str(error)


def test_a_move_from_a_chunk_that_holds_nothing() -> None:
    def early(ranks: int) -> Steps:
        yield [copy(0, 1, 2)]

    error = error_of(lambda ranks, root: early(ranks), "broadcast", 3)
    assert (error.rank, error.chunk, error.step) == (1, 0, 0)
    assert "takes chunk 0 of rank 1, which holds nothing" in str(error)


def test_a_reduction_into_a_chunk_that_holds_nothing() -> None:
    def hollow(ranks: int) -> Steps:
        yield [reduce(0, 0, 1, into=1)]

    hollow_schedule = af.registry.Algorithm("all_reduce", "hollow", hollow, chunks=1)
    with pytest.raises(ScheduleError, match="reduces into chunk 1 of rank 1, which holds nothing"):
        af.verify(af.schedule("all_reduce", hollow_schedule, 2))


@pytest.mark.parametrize(
    ("move", "what"),
    [
        (lambda: reduce(0, 7, 0), "source rank 7 is out of range 0–2"),
        (lambda: reduce(0, 0, -1), "destination rank -1 is out of range 0–2"),
        (lambda: reduce(-1, 0, 1), "chunk -1 is out of range"),
    ],
)
def test_a_rank_or_chunk_out_of_range(move: Callable[[], Move], what: str) -> None:
    error = error_of(lambda ranks: iter([[move()]]), ranks=3)
    assert what in str(error)
    assert re.search(r"test_verify\.py:\d+", str(error))


def test_two_unordered_writes() -> None:
    def torn(ranks: int) -> Steps:
        yield [copy(0, 0, 2), copy(0, 1, 2)]

    error = error_of(torn, ranks=3)
    assert (error.rank, error.chunk, error.step) == (2, 0, 0)
    assert "two unordered writes to chunk 0 of rank 2: 0:0→2" in str(error)
    assert "0:1→2" in str(error)
    with_reduce = error_of(lambda ranks: iter([[copy(0, 0, 2), reduce(0, 1, 2)]]), ranks=3)
    assert "two unordered writes" in str(with_reduce)


def test_a_reduction_where_the_collective_only_copies() -> None:
    error = error_of(lambda ranks: iter([[copy(0, 0, 1)], [reduce(0, 0, 1)]]), "all_gather", ranks=2)
    assert "all_gather only copies" in str(error)


def test_wrong_only_for_some_root() -> None:
    def only_low_roots(ranks: int, root: int) -> Steps:
        yield [copy(0, min(root, 1), r) for r in range(ranks) if r != min(root, 1)]

    for root in (0, 1):
        af.verify(af.schedule("broadcast", only_low_roots, 4, root=root))
    error = error_of(only_low_roots, "broadcast", ranks=4, root=2)
    assert "only_low_roots(ranks=4, root=2)" in str(error)


def test_wrong_only_for_some_rank_counts() -> None:
    def powers_only(ranks: int) -> Steps:
        distance = 1
        while distance < ranks:
            yield [reduce(0, r, r ^ distance) for r in range(ranks) if r ^ distance < ranks]
            distance *= 2

    for ranks in (1, 2, 4, 8):
        af.verify(af.schedule("all_reduce", powers_only, ranks))
    assert "lacks rank" in str(error_of(powers_only, ranks=6))


@pytest.mark.parametrize(
    ("algorithm", "what"),
    [
        (lambda ranks: None, "gave None; an algorithm is a generator"),
        (lambda ranks: iter([reduce(0, 0, 1)]), "step 1 is a single move +0:0→1; yield a list"),
        (lambda ranks: iter([7]), "step 1 is 7; expected a list of moves"),
        (lambda ranks: iter(["01"]), "step 1 is '01'"),
        (lambda ranks: iter([[(0, 0, 1)]]), "expected moves made by copy(...) and reduce(...)"),
        (lambda ranks: iter([[reduce(0.5, 0, 1)]]), "ranks and chunks are whole numbers"),  # type: ignore[arg-type]
        (lambda ranks: iter([[reduce(2**70, 0, 1)]]), "ranks and chunks are whole numbers"),
        (lambda ranks: iter([[reduce(None, 0, 1)]]), "ranks and chunks are whole numbers"),  # type: ignore[arg-type]
        (lambda ranks: iter([copy(np.arange(2), 0, 1)]), "step 1 is a single move copy of arrays; yield a list"),
        (lambda ranks: iter([[copy(np.zeros(2), 0, 1)]]), "step 1 holds copy of arrays (test_verify.py:"),
        (lambda ranks: iter([[copy(np.zeros(2), 0, 1)]]), "chunk is of float64; ranks and chunks are whole numbers"),
        (lambda ranks: iter([[reduce(0, np.array([True]), 1)]]), "source is of bool; ranks and chunks are whole"),
        (lambda ranks: iter([[reduce(0, np.array([2**63]), 1)]]), "source has 9223372036854775808 to 92233720368"),
        (lambda ranks: iter([[copy(np.arange(2), None, 1)]]), "source is None; ranks and chunks are whole"),  # type: ignore[arg-type]
        (lambda ranks: iter([[copy(np.arange(2), np.arange(3), 1)]]), "do not fit together: chunk (2,), source (3,), "),
        (
            lambda ranks: iter([[copy(np.arange(2**14)[:, None], np.arange(2**14), 1)]]),
            "268,435,456 moves are too many",
        ),
        (
            lambda ranks: iter([[copy(0, 0, np.arange(3))]]),
            "step 1, move 0:0→2: destination rank 2 is out of range 0–1",
        ),
    ],
)
def test_a_generator_that_yields_rubbish(algorithm: Callable[..., Any], what: str) -> None:
    assert what in str(error_of(algorithm, ranks=2))


def test_a_generator_that_raises() -> None:
    def breaks(ranks: int) -> Steps:
        yield [reduce(0, 0, 1)]
        raise KeyError("planted")

    error = error_of(breaks, ranks=2)
    assert str(error) == (
        f"breaks(ranks=2): raised KeyError at step 2: 'planted' (test_verify.py:{line_of('raise KeyError(')})"
    )


def test_a_generator_that_raises_stop_iteration() -> None:
    def stops(ranks: int) -> Steps:
        yield [next(iter([]))]

    assert error_of(stops, ranks=2).site == f"test_verify.py:{line_of('yield [next(iter([]))]')}"


def test_an_empty_schedule_for_several_ranks() -> None:
    assert "without any step, rank 0 chunk 0 lacks rank 1" in str(error_of(lambda ranks: iter([]), ranks=2))


# Compiled programs ----------------------------------------------------------------------------------------------------


def with_waits(programs: Any, keep: Callable[[int, int, int], bool]) -> Any:
    rows = programs.waits.row
    kept = np.array([keep(*wait) for wait in zip(rows, programs.waits.rank, programs.waits.value, strict=True)], bool)
    waits = Lists(
        np.searchsorted(np.flatnonzero(kept), programs.waits.starts),
        programs.waits.rank[kept],
        programs.waits.value[kept],
    )
    return replace(programs, waits=waits)


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "tree", "direct", "naive", "driver"])
@pytest.mark.parametrize("memory", ["shared", "readable", "private"])
def test_no_wait_is_superfluous(name: str, memory: Any) -> None:
    """The compiler leaves out what other waits imply; leave out any one of the rest and two accesses are unordered."""
    programs = compile(af.schedule("all_reduce", name, 5), memory)
    check(programs, segments=4)
    for left_out in range(len(programs.waits.rank)):
        counter = iter(range(len(programs.waits.rank)))
        crippled = with_waits(programs, lambda *_, counter=counter, left_out=left_out: next(counter) != left_out)
        with pytest.raises(ScheduleError, match="unordered access"):
            check(crippled, segments=1)


def test_reuse_of_the_work_area_is_ordered() -> None:
    programs = compile(af.schedule("broadcast", "chain", 4), "private")
    check(programs, segments=5)
    none = Lists(np.zeros_like(programs.reuse.starts), programs.reuse.rank[:0], programs.reuse.value[:0])
    with pytest.raises(ScheduleError, match="unordered access"):
        check(replace(programs, reuse=none), segments=5)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_one_work_area_will_do_where_results_come_back_to_where_the_parts_lay(ranks: int) -> None:
    programs = compile(af.schedule("all_reduce", "direct", ranks), "private", most_handed=7)
    assert programs.one_area and not len(programs.reuse.rank)
    assert programs.work_slots.tolist() == [ranks - 1] * ranks
    check(programs, segments=5)


@pytest.mark.parametrize(("collective", "name", "ranks"), [("all_reduce", "ring", 4), ("all_gather", "direct", 3)])
def test_one_work_area_is_not_enough_for_everything(collective: str, name: str, ranks: int) -> None:
    programs = compile(af.schedule(collective, name, ranks), "private")
    assert not programs.one_area
    check(programs, segments=5)
    with pytest.raises(ScheduleError, match="unordered access"):
        check(replace(programs, one_area=True), segments=5)


def test_what_is_reduced_is_handed_to_a_few_and_read_by_many() -> None:
    few, many = (compile(af.schedule("all_reduce", "direct", ranks), "private", most_handed=7) for ranks in (8, 9))
    assert few.describe(0).count("1.work[") == 2  # read, and written
    assert many.describe(0).count("1.work[") == 2  # its part is read, and then what it has reduced
    assert "1.work" in next(line for line in few.describe(0).splitlines() if "⊕" in line).split("←")[0]
    assert "1.work" not in next(line for line in many.describe(0).splitlines() if "⊕" in line).split("←")[0]


@pytest.mark.parametrize("most_handed", [0, 1, 7])  # whatever is best on this processor, all must be right
@pytest.mark.parametrize("name", af.algorithms("all_reduce"))
def test_programs_are_right_however_results_are_handed_out(name: str, most_handed: int) -> None:
    for ranks in (2, 3, 5, 8):
        check(compile(af.schedule("all_reduce", name, ranks), "private", most_handed=most_handed), segments=4)


def test_a_cycle_of_waits() -> None:
    programs = compile(af.schedule("all_reduce", "ring", 3))
    first = programs.starts[:-1]
    rank = np.array([1, 2, 0])  # every rank's first instruction waits for its neighbour's
    starts = np.searchsorted(first, np.arange(programs.starts[-1] + 1))
    with pytest.raises(ScheduleError, match="a cycle of waits: none of the ranks 0, 1, 2 can go on"):
        check(replace(programs, waits=Lists(starts, rank, np.ones(3, np.int64))))


def test_the_fast_path_of_direct_is_one_instruction_a_rank() -> None:
    """In shared memory every rank reduces its own chunk from all and writes it to all, tile by tile."""
    programs = compile(af.schedule("all_reduce", "direct", 4))
    assert np.diff(programs.starts).tolist() == [1, 1, 1, 1]
    assert programs.work_slots.tolist() == [0, 0, 0, 0]
    everywhere = {(rank, programs.width + 2) for rank in range(4)}
    third = int(programs.starts[2])
    assert programs.sources.of(third) == sorted(everywhere)
    assert set(programs.destinations.of(third)) == everywhere


def test_slices_with_lengths_of_their_own() -> None:
    """Only what keeps every slice in its own place can move them; scratch chunks hold any length."""
    for collective in ("gather", "scatter", "all_gather", "reduce_scatter", "all_to_all"):
        for name in af.algorithms(collective):
            made = af.schedule(collective, name, ranks=4)
            if collective == "all_to_all" and name in ("bruck", "bine"):
                with pytest.raises(
                    af.ScheduleError,
                    match=r"cannot move slices with lengths of their own: step 1 puts slice . of rank .",
                ) as caught:
                    af.verify(made, uneven=True)
                assert caught.value.step == 0 and caught.value.site is not None
                assert not af.verify(made).uneven
            else:
                proof = af.verify(made, uneven=True)
                assert proof.uneven and "slices of any lengths    yes" in str(proof) and proof.to_json()["uneven"]

    def through(place: int) -> Callable[[int], Iterator[list[Move]]]:
        """Slice 0 takes a detour over a place of rank 2; 3 is scratch."""

        def mine(ranks: int) -> Iterator[list[Move]]:
            yield [copy(0, source=0, destination=2, into=place), copy(2, source=2, destination=1)]
            yield [copy(place, source=2, destination=rank, into=0) for rank in (1, 2) if rank == 1 or place]
            yield [copy(1, source=1, destination=2), *(copy(one, source=1, destination=0) for one in (1, 2))]

        return mine

    for place in (0, 1, 3):
        made = af.schedule("all_gather", through(place), ranks=3)
        if place == 1:
            with pytest.raises(
                af.ScheduleError, match=r"step 1 puts slice 0 into chunk 1 of rank 2, the place of slice 1"
            ):
                af.verify(made, uneven=True)
        else:
            assert af.verify(made, uneven=True).uneven
    with pytest.raises(af.UsageError, match="all_reduce has no slices"):
        af.verify(af.schedule("all_reduce", "ring", ranks=2), uneven=True)


def test_the_programs_across_hosts_are_proved_too(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (af.verify(af.schedule("all_reduce", "ring", ranks)) for ranks in (12, 13))
    assert (few.across_hosts, many.across_hosts) == (True, False)
    assert "across hosts" in str(few) and "across hosts" not in str(many)

    def lowered(schedule: af.Schedule) -> MessagePrograms:
        made = lower(schedule)
        return replace(made, programs=[made.programs[0][:-1], *made.programs[1:]])

    monkeypatch.setattr(sys.modules["allfold.proof"], "lower", lowered)
    with pytest.raises(ScheduleError, match="rank 0"):
        af.verify(af.schedule("all_reduce", "ring", 4))
