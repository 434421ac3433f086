"""The one place where a call becomes collectives inside islands and messages between them.

A call that names an algorithm follows its message program. The others follow the schedule that `Crossing.schedule` says,
in two levels: its programs have the collectives of islands among their instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .... import _native
from ....collectives import COLLECTIVES
from ....ops import OPS
from ....proved import message_programs_of
from ....registry import AnyAlgorithm
from ...engine import Call, Entry, Event
from ..job import Job
from ..recorder import Recorder
from ..wire import Run
from .levels import Levels

_CODES = {name: code for code, name in enumerate(COLLECTIVES)}
_ALL_REDUCE = _CODES["all_reduce"]
_QUICK_OPS = {op.name for op in OPS.values() if op.commutative and not op.averages}

Begin = Callable[[Call, bool, Sequence["_native.Prepared"]], Any]


class Executor:
    """Carries out the calls of one rank, one at a time."""

    def __init__(self, levels: Levels) -> None:
        self.levels = levels

    def run(self, job: Job) -> None:
        """Carry out a call."""
        if self.levels.links.recorder is not None:
            self.levels.links.recorder.begins(job)
        self._perform(job)
        self.levels.agreement.prepare_next()

    def _perform(self, job: Job) -> None:
        levels, agreement = self.levels, self.levels.agreement
        if job.prepared is not None and agreement.fronts is None:
            for step in job.prepared:  # all that the program of such a rank has
                agreement.run_first(job, step)
            return
        agreement.describe(job)
        if len(levels.islands) == 1 and job.named is None:
            return levels.alone(job)
        if job.prepared is not None or levels.goes_along(job):
            return levels.along(job)
        agreement.agree(job)
        agreement.send(job)
        if job.named is not None:
            return self._follow(job, job.named)
        if job.call.counts is not None:
            return self._follow(job, "driver" if COLLECTIVES[job.call.collective].rooted else "direct")
        name, parameters = levels.schedule(job)
        if "groups" not in parameters:
            return self._follow(job, name)
        has_begun = False
        for runs, ahead in levels.runs(job, name, parameters):
            for _ in _begun(runs, ahead):
                if not has_begun:
                    levels.compare(job)
                has_begun = True

    def _follow(self, job: Job, algorithm: AnyAlgorithm) -> None:
        """Carry out a call by the schedule of an algorithm, as messages between all ranks."""
        levels, promise = self.levels, COLLECTIVES[job.call.collective]
        made = message_programs_of(promise.name, algorithm, levels.size, job.call.root if promise.rooted else None)
        run = levels.across(job, made, job.input, job.output, job.elements, counts=job.call.counts)
        run.start()
        levels.agreement.compare(job)
        run.finish()

    def entry(self, begin: Begin, run: Entry, vouched: bool) -> Entry:
        """A way for small all_reduces. Every line of Python counts there, since other ranks have used the caches."""
        levels, native = self.levels, self.levels.shared.collectives.native

        def enter(
            code: int,
            source: Any,
            target: Any,
            op: Any,
            root: int,
            algorithm: Any,
            async_op: bool,
            timeout: float | None,
            dtype: str | None,
            counts: Any = None,
        ) -> Any:
            usual = code == _ALL_REDUCE and algorithm is None and not async_op and type(op) is str and op in _QUICK_OPS
            usual = usual and (vouched or type(target) is np.ndarray)  # others may have to be copied first
            usual = usual and (timeout is None or (type(timeout) is float and timeout > 0))
            if usual and _is_within(target, levels.most_small):
                prepared = [
                    native.prepared(code, target, op if reduces else None, root, dtype, vouched)
                    for code, reduces, root in levels.small_steps
                ]
                if None not in prepared:
                    call = Call("all_reduce", output=target, op=OPS[op], timeout=timeout, dtype=dtype)
                    return begin(call, False, prepared)  # type: ignore[arg-type]
            return run(code, source, target, op, root, algorithm, async_op, timeout, dtype, counts)

        return enter

    def start_trace(self) -> None:
        levels = self.levels
        levels.shared.collectives.native.start_trace()
        levels.links.recorder = Recorder(levels.roster, levels.shared.collectives, levels.algorithm)

    def stop_trace(self) -> tuple[Recorder | None, list[Event]]:
        """What was recorded between islands, and inside this one."""
        recorder, self.levels.links.recorder = self.levels.links.recorder, None
        return recorder, self.levels.shared.collectives.stop_trace()


def _begun(runs: Sequence[Run], ahead: int | None) -> Iterator[None]:
    """Carry out the segments of a buffer: each is ended when `ahead` more have begun. Pauses after the first (or after
    all, if all begin before one is ended)."""
    late = len(runs) if ahead is None else ahead
    for number, run in enumerate(runs):
        run.begin()
        if number == 0 and ahead is not None:
            yield
        if number >= late:
            runs[number - late].finish()
    if ahead is None:
        yield
    for run in runs[-late:]:
        run.finish()


def _is_within(array: Any, bytes: int) -> bool:
    try:
        return bool(array.nbytes <= bytes)
    except RuntimeError:  # a sparse tensor
        return False
