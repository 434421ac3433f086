"""Time every algorithm in the engine, in turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import mean, median

from ..bench.case import Case, case_of_size, lengths
from ..bench.measure import Rules, Subject, Timing, measure
from ..bench.peers import start_ours
from ..registry import algorithms
from ..wording import format_size

Progress = Callable[[str, float], None]
"""Called with what is being done, and the fraction of the measuring that is done."""

_LEAST_ROUNDS, _MOST_ROUNDS = 5, 20
_BESIDES = 2.5  # calibration and warm-up, in rounds
_LEAST_BATCH, _LONGEST_BATCH = 0.0005, 0.004
_USUAL_SECONDS_A_BYTE = 5e-10  # of a whole call; only decides how many rounds are tried
_PART_OF_MEMORY = 1 / 8


@dataclass(frozen=True)
class Measurement:
    """The time of one algorithm on arrays of one kind and size."""

    collective: str
    algorithm: str
    shared: bool
    size: int
    """Bytes of the whole buffer."""
    seconds: float


def measure_all(
    ranks: int, sizes: Sequence[int], collectives: Sequence[str], seconds: float, progress: Progress
) -> tuple[list[Measurement], float]:
    """The best round of every algorithm, size and kind of array, and how noisy the machine was (see `TunedRun.unrest`).

    They take turns as in `bench`; all of them together take about `seconds`.
    """
    # Small sizes may round to the same number of elements, and a barrier has one size. Large sizes go first: they take
    # the time they need, and the others share what is left.
    largest_first = sorted(sizes, reverse=True)
    cases = list(dict.fromkeys(case_of_size(name, size, ranks) for size in largest_first for name in collectives))
    subjects = {case: _subjects(case) for case in cases}
    left = sum(len(one) for one in subjects.values())
    measured: list[Measurement] = []
    spread: list[float] = []
    crew = start_ours(ranks, tuned=False)
    try:
        deadline = time.monotonic() + seconds
        for case in cases:
            name = f"{case.collective} {format_size(case.size)}" if case.size else case.collective
            remaining = max(0.0, deadline - time.monotonic())
            rules = rules_for(case, remaining / left)
            done = 1 - remaining / seconds

            def tell(what: str, name: str = name, done: float = done) -> None:
                progress(f"{name}: {what}", done)

            found: dict[str, Timing] = {}
            for some in at_once(case, subjects[case]):
                found |= measure(case, some, {"allfold": crew}, rules, tell)
            for subject in subjects[case]:
                best, rounds = found[subject.label].best, found[subject.label].rounds
                if best is not None:
                    spread.append(log(median(rounds) / best))
                    algorithm, shared = subject.options["algorithm"], subject.options["shared"]
                    measured.append(Measurement(case.collective, algorithm, shared, case.size, best))
            left -= len(subjects[case])
    finally:
        crew.close()
    return measured, exp(mean(spread)) - 1


def rules_for(case: Case, seconds: float) -> Rules:
    """The rules for timing one subject in the given seconds: many short rounds are better than a few long ones.

    The best round is the least disturbed one, and a short round is more likely not to be disturbed at all.
    """
    call = case.size * case.ranks * _USUAL_SECONDS_A_BYTE / min(case.ranks, len(os.sched_getaffinity(0)))
    batch = min(max(seconds / (_LEAST_ROUNDS + _BESIDES), _LEAST_BATCH), _LONGEST_BATCH)
    rounds = int(seconds / max(batch, 2 * call) - _BESIDES)
    return Rules(batch, min(max(rounds, _LEAST_ROUNDS), _MOST_ROUNDS), warmup=1, check=False)


def _subjects(case: Case) -> list[Subject]:
    kinds = (False, True) if case.kind.carries_data else (False,)
    return [
        Subject(f"{name}{' shared' if shared else ''}", "allfold", {"algorithm": name, "shared": shared})
        for name in algorithms(case.collective, case.ranks)
        for shared in kinds
    ]


def at_once(case: Case, subjects: Sequence[Subject], beside: int = 0) -> Iterator[Sequence[Subject]]:
    """Split subjects into parts that may take turns: they hold their arrays at once, and those must fit into memory.

    `beside`: the number of further subjects that take turns with every part.
    """
    each = sum(length or 0 for rank in range(case.ranks) for length in lengths(case, rank)) * case.element.itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    many = max(2, int(memory * _PART_OF_MEMORY / max(each, 1))) - beside
    for start in range(0, len(subjects), many):
        yield subjects[start : start + many]
