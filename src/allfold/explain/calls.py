"""The model that all explanations work on: a run is ranks that make calls in groups.

A fact that a record lacks is None, and no finding may depend on such a fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from ..wording import counted

POINT_TO_POINT = ("send", "recv")
_SHOWN_TENSORS = 3


class CodeLine(NamedTuple):
    """One line of a rank's program."""

    file: str
    line: int
    function: str = ""

    @property
    def place(self) -> str:
        """`train.py:31`."""
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2] or self.file}:{self.line}"


class Tensor(NamedTuple):
    """The type and the shape of an array. `dtype` is "" if it is unknown."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class CallFacts:
    """One call of one rank.

    `number` counts the calls of a group from 1: the same number on all ranks is the same call. Point-to-point calls have
    numbers of their own. `order` counts all calls of a rank, in all its groups. `peer` is the other rank of a
    point-to-point call (its rank in the run), None for a receive from any rank. `tensors` are the arrays on whose size
    and type all ranks must agree, None if the record does not say. `stack` has the lines of the user's program, the
    innermost first.
    """

    group: str
    number: int
    operation: str
    order: int
    tensors: tuple[Tensor, ...] | None = None
    reduction: str | None = None
    root: int | None = None
    peer: int | None = None
    stack: tuple[CodeLine, ...] = ()
    begun: float | None = None
    ended: float | None = None
    done: bool | None = None
    timeout: float | None = None
    details: str = ""  # further arguments on which all ranks must agree

    @property
    def is_point_to_point(self) -> bool:
        return self.operation in POINT_TO_POINT

    @property
    def place(self) -> str:
        return self.stack[0].place if self.stack else ""

    @property
    def what(self) -> str:
        """`broadcast(float32[4], root 0)`."""
        words = []
        if self.tensors:
            shown = ", ".join(map(str, self.tensors[:_SHOWN_TENSORS]))
            more = len(self.tensors) - _SHOWN_TENSORS
            words.append(shown + (f" and {counted(more, 'more array')}" if more > 0 else ""))
        if self.reduction:
            words.append(self.reduction)
        if self.root is not None:
            words.append(f"root {self.root}")
        if self.peer is not None:
            words.append(f"{'to' if self.operation == 'send' else 'from'} rank {self.peer}")
        if self.details:
            words.append(self.details)
        return f"{self.operation}({', '.join(words)})" if words else self.operation

    @property
    def where(self) -> str:
        """` at train.py:31`, or nothing."""
        return f" at {self.place}" if self.stack else ""


@dataclass(slots=True)
class GroupFacts:
    """A group of ranks. `ranks` are the known members; `complete` if there are no others. `size` may be known without them."""

    key: str
    label: str
    ranks: tuple[int, ...]
    complete: bool = True
    size: int | None = None


@dataclass(slots=True)
class RankFacts:
    """The known facts of one rank.

    `calls` are in the order in which it made them. `starts` has, by group, the first number that the record could hold:
    earlier calls were made, but overwritten. With the key "" in it, nothing is known of groups that are not in the record.
    `at` is where the program was when the record was written, the innermost line first. `ended` says
    how the rank ended, as in "was killed by signal 9". `said` are errors that it reported.
    """

    number: int
    calls: list[CallFacts] = field(default_factory=list)
    has_record: bool = True
    starts: dict[str, int] = field(default_factory=dict)
    at: tuple[CodeLine, ...] = ()
    in_call: bool | None = None  # True if it was inside a call when the record was written
    stalled: tuple[CodeLine, ...] = ()  # where it was when it last stalled outside a call
    ended: str = ""
    said: list[str] = field(default_factory=list)
    written: float | None = None
    source: str = ""  # the file
    run: str = ""  # the same text on all ranks of a run, if the record has one

    def of(self, group: str) -> dict[int, CallFacts]:
        """Its collective calls in a group, by number."""
        return {call.number: call for call in self.calls if call.group == group and not call.is_point_to_point}


@dataclass(slots=True)
class RunFacts:
    """All that is known of a run. `lacks` names what its records do not hold, for the reader of the sentence."""

    ranks: dict[int, RankFacts]
    groups: dict[str, GroupFacts]
    size: int | None = None  # of the whole run, if a record says so
    notes: list[str] = field(default_factory=list)
    lacks: Sequence[str] = ()

    def missing(self) -> list[int]:
        """Ranks that belong to the run and have no record."""
        known = {rank for group in self.groups.values() for rank in group.ranks} | set(self.ranks)
        everybody = known | set(range(self.size or 0))
        return sorted(rank for rank in everybody if rank not in self.ranks or not self.ranks[rank].has_record)
