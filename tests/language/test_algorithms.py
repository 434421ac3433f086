"""Every registered algorithm is proved, for every root, and its counts match `@algorithm` and its docstring."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from fractions import Fraction

import pytest
from each import each
from written_formulas import port_written, steps_written, value

import allfold as af
from allfold.cli import main
from allfold.collectives import COLLECTIVES
from allfold.registry import REGISTRY, find_algorithm

EVERY = [(collective, name) for collective in COLLECTIVES for name in af.algorithms(collective)]


def roots(collective: str, ranks: int) -> list[int | None]:
    return list(range(ranks)) if COLLECTIVES[collective].rooted else [None]


# The numbers from 18 to 32 are left out: they take several times as long as all others together.
@pytest.mark.parametrize(
    ("counts", "some_roots"),
    [
        (range(1, 7), None),
        ((7, 8, 16), (0, 5, 6, 15)),
        pytest.param([*range(1, 18), 33], None, marks=pytest.mark.exhaustive),
    ],
    ids=["every root of up to 6 ranks", "some roots of up to 16 ranks", "every root of up to 33 ranks"],
)
def test_everything_is_right(
    counts: list[int], some_roots: tuple[int, ...] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command that the documentation names, whose process pool uses all cores where that is worth it."""
    asked = ["--ranks", ",".join(map(str, counts))]
    if some_roots:
        asked += ["--roots", ",".join(map(str, some_roots)), "--jobs", "1"]
    status = main(["verify", "--all", "--json", *asked])
    out, err = capsys.readouterr()
    assert status == 0, err
    proofs = [proof for algorithm in json.loads(out) for proof in algorithm["proofs"]]
    cases = {(proof["collective"], proof["algorithm"], proof["ranks"], proof["root"]) for proof in proofs}
    assert cases == {
        (collective, name, ranks, root)
        for collective, name in EVERY
        for ranks in counts
        for root in roots(collective, ranks)
        if root is None or some_roots is None or root in some_roots
    }


@each(("collective", "name"), EVERY)
@pytest.mark.parametrize("ranks", [64, pytest.param(128, marks=pytest.mark.exhaustive)])
def test_is_right_for_many_ranks(collective: str, name: str, ranks: int) -> None:
    for root in (0, ranks - 1) if COLLECTIVES[collective].rooted else (None,):
        af.verify(af.schedule(collective, name, ranks, root), programs=ranks == 64)


def test_every_shipped_algorithm_says_its_costs() -> None:
    for pair in EVERY:
        found = find_algorithm(*pair)
        if found.function.__module__.startswith("allfold."):
            assert found.steps and found.port and found.patterns, pair


@each(("collective", "name"), EVERY)
@pytest.mark.parametrize(
    "counts",
    [[*range(2, 18), 24, 31, 32, 33, 64], pytest.param([*range(2, 34), 64, 100], marks=pytest.mark.exhaustive)],
    ids=["some", "all"],
)
def test_counts_are_what_it_says(collective: str, name: str, counts: list[int]) -> None:
    """In `@algorithm` and in its docstring: for any number of ranks one formula is true, and each is true for some."""
    found = find_algorithm(collective, name)
    text = " ".join((found.function.__doc__ or "").split())
    steps, port = set(steps_written(text)), set(port_written(text))
    true: set[object] = set()
    for ranks in counts:
        real = af.schedule(collective, name, ranks).counts
        for formula, counted in ((found.steps, real.steps), (found.port, real.busiest_port_bytes)):
            said = formula(ranks) if formula else None
            assert said is None or said == counted, f"{ranks} ranks"
        if "groups of g ranks each" in text and not value("P/G", ranks).is_integer():
            continue
        steps_here = {formula for formula in steps if value(formula, ranks) == real.steps}
        port_here = {claim for claim in port if holds(claim, ranks, float(real.busiest_port_bytes))}
        assert steps_here or not steps, f"{ranks} ranks: {real.steps} steps"
        assert port_here or not port, f"{ranks} ranks: {real.busiest_port_bytes} S through the busiest port"
        true |= steps_here | port_here
    assert true == steps | port
    if found.function.__module__.startswith("allfold."):
        assert steps and (port or collective == "barrier"), "the docstring names no steps, or not the busiest port"


def holds(claim: tuple[str, str], ranks: int, counted: float) -> bool:
    word, times = claim
    stated = value(times, ranks)
    if word == "less than":
        return counted < stated
    if word == "at most":
        return counted <= stated
    return counted == pytest.approx(stated, rel=0.25 if word == "about" else 1e-12)


@each(("collective", "name"), EVERY)
def test_nothing_beats_the_lower_bounds(collective: str, name: str) -> None:
    for ranks in (1, 2, 3, 5, 8, 13):
        schedule = af.schedule(collective, name, ranks)
        counts, bounds = schedule.counts, schedule.promise.bounds(ranks)
        assert counts.messages >= bounds.messages
        assert counts.bytes >= bounds.bytes
        assert counts.busiest_port_bytes >= bounds.busiest_port_bytes
        assert counts.rounds >= max(bounds.rounds, counts.busiest_port_messages)


@each(("collective", "name"), EVERY)
def test_one_rank_moves_nothing_between_ranks(collective: str, name: str) -> None:
    assert af.schedule(collective, name, 1).counts.messages == 0


def test_the_ring_is_its_two_halves() -> None:
    """An all_reduce is a reduce_scatter followed by an all_gather, move by move."""
    for name in ("ring", "direct"):
        whole = af.schedule("all_reduce", name, 6)
        halves = [*af.schedule("reduce_scatter", name, 6), *af.schedule("all_gather", name, 6)]
        assert list(whole) == halves


def test_the_mission_s_table_of_messages() -> None:
    """n(n−1) and 2(n−1) count different things: a ring sends more messages than the naive way, but smaller ones."""
    for ranks, naive, steps in ((2, 2, 2), (4, 12, 6), (8, 56, 14), (16, 240, 30), (32, 992, 62)):
        assert af.schedule("all_reduce", "naive", ranks).counts.messages == naive
        ring = af.schedule("all_reduce", "ring", ranks).counts
        assert ring.steps == steps
        assert ring.messages == 2 * ranks * (ranks - 1)
        assert ring.busiest_port_bytes == Fraction(2 * (ranks - 1), ranks)
        assert af.schedule("all_reduce", "driver", ranks).counts.messages == 2 * (ranks - 1)


def base_minus_two(number: int, digits: int) -> int:
    """The digits in base −2 of a number modulo 2^digits, as bits."""
    values = {sum((-2) ** place for place in range(digits) if bits >> place & 1): bits for bits in range(1 << digits)}
    return next(bits for value, bits in values.items() if (value - number) % (1 << digits) == 0)


@pytest.mark.parametrize("digits", [1, 2, 3, 4, 5])
def test_bine_trees_are_those_of_the_paper(digits: int) -> None:
    """A rank's parent has the opposite of its lowest digits in base −2: of all of them that are equal."""
    ranks = 1 << digits
    for root in {0, 3 % ranks, ranks - 1}:
        place = [base_minus_two((rank - root) % ranks, digits) for rank in range(ranks)]
        expected = []
        for length in range(digits, 0, -1):
            ones = (1 << length) - 1
            for rank, bits in enumerate(place):
                above = bits & (2 * ones + 1) if length < digits else -1
                if rank != root and bits & ones in (0, ones) and above not in (0, 2 * ones + 1):
                    expected.append((digits - length, place.index(bits ^ ones), rank))
        moves = af.schedule("broadcast", "bine", ranks, root)
        assert sorted(
            (number, one.source, one.destination) for number, step in enumerate(moves) for one in step
        ) == sorted(expected)


def test_bine_trees_of_any_size_reach_a_third_of_the_ranks_away() -> None:
    for ranks in (2, 3, 7, 12, 33, 100, 1000):
        for step, moves in enumerate(af.schedule("broadcast", "bine", ranks, root=ranks // 2)):
            apart = [abs(one.source - one.destination) for one in moves]
            below = -(-ranks // 2**step)  # the most ranks of a subtree
            assert max(min(far, ranks - far) for far in apart) <= below / 3 + 1, f"{ranks} ranks, step {step + 1}"


def test_swing_is_the_two_halves_of_bine() -> None:
    for ranks in (5, 8, 12):
        halves = [*af.schedule("reduce_scatter", "bine", ranks), *af.schedule("all_gather", "bine", ranks)]
        assert list(af.schedule("all_reduce", "swing", ranks)) == halves


def test_pat_with_limited_messages() -> None:
    """A message has no more chunks than it may, and chunks that wait to be passed on fill a logarithmic number of them."""
    for ranks in (2, 3, 8, 13, 32, 50):
        for aggregation in (1, 2, 3, 4, 8, 100):
            made = af.schedule("all_gather", "pat", ranks, aggregation=aggregation)
            af.verify(made, programs=False)
            whole = 1 << (ranks - 1).bit_length()
            together = min(whole, 1 << aggregation.bit_length() - 1)
            assert made.steps <= together.bit_length() - 1 + whole // together - 1
            sent = {one.chunk: number for number, step in enumerate(made) for one in step if one.source == 0}
            came = {one.chunk: number for number, step in enumerate(made) for one in step if one.destination == 0}
            waiting = [sum(came[c] < number <= sent.get(c, 0) for c in came) for number in range(made.steps)]
            assert max(waiting) <= together * (whole // together).bit_length()
            assert max(sum(one.source == 0 for one in step) for step in made) <= aggregation
            backwards = af.schedule("reduce_scatter", "pat", ranks, aggregation=aggregation)
            af.verify(backwards, programs=False)
            edges = [sorted((one.chunk, one.source, one.destination) for one in step) for step in made]
            assert edges == [
                sorted((one.chunk, one.destination, one.source) for one in step) for step in reversed([*backwards])
            ]
    with pytest.raises(af.UsageError, match="aggregation must be a positive whole number of chunks, not 0"):
        af.schedule("all_gather", "pat", 8, aggregation=0)


KEEP_RANK_ORDER = ("naive", "driver", "tree", "recursive_doubling", "halving_doubling", "direct")


@pytest.mark.parametrize(
    "name", [*KEEP_RANK_ORDER, "double_tree", "rotate", "ring", "swing", "bine", "hierarchical", "two_level"]
)
def test_what_keeps_rank_order_and_gives_the_same_bits(name: str) -> None:
    for ranks in (7, 8, 11, 12):
        proof = af.verify(af.schedule("all_reduce", name, ranks), programs=False)
        expected = name in KEEP_RANK_ORDER or (name == "double_tree" and ranks % 2 == 0)
        assert proof.rank_order is expected, f"{ranks} ranks"
        assert proof.same_bits is (name != "rotate"), f"{ranks} ranks"


def test_the_default_algorithms_reduce_every_element_alike() -> None:
    for collective, name in (("all_reduce", "naive"), ("all_reduce", "direct"), ("reduce_scatter", "direct")):
        for ranks in (2, 3, 8, 13):
            assert af.verify(af.schedule(collective, name, ranks), programs=False).uniform
    assert not af.verify(af.schedule("all_reduce", "ring", 4), programs=False).uniform


def test_hierarchies_are_built_from_any_parts() -> None:
    uneven = [[0, 1, 2, 3, 4], [5], [6, 7, 8]]
    for up in ("driver", "tree", "chain", "scatter_gather"):
        for across in af.algorithms("all_reduce"):
            af.verify(af.schedule("all_reduce", "hierarchical", 9, groups=uneven, up=up, across=across), programs=False)
    for scatter in af.algorithms("reduce_scatter"):
        for gather in af.algorithms("all_gather"):
            parameters = {"groups": uneven, "scatter": scatter, "across": "rotate", "gather": gather}
            af.verify(af.schedule("all_reduce", "two_level", 9, **parameters), programs=False)
    apart = [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    af.verify(af.schedule("all_reduce", "two_level", 9, groups=apart))
    with pytest.raises(af.UsageError, match="each of the ranks 0–8 once"):
        af.schedule("all_reduce", "hierarchical", 9, groups=[[0, 1], [1, 2]])


TWO_LEVELS = [pair for pair in EVERY if find_algorithm(*pair).takes_groups]
PHASES = {  # by parameter: the collective whose algorithms it names, where it is not that of the schedule itself
    "all_gather": {"up": "gather", "down": "broadcast"},
    "reduce_scatter": {"up": "reduce", "down": "scatter"},
    "all_reduce": {"up": "reduce", "down": "broadcast", "scatter": "reduce_scatter", "gather": "all_gather"},
    "barrier": {"up": "reduce", "across": "all_reduce", "down": "broadcast"},
}


@pytest.mark.parametrize(("collective", "name"), TWO_LEVELS)
@pytest.mark.parametrize("every_root", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_two_levels_take_any_groups_root_and_parts(collective: str, name: str, every_root: bool) -> None:
    """Other parts with the last root, a different place in each of the groups, unless all roots are asked for."""
    parameters = list(inspect.signature(find_algorithm(collective, name).function).parameters)
    phases = parameters[parameters.index("groups") + 1 :]
    for groups in ([[0], [1, 2, 3]], [[0, 2], [1, 3]], [[3, 1], [2], [0]], [[1, 2, 3, 0]], [[5, 0, 3], [1], [4, 2]]):
        ranks = sum(map(len, groups))
        for root in roots(collective, ranks):
            af.verify(af.schedule(collective, name, ranks, root, groups=groups))
            for phase in phases if every_root or root in (None, ranks - 1) else ():
                parts = PHASES.get(collective, {}).get(phase, collective)
                for part in af.algorithms(parts):
                    made = af.schedule(collective, name, ranks, root, groups=groups, **{phase: part})
                    af.verify(made, programs=False)


@pytest.mark.parametrize(("collective", "name"), [pair for pair in TWO_LEVELS if COLLECTIVES[pair[0]].reduces])
def test_two_levels_keep_rank_order_in_consecutive_groups(collective: str, name: str) -> None:
    inside = {"up": "driver", "down": "driver", "scatter": "direct", "gather": "direct"}
    inside["across"] = "driver" if collective == "reduce" else "direct" if collective != "barrier" else "naive"
    known = inspect.signature(find_algorithm(collective, name).function).parameters
    parts = {phase: part for phase, part in inside.items() if phase in known}
    for groups, kept in (([[0], [1, 2, 3], [4]], True), ([[0, 2], [1, 3, 4]], False)):
        for root in roots(collective, 5):
            proof = af.verify(af.schedule(collective, name, 5, root, groups=groups, **parts), programs=False)
            assert proof.rank_order is (kept if collective != "barrier" else proof.rank_order)


def test_parts_that_move_slices_to_other_places_need_groups_of_one_size() -> None:
    def shifted(ranks: int) -> Iterator[list[af.Move]]:
        """All slices come to the next place, and then home."""
        for r in range(ranks):
            yield [af.copy(r, r, d, into=(r + 1) % ranks + ranks) for d in range(ranks)]
        yield [af.copy((r + 1) % ranks + ranks, d, d, into=r) for d in range(ranks) for r in range(ranks)]

    with REGISTRY.scope():
        af.algorithm("all_gather", "shifted for a test", chunks=lambda ranks: ranks)(shifted)
        for groups, fits in (([[0, 2], [1, 3]], True), ([[0], [1, 2, 3]], False)):
            for phase in ("across", "gather"):
                parameters = {"groups": groups, phase: "shifted for a test"}
                if fits:
                    af.verify(af.schedule("all_gather", "two_level", 4, **parameters))
                    continue
                with pytest.raises(af.UsageError, match="it moves slices to other places"):
                    af.schedule("all_gather", "two_level", 4, **parameters)
