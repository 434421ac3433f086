"""The one place where a call becomes collectives inside islands and messages between them.

A call that names an algorithm follows its message program. Other calls follow the schedule that `Crossing.schedule`
chooses, usually in two levels: its programs include collectives of the islands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ....errors import MismatchError
from ...engine import Entry, Event
from ..agreement import Difference
from ..job import Job
from ..recorder import Recorder
from ..wire import MessageRun
from .levels import Levels
from .native import Stage, weakly


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
        if self.levels.links.recorder is not None:
            self.levels.links.recorder.take(self.levels.native.links)

    def _perform(self, job: Job) -> None:
        levels, agreement = self.levels, self.levels.agreement
        agreement.describe(job)
        if len(levels.islands) == 1 and job.named is None:
            return levels.alone(job)
        if job.call.op is None or job.call.op.is_builtin:
            return self._perform_natively(job)
        agreement.agree(job)
        agreement.send(job)
        has_begun = False
        for stage in levels.stages(job):
            for _ in _begun(levels.runs(job, stage), stage):
                if not has_begun:
                    levels.compare(job, stage)
                has_begun = True

    def _perform_natively(self, job: Job) -> None:
        levels, native = self.levels, self.levels.native
        trouble: MismatchError | Difference | None
        plan = native.known(job) or levels.plan(job)
        try:
            trouble = native.perform(plan, job)
        except MismatchError as error:
            trouble = error
        if trouble is not None:
            levels.agreement.explain(job, trouble)

    def explain_failure(self, job: Job, trouble: Any) -> None:
        """Raise the error of a call that the extension has made itself."""
        if isinstance(trouble, BaseException) and not isinstance(trouble, MismatchError):
            raise trouble
        self.levels.agreement.explain(job, trouble)

    def entry(self, run: Entry, vouched: bool) -> Entry:
        """The extension's way to make calls; it passes those that it cannot make itself to `run`."""
        return self.levels.native.direct.entry(weakly(run), vouched)

    def start_trace(self) -> None:
        levels = self.levels
        levels.shared.collectives.native.start_trace()
        levels.native.direct.shut()
        levels.native.links.trace(True)
        levels.links.recorder = Recorder(levels.roster, levels.shared.collectives, levels.algorithm)

    def stop_trace(self) -> tuple[Recorder | None, list[Event]]:
        """The recorder of messages between islands, and the events inside this one."""
        recorder, self.levels.links.recorder = self.levels.links.recorder, None
        self.levels.native.links.trace(False)
        self.levels.native.direct.open()
        return recorder, self.levels.shared.collectives.stop_trace()


def _begun(runs: Sequence[MessageRun], stage: Stage) -> Iterator[None]:
    """Carry out the segments of a stage: each is finished when `ahead` more have begun. Yields once, after the first has
    begun (or after all have, if all begin before one is finished)."""
    ahead = stage.ahead
    late = len(runs) if ahead is None else ahead
    for number, run in enumerate(runs):
        run.start() if stage.starts else run.begin()
        if number == 0 and ahead is not None:
            yield
        if number >= late:
            runs[number - late].finish()
    if ahead is None:
        yield
    for run in runs[max(0, len(runs) - late) :]:
        run.finish()
