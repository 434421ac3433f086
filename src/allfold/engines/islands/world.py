"""The state of all ranks of a run, on all hosts: which are lost, which have left, and when each host was last heard from.

Inside an island the kernel knows which processes are alive. The lowest rank alive there reports deaths to the other
islands, and sends them a heartbeat every second. An island that is silent for `ALLFOLD_HOST_SECONDS` is lost.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ... import _native
from ...errors import AllfoldError, CollectiveTimeout, MismatchError, RankLost
from ...fabrics.board import Board
from ...fabrics.fabric import Fabric, host_seconds
from ...wording import name_ranks
from ..engine import Engine
from ..last_words import last_words, note_ending, who_left
from .crossing import Tuned
from .frames import MOST_TEXT, Frame, Frames, News
from .neighbours import IslandWatch

_BEAT_SECONDS = 1.0
GRACE_SECONDS = 0.5  # after a connection has ended, for the news that explains it to arrive
_TELLING_SECONDS = 0.5  # for the other ranks to receive the news when a rank gives up
_ERRORS: tuple[type[AllfoldError], ...] = (RankLost, MismatchError, CollectiveTimeout, AllfoldError)
_MOST_WAITING = 64  # frames pending for a rank; with more, it gets no heartbeats


def host_name() -> str:
    return os.environ.get("ALLFOLD_HOSTID") or socket.gethostname()


class GroupInWorld(Protocol):
    """One rank's end of a group, as `World` sees it. Ranks are those of the world here."""

    number: int
    ranks: list[int]

    def made(self) -> int:
        """The number of calls that this rank has made."""
        ...

    def fail(self, error: AllfoldError) -> None: ...
    def take_in(self, source: int, frame: Frame) -> None: ...
    def note_left(self, who: int, calls: int) -> None:
        """Note that a rank has left this group, after this many calls."""
        ...

    def somebody_left(self, who: int) -> None:
        """End what needs a rank that has left the run, or this group."""
        ...

    def interrupt(self) -> None: ...
    def look(self, now: float) -> None:
        """Look for calls at their timeout. Called periodically by the thread that watches."""
        ...


_worlds: set[World] = set()  # the worlds that this process has not left
_processes: set[int] = set()  # this process, once it has been in a world; a forked child has another number


@atexit.register
def _end_all() -> None:
    """Leave all worlds at exit. Threads that still wait inside a fabric cannot be stopped, so they are parked."""
    if os.getpid() in _processes:
        note_ending()
        for world in list(_worlds):
            world.end()
        _native.park_other_threads()


class World:
    """One rank's view of a run."""

    def __init__(
        self,
        board: Board,
        fabric: Fabric,
        islands: Sequence[Sequence[int]],
        hosts: Sequence[str],
        arenas: Mapping[int, _native.Arena],
        again: Callable[[Board, float, str, float], Engine],
        tuned: Sequence[Tuned] = (),
        identity: int = 0,
    ) -> None:
        """`arenas`: of the ranks of this island, if they are processes. `again(board, timeout, label, call_timeout)` creates
        an engine of some of the ranks. `identity`: a number that no other run has.
        """
        self.rank, self.size, self.process = board.rank, board.size, os.getpid()
        self.board, self.fabric = board, fabric
        self.islands, self.hosts = [list(island) for island in islands], list(hosts)
        self.mine = next(island for island in self.islands if self.rank in island)
        self.tuned, self.identity = list(tuned), identity
        self.again = again
        self._lock = threading.RLock()
        self._lost: dict[int, str] = {}
        self._left: set[int] = set()
        self._last_words: dict[int, str] = {}  # of ranks that have left: their exception, or ""
        self._first_failure: AllfoldError | None = None  # of any group of this rank
        self._untold: set[int] | None = None  # once this rank is leaving: the ranks that may not know it yet
        self._groups: weakref.WeakValueDictionary[int, GroupInWorld] = weakref.WeakValueDictionary()
        self._early: dict[int, list[tuple[int, Frame]]] = {}  # news for groups that do not exist here yet
        self._seconds = host_seconds()
        self.patience = 1.0  # seconds that a leaving rank waits for its messages to arrive
        self._heard = {island[0]: time.monotonic() for island in self.islands}
        self._island_of = {rank: island[0] for island in self.islands for rank in island}
        self._broken: dict[int, float] = {}  # ranks whose connections have ended, and since when
        self.frames = Frames(fabric, fabric.another("messages", range(self.size)), self._take_in, self._has_broken)
        self._ended = threading.Event()
        # While the main thread waits inside the fabric, Python does not handle signals. So Python writes their numbers into
        # this pipe, unless another pipe is set already: an event loop has its own.
        self._bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_told = False
        if threading.current_thread() is threading.main_thread():
            before = signal.set_wakeup_fd(self._bell[1], warn_on_full_buffer=False)
            self._is_told = before == -1
            if not self._is_told:
                signal.set_wakeup_fd(before)
        others = {rank: arena for rank, arena in arenas.items() if rank != self.rank}
        self._neighbours = IslandWatch(self._bell[0], others)
        self._thread = threading.Thread(target=self._watch, name="allfold watch", daemon=True)
        self._thread.start()

    def others(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if rank != self.rank and rank not in self._lost]

    def _staying(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in self.others(ranks) if rank not in self._left]

    def where(self, ranks: Iterable[int], group: Sequence[int] | None = None) -> str:
        """Names ranks and their hosts: `ranks 0 and 1 on host0, rank 3 on host1`. With `group`, its rank numbers."""
        there: dict[str, list[int]] = {}
        for rank in ranks:
            there.setdefault(self.hosts[rank if group is None else group[rank]], []).append(rank)
        return ", ".join(f"{name_ranks(some)} on {host}" for host, some in there.items())

    def add(self, group: GroupInWorld) -> None:
        _worlds.add(self)
        _processes.add(os.getpid())
        with self._lock:
            self._groups[group.number] = group
            early = self._early.pop(group.number, [])
            for rank, text in self._lost.items():
                if rank in group.ranks:
                    group.fail(RankLost(text))
            # Under the lock: later frames must wait for these.
            for source, frame in early:
                self._handle(source, frame)

    def gone(self, ranks: Sequence[int]) -> AllfoldError | None:
        """The error of a call that needs these ranks, if one of them is lost or has left."""
        for rank in ranks:
            if rank in self._lost:
                return RankLost(self._lost[rank])
        left = [rank for rank in ranks if rank in self._left]
        return RankLost(who_left(self.last_words(left), self.where)) if left else None

    def last_words(self, ranks: Iterable[int]) -> dict[int, str]:
        return {rank: self._last_words.get(rank, "") for rank in ranks}

    def lost(self) -> list[int]:
        """The ranks that are known to be lost, or to have left."""
        return sorted({*self._lost, *self._left}) if self._lost or self._left else []

    def note_failure(self, error: AllfoldError) -> None:
        """Note that a group of this rank has failed. Ranks often end after that, so later errors mention the first one."""
        if self._first_failure is None:
            self._first_failure = error

    def with_cause(self, text: str) -> str:
        """A sentence, with the first failure appended."""
        cause = "" if self._first_failure is None else str(self._first_failure)
        return text if cause in text else f"{text}; earlier: {cause}"

    def tell(self, ranks: Iterable[int], group: int, error: AllfoldError) -> None:
        """Make the calls of a group fail on other ranks. This process may end right after it."""
        kind = next(number for number, kind in enumerate(_ERRORS) if isinstance(error, kind))
        frame = Frame(News.FAILED, group, kind, (-1, 0, 0), _cut(str(error)))
        self.frames.send_all_now(self._staying(ranks), [frame], _TELLING_SECONDS)

    def leave(self, group: GroupInWorld) -> None:
        """Leave a group. The other ranks learn after how many calls: those are done, and do not need this rank."""
        self._say_goodbye(group, set(self.others(group.ranks)) - self._left)

    def _say_goodbye(self, group: GroupInWorld, others: set[int]) -> None:
        failure = self._first_failure
        words = last_words() or ("" if failure is None else f"{type(failure).__name__}: {failure}")
        self.frames.send_all(
            others & set(group.ranks), Frame(News.LEFT, group.number, 0, (group.made(), 0, 0), _cut(words))
        )

    def end(self) -> None:
        """Leave the run."""
        if not self._ended.is_set() and self.process == os.getpid():
            # Unless a rank is lost, messages that were sent arrive; this rank stays until then.
            self.frames.await_messages(lambda: () if self._lost else set(range(self.size)) - self._left, self.patience)
            self._ended.set()
            with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread wakes up anyway
                os.write(self._bell[1], b"\0")
            self._thread.join(1.0)
            with self._lock:
                others = set(self.others(range(self.size))) - self._left
                self._untold = set(others)
            for group in sorted(self._groups.values(), key=lambda one: one.number == 0):  # the world last
                self._say_goodbye(group, others)
            self.frames.close(1.0)
            _worlds.discard(self)
            if self._is_told and threading.current_thread() is threading.main_thread():
                self._is_told = False
                told = signal.set_wakeup_fd(-1)
                if told != self._bell[1]:
                    signal.set_wakeup_fd(told)
            if not self._is_told and not self._thread.is_alive():
                self._neighbours.close()
                for descriptor in self._bell:
                    os.close(descriptor)

    # ---

    def _take_in(self, source: int, frame: Frame) -> bool:
        """Handle a frame. Returns False if no more frames are expected: once all other ranks have left. A receive ends only
        with a frame, so a leaving rank waits for one from every other rank: an acknowledgement, or that it leaves too."""
        self._handle(source, frame)
        if self._untold is None:
            return len(self._left) < self.size - 1
        if frame.news == News.HEARD or (frame.news == News.LEFT and frame.group == 0):
            self._untold.discard(source)
        return bool(self._untold)

    def _handle(self, source: int, frame: Frame) -> None:
        self._heard[self._island_of[source]] = time.monotonic()
        if frame.news in (News.BEAT, News.HEARD):
            return
        if frame.news == News.LEFT:
            self._last_words[source] = frame.text.decode()
            if (left := self._groups.get(frame.group)) is not None:
                left.note_left(source, frame.numbers[0])
                if frame.group:
                    left.somebody_left(source)
            if frame.group == 0:
                with self._lock:
                    self._left.add(source)
                    is_staying = self._untold is None
                if is_staying:
                    self.frames.send(source, Frame(News.HEARD))
                for one in list(self._groups.values()):
                    if source in one.ranks:
                        one.somebody_left(source)
            return
        if frame.news == News.FAILED and frame.numbers[0] >= 0:
            # The sender may have ended before it told all ranks: a launcher ends all ranks of a host with the first. So
            # this rank passes the news on, and does so first, because it may end as soon as its calls have failed.
            lost = frame.numbers[0]
            if lost != self.rank and self._fresh([lost]):
                self.frames.send_all([rank for rank in self._staying(self.mine) if rank != lost], frame)
                self._lose([lost], frame.text.decode())
            return
        with self._lock:
            group = self._groups.get(frame.group)
            if group is None:
                if frame.news in (News.MESSAGE, News.FAILED):
                    self._early.setdefault(frame.group, []).append((source, frame))
                return
        if frame.news == News.FAILED:
            group.fail(_ERRORS[frame.detail](frame.text.decode()))
        else:
            group.take_in(source, frame)

    def _fresh(self, ranks: Iterable[int]) -> list[int]:
        """Those of the ranks that are not known to be lost or to have left."""
        return [rank for rank in ranks if rank not in self._lost and rank not in self._left]

    def _lose(self, ranks: Sequence[int], text: str) -> None:
        """Note that ranks are lost, and make their groups fail."""
        text = self.with_cause(text)
        with self._lock:
            fresh = self._fresh(ranks)
            self._lost.update(dict.fromkeys(fresh, text))
            groups = [group for group in self._groups.values() if set(fresh) & set(group.ranks)]
        for group in groups:
            group.fail(RankLost(text))

    def _tell_of_loss(self, ranks: Iterable[int], lost: Iterable[int], text: str) -> None:
        """Tell other ranks that some are lost. To be called before `_lose`: this process may end as soon as its calls have
        failed, and other ranks must not mistake that for the cause."""
        frames = [Frame(News.FAILED, 0, 0, (rank, 0, 0), _cut(self.with_cause(text))) for rank in lost]
        self.frames.send_all_now(self._staying(ranks), frames, _TELLING_SECONDS)

    def _tellers(self, lost: Iterable[int]) -> list[int]:
        """The ranks to tell of a loss: those of this island, and the lowest of every other one, which tells the rest. Not in
        islands with a lost rank: they know more about it."""
        others = [island for island in self.islands if not set(lost) & set(island)]
        there = [self._staying(island)[:1] for island in others if island is not self.mine]
        return [*(self._staying(self.mine)), *(rank for first in there for rank in first)]

    def _has_broken(self, peer: int) -> None:
        self._broken.setdefault(peer, time.monotonic())

    def probe(self, ranks: Iterable[int]) -> None:
        """Send something to these ranks, to notice if a connection has ended."""
        self.frames.send_all(self.others(ranks), Frame(News.BEAT))

    def lose_broken(self, after: float) -> None:
        """Mark ranks as lost whose connections ended this many seconds ago, unless news has explained it meanwhile.

        If a rank that was alone on its host dies, no other rank there can report it. Ranks that send no heartbeats may not
        notice it, so they are told. All such ranks are named together, since some may have ended because of another one.
        """
        broken = self._fresh(list(self._broken))
        if broken and time.monotonic() >= min(self._broken[rank] for rank in broken) + after:
            text = self._broken_text(broken)
            self._tell_of_loss(self._tellers(broken), broken, text)
            self._lose(broken, text)

    def _broken_text(self, ranks: Iterable[int]) -> str:
        return f"{self.where(sorted(ranks))} can no longer be reached: the connection has ended"

    def _watch(self) -> None:
        beaten, looked = 0.0, time.monotonic()
        while not self._ended.is_set():
            signals = self._neighbours.wait()
            # A user's own signal handler may not want to end anything.
            is_end = signal.SIGINT in signals and signal.getsignal(signal.SIGINT) is signal.default_int_handler
            self._look_at_calls(is_end)
            here = [rank for rank in self.mine if rank != self.rank and rank not in self._left]
            dead = self._neighbours.dead(rank for rank in here if rank not in self._lost)
            gone = {*self._lost, *self._left, *dead} - {self.rank}
            alive = [rank for rank in self.mine if rank not in gone]
            is_first = alive[0] == self.rank
            away = [rank for rank in range(self.size) if rank not in self.mine and rank not in self._left]
            # A rank that leaves says so before its process ends, but the frame may take a moment.
            if dead:
                time.sleep(0.02)
            if dead := self._fresh(dead):
                fate = "is lost: its process has ended" if len(dead) == 1 else "are lost: their processes have ended"
                text = f"{self.where(dead)} {fate}"
                if broken := self._fresh(list(self._broken)):  # they may have ended because of one of these
                    text = f"{self._broken_text(broken)}; {text}"
                if is_first:
                    self._tell_of_loss(away, dead, text)
                self._lose(dead, text)
            now = time.monotonic()
            # If this process was stopped, or its interpreter blocked, it could not receive heartbeats meanwhile.
            if (missed := now - looked) > _BEAT_SECONDS:
                for first in self._heard:
                    self._heard[first] += missed
            looked = now
            if is_first and now >= beaten + _BEAT_SECONDS:
                beaten = now
                taking = [rank for rank in self.others(away) if self.frames.pending(rank) < _MOST_WAITING]
                self.frames.send_all(taking, Frame(News.BEAT))
            for rank in self.fabric.lost():
                self._has_broken(rank)
            self.lose_broken(GRACE_SECONDS)
            self._lose_silent(now)

    # Not in `_watch`, whose local variables would keep the last group alive.

    def _look_at_calls(self, is_interrupted: bool) -> None:
        for group in list(self._groups.values()):
            if is_interrupted:
                group.interrupt()
            group.look(time.monotonic())

    def _lose_silent(self, now: float) -> None:
        """Mark the ranks of islands as lost that have been silent for too long."""
        for island in self.islands:
            there = [rank for rank in island if rank not in self._lost and rank not in self._left]
            if island is self.mine or not there or now < self._heard[island[0]] + self._seconds:
                continue
            text = f"{self.where(there)}: no heartbeat from the host for {self._seconds:g} s"
            # If only their lowest rank is stopped, the others learn why this rank continues without them.
            for group in list(self._groups.values()):
                frame = Frame(News.FAILED, group.number, 0, (-1, 0, 0), _cut(text))
                self.frames.send_all([rank for rank in there if rank in group.ranks], frame)
            self._tell_of_loss(self._tellers(there), there, text)
            self._lose(there, text)


def _cut(text: str) -> bytes:
    """As much of a sentence as fits into a frame, encoded."""
    return text.encode()[:MOST_TEXT].decode(errors="ignore").encode()
