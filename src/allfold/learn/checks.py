"""Judging an exercise: the prover for algorithms, for all numbers of ranks; a function of the lesson for the rest.

This runs in the process of its own that `judge.py` starts, because what it calls is the learner's code. The learner waits
for it, so what only some lessons need is loaded when they need it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..collectives import find_collective
from ..errors import CollectiveTimeout, RankFailed, ScheduleError
from ..launch.sandbox import line_in
from ..proof import Proof, verify
from ..registry import Algorithm, algorithm_of, schedule
from ..schedules import Move, Schedule
from ..view.entry import within
from .diagnosis import Act, Diagnosis, Story, beyond
from .figures import UP_TO, read_formula, show
from .findings import LEARNERS, Wrong, learners_line
from .lesson import Exercise, Goal, Lesson

__all__ = ["PATIENCE", "Wrong", "checks_of", "examine", "on_processes", "on_ranks", "run_between_processes"]

PATIENCE = 3.0
"""Seconds that a rank waits for others. Between threads of one process, everything else takes
milliseconds, unless the machine is very busy."""
MOST_MOVES = 20_000  # of one schedule; the naive one has 272 with 17 ranks
_TELLING = (3, 4, 2, *range(5, UP_TO + 1), 1)
"""Numbers of ranks in the order in which they are tried: a mistake is easiest to see with three ranks or four."""

_MEASURES: dict[str, tuple[Callable[[Proof], int | Fraction], str]] = {
    "steps": (lambda proof: proof.counts.steps, "{} step{s}"),
    "messages": (lambda proof: proof.counts.messages, "{} message{s} in all"),
    "bytes": (lambda proof: proof.counts.bytes, "{} S in all"),
    "port": (lambda proof: proof.counts.busiest_port_bytes, "{} S through its busiest port"),
    "port_messages": (lambda proof: proof.counts.busiest_port_messages, "{} message{s} through its busiest port"),
}
_PROPERTIES: dict[str, tuple[Callable[[Proof], bool | None], str]] = {
    "same_bits": (lambda proof: proof.same_bits, "ranks may get different bits: they add in different orders"),
    "rank_order": (lambda proof: proof.rank_order, "contributions are not combined in the order of the ranks"),
    "any_length": (lambda proof: proof.uniform, "elements are combined in different orders"),
}


def checks_of(lesson: Lesson) -> dict[str, Any]:
    """The names that the lesson's own checks.py defines."""
    path = lesson.folder / "checks.py"
    if not path.is_file():
        return {}
    names: dict[str, Any] = {"__name__": f"allfold.learn.lessons.{lesson.label}.checks", "__file__": str(path)}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    return names


def examine(lesson: Lesson, exercise: Exercise, function: Callable[..., Any], file: Path) -> str:
    """A sentence about a solved exercise. Raises `Wrong` if it is not solved."""
    own = checks_of(lesson)
    if exercise.collective is None:
        return str(own[f"check_{exercise.function}"](function))
    cases = [
        _Case(exercise.collective, function, ranks, root, file)
        for ranks in _TELLING
        for root in _roots(exercise.collective, ranks)
    ]
    # All cases are proved before any goal is judged: an algorithm that is wrong for some number of ranks is not "right,
    # but slow".
    proofs = [(case, case.proved()) for case in cases]
    for goal in exercise.goals:
        for case, proof in proofs:
            case.reaches(goal, proof, own)
    roots = ", every root" if find_collective(exercise.collective).rooted else ""
    return f"proved for 1 to {UP_TO} ranks{roots}"


def run_between_processes(
    lesson: Lesson, exercise: Exercise, function: Callable[..., Any]
) -> tuple[str, list[list[str]]] | None:
    """A real run of it: a sentence and a table; None if the lesson has none."""
    own = checks_of(lesson).get(f"run_{exercise.function}")
    if own is not None:
        return own(function)  # type: ignore[no-any-return]
    if exercise.collective is None or not exercise.beside:
        return None
    from .timing import RANKS, timed_beside

    rows = timed_beside(schedule(exercise.collective, function, RANKS), exercise.beside)
    return f"{exercise.function} between {RANKS} processes of this machine, beside built-in algorithms", rows


def on_ranks(work: Callable[..., Any], ranks: int, *arguments: Any) -> list[Any]:
    """The results of `work(comm, *arguments)` by rank. Ranks are threads here, which start quickly."""
    from .. import _native
    from ..launch.threads import ENGINE, run_threads

    engine = "shared_memory" if _native.MISSING is None else ENGINE
    try:
        return run_threads(work, ranks, args=arguments, timeout=PATIENCE, engine=engine)
    except RankFailed as error:
        cause = error.__cause__
        if isinstance(cause, Wrong):
            raise Wrong(f"with {ranks} ranks, {cause}", cause.line, cause.kind) from error
        line = None if cause is None else learners_line(cause)
        if isinstance(cause, CollectiveTimeout) and line is not None:
            says = f"rank {error.rank} waits forever in line {line}: not every rank makes this call"
            raise Wrong(f"with {ranks} ranks, {says}", line, "mismatch") from error
        raise Wrong(f"with {ranks} ranks, {error}", line, "raised") from error


def on_processes(work: Callable[..., Any], ranks: int, *arguments: Any, hosts: int | None = None) -> list[Any]:
    """The same between real processes, perhaps on this many simulated hosts. Functions of the learner travel by value."""
    from ..launch.spawn import pickled_by_value, spawn

    modules = [module for name, module in sys.modules.items() if name.startswith(LEARNERS)]
    try:
        with pickled_by_value(*modules):
            return spawn(work, ranks, args=arguments, hosts=hosts, timeout=60.0)
    except RankFailed as error:
        raise Wrong(f"between {ranks} processes, {error}") from error


def _roots(collective: str, ranks: int) -> Iterator[int | None]:
    yield from range(ranks) if find_collective(collective).rooted else (None,)


@dataclass(frozen=True)
class _Case:
    """The learner's algorithm for one number of ranks and one root."""

    collective: str
    function: Callable[..., Any]
    ranks: int
    root: int | None
    file: Path

    def proved(self) -> Proof:
        algorithm = within(algorithm_of(self.collective, self.function), MOST_MOVES)
        try:
            return verify(schedule(self.collective, algorithm, self.ranks, self.root))
        except ScheduleError as error:
            found = self._told(algorithm)
            if found is None:
                kind = "raised" if error.__cause__ is not None else "other"
                raise self._wrong(str(error), line_in(error.site, self.file.name), kind) from error
            # The root is to blame if nothing is wrong with root 0, which is tried first.
            kind = "root" if self.root else found.kind
            raise self._wrong(f"{self._title()}, {found.says}", found.line, kind) from error

    def reaches(self, goal: Goal, proof: Proof, own: dict[str, Any]) -> None:
        """Raises `Wrong` if the algorithm, which is right, misses a goal."""
        if goal.most is None:
            holds, sentence = _PROPERTIES[goal.measure]
            if holds(proof) is False:
                raise self._wrong(f"the sum is right, but {self._title()}, {sentence}", None, goal.measure)
            return
        value, words = _measured(goal.measure, proof, own)
        most = read_formula(goal.most)(self.ranks)
        if value <= most:
            return
        steps = self._steps(within(algorithm_of(self.collective, self.function), MOST_MOVES))
        why = beyond(goal.measure, proof.schedule, steps or [])
        one = value == 1 and "{s}" in words
        too_much = f"there {'is' if one else 'are'} {words.format(show(value), s='' if one else 's')}"
        too_much += f"; the task is at most {show(most)}"
        said = f"the result is right, but {self._title()}, {too_much}"
        if why is None:
            raise self._wrong(said, None, goal.measure)
        raise self._wrong(f"{said}: {why.says}", why.line, why.kind)

    def _title(self) -> str:
        ranks = "one rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"with {ranks}" if self.root is None else f"with {ranks} and root {self.root}"

    def _wrong(self, message: str, line: int | None, kind: str) -> Wrong:
        wrong = Wrong(message, line, kind)
        wrong.ranks, wrong.root = self.ranks, self.root
        return wrong

    def _told(self, algorithm: Algorithm) -> Diagnosis | None:
        """The mistake, as the learner's own moves show it; None if they do not."""
        steps = self._steps(algorithm)
        if steps is None:
            return None
        named = 1 + max((max(move.chunk, move.into) for step in steps for move in step), default=-1)
        promise, chunks = find_collective(self.collective), algorithm.chunks
        if callable(chunks):
            return None
        width = promise.chunks(self.ranks, named) if chunks is None else chunks
        return Story(self.collective, self.ranks, self.root, steps, width).told()

    def _steps(self, algorithm: Algorithm) -> list[list[Act]] | None:
        """The moves that the function makes; None if it raises, or yields something else."""
        steps: list[list[Act]] = []
        arguments = (self.ranks,) if self.root is None else (self.ranks, self.root)
        try:
            for step in algorithm.function(*arguments):
                moves = [act for move in step for act in self._acts(move)]
                steps += [moves] if moves else []
        except Exception:
            return None  # the prover says what it was
        return steps

    def _acts(self, move: Move) -> Iterator[Act]:
        line = line_in(move.where, self.file.name)
        for chunk, source, destination, into in np.nditer(move[1:5]) if move.moves != 1 else [move[1:5]]:
            yield Act(move.reduces, int(chunk), int(source), int(destination), int(into), line)


def _measured(measure: str, proof: Proof, own: dict[str, Any]) -> tuple[int | Fraction, str]:
    if measure in _MEASURES:
        count, words = _MEASURES[measure]
        return count(proof), words
    count_own: Callable[[Schedule], int | Fraction] = own[f"count_{measure}"]
    words = (count_own.__doc__ or "").strip()
    return count_own(proof.schedule), words
