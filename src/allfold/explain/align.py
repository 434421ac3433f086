"""Compares the calls of a group across ranks: the first one in which they differ, and what one rank did instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest

from ..documents import DocumentError, read_plain
from .calls import CallFacts, CodeLine, GroupFacts, RunFacts

_AHEAD = 32  # calls compared after a difference
_MOST_SOURCE = 2**22


@dataclass(slots=True)
class Trouble:
    """The first call of a group that not all members made alike.

    `made` has the call of each member that made one. `absent` lists members whose record lacks it, `unrecorded` those
    without a record. `classes` are the ranks in `made`, grouped by what they called, the largest group first.
    """

    group: str
    number: int
    made: dict[int, CallFacts]
    absent: list[int] = field(default_factory=list)
    unrecorded: list[int] = field(default_factory=list)
    classes: list[list[int]] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        return len(self.classes) > 1

    @property
    def begun(self) -> float:
        return min((call.begun for call in self.made.values() if call.begun is not None), default=float("inf"))


def differences(one: CallFacts, other: CallFacts) -> list[str]:
    """The aspects in which two calls that should be the same differ; a fact that one of them lacks does not count."""
    if one.operation != other.operation:
        return ["operation"]
    found = []
    if one.tensors is not None and other.tensors is not None:
        pairs = list(zip_longest(one.tensors, other.tensors))
        if any(a is None or b is None or a.elements != b.elements for a, b in pairs):
            found.append("shape")
        if any(a and b and a.dtype and b.dtype and a.dtype != b.dtype for a, b in pairs):
            found.append("type")
    for aspect in ("reduction", "root", "details"):
        mine, theirs = getattr(one, aspect), getattr(other, aspect)
        if mine is not None and theirs is not None and mine != theirs:
            found.append(aspect)
    return found


def first_trouble(run: RunFacts, group: GroupFacts) -> Trouble | None:
    """The first call of a group that its members did not all make alike, as far as the records show."""
    held = {rank: run.ranks[rank].of(group.key) for rank in group.ranks if _has_record(run, rank)}
    # A record that has lost all calls of this group says nothing about it.
    held = {rank: calls for rank, calls in held.items() if calls or "" not in run.ranks[rank].starts}
    unrecorded = [rank for rank in group.ranks if not _has_record(run, rank)]
    if not any(held.values()):
        return None
    last = {rank: max(calls, default=0) for rank, calls in held.items()}
    begin = max(run.ranks[rank].starts.get(group.key, 1) for rank in held)
    for number in sorted({number for calls in held.values() for number in calls if number >= begin}):
        made = {rank: calls[number] for rank, calls in held.items() if number in calls}
        absent = [rank for rank in held if last[rank] < number]
        classes = _classes(made)
        if len(classes) > 1 or (absent and not all(call.done for call in made.values())):
            return Trouble(group.key, number, made, absent, unrecorded, classes)
    number = max(last.values())
    made = {rank: calls[number] for rank, calls in held.items() if number in calls}
    if unrecorded and not all(call.done for call in made.values()):
        return Trouble(group.key, number, made, [], unrecorded, _classes(made))
    return None


def last_common(run: RunFacts, trouble: Trouble) -> CallFacts | None:
    """The last call that all members with a record made alike."""
    ranks = [*trouble.made, *trouble.absent]
    before: list[dict[int, CallFacts]] = [run.ranks[rank].of(trouble.group) for rank in ranks]
    common = set.intersection(*(set(calls) for calls in before)) if before else set()
    number = max((number for number in common if number < trouble.number), default=None)
    return None if number is None else before[0][number]


def _has_record(run: RunFacts, rank: int) -> bool:
    return rank in run.ranks and run.ranks[rank].has_record


def _classes(made: Mapping[int, CallFacts]) -> list[list[int]]:
    classes: list[list[int]] = []
    for rank, call in made.items():
        for ranks in classes:
            if not differences(made[ranks[0]], call):
                ranks.append(rank)
                break
        else:
            classes.append([rank])
    return sorted(classes, key=lambda ranks: (-len(ranks), ranks[0]))


# What one rank did instead ------------------------------------------------------------------------------------------


def verdict(own: Mapping[int, CallFacts], reference: Mapping[int, CallFacts], number: int) -> tuple[str, int]:
    """`left out`, `one more`, `instead` or `short`, and the number of the call where it began.

    `own` and `reference` are the calls of a group on the rank that differs and on one that does not. At `number`, the
    first has a different call from the second, or none (`short`).
    """
    mine, theirs = own.get(number), reference[number]
    if mine is None:
        begin = since(own, reference, number, left_out=True)
        return ("left out", begin) if begin < number else ("short", number)
    kind = _by_following(own, reference, number) or _by_lines(own, reference, number)
    if kind == "instead":
        # The difference may have begun earlier, with calls that look the same but come from other lines.
        for left_out in (True, False):
            begin = since(own, reference, number, left_out)
            if begin < number:
                return ("left out" if left_out else "one more"), begin
        if mine.stack == theirs.stack or not _is_same_kind(mine, theirs):
            return kind, number
    return kind, since(own, reference, number, kind == "left out")


def since(own: Mapping[int, CallFacts], reference: Mapping[int, CallFacts], number: int, left_out: bool) -> int:
    """The first number from which the calls are those of the other rank, shifted by one place."""
    while number - 1 in own and number - 1 in reference and own[number - 1].stack != reference[number - 1].stack:
        mine, theirs = (number - 1, number) if left_out else (number, number - 1)
        if mine not in own or theirs not in reference or not _alike(own[mine], reference[theirs]):
            break
        number -= 1
    return number


def _alike(one: CallFacts, other: CallFacts) -> bool:
    return not differences(one, other) and one.stack == other.stack


def _is_same_kind(one: CallFacts, other: CallFacts) -> bool:
    return one.operation == other.operation


def _run_of(own: Mapping[int, CallFacts], mine: int, reference: Mapping[int, CallFacts], theirs: int) -> int:
    count = 0
    while count < _AHEAD and mine + count in own and theirs + count in reference:
        if not _alike(own[mine + count], reference[theirs + count]):
            break
        count += 1
    return count


def _by_following(own: Mapping[int, CallFacts], reference: Mapping[int, CallFacts], number: int) -> str:
    """The verdict by the calls after the difference, if there are any."""
    found = {
        "left out": _run_of(own, number, reference, number + 1),
        "one more": _run_of(own, number + 1, reference, number),
        "instead": _run_of(own, number + 1, reference, number + 1),
    }
    best = max(found.values())
    names = [name for name, count in found.items() if count == best]
    return names[0] if best and len(names) == 1 else ""


def _by_lines(own: Mapping[int, CallFacts], reference: Mapping[int, CallFacts], number: int) -> str:
    """The verdict by the order of the two lines in the program."""
    mine, theirs = own[number], reference[number]
    if not mine.stack or not theirs.stack or mine.stack == theirs.stack:
        return "instead"
    follow = {
        (calls[before].stack, calls[before + 1].stack)
        for calls in (own, reference)
        for before in range(number - 1 - 4096, number - 1)
        if before in calls and before + 1 in calls
    }
    forward, backward = (theirs.stack, mine.stack) in follow, (mine.stack, theirs.stack) in follow
    if forward != backward:
        return "left out" if forward else "one more"
    return by_place(mine, theirs)


def by_place(mine: CallFacts, theirs: CallFacts) -> str:
    """The verdict by the lines of two calls, of which one rank made the first, and another the second."""
    place = _fork(mine.stack, theirs.stack)
    if place is None:
        return "instead"
    (file, own_line), (_, their_line) = place
    if own_line == their_line or are_alternatives(file, own_line, their_line):
        return "instead"
    return "left out" if own_line > their_line else "one more"


def _fork(mine: tuple[CodeLine, ...], theirs: tuple[CodeLine, ...]) -> tuple[tuple[str, int], tuple[str, int]] | None:
    """The two lines, in the same function, at which two stacks part."""
    for a, b in zip(reversed(mine), reversed(theirs), strict=False):
        if a.file != b.file or a.function != b.function:
            return None
        if a.line != b.line:
            return (a.file, a.line), (b.file, b.line)
    return None


# The source, where it is there ---------------------------------------------------------------------------------------


def are_alternatives(file: str, one: int, other: int) -> bool:
    """True if the lines lie in different branches of an `if`: a run reaches only one of them."""
    return any((one in body and other in rest) or (other in body and one in rest) for body, rest in _branches(file))


@lru_cache(maxsize=64)
def _branches(file: str) -> tuple[tuple[range, range], ...]:
    try:
        tree = ast.parse(source(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(_ifs(tree))


def _ifs(tree: ast.AST) -> Iterator[tuple[range, range]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.orelse:
            body, rest = ((part[0].lineno, part[-1].end_lineno or part[-1].lineno) for part in (node.body, node.orelse))
            yield range(body[0], body[1] + 1), range(rest[0], rest[1] + 1)


@lru_cache(maxsize=64)
def source(file: str) -> str:
    """The text of a Python file that a record names, if it is here, else "". Other files are not read."""
    if not file.endswith(".py"):
        return ""
    try:
        return read_plain(file, _MOST_SOURCE).decode("utf-8", "replace")
    except (OSError, DocumentError):
        return ""


def line_of(frame: CodeLine) -> str:
    lines = source(frame.file).splitlines()
    return lines[frame.line - 1].strip()[:200] if 0 < frame.line <= len(lines) else ""
