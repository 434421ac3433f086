"""The message about a run that failed: the first rank with its traceback, and a line about each other rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from allfold.errors import AllfoldError, CollectiveTimeout, RankFailed
from allfold.launch.lines import Frame, call_at, shown, users_line
from allfold.launch.outcome import EndedRun, Failure, in_order, late, rank_failed, unended
from allfold.launch.supervise import Child
from allfold.testing.rank import stack_file
from allfold.wording import name_ranks

_LONGEST_LINE, _LONGEST_HEADLINE = 160, 1000
_UNKNOWN = "an unknown place: it did not react to SIGTERM"
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')

PlaceOf = Callable[[Child], str]
"""Returns the place where a rank was when it was ended."""
CallOf = Callable[[Child], tuple[str, str, int] | None]
"""Returns the call in which a rank was then: its name, and the user's file and line."""
EndOf = Callable[[Child], str]
"""Returns what is to be said of a rank that has returned, such as `was skipped (no GPU)`; nothing if it is as usual."""


def failure(
    run: EndedRun,
    place_of: PlaceOf,
    timeout: float,
    delays: int | None = None,
    call_of: CallOf = lambda _: None,
    end_of: EndOf = lambda _: "",
) -> AllfoldError | None:
    """The error to raise, or None if all ranks have returned. `delays`: the seed of random delays, for the message."""
    failures = in_order(run.failed)
    if not failures:
        return None
    by_themselves = [one for one in failures if not one.was_ended_by_us]
    size = len(run.children)
    failed = {*map(_rank, failures)}
    returned = [child for child in run.children if child.rank not in failed]
    ending = [f"  {unended(run)}"] if run.still_running else []
    if delays is not None:
        ending.append(f"  calls were delayed at random: delays={delays}")
    if not by_themselves:
        lines = [f"{late(run)} after {timeout:g} s{_different_calls(failures, size, call_of)}"]
        lines += [f"  rank {one.child.rank} was at {place_of(one.child)}" for one in sorted(failures, key=_rank)]
        lines += [f"  rank {one.rank} {end_of(one) or 'had finished'}" for one in returned]
        return CollectiveTimeout("\n".join([*lines, *ending]))
    first, *others = failures
    lines = [_headline(first, size, place_of)]
    if first.report and first.report["type"] != "LeftBehind":
        lines += ["", first.report["traceback"].rstrip(), ""]
    alike = [one for one in others if _error(one) == _error(first) != ""]
    if alike:
        lines.append(f"  {name_ranks(sorted(map(_rank, alike)))} raised the same error")
    lines += [f"  {_line(one, place_of)}" for one in sorted(others, key=_rank) if one not in alike]
    lines += [f"  rank {one.rank} {end}" for one in returned if (end := end_of(one))]
    return rank_failed("\n".join([*lines, *ending]).rstrip(), by_themselves)


def _different_calls(failures: list[Failure], size: int, call_of: CallOf) -> str:
    """`: rank 1 is in all_reduce at test_sum.py:10, ranks 0 and 2 in broadcast at line 9`; nothing if it is unknown."""
    calls: dict[tuple[str, str, int] | None, list[int]] = {}
    for one in sorted(failures, key=_rank):
        calls.setdefault(call_of(one.child), []).append(one.child.rank)
    finished = sorted({*range(size)} - {*map(_rank, failures)})
    if None in calls or len(calls) + bool(finished) < 2:
        return ""
    parts: list[str] = []
    seen = None
    for call, ranks in sorted(calls.items(), key=lambda item: (len(item[1]), item[1])):
        assert call is not None
        name, file, line = call
        is_or_are = "" if parts else " are" if ranks[1:] else " is"
        where = f"line {line}" if file == seen else f"{shown(file)}:{line}"
        parts.append(f"{name_ranks(ranks)}{is_or_are} in {name} at {where}")
        seen = file
    if finished:
        parts.append(f"and {name_ranks(finished)} had finished")
    return ": " + ", ".join(parts)


def without_traceback(error: RankFailed) -> str:
    """The lines of `failure` about each rank alone."""
    return "\n".join(filter(None, str(error).replace(error.traceback.rstrip(), "").splitlines()))


def _error(one: Failure) -> str:
    """The exception that a rank raised, with its message; nothing if it ended in another way."""
    return one.report["message"] if one.report.get("type") not in (None, "LeftBehind", "SystemExit") else ""


def _headline(one: Failure, size: int, place_of: PlaceOf) -> str:
    line = _line(one, place_of, _LONGEST_HEADLINE)
    return line.replace(f"rank {one.child.rank} ", f"rank {one.child.rank} of {size} ", 1)


def _line(one: Failure, place_of: PlaceOf, longest: int = _LONGEST_LINE) -> str:
    """One line about the failure of a rank."""
    if one.was_ended_by_us:
        return f"rank {one.child.rank} was ended, at {place_of(one.child)}"
    if not one.report:
        place = place_of(one.child) if one.child.status is not None and one.child.status < 0 else _UNKNOWN
        return f"rank {one.child.rank} {one.end}" + (f", at {place}" if place != _UNKNOWN else "")
    if one.report["type"] == "SystemExit":
        return f"rank {one.child.rank} {one.end}"
    kind, message = one.report["type"], one.report["message"].strip()
    if kind == "LeftBehind":
        return f"rank {one.child.rank} left behind: {message.partition(': ')[2]}"
    # Without the module of the exception's class. NumPy's messages start with an empty line.
    lines = message.partition(kind)[2].removeprefix(":").strip().splitlines()
    return f"rank {one.child.rank} raised {kind}" + (f": {lines[0][:longest]}" if lines else "")


def _rank(one: Failure) -> int:
    return one.child.rank


def place_in(folder: Path, child: Child) -> str:
    """The innermost line of the user's code in which a process was ended, as faulthandler wrote it."""
    return "its start: it was not forked yet" if child.process is None else _place(folder, child.rank)


def places_in(folder: Path, ranks: int) -> list[str]:
    """A line about each rank that had started when the run was ended from outside."""
    started = [rank for rank in range(ranks) if Path(stack_file(folder, rank)).exists()]
    return [f"  rank {rank} was at {_place(folder, rank)}" for rank in started]


def _place(folder: Path, rank: int) -> str:
    frames = _frames(folder, rank)
    return users_line(frames) if frames else _UNKNOWN


def call_in(folder: Path, child: Child) -> tuple[str, str, int] | None:
    """The call in which a process was when it was ended."""
    return call_at(_frames(folder, child.rank))


def _frames(folder: Path, rank: int) -> list[Frame]:
    try:
        return _main_stack(Path(stack_file(folder, rank)).read_text(errors="replace"))
    except OSError:
        return []


def _main_stack(text: str) -> list[Frame]:
    """Frames of the main thread as (file, line, function), the innermost first. It is the oldest thread, hence the last."""
    stacks = [
        [(file, int(line), function) for file, line, function in _FRAME.findall(block)]
        for block in re.split(r"^(?:Current thread|Thread) .*$", text, flags=re.MULTILINE)
    ]
    return next((stack for stack in reversed(stacks) if stack), [])
