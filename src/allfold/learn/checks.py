"""Judging an exercise: the prover for algorithms, for all numbers of ranks; a function of the lesson for the rest.

This runs in the process of its own that `judge.py` starts, because what it calls is the learner's code. The learner waits
for it, so what only some lessons need is loaded when they need it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import Any

from ..collectives import find_collective
from ..errors import AllfoldError, RankFailed, ScheduleError
from ..registry import Algorithm, Steps, algorithm_of, schedule
from ..schedule import Move, Schedule
from ..verify import Proof, verify
from .figures import UP_TO, read_formula, show
from .lesson import Exercise, Goal, Lesson

LEARNERS = "learner_"
"""How the names of the learner's modules begin; nothing else is called so."""
PATIENCE = 3.0
"""Seconds that a rank waits for others. Between threads of one process, everything else takes
milliseconds, unless the machine is very busy."""
MOST_MOVES = 20_000  # of one schedule; the naive one has 272 with 17 ranks

_MEASURES: dict[str, tuple[Callable[[Proof], int | Fraction], str]] = {
    "steps": (lambda proof: proof.counts.steps, "{} steps"),
    "messages": (lambda proof: proof.counts.messages, "{} messages in all"),
    "bytes": (lambda proof: proof.counts.bytes, "{} S in all"),
    "port": (lambda proof: proof.counts.busiest_port_bytes, "{} S through its busiest port"),
    "port_messages": (lambda proof: proof.counts.busiest_port_messages, "{} messages through its busiest port"),
}
_PROPERTIES: dict[str, tuple[Callable[[Proof], bool | None], str]] = {
    "same_bits": (lambda proof: proof.same_bits, "ranks may get different bits: they add up in different orders"),
    "rank_order": (lambda proof: proof.rank_order, "contributions are not combined in the order of the ranks"),
    "any_length": (lambda proof: proof.uniform, "elements are combined in different orders"),
}


class Wrong(AllfoldError):
    """An exercise is not solved; the message says where, `line` is the line of the learner's file if it is known.

    `ranks` and `root` are the case in which it failed, if it is a schedule.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.ranks: int | None = None
        self.root: int | None = None


def checks_of(lesson: Lesson) -> dict[str, Any]:
    """What the lesson's own checks.py defines."""
    path = lesson.folder / "checks.py"
    if not path.is_file():
        return {}
    names: dict[str, Any] = {"__name__": f"allfold.learn.lessons.{lesson.label}.checks", "__file__": str(path)}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    return names


def examine(lesson: Lesson, exercise: Exercise, function: Callable[..., Any], file: Path) -> str:
    """What was found. Raises `Wrong` with what is wrong."""
    own = checks_of(lesson)
    if exercise.collective is None:
        return str(own[f"check_{exercise.function}"](function))
    for ranks in (*range(2, UP_TO + 1), 1):
        for root in _roots(exercise.collective, ranks):
            try:
                made = _proved(exercise.collective, function, ranks, root, file)
                for goal in exercise.goals:
                    _reach(goal, made, own)
            except Wrong as error:
                error.ranks, error.root = ranks, root
                raise
    roots = ", every root" if find_collective(exercise.collective).rooted else ""
    return f"proved for 1 to {UP_TO} ranks{roots}"


def run_between_processes(
    lesson: Lesson, exercise: Exercise, function: Callable[..., Any]
) -> tuple[str, list[list[str]]] | None:
    """What is to be seen when it really runs: a sentence and a table; None if the lesson has nothing for it."""
    own = checks_of(lesson).get(f"run_{exercise.function}")
    if own is not None:
        return own(function)  # type: ignore[no-any-return]
    if exercise.collective is None or not exercise.beside:
        return None
    from .timing import RANKS, timed_beside

    rows = timed_beside(schedule(exercise.collective, function, RANKS), exercise.beside)
    return f"{exercise.function} between {RANKS} processes of this machine, beside built-in algorithms", rows


def on_ranks(work: Callable[..., Any], ranks: int, *arguments: Any) -> list[Any]:
    """The results of `work(comm, *arguments)` by rank. Ranks are threads here: many small runs are over at once."""
    from ..launch.threads import run_threads

    try:
        return run_threads(work, ranks, args=arguments, timeout=PATIENCE)
    except RankFailed as error:
        raise Wrong(f"with {ranks} ranks, {error}") from error


def on_processes(work: Callable[..., Any], ranks: int, *arguments: Any, hosts: int | None = None) -> list[Any]:
    """The same between real processes, perhaps on so many pretended hosts. Functions of the learner travel by value."""
    import cloudpickle  # type: ignore[import-untyped]

    from ..launch.spawn import spawn

    modules = [module for name, module in sys.modules.items() if name.startswith(LEARNERS)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return spawn(work, ranks, args=arguments, hosts=hosts, timeout=60.0)
    except RankFailed as error:
        raise Wrong(f"between {ranks} processes, {error}") from error
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _roots(collective: str, ranks: int) -> Iterator[int | None]:
    yield from range(ranks) if find_collective(collective).rooted else (None,)


def _proved(collective: str, function: Callable[..., Any], ranks: int, root: int | None, file: Path) -> Proof:
    try:
        return verify(schedule(collective, _within(algorithm_of(collective, function)), ranks, root))
    except ScheduleError as error:
        raise Wrong(str(error), _line_in(error.site, file)) from error


def _line_in(site: str | None, file: Path) -> int | None:
    name, _, line = (site or "").rpartition(":")
    return int(line) if name == file.name and line.isdecimal() else None


def _within(algorithm: Algorithm) -> Algorithm:
    """The same algorithm, stopped when it has made so many moves that it will hardly end."""

    @wraps(algorithm.function)
    def limited(*arguments: Any, **parameters: Any) -> Steps:
        title = f"{algorithm.name}(ranks={arguments[0]})"
        steps = algorithm.function(*arguments, **parameters)
        if not isinstance(steps, Iterable):
            raise ScheduleError(f"{title} returns {steps!r:.40} and no steps: an algorithm needs a yield")
        made = 0
        for number, step in enumerate(steps):
            # What is no list of moves is refused when the schedule is built.
            moves = step if isinstance(step, Move) or not isinstance(step, Iterable) else list(step)
            made += sum(move.moves if isinstance(move, Move) else 1 for move in moves) if isinstance(moves, list) else 1
            if made > MOST_MOVES or number > MOST_MOVES:
                raise ScheduleError(f"{title} makes more than {MOST_MOVES:,} moves or steps; does its loop end?")
            yield moves

    return Algorithm(algorithm.collective, algorithm.name, limited, algorithm.chunks)


def _reach(goal: Goal, proof: Proof, own: dict[str, Any]) -> None:
    title, ranks = proof.schedule.title, proof.schedule.ranks
    if goal.most is None:
        holds, sentence = _PROPERTIES[goal.measure]
        if holds(proof) is False:
            raise Wrong(f"{title} arrives where it must, but {sentence}")
        return
    value, words = _measured(goal.measure, proof, own)
    most = read_formula(goal.most)(ranks)
    if value > most:
        raise Wrong(f"{title} is right, but has {words.format(show(value))}; the task is at most {show(most)}")


def _measured(measure: str, proof: Proof, own: dict[str, Any]) -> tuple[int | Fraction, str]:
    if measure in _MEASURES:
        count, words = _MEASURES[measure]
        return count(proof), words
    count_own: Callable[[Schedule], int | Fraction] = own[f"count_{measure}"]
    words = (count_own.__doc__ or "").strip()
    return count_own(proof.schedule), words
