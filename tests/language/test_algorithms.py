"""Every registered algorithm is proved, for every root, and its counts are held to the closed form that it states."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from math import ceil, isqrt, log2

import pytest

import allfold as af
from allfold.collectives import COLLECTIVES
from allfold.registry import find_algorithm

EVERY = [(collective, name) for collective in COLLECTIVES for name in af.algorithms(collective)]


def log_up(ranks: int) -> int:
    return (ranks - 1).bit_length()


def log_down(ranks: int) -> int:
    return ranks.bit_length() - 1


def is_power(ranks: int) -> bool:
    return ranks & (ranks - 1) == 0


def slices(ranks: int, times: int = 1) -> Fraction:
    return Fraction(times * (ranks - 1), ranks)


def group_size(ranks: int) -> int:
    return isqrt(ranks - 1) + 1


def group_count(ranks: int) -> int:
    return -(-ranks // group_size(ranks))


def ones(ranks: int) -> Fraction:
    return Fraction(sum(number.bit_count() for number in range(ranks)), ranks)


Form = Callable[[int], float | Fraction]

# (steps, bytes through the busiest port as a multiple of S), as the docstrings state them; P ≥ 2.
CLOSED_FORMS: dict[tuple[str, str], tuple[Form, Form]] = {
    ("all_reduce", "naive"): (lambda p: 1, lambda p: p - 1),
    ("all_reduce", "driver"): (lambda p: 2, lambda p: p - 1),
    ("all_reduce", "rotate"): (lambda p: p, lambda p: p - 1),
    ("all_reduce", "ring"): (lambda p: 2 * (p - 1), lambda p: slices(p, 2)),
    ("all_reduce", "tree"): (lambda p: 2 * log_up(p), log_up),
    ("all_reduce", "double_tree"): (lambda p: 2 * log_down(p), lambda p: min(2, Fraction(p, 2))),
    ("all_reduce", "recursive_doubling"): (
        lambda p: log_down(p) + 2 * (not is_power(p)),
        lambda p: log_down(p) + (not is_power(p)),
    ),
    ("all_reduce", "halving_doubling"): (
        lambda p: 2 * log_down(p) + 2 * (not is_power(p)),
        lambda p: slices(2 ** log_down(p), 2) + (not is_power(p)),
    ),
    ("all_reduce", "hierarchical"): (
        lambda p: 2 * log_up(group_size(p)) + 2 * (group_count(p) - 1),
        lambda p: log_up(group_size(p)) + slices(group_count(p), 2),
    ),
    ("all_reduce", "two_level"): (
        lambda p: 2 * (group_size(p) - 1) + 2 * (group_count(p) - 1),
        lambda p: slices(group_size(p) * group_count(p), 2),
    ),
    ("all_reduce", "swing"): (lambda p: 2 * max(1, log_up(p - p % 2)), lambda p: slices(p, 2)),
    ("all_reduce", "direct"): (lambda p: 2, lambda p: slices(p, 2)),
    ("reduce", "driver"): (lambda p: 1, lambda p: p - 1),
    ("reduce", "tree"): (log_up, log_up),
    ("reduce", "chain"): (lambda p: p - 1, lambda p: 1),
    ("reduce", "direct"): (lambda p: 2, lambda p: slices(p, 2)),
    ("broadcast", "driver"): (lambda p: 1, lambda p: p - 1),
    ("broadcast", "tree"): (log_up, log_up),
    ("broadcast", "chain"): (lambda p: p - 1, lambda p: 1),
    ("broadcast", "scatter_all_gather"): (lambda p: log_up(p) + p - 1, lambda p: slices(p, 2)),
    ("gather", "driver"): (lambda p: 1, slices),
    ("gather", "tree"): (log_up, slices),
    ("scatter", "driver"): (lambda p: 1, slices),
    ("scatter", "tree"): (log_up, slices),
    ("all_gather", "ring"): (lambda p: p - 1, slices),
    ("all_gather", "bruck"): (log_up, slices),
    ("all_gather", "direct"): (lambda p: 1, slices),
    ("all_gather", "neighbor_exchange"): (
        lambda p: p // 2 + 2 * (p % 2),
        lambda p: slices(p) if p % 2 == 0 else Fraction(4, 3) if p == 3 else 2 - Fraction(1, p),
    ),
    ("reduce_scatter", "ring"): (lambda p: p - 1, slices),
    ("reduce_scatter", "direct"): (lambda p: 1, slices),
    ("all_to_all", "direct"): (lambda p: 1, slices),
    ("all_to_all", "pairwise"): (lambda p: p - 1 + p % 2, slices),
    ("all_to_all", "bruck"): (lambda p: log_up(p) + (p > 2), ones),
    ("barrier", "dissemination"): (log_up, lambda p: 0),
    ("barrier", "direct"): (lambda p: 1, lambda p: 0),
    ("barrier", "tree"): (lambda p: 2 * log_up(p), lambda p: 0),
}

# Where guests make the exact figure a matter of cases: exact for powers of two, below the stated limit otherwise.
WITH_GUESTS: dict[tuple[str, str], tuple[Form, Form, float]] = {
    ("reduce_scatter", "halving"): (lambda p: log_down(p) + 2 * (not is_power(p)), slices, 2.25),
    ("all_gather", "recursive_doubling"): (lambda p: log_down(p) + 2 * (not is_power(p)), slices, 2.25),
    ("reduce", "scatter_gather"): (
        lambda p: log_down(p) + log_up(p) + 2 * (not is_power(p)),
        lambda p: slices(p, 2),
        3.25,
    ),
}


def roots(collective: str, ranks: int) -> list[int | None]:
    return list(range(ranks)) if COLLECTIVES[collective].rooted else [None]


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_is_right_for_every_root(collective: str, name: str) -> None:
    for ranks in range(1, 8):
        for root in roots(collective, ranks):
            af.verify(af.schedule(collective, name, ranks, root))


def test_everything_is_right_for_1_to_33_ranks_and_every_root() -> None:
    """The claim of the documents, by the command that they name; its process pool uses all cores."""
    command = [sys.executable, "-m", "allfold", "verify", "--all", "--ranks", "1-33", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    proofs = [proof for algorithm in json.loads(done.stdout) for proof in algorithm["proofs"]]
    cases = {(proof["collective"], proof["algorithm"], proof["ranks"], proof["root"]) for proof in proofs}
    assert cases == {
        (collective, name, ranks, root)
        for collective, name in EVERY
        for ranks in range(1, 34)
        for root in roots(collective, ranks)
    }


@pytest.mark.parametrize(("collective", "name"), EVERY)
@pytest.mark.parametrize("ranks", [64, 128])
def test_is_right_for_many_ranks(collective: str, name: str, ranks: int) -> None:
    for root in (0, ranks - 1) if COLLECTIVES[collective].rooted else (None,):
        af.verify(af.schedule(collective, name, ranks, root), programs=ranks == 64)


def test_every_algorithm_states_its_cost() -> None:
    shipped = {pair for pair in EVERY if find_algorithm(*pair).function.__module__.startswith("allfold.")}
    assert shipped == set(CLOSED_FORMS) | set(WITH_GUESTS)


@pytest.mark.parametrize(("collective", "name"), sorted(CLOSED_FORMS))
def test_counts_equal_the_closed_form(collective: str, name: str) -> None:
    steps, port = CLOSED_FORMS[collective, name]
    for ranks in [*range(2, 34), 64, 100]:
        counts = af.schedule(collective, name, ranks).counts
        assert (counts.steps, counts.busiest_port_bytes) == (steps(ranks), port(ranks)), f"{ranks} ranks"


@pytest.mark.parametrize(("collective", "name"), sorted(WITH_GUESTS))
def test_counts_with_guests(collective: str, name: str) -> None:
    steps, port, limit = WITH_GUESTS[collective, name]
    for ranks in [*range(2, 34), 64, 100]:
        counts = af.schedule(collective, name, ranks).counts
        assert counts.steps == steps(ranks), f"{ranks} ranks"
        if is_power(ranks):
            assert counts.busiest_port_bytes == port(ranks), f"{ranks} ranks"
        assert counts.busiest_port_bytes < limit, f"{ranks} ranks"


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_nothing_beats_the_lower_bounds(collective: str, name: str) -> None:
    for ranks in (1, 2, 3, 5, 8, 13):
        schedule = af.schedule(collective, name, ranks)
        counts, bounds = schedule.counts, schedule.promise.bounds(ranks)
        assert counts.messages >= bounds.messages
        assert counts.bytes >= bounds.bytes
        assert counts.busiest_port_bytes >= bounds.busiest_port_bytes
        assert counts.rounds >= max(bounds.rounds, counts.busiest_port_messages)


@pytest.mark.parametrize(("collective", "name"), EVERY)
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


RANK_ORDER = {"naive", "driver", "tree", "recursive_doubling", "halving_doubling", "direct"}


@pytest.mark.parametrize("name", af.algorithms("all_reduce"))
def test_what_keeps_rank_order_and_gives_the_same_bits(name: str) -> None:
    for ranks in (7, 8, 11, 12):
        proof = af.verify(af.schedule("all_reduce", name, ranks), programs=False)
        expected = name in RANK_ORDER or (name == "double_tree" and ranks % 2 == 0)
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


def test_docstrings_name_steps_and_bytes() -> None:
    for pair in CLOSED_FORMS.keys() | WITH_GUESTS.keys():
        text = " ".join((find_algorithm(*pair).function.__doc__ or "").split())
        assert "step" in text, pair
        assert "busiest port" in text or pair[0] == "barrier", pair


def test_log_helpers() -> None:
    assert all(log_up(p) == ceil(log2(p)) and log_down(p) == int(log2(p)) for p in range(1, 200))
