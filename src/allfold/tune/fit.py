"""Fit the engine's model to the timings of one machine, and judge how good the model then is.

The model is linear in its terms along the longest path, and the longest path depends on the terms. So they are computed
in turns: the paths for the terms, then the terms for the paths. The fit minimises the mean of |ln(predicted ÷
measured)|, whose exponential is the geometric mean of the error: an error of 1 µs in 10 µs counts as much as 1 ms in 10
ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np

from ..errors import UsageError
from .caches import PLACES, Floats, Setting
from .model import ACCESSES, TERMS, Item, amounts, paths, predict

JUDGED_FROM = 64 * 1024
"""The smallest size in bytes that is judged; below it, Python and the kernel take most of a call."""
AS_GOOD = 1.05
"""A predicted winner is right if it took at most this many times the fastest time: two runs differ by as much."""
_THE_SAME = 1 + 1e-9
_LEAST = 1e-12  # seconds; a prediction of 0 has no logarithm

_TURNS = 12
_INNER_TURNS = 6
_PULL = 0.02  # weight of the usual value of each term: matters only where measurements say nothing
_SMALLEST_RESIDUAL = 0.03
_LARGEST_STEP = 1.5  # of the logarithm, per turn
_KNEES = {"last_cache": (1 / 16, 1 / 8, 1 / 4, 1 / 2, 2.0, 4.0, 8.0, 16.0), "own_cache": (1 / 2, 2.0)}
_WORTH_MOVING = 0.96  # of the error: a cache size other than the system's must at least explain this much

USUAL = {
    "call": 6e-7,
    "instruction": 3e-8,
    "look": 5e-8,
    "news": 1.5e-7,
    "switch": 1.5e-6,
    "fold": 1.5e-11,
    "fetch": 1e-6,
    "fetched byte": 4e-11,
    "crowded byte": 2e-11,
    "first byte": 1e-10,
    "contended byte": 1e-11,
    **{
        f"{what}, {place}": seconds
        for what in ACCESSES
        for place, seconds in zip(PLACES, (1.5e-11, 3e-11, 6e-11, 6e-11), strict=True)
    },
}
"""Where the search begins: values of servers of the 2020s, to one digit."""


@dataclass(frozen=True, eq=False)
class Model:
    """The engine on one machine with one number of ranks."""

    setting: Setting
    terms: Floats

    def predict(self, items: Sequence[Item]) -> Floats:
        return predict(items, self.setting, self.terms)

    def named(self) -> dict[str, float]:
        return dict(zip(TERMS, self.terms.tolist(), strict=True))


@dataclass(frozen=True)
class Judgement:
    """How predictions compare with measurements from `JUDGED_FROM` bytes on."""

    cases: int
    error: float
    """The geometric mean of predicted ÷ measured or its reverse, whichever is above 1, less 1."""
    contests: int
    """How many cases (collective, kind of arrays, size) had several algorithms timed."""
    right: int
    """In how many of them the predicted winner was the fastest, or as good (`AS_GOOD`)."""


def usual_terms() -> Floats:
    return np.array([USUAL[name] for name in TERMS])


def fit(
    items: Sequence[Item],
    seconds: Floats,
    setting: Setting,
    knees: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Model:
    """The terms with which the model is closest to the measured seconds; with `knees`, also effective cache sizes.

    The search for cache sizes starts at what the system reports. The effective size may differ: a last-level cache is
    shared with everything else on the machine, and on a virtual machine it need not exist.
    """
    if len(items) != len(seconds) or not len(items):
        raise UsageError(
            f"{len(seconds)} times for {len(items)} things that were timed: expected as many, at least one"
        )
    if not (np.isfinite(seconds) & (seconds > 0)).all():
        raise UsageError("a time that was measured is not above zero")
    model = best = Model(setting, usual_terms())
    least = np.inf
    searches = 2 if knees else 0
    for turn in range(_TURNS):
        along = paths(items, model.setting, model.terms)
        error = _error(seconds, amounts(items, along, model.setting) @ model.terms)
        if error < least:
            least, best = error, model
        if progress is not None:
            progress(f"fitting, {exp(least) - 1:.1%} off")
        error, terms = _fit_terms(items, seconds, along, model, half=turn > 0)
        settled = np.allclose(terms, model.terms, rtol=1e-3)
        model = Model(model.setting, terms)
        if searches and (settled or turn % 3 == 2):
            searches -= 1
            model = _move_knees(items, seconds, along, model, error)
        elif settled:
            break
    return best


def judge(items: Sequence[Item], predicted: Floats, measured: Floats, least: int = JUDGED_FROM) -> Judgement:
    large = [i for i, item in enumerate(items) if item.size >= least]
    errors = [abs(log(max(predicted[i], _LEAST) / measured[i])) for i in large]
    contests: defaultdict[tuple[str, int, bool, int], list[int]] = defaultdict(list)
    for i in large:
        item = items[i]
        contests[item.collective, item.ranks, item.shared, item.size].append(i)
    several = [group for group in contests.values() if len(group) > 1]
    right = sum(_right(group, predicted, measured) for group in several)
    error = exp(sum(errors) / len(errors)) - 1 if errors else 0.0
    return Judgement(len(large), error, len(several), int(right))


def _right(group: Sequence[int], predicted: Floats, measured: Floats) -> bool:
    """Algorithms that compile to the same programs have the same prediction: they count as one, timed several times."""
    least = min(predicted[i] for i in group)
    winners = [i for i in group if predicted[i] <= least * _THE_SAME]
    return bool(min(measured[i] for i in winners) <= AS_GOOD * min(measured[i] for i in group))


def held_out(items: Sequence[Item], seconds: Floats, setting: Setting) -> Judgement:
    """The judgement on sizes that were held out of the fit: every second one, from the second smallest on.

    With an odd number of sizes the largest is in the fit: nothing else shows what memory costs.
    """
    places: dict[int, int] = {
        size: place for place, size in enumerate(sorted({item.size // 64 for item in items if item.size}))
    }
    seen = np.array([not item.size or places[item.size // 64] % 2 == 0 for item in items])
    if seen.all() or not seen.any():
        return Judgement(0, 0.0, 0, 0)
    known, hidden = np.flatnonzero(seen).tolist(), np.flatnonzero(~seen).tolist()
    model = fit([items[i] for i in known], seconds[known], setting)
    unseen = [items[i] for i in hidden]
    return judge(unseen, model.predict(unseen), seconds[hidden])


def _move_knees(items: Sequence[Item], seconds: Floats, along: Sequence[Floats], model: Model, error: float) -> Model:
    """The same model with other cache sizes, if they fit better on the same paths."""
    for field, factors in _KNEES.items():
        before = model.setting
        for factor in factors:
            other = replace(before, **{field: getattr(before, field) * factor})
            closer, terms = _fit_terms(items, seconds, along, Model(other, model.terms), half=False)
            if closer < error * _WORTH_MOVING:
                error, model = closer, Model(other, terms)
    return model


def _fit_terms(
    items: Sequence[Item], seconds: Floats, along: Sequence[Floats], model: Model, half: bool
) -> tuple[float, Floats]:
    """On given paths: the mean of |ln(predicted ÷ measured)|, and the terms that reach it.

    With `half`, go only half of the way, since other terms may have other paths.
    """
    usual, terms = usual_terms(), model.terms
    amount = amounts(items, along, model.setting)
    pull = np.sqrt(_PULL * len(items) / len(TERMS)) * np.eye(len(TERMS))
    for _ in range(_INNER_TURNS):
        predicted = np.maximum(amount @ terms, _LEAST)
        residual = np.log(seconds / predicted)
        # ln(amount @ terms) is about ln(predicted) + (amount @ terms − predicted) ÷ predicted. Dividing by the root of the
        # residual makes the sum of squares one of absolute values, in which a few bad timings weigh little.
        wanted = 1 + np.clip(residual, -_LARGEST_STEP, _LARGEST_STEP)
        weight = 1 / np.sqrt(np.maximum(np.abs(residual), _SMALLEST_RESIDUAL))
        scaled = amount * usual / predicted[:, None] * weight[:, None]
        aim = np.concatenate([wanted * weight, np.diag(pull)])
        terms = usual * _not_negative(np.vstack([scaled, pull]), aim, terms / usual)
    if half:
        terms = (model.terms + terms) / 2
    return _error(seconds, amount @ terms), terms


def _error(seconds: Floats, predicted: Floats) -> float:
    return float(np.abs(np.log(seconds / np.maximum(predicted, _LEAST))).mean())


def _not_negative(matrix: Floats, wanted: Floats, start: Floats) -> Floats:
    """The x ≥ 0 that minimises |matrix @ x − wanted| (Lawson and Hanson): each turn frees the best variable.

    `start` is any x ≥ 0. From one that is nearly right a turn or two are enough.
    """
    square, right = matrix.T @ matrix, matrix.T @ wanted
    many = len(right)
    found, free = start, start > 0
    for _ in range(3 * many):
        while free.any():
            best = np.zeros(many)
            best[free] = np.linalg.solve(square[np.ix_(free, free)], right[free])
            below = free & (best <= 0)
            if not below.any():
                found = best
                break
            # Go as far towards it as possible without negative values; what becomes zero is no longer free.
            part = (found[below] / (found[below] - best[below])).min()
            found = np.maximum(found + part * (best - found), 0.0)
            free &= ~below | (found > 1e-12)
        helps = np.where(free, -np.inf, right - square @ found)
        if helps.max() <= 1e-10 * np.abs(right).max():
            break
        free[helps.argmax()] = True
    return found
