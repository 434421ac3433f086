"""Waits for the other ranks of a call: finds out which are missing and why, and when that is an error."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from ..errors import AllfoldError, CollectiveTimeout, MismatchError, RankLost, UsageError
from ..explain.calls import RunFacts
from ..explain.findings import findings
from ..wording import name_ranks
from .site import Site
from .story import read_call, run_of

if TYPE_CHECKING:
    from .hosts import Hosts

SETTLE_SECONDS, _MOST_SETTLE_SECONDS = 0.15, 2.0
"""Time for the other ranks to arrive after two have differed: only a third call shows which one is the odd one out. On a busy
machine they take longer."""
_LOOK_SECONDS = 0.1
_CIRCLE_SECONDS = 0.3
_ANSWER_SECONDS = 0.5
_GIVEN_UP = 0.9  # of the timeout: backends measure it from an earlier or a later moment
LATE = "ALLFOLD_CHECK_LATE"
_LATE_SECONDS = 3.0
LINE_BEGINS = "allfold check: "
_KINDS: dict[str, type[AllfoldError]] = {"mismatch": MismatchError, "lost": RankLost, "late": CollectiveTimeout}


def late_seconds() -> float:
    """The seconds after which a waiting rank names the late one; the variable ALLFOLD_CHECK_LATE sets them."""
    text = os.environ.get(LATE, "")
    try:
        seconds = float(text or _LATE_SECONDS)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{LATE}={text!r}: expected a positive number of seconds")
    return seconds


def _settle_seconds() -> float:
    crowd = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(_MOST_SETTLE_SECONDS, SETTLE_SECONDS * max(1.0, crowd))


class Waits:
    """The waits of one rank, and the errors that end them. The first error of a run becomes that of all its ranks."""

    def __init__(self, site: Site) -> None:
        self._site, self._board, self._late_seconds = site, site.board, late_seconds()
        self.has_raised = False
        self.hosts: Hosts | None = None  # if there are others
        self._begin()

    def fail(self, kind: str, sentence: str) -> AllfoldError:
        """Make this the error of all ranks, unless there is one already; returns the one that counts."""
        words = f"{kind} {sentence}"
        if self.hosts is not None and self._board.failure() is None:
            words = self.hosts.tell(words)
        self._board.fail(words.encode())
        error = self.failure()
        assert error is not None
        return error

    def failure(self) -> AllfoldError | None:
        """The error of the run."""
        words = self._board.failure()
        if words is None:
            return None
        self.has_raised = True
        kind, _, sentence = words.decode(errors="replace").partition(" ")
        return _KINDS.get(kind, MismatchError)(sentence)

    def differing(self, lanes: Any, number: int) -> AllfoldError:
        """The error for a call that ranks make differently."""
        if self.hosts is not None:
            try:
                self.hosts.settle(lanes, number)
            except AllfoldError as error:
                return error
        end = time.monotonic() + _settle_seconds()
        count = len(lanes.ranks())
        while time.monotonic() < end and self._board.failure() is None:
            if all(lanes.last(member) >= number for member in range(count)):
                break
            time.sleep(0.002)
        found = findings(self._run())
        if not found:
            return self.fail("mismatch", f"the ranks made different calls as call {number} of {_name(lanes)}")
        return self.fail("mismatch", found[0].sentence)

    def meet(self, lanes: Any, number: int, own: int, seconds: float) -> None:
        """Wait until all ranks of this host have made the call."""
        begin = time.monotonic()
        self._begin()
        try:
            while True:
                outcome = lanes.meet(_LOOK_SECONDS)
                if outcome == "agreed":
                    return
                if (failure := self.failure()) is not None:
                    raise failure
                if outcome == "differs":
                    raise self.differing(lanes, number)
                self.look(lanes, number, own, time.monotonic() - begin, seconds)
        except AllfoldError:
            raise
        except BaseException as error:  # of a signal's handler: this rank does not make the call that others count on
            self.fail("mismatch", self._about_left(lanes, number, own, error))
            raise
        finally:
            self._board.end_wait()

    def _about_left(self, lanes: Any, number: int, own: int, error: BaseException) -> str:
        found = {call: (text, since) for call, _, since, text in lanes.calls(own)}
        text, since = found.get(number, (b"", 0))
        call = read_call(text, "", number, since)
        said = ": ".join(filter(None, (type(error).__name__, str(error))))
        return (
            f"rank {self._site.rank} left {call.what}{call.where} (call {number} of {_name(lanes)}) without making it, "
            f"because a signal's handler raised {said}"
        )

    def _begin(self) -> None:
        self._circle, self._say_at = "", self._late_seconds

    def look(self, lanes: Any, number: int, own: int, waited: float, seconds: float) -> None:
        """Called ten times per second while this rank waits in a call: raise if the wait cannot end, and report late ranks."""
        if waited < 2 * _LOOK_SECONDS:
            self._begin()
        self._board.begin_wait(lanes.id(), number)
        if not self._missing(lanes, number):
            return
        self._look_for_the_dead(lanes, number)
        if waited > _CIRCLE_SECONDS:
            self._circle = self._look_for_a_circle(self._circle)
        if self.hosts is None and waited > self._say_at and self._is_first_waiting(lanes, number, own):
            self._say_at *= 4
            self._say_who_is_late(lanes, number, waited)
        if waited > seconds:
            raise self.late(lanes, number, seconds)

    def late(self, lanes: Any, number: int, seconds: float) -> AllfoldError:
        """The error for a call that some ranks did not make in time."""
        self._ask(self._missing(lanes, number))
        return self.fail("late", f"after {seconds:g} s, {self._about_missing(lanes, number)}")

    def about_given_up(self, lanes: Any, number: int, waited: float, seconds: float) -> AllfoldError | None:
        """The error for a background call that the backend has given up, if ranks are lost or late."""
        self._look_for_the_dead(lanes, number)
        run = self._run_of_all_hosts()
        members = run.groups[str(lanes.id())].ranks
        made = {rank: max(run.ranks[rank].of(str(lanes.id())), default=0) for rank in members if rank in run.ranks}
        if waited < _GIVEN_UP * seconds or all(made.get(rank, 0) >= number for rank in members):
            return None
        return self.late(lanes, number, seconds)

    def _look_for_the_dead(self, lanes: Any, number: int) -> None:
        for rank in self._missing(lanes, number):
            if self._board.standing(rank) == "ended" or self._board.fate(rank) is not None:
                if rank not in self._missing(lanes, number):
                    continue  # it made the call, and ended after it
                if (failure := self.failure()) is not None:
                    raise failure
                raise self.fail("lost", self._about_missing(lanes, number))

    def _look_for_a_circle(self, before: str) -> str:
        """The sentence about a circular wait, or "". Raises if the same one was found the last time, too."""
        found = next((one for one in findings(self._run()) if one.circle), None)
        if found is None:
            return ""
        waiting = {wait[0] for wait in self._board.waits()}
        if not waiting.issuperset(found.circle):
            return ""
        if found.sentence == before:
            raise self.fail("mismatch", found.sentence)
        return found.sentence

    def _is_first_waiting(self, lanes: Any, number: int, own: int) -> bool:
        """True for one of the waiting ranks, which reports for all of them."""
        return all(lanes.last(member) < number for member in range(own))

    def _say_who_is_late(self, lanes: Any, number: int, waited: float) -> None:
        self._ask(self._missing(lanes, number))
        if missing := self._missing(lanes, number):
            sys.stderr.write(f"{LINE_BEGINS}after {waited:.0f} s, {self._about_missing(lanes, number, missing)}\n")
            sys.stderr.flush()

    def _ask(self, ranks: list[int]) -> None:
        """Ask these ranks of this host where they are, and give them a moment to answer."""
        for rank in ranks:
            self._board.ask(rank)
        end = time.monotonic() + _ANSWER_SECONDS
        while time.monotonic() < end and not all(self._board.answer_of(rank) for rank in ranks):
            time.sleep(0.005)

    def _about_missing(self, lanes: Any, number: int, missing: list[int] | None = None) -> str:
        found = findings(self._run_of_all_hosts())
        group = str(lanes.id())
        exact = [one for one in found if one.group == group and one.number == number]
        if exact or found:
            return (exact or found)[0].sentence
        missing = self._missing(lanes, number) if missing is None else missing
        return f"{name_ranks(missing)} did not make call {number} of {_name(lanes)}"

    def _missing(self, lanes: Any, number: int) -> list[int]:
        return [rank for member, rank in enumerate(lanes.ranks()) if lanes.last(member) < number]

    def _run(self) -> RunFacts:
        return run_of(self._board, self._site.ranks)

    def _run_of_all_hosts(self) -> RunFacts:
        return self._run() if self.hosts is None else self.hosts.run()


def _name(lanes: Any) -> str:
    name: str = lanes.name().decode()
    return name
