"""The outcome of a run: the error that says which ranks failed, the first cause first."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from allfold.errors import AllfoldError, CollectiveTimeout, RankFailed
from allfold.launch.supervise import Child
from allfold.wording import name_ranks


class EndedRun(Protocol):
    """A run that has ended, of processes or of threads."""

    children: list[Child]
    late: list[int]  # the ranks that the timeout cut off
    still_running: Mapping[int, str]  # the ranks that could not be ended, and where each is

    @property
    def failed(self) -> list[Child]: ...


def check_outcome(run: EndedRun, timeout: float | None, survive: bool) -> None:
    """Raise if ranks were late, or failed and were not allowed to."""
    __tracebackhide__ = True
    failed = run.failed
    if run.late and all(child.was_told_to_end for child in failed):
        raise CollectiveTimeout(
            f"spawn: {late(run)} after {timeout:g} s; {_still_running_at(run) or 'all ranks were ended'}"
        )
    if failed and not (survive and len(failed) < len(run.children)):
        raise failure_of(run)


def result_of(child: Child) -> Any:
    try:
        return pickle.loads(child.message)
    except Exception as error:
        raise AllfoldError(f"spawn: the result of rank {child.rank} cannot be unpickled here: {error}") from error


@dataclass(frozen=True)
class Failure:
    """The failure of one rank."""

    child: Child
    report: Mapping[str, Any]  # of its exception (`report_of` in worker.py); empty if it died without one

    @property
    def was_ended_by_us(self) -> bool:
        return self.child.was_told_to_end and not self.report

    @property
    def end(self) -> str:
        if not self.report:
            return self.child.end + (" before it returned a result" if self.child.status == 0 else "")
        left = self.report["type"] == "SystemExit"
        return f"exited with status {self.report['status']}" if left else f"raised {self.report['type']}"


def in_order(failed: Iterable[Child]) -> list[Failure]:
    """The failures, the first cause first: not a rank that failed since another was lost, or that we ended.

    A rank that was killed may be why others raised, and not the other way round.
    """
    failures = [Failure(one, json.loads(bytes(one.message)) if one.has_reported(b"E") else {}) for one in failed]

    def order(one: Failure) -> tuple[bool, bool, bool, float]:
        was_killed = not one.report and one.child.status is not None and one.child.status < 0
        follows = one.report.get("is_follow_up", False)
        return one.was_ended_by_us, follows, not was_killed, one.report.get("time", one.child.ended_at)

    return sorted(failures, key=order)


def failure_of(run: EndedRun) -> RankFailed:
    first, *others = in_order(run.failed)
    by_themselves = [one for one in others if not one.was_ended_by_us]
    how = f"{first.child} {first.end}{also([(one.child.rank, one.end) for one in by_themselves])}"
    how += f"; {_still_running_at(run)}" if run.still_running else ""
    return rank_failed(
        f"{how}\n\n{first.report['traceback'].rstrip()}" if first.report else how, [first, *by_themselves]
    )


def rank_failed(message: str, failures: Sequence[Failure]) -> RankFailed:
    """The error for ranks that failed by themselves, in order."""
    first = failures[0]
    return RankFailed(
        message,
        rank=first.child.rank,
        ranks=[one.child.rank for one in failures],
        traceback=first.report.get("traceback", ""),
        exit_code=first.report.get("status", first.child.status),
    )


def also(ends: Sequence[tuple[int, str]]) -> str:
    """The ranks that failed after the first one, and how: `; then ranks 2 and 3 raised ValueError`."""
    alike: dict[str, list[int]] = {}
    for rank, end in ends:
        alike.setdefault(end, []).append(rank)
    said = [f"{name_ranks(sorted(ranks))} {_of_many(end) if ranks[1:] else end}" for end, ranks in alike.items()]
    return "; then " + ", ".join(said) if said else ""


def _of_many(end: str) -> str:
    return f"were{end.removeprefix('was')}" if end.startswith("was ") else end


def late(run: EndedRun) -> str:
    return f"{name_ranks(run.late)} of {len(run.children)} had not finished"


def unended(run: EndedRun) -> str:
    """`rank 2 still runs, since threads cannot be ended`; nothing if no rank does."""
    still = [*run.still_running]
    return f"{name_ranks(still)} still run{'' if still[1:] else 's'}, since threads cannot be ended" if still else ""


def _still_running_at(run: EndedRun) -> str:
    """The same, with the place of each."""
    where = ", ".join(f"rank {rank} at {place}" for rank, place in run.still_running.items())
    return f"{unended(run)}: {where}" if where else ""


def say(sentence: str) -> None:
    """Print a sentence about a run of `allfold run`."""
    sys.stderr.write(f"allfold run: {sentence}\n")
    sys.stderr.flush()
