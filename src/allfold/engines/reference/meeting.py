"""The meeting point of ranks that are threads of one process: a group, its calls, and who is still there."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ...errors import AllfoldError, CollectiveTimeout, MismatchError, RankLost, UsageError
from ...wording import name_ranks
from ..engine import name_group
from ..last_words import last_words, who_left
from ..mailbox import Sent, Wanted, raise_separately
from ..signature import Signature, called, check_groups, difference

Perform = Callable[[list[Any]], Any]

_GROUP = "group"  # in place of a signature: ranks may name different groups in one call


@dataclass
class Visit:
    """One call of a group, from the first rank that arrives to its result."""

    number: int
    perform: Perform | None = None
    arguments: dict[int, Any] = field(default_factory=dict)  # by rank
    calls: dict[int, Signature | str] = field(default_factory=dict)  # by rank
    result: Future[Any] = field(default_factory=Future)  # the same for all ranks

    @property
    def differs(self) -> bool:
        """True if ranks that have arrived made different calls."""
        return len(set(self.calls.values())) > 1


class Meeting:
    """One group. `ranks` are its ranks, as the group that it was made of numbers them."""

    def __init__(self, size: int, label: str, ranks: Sequence[int] = ()) -> None:
        self.size = size
        self.label = label
        self.ranks = list(ranks)
        self.lock = threading.RLock()
        self.sent: list[list[Sent]] = [[] for _ in range(size)]  # by destination: messages without a receive yet
        self.wanted: list[list[Wanted]] = [[] for _ in range(size)]  # by destination: receives without a message yet
        self.begun = [0] * size  # by rank: the number of its calls
        self._visits: dict[int, Visit] = {}  # calls for which ranks are missing, by number
        self._complete: deque[Visit] = deque()  # calls at which all ranks have arrived, in order
        self._performer: int | None = None  # the thread that performs a call now
        self._left: dict[int, str] = {}  # by rank: the exception that it is ending after, or nothing
        self._ended: AllfoldError | None = None
        self._made = 0  # the number of groups made of this one
        self._groups: weakref.WeakSet[Meeting] = weakref.WeakSet()
        self._parts: dict[str, list[tuple[Meeting, set[int]]]] = {}  # by name: groups, and the ranks that have not come
        self._staying: set[int] = set()  # ranks that have called shrink
        self._shrunk: Future[Meeting] = Future()
        self._have_shrunk: set[int] = set()
        self._whole = (
            label,
            list(range(size)),
        )  # before it was shrunk for the first time: its label, and our ranks in it

    # Calls -----------------------------------------------------------------------------------------------------------

    def come(self, name: str, rank: int, call: Signature | str, own: Any, perform: Perform) -> Visit:
        """Enter this rank's next call, named `name`. The last rank to arrive performs it, with the arguments of all."""
        with self.lock:
            self.check_open(name, rank)
            if self._performer == threading.get_ident():
                raise UsageError(
                    f"{name}: called inside a user-defined operation of the same communicator, where it would wait for "
                    "itself"
                )
            self.begun[rank] += 1
            visit = self._visits.setdefault(self.begun[rank], Visit(self.begun[rank]))
            visit.arguments[rank] = own
            visit.calls[rank] = call
            if len(visit.calls) == self.size:
                del self._visits[visit.number]
                visit.perform = perform
                self._complete.append(visit)
            else:
                self._fail_what_cannot_be()
        self._perform_complete()
        return visit

    def _perform_complete(self) -> None:
        """Perform complete calls in order, unless another thread does. Not under the lock: it may call users' functions."""
        while True:
            with self.lock:
                if self._performer is not None or not self._complete:
                    return
                visit = self._complete.popleft()
                self._performer = threading.get_ident()
            result, error = None, self._ended
            try:
                if error is None and visit.differs:
                    error = self._difference(visit)
                if error is None:
                    assert visit.perform is not None
                    result = visit.perform([visit.arguments[rank] for rank in range(self.size)])
            except BaseException as raised:  # by a user's operation, perhaps: every rank gets it
                error = raised  # type: ignore[assignment]
            with self.lock:
                self._performer = None
                if error is None:
                    visit.result.set_result(result)
                else:
                    visit.result.set_exception(error)
                    if isinstance(error, MismatchError):
                        self.end(error)

    def fail_differing(self, visit: Visit) -> None:
        """Make a call fail at which ranks have arrived with different calls, and others have not arrived."""
        with self.lock:
            if not visit.result.done():
                self.end(self._difference(visit))

    def give_up(self, visit: Visit, rank: int) -> list[int]:
        """Make all calls fail if one has timed out on a rank; the ranks that had not arrived, if it has not ended."""
        with self.lock:
            if visit.result.done():
                return []
            missing = [one for one in range(self.size) if one not in visit.calls]
            if missing and visit.differs:
                self.end(self._difference(visit))
            elif missing:
                self.end(CollectiveTimeout(f"rank {rank} gave up: it had waited too long for {name_ranks(missing)}"))
            return [] if visit.differs else missing

    def place(self, visit: Visit) -> str:
        return f"call {visit.number} of {self.label}"

    def _difference(self, visit: Visit) -> MismatchError:
        absent = [rank for rank in range(self.size) if rank not in visit.calls]
        signatures = {rank: one for rank, one in visit.calls.items() if isinstance(one, Signature)}
        if len(signatures) == len(visit.calls):
            what = difference(signatures, absent)
        else:
            words: dict[str, list[int]] = {}
            for rank, one in sorted(visit.calls.items()):
                words.setdefault(one.words if isinstance(one, Signature) else one, []).append(rank)
            what = called("", words) + (f", {name_ranks(absent)} did not arrive" if absent else "")
        return MismatchError(f"{what} ({self.place(visit)})")

    # Groups ----------------------------------------------------------------------------------------------------------

    def group(self, rank: int, ranks: list[int]) -> Visit:
        """Every rank names its group; the result has the meeting of each group, by its ranks."""

        def divide(named: list[list[int]]) -> dict[tuple[int, ...], Meeting]:
            check_groups(named)
            with self.lock:
                self._made += 1
                groups = {tuple(one) for rank, one in enumerate(named) if rank in one}
                return {
                    group: self._part(group, Meeting(len(group), name_group(self._made, group, self.label), group))
                    for group in groups
                }

        return self.come(_GROUP, rank, _GROUP, ranks, divide)

    def part(self, rank: int, ranks: list[int], name: str) -> Meeting:
        """The group with this name that has not given itself to this rank yet; made by the first of its ranks to come."""
        with self.lock:
            waiting = self._parts.setdefault(name, [])
            found = next((one for one in waiting if rank in one[1]), None)
            if found is None:
                found = self._part(ranks, Meeting(len(ranks), name, ranks)), set(ranks)
                waiting.append(found)
            made, missing = found
            if made.ranks != ranks:
                raise MismatchError(f"{name} is of {name_ranks(made.ranks)} elsewhere, of {name_ranks(ranks)} here")
            missing.remove(rank)
            if not missing:
                waiting.remove(found)
            return made

    def _part(self, ranks: Sequence[int], made: Meeting) -> Meeting:
        """A group made of this one. Ranks whose threads have ended are missing there, too."""
        self._groups.add(made)
        for rank, words in self._left.items():
            if rank in ranks and words:
                made.lose(ranks.index(rank), words)
        return made

    def shrink(self, rank: int) -> Future[Meeting]:
        """This rank goes on without those that are lost; the result is the meeting of all that do."""
        with self.lock:
            if rank in self._left:
                raise UsageError("shrink: this communicator is closed")
            if rank in self._have_shrunk:
                raise UsageError("shrink: already shrunk; call shrink() on the communicator it returned")
            self._staying.add(rank)
            self.end(self.lost(range(self.size)) or RankLost(f"rank {rank} called shrink()"))
            self._settle_who_stays()
            return self._shrunk

    def shrunk(self, rank: int) -> tuple[int, Meeting]:
        """The number of a rank in what is left, and the meeting there."""
        with self.lock:
            self._have_shrunk.add(rank)
            made = self._shrunk.result()
            return made.ranks.index(rank), made

    def undecided(self) -> list[int]:
        """Ranks that have neither called shrink nor left."""
        with self.lock:
            return [rank for rank in range(self.size) if rank not in self._staying and rank not in self._left]

    def _settle_who_stays(self) -> None:
        staying = sorted(self._staying - self._left.keys())
        if not staying or self._shrunk.done() or self.undecided():
            return
        label, ranks = self._whole
        remaining = [ranks[rank] for rank in staying]
        made = Meeting(len(staying), f"what is left of {label}: {name_ranks(remaining)}", staying)
        made._whole = label, remaining
        self._groups.add(made)
        self._shrunk.set_result(made)

    # Ends ------------------------------------------------------------------------------------------------------------

    def check_open(self, name: str, rank: int) -> None:
        if rank in self._left:
            raise UsageError(f"{name}: this communicator is closed ({self.label})")
        if self._ended is not None:
            raise_named(self._ended, name, self.label)

    def leave(self, rank: int) -> None:
        """A rank closes its communicator."""
        self._leave(rank, last_words())

    def lose(self, rank: int, words: str) -> None:
        """A rank's thread has ended: it has left this group, and all groups that were made of it."""
        with self.lock:
            self._leave(rank, words)
            for one in list(self._groups):
                if rank in one.ranks:
                    one.lose(one.ranks.index(rank), words)

    def _leave(self, rank: int, words: str) -> None:
        with self.lock:
            self._left.setdefault(rank, words)
            self._fail_what_cannot_be()
            self._settle_who_stays()

    def end(self, error: AllfoldError) -> None:
        """Make all calls and messages fail, those in progress and later ones."""
        with self.lock:
            self._ended = self._ended or error
            self._fail_what_cannot_be()

    def _fail_what_cannot_be(self) -> None:
        for number, visit in list(self._visits.items()):
            if lost := self.lost(rank for rank in range(self.size) if rank not in visit.calls):
                del self._visits[number]
                visit.result.set_exception(lost)
        for rank, wanted in enumerate(self.wanted):
            for one in list(wanted):
                sources = {one.source} if one.source is not None else set(range(self.size)) - {rank}
                if lost := (None if sources - self._left.keys() and self._ended is None else self.lost(sources)):
                    wanted.remove(one)
                    one.result.set_exception(lost)

    def want(self, rank: int, wanted: Wanted) -> None:
        """Add a receive for which there is no message yet."""
        with self.lock:
            self.wanted[rank].append(wanted)
            self._fail_what_cannot_be()

    def lost(self, needed: Iterable[int]) -> AllfoldError | None:
        """The error for a call or a message that needs these ranks, if it cannot succeed any more."""
        if self._ended is not None:
            return self._ended
        gone = {rank: self._left[rank] for rank in self._left.keys() & set(needed)}
        return RankLost(who_left(gone, name_ranks, without=": it closed its communicator")) if gone else None


def raise_named(error: BaseException, name: str, place: str) -> NoReturn:
    """Raise the error of a group on one rank: with the call that it ended, if it says only what happened to others."""
    if isinstance(error, (RankLost, CollectiveTimeout)):
        raise type(error)(f"{name}: {error} ({place})") from None
    raise_separately(error)
