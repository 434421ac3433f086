"""The words of the expressions with which texts and predictions are computed.

A figure in a lesson is an expression such as `counts("all_reduce", "ring", 8).messages`. It is computed by the product
each time it is shown, so that it cannot become stale.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..algorithms.tree import log_down, log_up
from ..collectives import COLLECTIVES
from ..engines.reference.replay import replay
from ..errors import AllfoldError
from ..price.cost.closed_form import Form, closed_form
from ..price.cost.cost import Cost, cost
from ..price.cost.plan import duration, plan
from ..price.topology.parse import find_topology
from ..programs.compile import compile
from ..proof import Proof, verify
from ..registry import algorithms, find_algorithm, schedule
from ..schedules import Counts, Schedule
from ..wording import format_size
from .lesson import lessons

if TYPE_CHECKING:
    from ..search.found import Found

Rows = list[list[str]]
ALPHA, BANDWIDTH = 3e-6, 12.5e9
"""The network of the lessons: seconds to start a message, and bytes per second through a port."""
UP_TO = 17
"""Everything is checked for all numbers of ranks up to this one."""


class WrongFigure(AllfoldError):
    """A formula in a text does not match the schedules."""


_made = lru_cache(maxsize=512)(schedule)  # texts ask for the same ones again and again


def counts(collective: str, algorithm: str, ranks: int, root: int | None = None) -> Counts:
    return _made(collective, algorithm, ranks, root).counts


def declared(collective: str, algorithm: str, ranks: int) -> Form:
    """The counts of a schedule that would be long: as its algorithm declares them (tests compare them with the counts)."""
    form = closed_form(collective, algorithm, ranks)
    if form is None:
        raise WrongFigure(f"{algorithm} declares nothing for {ranks} ranks of {collective}")
    return form


def proof(collective: str, algorithm: str, ranks: int) -> Proof:
    return verify(schedule(collective, algorithm, ranks))


@cache
def price(collective: str, algorithm: str, ranks: int, size: int, topology: str) -> Cost:
    """Without segments: what a lesson derives by hand."""
    return cost(_made(collective, algorithm, ranks), find_topology(topology, ranks), size, segments=1)


def flat(alpha: float = ALPHA, bandwidth: float = BANDWIDTH) -> str:
    """A network on which a message of B bytes takes alpha + B/bandwidth, between any two ranks, and adding is free."""
    free = "ranks_per_host=1,reduction=inf,port=inf,port_latency=0,bus=inf,overhead=0"
    return f"hosts:{free},latency={alpha / 2!r},bandwidth={bandwidth!r}"


def results(algorithm: str, numbers: Sequence[float]) -> list[float]:
    """The result of each rank if rank i contributes `numbers[i]`, in float64."""
    inputs = [np.array([number]) for number in numbers]
    found = replay(schedule("all_reduce", algorithm, len(inputs)), inputs)
    return [float(result[0]) for result in found if result is not None]


def crossing(schedule: Schedule, per_host: int, most: bool = False) -> Fraction:
    """The bytes that go from one host to another, as a multiple of S: in all, or those of the rank that sends most."""
    sent = Counter(
        move.source for step in schedule for move in step if move.source // per_host != move.destination // per_host
    )
    return Fraction(max(sent.values(), default=0) if most else sent.total(), schedule.chunks)


def hosts_of(ranks: int, per_host: int) -> list[list[int]]:
    return [list(range(first, min(first + per_host, ranks))) for first in range(0, ranks, per_host)]


@cache
def found(collective: str, ranks: int, size: int, topology: str) -> Found:
    """A schedule by `allfold find --method greedy`, which needs no scipy."""
    from ..search.find import find  # it takes long to load, and one lesson needs it

    return find(collective, find_topology(topology, ranks), size=size, method="greedy")


def promises(ranks: int) -> Rows:
    """Every collective: what it does, and the least that any algorithm needs."""
    rows = [["collective", "what it does", "messages one after the other", "bytes, busiest port", "the same in D"]]
    for one in COLLECTIVES.values():
        least = one.bounds(ranks)
        port = least.busiest_port_bytes
        brought = port * (ranks if one.starts.sliced else 1)
        rows.append([one.name, one.summary, show(least.rounds), f"{show(port)} S", f"{show(brought)} D"])
    return rows


class InNumbers(NamedTuple):
    """A schedule, and the numbers that its ranks bring, as for `allfold show --values`."""

    schedule: Schedule
    values: str

    def as_text(self) -> str:
        """The output of `allfold show --values`, without its title."""
        from ..view.numbers import draw_numbers, read_values  # only here: they need rich, which a browser does not have

        lines = [line.plain for line in draw_numbers(self.schedule, read_values(self.values, self.schedule))]
        return "\n".join(lines[3:])


def in_numbers(collective: str, algorithm: str, values: str) -> InNumbers:
    return InNumbers(_made(collective, algorithm, values.count(";") + 1), values)


def winner(collective: str, ranks: int, size: int, topology: str) -> str:
    return plan(collective, find_topology(topology, ranks), ranks=ranks, size=size).winner.algorithm


def formula(text: str, collective: str, algorithm: str, measure: str, powers: bool = False) -> str:
    """The formula itself, if it matches the counts for 2 to 17 ranks (with `powers`, for powers of two)."""
    compute = read_formula(text)
    for ranks in range(2, UP_TO + 1):
        if powers and ranks & (ranks - 1):
            continue
        counted = getattr(counts(collective, algorithm, ranks), measure)
        if compute(ranks) != counted:
            raise WrongFigure(f"{text} is {compute(ranks)} for {ranks} ranks; {algorithm} has {counted} {measure}")
    return text


_SIGNS = {"−": "-", "·": "*", "⌈log₂P⌉": "log_up(P)", "⌊log₂P⌋": "log_down(P)", "log₂P": "log_up(P)"}


def read_formula(text: str) -> Callable[[int], Fraction]:
    """`2(P−1)/P` as a function of P, in exact fractions."""
    code = text
    for sign, python in _SIGNS.items():
        code = code.replace(sign, python)
    code = re.sub(r"(?<=[\d)P])(?=[(Pl])", "*", code)
    return lambda ranks: Fraction(eval(code, {"P": Fraction(ranks), "log_up": _of(log_up), "log_down": _of(log_down)}))


def _of(function: Callable[[int], int]) -> Callable[[Fraction], int]:
    return lambda ranks: function(int(ranks))


def journey(collective: str, algorithm: str, ranks: int, chunk: int) -> str:
    """The journey of one chunk: `added up 1→2→3→0, handed out 0→1→2→3`, for algorithms in which it has one place at a time."""
    phases: list[tuple[bool, list[int]]] = []
    for step in schedule(collective, algorithm, ranks):
        for move in step:
            if move.chunk == chunk:
                if not phases or phases[-1][0] != move.reduces:
                    phases.append((move.reduces, [move.source]))
                phases[-1][1].append(move.destination)
    words = {True: "added up", False: "handed out"}
    return ", ".join(f"{words[reduces]} {'→'.join(map(str, route))}" for reduces, route in phases)


def comparison(collective: str, names: Sequence[str], ranks: int) -> Rows:
    """The four counts of several algorithms, side by side."""
    rows = [[collective, "steps", "messages in all", "bytes in all", "bytes, busiest port"]]
    for name in names:
        found = counts(collective, name, ranks)
        sizes = [f"{show(value)} S" for value in (found.bytes, found.busiest_port_bytes)]
        rows.append([name, show(found.steps), show(found.messages), *sizes])
    return rows


def show(value: object) -> str:
    """A figure as it is written in a text: `14`, `1,024`, `1.75`."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Fraction):
        return show(int(value)) if value.denominator == 1 else f"{float(value):.4g}"
    if isinstance(value, int | np.integer):
        return f"{int(value):,}"
    if isinstance(value, float):
        return show(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
    raise TypeError(f"a figure is a number or a word, not {value!r}")


NAMES: dict[str, Any] = {
    "math": math,
    "np": np,
    "Fraction": Fraction,
    "algorithms": algorithms,
    "comparison": comparison,
    "compile": compile,
    "crossing": crossing,
    "counts": counts,
    "declared": declared,
    "duration": duration,
    "find_algorithm": find_algorithm,
    "flat": flat,
    "format_size": format_size,
    "found": found,
    "formula": formula,
    "hosts_of": hosts_of,
    "in_numbers": in_numbers,
    "journey": journey,
    "lessons": lessons,
    "log_up": log_up,
    "price": price,
    "promises": promises,
    "proof": proof,
    "results": results,
    "schedule": schedule,
    "show": show,
    "topology": find_topology,
    "verify": verify,
    "winner": winner,
}


def compute(expression: str) -> Any:
    """The value of an expression of a lesson. Lessons are part of the product: nothing else is evaluated here."""
    return eval(expression.strip(), dict(NAMES))
