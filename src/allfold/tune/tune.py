"""Tune this machine: time every algorithm in the engine, fit the model, and find which one wins from which size on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import ceil, exp, inf, isqrt, log
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from ..bench.case import Case, case_of_size, lengths
from ..bench.measure import Rules, Subject, Timing, measure
from ..bench.peers import start_ours
from ..bench.sizes import format_size
from ..collectives import COLLECTIVES
from ..engines.shared_memory.choice import ALWAYS, Choice, choices, folds_from_left
from ..engines.shared_memory.programs import MEMORIES
from ..engines.shared_memory.tuning import machine
from ..launch.spawn import spawn
from ..price.topology.this_machine import read_machine
from ..proved import programs_of
from ..registry import algorithms
from .caches import Floats, Setting
from .file import Run
from .fit import fit, held_out, judge
from .model import Item

SIZES = tuple(256 * 4**power for power in range(9))  # 256 bytes to 16 MiB
SECONDS = 120.0

Progress = Callable[[str, float], None]
"""Called with what is being done, and the fraction of the measuring that is done."""

_LEAST_ROUNDS, _MOST_ROUNDS = 5, 20
_BESIDES = 2.5  # calibration and warm-up, in rounds
_LEAST_BATCH, _LONGEST_BATCH = 0.0005, 0.004
_USUAL_SECONDS_A_BYTE = 5e-10  # of a whole call; only decides how many rounds are tried
_PART_OF_MEMORY = 1 / 8
_WORTH_SWITCHING = log(1.05)  # a change of algorithm must gain this much, summed over the sizes
_WORTH_LEAVING_THE_RULE = log(1.02)  # and this much at every size, where the built-in rule says otherwise


def tune(
    ranks: int,
    sizes: Sequence[int] = SIZES,
    collectives: Sequence[str] = tuple(COLLECTIVES),
    seconds: float = SECONDS,
    any_order: bool = False,
    progress: Progress = lambda what, part: None,
) -> Run:
    """Measure, fit and choose. Nothing is written: `file.write_runs` does that."""
    setting = find_setting(ranks)
    items, times, unrest = measure_all(ranks, sizes, collectives, seconds, progress)
    return conclude(ranks, items, times, setting, unrest, any_order, progress)


def conclude(
    ranks: int,
    items: Sequence[Item],
    times: Floats,
    setting: Setting,
    unrest: float = 0.0,
    any_order: bool = False,
    progress: Progress = lambda what, part: None,
    of: Mapping[str, Any] | None = None,
) -> Run:
    """Fit and choose from measurements; they are from this machine unless another is given."""
    model = fit(items, times, setting, progress=lambda what: progress(what, 1.0))
    progress("judging", 1.0)
    return Run(
        ranks=ranks,
        machine=machine() if of is None else of,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        unrest=unrest,
        any_order=any_order,
        choices=choose(ranks, items, times, any_order, unrest),
        items=tuple(items),
        seconds=np.asarray(times, float),
        model=model,
        judgement=judge(items, model.predict(items), times),
        held_out=held_out(items, times, setting),
    )


# Measuring ------------------------------------------------------------------------------------------------------------


def measure_all(
    ranks: int, sizes: Sequence[int], collectives: Sequence[str], seconds: float, progress: Progress
) -> tuple[list[Item], Floats, float]:
    """The best round of every algorithm, size and kind of array, and how noisy the machine was (see `Run.unrest`).

    They take turns as in `bench`; all of them together take about `seconds`.
    """
    # Small sizes may round to the same number of elements, and a barrier has one size. Large sizes go first: they take
    # the time they need, and the others share what is left.
    largest_first = sorted(sizes, reverse=True)
    cases = list(dict.fromkeys(case_of_size(name, size, ranks) for size in largest_first for name in collectives))
    subjects = {case: _subjects(case) for case in cases}
    left = sum(len(one) for one in subjects.values())
    items: list[Item] = []
    times: list[float] = []
    spread: list[float] = []
    crew = start_ours(ranks)
    try:
        deadline = time.monotonic() + seconds
        for case in cases:
            name = f"{case.collective} {format_size(case.size)}" if case.size else case.collective
            remaining = max(0.0, deadline - time.monotonic())
            rules = _rules(case, remaining / left)
            done = 1 - remaining / seconds

            def tell(what: str, name: str = name, done: float = done) -> None:
                progress(f"{name}: {what}", done)

            found: dict[str, Timing] = {}
            for some in _at_once(case, subjects[case]):
                found |= measure(case, some, {"allfold": crew}, rules, tell)
            for subject in subjects[case]:
                best, rounds = found[subject.label].best, found[subject.label].rounds
                if best is not None:
                    spread.append(log(median(rounds) / best))
                    algorithm, shared = subject.options["algorithm"], subject.options["shared"]
                    items.append(Item(case.collective, algorithm, ranks, shared, case.size))
                    times.append(best)
            left -= len(subjects[case])
    finally:
        crew.close()
    return items, np.array(times), exp(mean(spread)) - 1


def _rules(case: Case, seconds: float) -> Rules:
    """How to time one subject in the given seconds: many short rounds are better than a few long ones.

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
        for name in algorithms(case.collective)
        for shared in kinds
    ]


def _at_once(case: Case, subjects: Sequence[Subject]) -> Iterator[Sequence[Subject]]:
    """Subjects that take turns hold their arrays at the same time: as many as fit into a part of the memory."""
    each = sum(length or 0 for rank in range(case.ranks) for length in lengths(case, rank)) * case.element.itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    many = max(2, int(memory * _PART_OF_MEMORY / max(each, 1)))
    for start in range(0, len(subjects), many):
        yield subjects[start : start + many]


def find_setting(ranks: int) -> Setting:
    """What the model must know about this machine: asked of the system, or, for reading other processes, tried out."""
    here = read_machine(Path("/"), "", "")
    usable = len(os.sched_getaffinity(0))
    cores = usable if here.limit is None else max(1, min(usable, ceil(here.limit)))
    sizes = {cache.level: cache.size for cache in here.caches}
    own = sizes.get(2, 2**20)
    last = max(sizes[max(sizes)] if sizes else 0, 2 * own)
    return Setting(cores, float(own), float(last), bool(ranks > 1 and all(spawn(_fetches, ranks=2))))


def _fetches(communicator: Any) -> bool:
    os.environ.pop("ALLFOLD_FETCH", None)  # as for the ranks that are timed
    group = communicator.group([0, 1])
    group.barrier()  # by now, every rank has left the word that peers use to test fetching
    size = 2**21
    with group.trace() as trace:
        group.all_gather(np.zeros(size, np.uint8), np.zeros(2 * size, np.uint8), algorithm="direct")
    group.close()
    return any(event.memory == "readable" for event in trace.events)


# Choosing -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    """What could be chosen: an algorithm, and whether to reach into arrays that lie in shared memory."""

    algorithm: str
    reach: bool


def choose(
    ranks: int, items: Sequence[Item], times: Floats, any_order: bool = False, unrest: float = 0.0
) -> dict[str, list[Choice]]:
    """For every collective that was measured: which algorithm up to which size.

    One choice serves ordinary and shared arrays, and both count equally. A change of algorithm must pay off: every
    algorithm that is used has to be compiled, and differences of a few per cent are noise; more on a noisy machine.
    """
    found = {}
    for collective in dict.fromkeys(item.collective for item in items):
        names = [name for name in algorithms(collective) if any_order or folds_from_left(collective, name, ranks)]
        rule = choices(collective, ranks)
        twins = _twins(collective, ranks, names, [name for _, name, _ in rule])
        by_size: dict[int, dict[tuple[str, bool], float]] = {}
        for item, seconds in zip(items, times, strict=True):
            if item.collective == collective and item.algorithm in twins:
                timed = by_size.setdefault(item.size, {})
                key = (twins[item.algorithm], item.shared)
                timed[key] = min(float(seconds), timed.get(key, inf))
        has_arrays = COLLECTIVES[collective].carries_data
        costs = {size: _costs(timed, has_arrays) for size, timed in sorted(by_size.items())}
        costs = {size: known for size, known in costs.items() if known}
        if costs:
            found[collective] = _best_row(costs, rule, unrest)
    return found


def _twins(collective: str, ranks: int, names: Sequence[str], preferred: Sequence[str]) -> dict[str, str]:
    """For every algorithm, one name for all that compile to the same programs: they differ only by chance.

    With two ranks those are nearly all algorithms. A name that the built-in rule uses is preferred.
    """
    root = 0 if COLLECTIVES[collective].rooted else None
    first: dict[tuple[bytes, ...], str] = {}
    twins = {}
    for name in sorted(names, key=lambda name: name not in preferred):
        parts = []
        for memory in MEMORIES:
            programs = programs_of(collective, name, ranks, root, memory)
            parts += [programs.starts.tobytes(), programs.length_of.tobytes(), str(programs.schedule.chunks).encode()]
            for lists in (programs.sources, programs.destinations, programs.waits, programs.reuse, programs.leave):
                parts += [lists.starts.tobytes(), lists.rank.tobytes(), lists.value.tobytes()]
        twins[name] = first.setdefault(tuple(parts), name)
    return twins


def _costs(timed: Mapping[tuple[str, bool], float], has_arrays: bool) -> dict[_State, float]:
    """The logarithm of the time, averaged over both kinds of arrays, for what was measured on both."""
    costs = {}
    for name in dict.fromkeys(name for name, _ in timed):
        ordinary, shared = timed.get((name, False)), timed.get((name, True))
        if ordinary is not None and (shared is not None or not has_arrays):
            costs[_State(name, False)] = log(ordinary)
        if ordinary is not None and shared is not None:
            costs[_State(name, True)] = (log(ordinary) + log(shared)) / 2
    return costs


def _best_row(costs: Mapping[int, Mapping[_State, float]], rule: Sequence[Choice], unrest: float) -> list[Choice]:
    """The path through the sizes with the least cost, including changes; found by dynamic programming."""
    worth_switching, worth_leaving = (least + log(1 + unrest) for least in (_WORTH_SWITCHING, _WORTH_LEAVING_THE_RULE))
    sizes = list(costs)
    ways: dict[_State, tuple[float, list[_State]]] = {}
    for size in sizes:
        usual = next(_State(name, reach) for limit, name, reach in rule if size <= limit)
        cheapest = min(ways.values(), key=lambda way: way[0], default=(0.0, []))
        following = {}
        for state, cost in costs[size].items():
            stay = ways.get(state, (inf, []))
            move = cheapest[0] + (worth_switching if cheapest[1] else 0.0)
            before, way = stay if stay[0] <= move else (move, cheapest[1])
            penalty = 0.0 if state == usual else worth_leaving
            following[state] = (before + cost + penalty, [*way, state])
        ways = following
    _, best = min(ways.values(), key=lambda way: way[0])
    row: list[Choice] = []
    for (size, next_size), (state, following_state) in zip(pairwise(sizes), pairwise(best), strict=True):
        if state != following_state:
            limit = _crossing(size, next_size, costs, state, following_state, rule)
            row.append((limit, state.algorithm, state.reach))
    return [*row, (ALWAYS, best[-1].algorithm, best[-1].reach)]


def _crossing(
    size: int,
    next_size: int,
    costs: Mapping[int, Mapping[_State, float]],
    before: _State,
    after: _State,
    rule: Sequence[Choice],
) -> int:
    """The size, between two sizes, where the second algorithm becomes faster than the first; both scales logarithmic.

    If the measurements do not decide: the limit of the built-in rule if it lies between them, else the middle.
    """
    gain = loss = 0.0
    if before in costs[next_size] and after in costs[size]:
        gain, loss = (costs[at][after] - costs[at][before] for at in (size, next_size))
    if not gain > 0 > loss:
        between = [limit for limit, _, _ in rule if size <= limit < next_size]
        return between[0] if between else isqrt(max(size, 1) * next_size)
    low = max(size, 1)
    return min(int(low * exp(gain / (gain - loss) * log(next_size / low))), next_size - 1)
