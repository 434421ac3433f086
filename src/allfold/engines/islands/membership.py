"""One rank's membership in a group: which ranks are there, what has failed, and the error that callers get."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from ...errors import AllfoldError, CollectiveTimeout, MismatchError, RankLost, UsageError
from ...fabrics.board import Board
from ...fabrics.fabric import Disconnected, Fabric
from ...wording import name_ranks
from ..engine import Engine
from ..last_words import who_left
from .roster import Roster, Shared
from .world import GRACE_SECONDS, World


class Membership:
    """After the first error the group has failed: only `shrink` and leaving are possible."""

    def __init__(
        self, world: World, roster: Roster, fabric: Fabric, shared: Shared, end_all: Callable[[AllfoldError], None]
    ) -> None:
        """`end_all` ends this rank's calls and messages in the group with an error."""
        self.world, self._roster = world, roster
        self._fabric, self._shared, self._end_all = fabric, shared, end_all
        self.error: AllfoldError | None = None
        self._own: AllfoldError | None = None  # what this rank has found itself, and tells the others
        self.failed = threading.Event()
        self.cut_off = threading.Event()  # after a failure: no transfer uses a caller's array
        self.is_closed = False
        self.left_after: dict[int, int] = {}  # by rank of the world: how many calls it had made when it left
        self._lock = threading.Lock()
        self._attempts, self._was_shrunk = 0, False

    # Who is there ----------------------------------------------------------------------------------------------------

    @property
    def is_forked(self) -> bool:
        return self.world.process != os.getpid()

    @property
    def standing(self) -> str:
        return "left" if self.is_closed else "open" if self.error is None else "failed"

    def check_process(self, name: str) -> None:
        if self.is_forked:
            raise UsageError(f"{name}: this process was forked from a rank and cannot use the rank's communicators")

    def check_open(self, name: str) -> None:
        self.check_process(name)
        if self.is_closed:
            raise UsageError(f"{name}: this communicator is closed ({self._roster.label})")

    def check_present(self, name: str, needed: Iterable[int], made: int) -> None:
        """Raise an error if the group has failed, or if a rank that a call needs has left. `made`: calls of this rank."""
        if self.error is not None:
            raise type(self.error)(str(self.error))
        if self.world.lost() or self.left_after:
            # A rank that has left may have made this call before that.
            ranks = [self._roster.ranks[rank] for rank in needed]
            error = self.gone([rank for rank in ranks if self.left_after.get(rank, 0) <= made])
            if error is not None:
                raise type(error)(f"{name}: {error}")

    def where(self, ranks: Iterable[int]) -> str:
        """Names ranks and their hosts: `rank 3 on host1`."""
        return self.world.where(ranks, self._roster.ranks)

    def gone(self, ranks: Sequence[int]) -> AllfoldError | None:
        """The error of a call that needs these ranks of the world, if one of them is lost, or has left this group."""
        if (error := self.world.gone(ranks)) is not None:
            return error
        left = [rank for rank in ranks if rank in self.left_after]
        words = {self._roster.ranks.index(rank): said for rank, said in self.world.last_words(left).items()}
        return RankLost(who_left(words, self.where, f" {self._roster.label}")) if left else None

    def ended(self, source: int | None) -> AllfoldError | None:
        """The error of a receive from a rank of the group (None: any rank), if no more messages can arrive."""
        if self.error is not None or not (self.world.lost() or self.left_after):
            return self.error
        ranks = self._roster.ranks
        sources = [ranks[rank] for rank in self._roster.others] if source is None else [ranks[source]]
        return self.gone(sources) if all(self.gone([rank]) for rank in sources) else None

    # What has failed -------------------------------------------------------------------------------------------------

    def fail(self, error: AllfoldError) -> None:
        """End all calls of this rank with an error. Only the first error counts.

        Callers get the error, and may change or drop their arrays, only when no transfer uses these arrays.
        """
        with self._lock:
            if self.error is not None:
                return
            self.error = error = self._own or error
        self.world.note_failure(error)
        self.failed.set()
        self._fabric.cut()
        self._shared.abort()
        self.cut_off.set()
        self._end_all(error)

    def give_up(self, told: AllfoldError, own: AllfoldError | None = None) -> None:
        """Fail on all other ranks, then here, because the caller may end this process as soon as it has the error.

        Another rank may give up at the same moment. Its news arrives while this one tells the others, and is ignored.
        """
        own = own or told
        with self._lock:
            self._own = self._own or own
        self.world.tell(self._roster.ranks, self._roster.number, told)
        self.fail(own)

    def better(self, error: AllfoldError) -> AllfoldError:
        """The failure that explains an error, if news of it arrives soon; else the error itself."""
        # After a failure the channels of the island are closed, and raise errors that say only that.
        if isinstance(error, MismatchError) or (isinstance(error, UsageError) and self.error is None):
            return error
        if self.failed.wait(GRACE_SECONDS) and self.error is not None:
            return self.error
        if (known := self.gone(self._roster.ranks)) is not None or not isinstance(error, RankLost):
            return known or error
        # The island's engine numbers ranks differently, so its own sentence would be wrong.
        others = [rank for rank in self._roster.mine if rank != self._roster.rank]
        what = f"at least one of {self.where(others)} is lost ({self._roster.label})"
        return RankLost(self.world.with_cause(what))

    def explained(self, error: Disconnected) -> AllfoldError:
        """The failure that explains why a connection has ended, if news of it arrives soon; else a `RankLost`."""
        if error.peer is not None:
            peer = self._roster.ranks[error.peer]
            self.world.probe(next(island for island in self.world.islands if peer in island))
        if not self.failed.wait(GRACE_SECONDS):
            self.world.lose_broken(0.0)  # if its process has ended, all groups must know
        if self.error is None:
            self.give_up(self.unreachable(error))
        assert self.error is not None  # perhaps one that this rank found itself, and is still telling the others
        return type(self.error)(*self.error.args)

    def unreachable(self, error: Disconnected) -> RankLost:
        who = "a rank" if error.peer is None else self.where([error.peer])
        return RankLost(self.world.with_cause(f"{who} can no longer be reached: {error} ({self._roster.label})"))

    # Continuing without lost ranks -----------------------------------------------------------------------------------

    def shrink(self, timeout: float) -> Engine:
        """The engine of the remaining ranks. All of them call it, and may call it again after a timeout."""
        self.check_process("shrink")
        if self.is_closed:
            raise UsageError("shrink: this communicator is closed")
        if self._was_shrunk:
            raise UsageError("shrink: already shrunk; call shrink() on the communicator it returned")
        cause = self.error or self.gone(self._roster.ranks)
        self.give_up(cause or RankLost(f"rank {self._roster.rank} shrinks {self._roster.label}"))
        made = self._meet_again(timeout)
        self._was_shrunk = True
        return made

    def _meet_again(self, timeout: float) -> Engine:
        """The remaining ranks make numbered attempts. The result of an attempt is decided once, on the board: the remaining
        ranks, or none if a rank timed out first. After a failed attempt all ranks continue with the next number, so entries
        of different attempts never mix."""
        roster = self._roster
        board = self.world.board.some(f"shrink {roster.number}", roster.ranks)
        deadline, left = time.monotonic() + timeout, None
        while left is None:
            self._attempts += 1
            left = self._who_is_left(board, deadline, timeout)
        if roster.rank not in left:
            raise RankLost(f"shrink: the others continued without rank {roster.rank} ({roster.label})")
        smaller = board.some(f"left {self._attempts}", left)
        label = f"what is left of {roster.label}: {name_ranks(left)}"
        return self.world.again(smaller, max(1.0, deadline - time.monotonic()), label, roster.timeout)

    def _who_is_left(self, board: Board, deadline: float, timeout: float) -> list[int] | None:
        """The result of this attempt: the remaining ranks, or None if other ranks have given it up."""
        roster, attempt = self._roster, self._attempts
        here, after = (f"here {number}" for number in (attempt, attempt + 1))
        board.put(here, b"1")
        while True:
            lost = [roster.ranks.index(rank) for rank in self.world.lost() if rank in roster.ranks]
            come = [rank for rank in board.present(here) if rank not in lost]
            missing = [rank for rank in range(roster.size) if rank not in come and rank not in lost]
            if not missing:
                return _decided(board, attempt, come)
            if board.present(after):
                return None
            if time.monotonic() > deadline:
                left = _decided(board, attempt, None)
                if left is None:
                    what = f"{name_ranks(missing)} did not arrive within {timeout:g} s"
                    raise CollectiveTimeout(f"shrink: {what} ({roster.label})")
                return left
            time.sleep(0.02)


def _decided(board: Board, attempt: int, proposal: list[int] | None) -> list[int] | None:
    left: list[int] | None = json.loads(board.decide(f"left {attempt}", json.dumps(proposal).encode()))
    return left
