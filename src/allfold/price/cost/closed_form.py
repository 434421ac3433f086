"""The costs that an algorithm declares in `@algorithm`, for any number of ranks and without a schedule.

Tests check that the declared values equal the counted ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from numbers import Real
from typing import Any

import numpy as np

from ...collectives import find_collective
from ...errors import AllfoldError, UsageError, raised_by_handler
from ...patterns import Everybody, Pattern, Patterns
from ...registry import Algorithm, Formula, algorithms, find_algorithm


@dataclass(frozen=True)
class Form:
    """One algorithm for one number of ranks, in the terms of `Counts`. None: the algorithm does not declare it.

    >>> form = price.closed_form("all_reduce", "ring", ranks=1000)
    >>> form.steps, form.busiest_port_bytes
    (1998, Fraction(999, 500))
    """

    steps: int | None = None
    rounds: int | None = None
    messages: int | None = None
    bytes: float | None = None
    busiest_port_bytes: Fraction | float | None = None
    busiest_port_messages: int | None = None


def closed_form(collective: str, algorithm: str, ranks: int) -> Form | None:
    """The closed form of an algorithm (with root 0 and its default groups), or None where it has none.

    >>> price.closed_form("all_reduce", "ring", ranks=8).messages
    112
    """
    if ranks < 1:
        raise UsageError(f"{ranks} ranks: expected at least 1")
    if algorithm not in algorithms(collective):
        return None
    chosen = find_algorithm(collective, algorithm)
    if chosen.steps is None and chosen.port is None and chosen.patterns is None:
        return None
    if ranks == 1:
        return Form(0, 0, 0, 0, 0, 0)
    patterns = patterns_of(chosen, ranks)
    form = Form() if patterns is None else _count(patterns, ranks)
    steps, port = (_number(chosen, what, ranks) for what in ("steps", "port"))
    return replace(
        form,
        steps=form.steps if steps is None else int(steps),
        busiest_port_bytes=form.busiest_port_bytes if port is None else port,
    )


def patterns_of(algorithm: Algorithm, ranks: int, root: int | None = None, **parameters: Any) -> Patterns | None:
    """The patterns that an algorithm declares for these parameters, or None where it declares none."""
    if algorithm.patterns is None:
        return None
    if ranks == 1:
        return []
    arguments = {"ranks": ranks} | ({"root": root or 0} if find_collective(algorithm.collective).rooted else {})
    called = f"{algorithm.name}: patterns({', '.join(f'{name}={value}' for name, value in arguments.items())})"
    with _named(called):
        patterns = algorithm.patterns(*arguments.values(), **parameters)
    return None if patterns is None else _checked(patterns, called, ranks)


def _checked(patterns: Patterns, called: str, ranks: int) -> Patterns:
    """The same patterns, one after the other: a generator may raise, or yield something else, at any of them."""
    with _named(called):
        for one in patterns:
            if not isinstance(one, (Pattern, Everybody)):
                raise UsageError(f"{called} gave {one!r:.60}; expected a Pattern or Everybody")
            if isinstance(one, Pattern):
                for side in (one.source, one.destination, one.local_rank):
                    if len(side) and not 0 <= side.min() <= side.max() < ranks:
                        raise UsageError(f"{called} names a rank that is not from 0 to {ranks - 1}")
            yield one


def _number(algorithm: Algorithm, what: str, ranks: int) -> int | Fraction | None:
    formula: Formula | None = getattr(algorithm, what)
    if formula is None:
        return None
    called = f"{algorithm.name}: {what}(ranks={ranks})"
    with _named(called):
        value = formula(ranks)
    if value is None:
        return None
    wanted = "a whole number" if what == "steps" else "a number"
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not 0 <= value < inf
        or (what == "steps" and value % 1)
    ):
        raise UsageError(f"{called} gave {value!r:.60}; expected {wanted} that is not negative, or None if unknown")
    return value


@contextmanager
def _named(called: str) -> Iterator[None]:
    """Turn an exception of a user's function into an error that names the function."""
    try:
        yield
    except AllfoldError:
        raise
    except Exception as error:
        if raised_by_handler(error):
            raise
        raise UsageError(f"{called} raised {type(error).__name__}: {error}") from error


def _count(patterns: Patterns, ranks: int) -> Form:
    steps = rounds = messages = 0
    through, carried = np.zeros((2, ranks), np.int64), np.zeros((2, ranks))  # messages and bytes, out and in, by rank
    for one in patterns:
        steps += one.steps
        if isinstance(one, Everybody):
            rounds += one.steps * -(-(ranks - 1) // one.steps)
            messages += ranks * (ranks - 1)
            through += ranks - 1
            carried += (ranks - 1) * one.share
            continue
        sides = one.source, one.destination
        now = np.stack([np.bincount(side, minlength=ranks) for side in sides])
        rounds += one.steps if one.apart else one.times * int(now.max())
        messages += one.times * len(one.source)
        through += one.times * now
        carried += one.times * np.stack([np.bincount(side, one.share, ranks) for side in sides])
    return Form(steps, rounds, messages, float(carried[0].sum()), float(carried.max()), int(through.max()))
