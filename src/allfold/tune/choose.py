"""Choose an algorithm for each range of sizes: the cheapest path through the sizes, changes included."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, isqrt, log
from typing import TypeVar

from ..collectives import COLLECTIVES
from ..engines.shared_memory.choice import ALWAYS, Choice, choices, folds_from_left
from ..engines.shared_memory.programs import MEMORIES
from ..programs.compile import Programs
from ..proved import programs_of
from ..registry import algorithms
from .timing import Measurement

WORTH_SWITCHING = log(1.05)  # a change must gain this much, summed over the sizes
WORTH_LEAVING_THE_RULE = log(1.02)  # and this much at every size, where the built-in rule says otherwise

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True)
class _State:
    """One possible choice: an algorithm, and True if it accesses arrays in shared memory directly."""

    algorithm: str
    reach: bool


def choose(
    ranks: int, measured: Sequence[Measurement], any_order: bool = False, unrest: float = 0.0
) -> dict[str, list[Choice]]:
    """Choose an algorithm up to each size, for every collective that was measured.

    One choice serves ordinary and shared arrays, and both count equally. A change of algorithm must pay off: every
    algorithm that is used has to be compiled, and differences of a few per cent are noise; more on a noisy machine.
    """
    found = {}
    for collective in dict.fromkeys(one.collective for one in measured):
        names = [
            name for name in algorithms(collective, ranks) if any_order or folds_from_left(collective, name, ranks)
        ]
        rule = choices(collective, ranks)
        twins = _twins(collective, ranks, names, [name for _, name, _ in rule])
        by_size: dict[int, dict[tuple[str, bool], float]] = {}
        for one in measured:
            if one.collective == collective and one.algorithm in twins:
                timed = by_size.setdefault(one.size, {})
                key = (twins[one.algorithm], one.shared)
                timed[key] = min(one.seconds, timed.get(key, inf))
        has_arrays = COLLECTIVES[collective].carries_data
        costs = {size: _costs(timed, has_arrays) for size, timed in sorted(by_size.items())}
        costs = {size: known for size, known in costs.items() if known}
        if costs:
            found[collective] = _best_row(costs, rule, unrest)
    return found


def _best_row(costs: Mapping[int, Mapping[_State, float]], rule: Sequence[Choice], unrest: float) -> list[Choice]:
    worth_switching, worth_leaving = (least + log(1 + unrest) for least in (WORTH_SWITCHING, WORTH_LEAVING_THE_RULE))

    def penalty(size: int, state: _State) -> float:
        usual = next(_State(name, reach) for limit, name, reach in rule if size <= limit)
        return 0.0 if state == usual else worth_leaving

    rows = best_rows(costs, penalty, worth_switching, [limit for limit, _, _ in rule])
    return [(limit, state.algorithm, state.reach) for limit, state in rows]


def _twins(collective: str, ranks: int, names: Sequence[str], preferred: Sequence[str]) -> dict[str, str]:
    """Map every algorithm to one name for all that compile to the same programs: they differ only by chance.

    With two ranks those are nearly all algorithms. A name that the built-in rule uses is preferred.
    """
    root = 0 if COLLECTIVES[collective].rooted else None
    first: dict[tuple[bytes, ...], str] = {}
    twins = {}
    for name in sorted(names, key=lambda name: name not in preferred):
        parts = [part for memory in MEMORIES for part in signature(programs_of(collective, name, ranks, root, memory))]
        twins[name] = first.setdefault(tuple(parts), name)
    return twins


def signature(programs: Programs) -> tuple[bytes, ...]:
    """A key that is equal for programs that do the same."""
    parts = [programs.starts.tobytes(), programs.length_of.tobytes(), str(programs.schedule.chunks).encode()]
    for lists in (programs.sources, programs.destinations, programs.waits, programs.reuse, programs.leave):
        parts += [lists.starts.tobytes(), lists.rank.tobytes(), lists.value.tobytes()]
    return tuple(parts)


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


def best_rows(
    costs: Mapping[int, Mapping[S, float]],
    penalty: Callable[[int, S], float],
    worth_switching: float,
    limits: Sequence[int],
) -> list[tuple[int, S]]:
    """The cheapest path through the sizes, as (up to which size, what to take); found by dynamic programming.

    `costs` has the smallest size first. A path pays the cost and the penalty of each choice, and for each change.
    `limits` are those of the built-in rule: a change is put there if the measurements do not say where it belongs.
    """
    sizes = list(costs)
    ways: dict[S, tuple[float, list[S]]] = {}
    for size in sizes:
        cheapest = min(ways.values(), key=lambda way: way[0], default=(0.0, []))
        following = {}
        for state, cost in costs[size].items():
            stay = ways.get(state, (inf, []))
            move = cheapest[0] + (worth_switching if cheapest[1] else 0.0)
            before, way = stay if stay[0] <= move else (move, cheapest[1])
            following[state] = (before + cost + penalty(size, state), [*way, state])
        ways = following
    _, best = min(ways.values(), key=lambda way: way[0])
    rows: list[tuple[int, S]] = []
    for (size, next_size), (state, following_state) in zip(pairwise(sizes), pairwise(best), strict=True):
        if state != following_state:
            rows.append((_crossing(size, next_size, costs, state, following_state, limits), state))
    return [*rows, (ALWAYS, best[-1])]


def _crossing(
    size: int,
    next_size: int,
    costs: Mapping[int, Mapping[S, float]],
    before: S,
    after: S,
    limits: Sequence[int],
) -> int:
    """The size, between two sizes, where the second choice becomes faster than the first; both scales logarithmic.

    If the measurements do not decide: the limit of the built-in rule if it lies between them, else the middle.
    """
    gain = loss = 0.0
    if before in costs[next_size] and after in costs[size]:
        gain, loss = (costs[at][after] - costs[at][before] for at in (size, next_size))
    if not gain > 0 > loss:
        between = [limit for limit in limits if size <= limit < next_size]
        return between[0] if between else isqrt(max(size, 1) * next_size)
    low = max(size, 1)
    return min(int(low * exp(gain / (gain - loss) * log(next_size / low))), next_size - 1)
