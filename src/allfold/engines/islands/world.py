"""What the ranks of a run know of each other's life, on all hosts: who is gone, who has left, who was heard when.

Inside an island the kernel tells who is alive. The lowest rank that is alive there tells the other islands of deaths,
and sends them a heartbeat every second. An island that is not heard for `ALLFOLD_HOST_SECONDS` is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ... import _native
from ...errors import AllfoldError, CollectiveTimeout, MismatchError, RankLost, UsageError
from ...fabrics.fabric import Board, Fabric
from ...wording import name_ranks
from ..engine import Engine
from ..last_words import ending, last_words, note_ending
from .crossing import Tuned
from .post import MOST_TEXT, Frame, News, Post

_LOOK_SECONDS, _BEAT_SECONDS = 0.02, 1.0
GRACE_SECONDS = 0.5  # how long a broken connection waits for the news that explains it
_TELLING_SECONDS = 0.5  # how long a rank that gives up waits until the others know
_ERRORS: tuple[type[AllfoldError], ...] = (RankLost, MismatchError, CollectiveTimeout, AllfoldError)
_MOST_WAITING = 64  # frames that a rank has not taken in: until it does, it gets no more heartbeats


def host_seconds() -> float:
    text = os.environ.get("ALLFOLD_HOST_SECONDS", "8")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise UsageError(f"ALLFOLD_HOST_SECONDS is {text!r}; expected seconds from 1 to 86400")
    return seconds


def host_name() -> str:
    return os.environ.get("ALLFOLD_HOSTID") or socket.gethostname()


class Listener(Protocol):
    """One rank's end of a group, as far as news concern it. Ranks are those of the world here."""

    number: int
    ranks: list[int]

    def made(self) -> int:
        """The number of calls that this rank has made."""
        ...

    def fail(self, error: AllfoldError) -> None: ...
    def take_in(self, source: int, frame: Frame) -> None: ...
    def note_left(self, who: int, calls: int) -> None:
        """A rank has left this group, after this many calls."""
        ...

    def somebody_left(self, who: int) -> None:
        """A rank has left the run, or this group."""
        ...

    def interrupt(self) -> None: ...
    def look(self, now: float) -> None:
        """Called again and again by the thread that watches."""
        ...


_worlds: set[World] = set()  # those that this process has not left
_processes: set[int] = set()  # this one, once it has been in a world; a forked child has another number


@atexit.register
def _end_all() -> None:
    """Say goodbye. Threads may still wait inside a fabric, which cannot be told to stop."""
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
        is_alive: Callable[[int], bool],
        again: Callable[[Board, float, str, float], Engine],
        tuned: Sequence[Tuned] = (),
        identity: int = 0,
    ) -> None:
        """`is_alive` is asked about the other ranks of this island; `again` makes an engine of some of the
        ranks, within a timeout, and is given its label and its own timeout.

        `identity`: a number that no other run has.
        """
        self.rank, self.size, self.process = board.rank, board.size, os.getpid()
        self.board, self.fabric = board, fabric
        self.islands, self.hosts = [list(island) for island in islands], list(hosts)
        self.mine = next(island for island in self.islands if self.rank in island)
        self.tuned, self.identity = list(tuned), identity
        self._is_alive, self.again = is_alive, again
        self._lock = threading.RLock()
        self._lost: dict[int, str] = {}
        self._left: set[int] = set()
        self._last_words: dict[int, str] = {}  # of ranks that have left: the exception, or nothing
        self._untold: set[int] | None = None  # once this rank leaves: those who may not know it yet
        self._groups: weakref.WeakValueDictionary[int, Listener] = weakref.WeakValueDictionary()
        self._early: dict[int, list[tuple[int, Frame]]] = {}  # news for groups that do not exist here yet
        self._seconds = host_seconds()
        self.patience = 1.0  # seconds for which a rank that leaves waits until its letters have arrived
        self._heard = {island[0]: time.monotonic() for island in self.islands}
        self._island_of = {rank: island[0] for island in self.islands for rank in island}
        self._broken: dict[int, float] = {}  # ranks to which nothing can be sent any more, and since when
        self.post = Post(fabric, fabric.another("letters", range(self.size)), self._take_in, self._has_broken)
        self._ended = threading.Event()
        # While the main thread waits inside the fabric, Python does not act on signals. So it tells this pipe of them,
        # unless it tells somebody else: an event loop has its own.
        self._bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_told = False
        if threading.current_thread() is threading.main_thread():
            before = signal.set_wakeup_fd(self._bell[1], warn_on_full_buffer=False)
            self._is_told = before == -1
            if not self._is_told:
                signal.set_wakeup_fd(before)
        self._thread = threading.Thread(target=self._watch, name="allfold watch", daemon=True)
        self._thread.start()

    def others(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if rank != self.rank and rank not in self._lost]

    def _staying(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in self.others(ranks) if rank not in self._left]

    def where(self, ranks: Iterable[int], group: Sequence[int] | None = None) -> str:
        """`rank 3 on host1`, `ranks 0 and 1 on host0, rank 3 on host1`; the ranks by their numbers in a group, if given."""
        there: dict[str, list[int]] = {}
        for rank in ranks:
            there.setdefault(self.hosts[rank if group is None else group[rank]], []).append(rank)
        return ", ".join(f"{name_ranks(some)} on {host}" for host, some in there.items())

    def add(self, group: Listener) -> None:
        _worlds.add(self)
        _processes.add(os.getpid())
        with self._lock:
            self._groups[group.number] = group
            early = self._early.pop(group.number, [])
            for rank, text in self._lost.items():
                if rank in group.ranks:
                    group.fail(RankLost(text))
            # Under the lock: what comes now is younger, and must wait for these.
            for source, frame in early:
                self._handle(source, frame)

    def gone(self, ranks: Sequence[int]) -> AllfoldError | None:
        """The error of a call that needs these ranks, if one of them is lost or has left."""
        for rank in ranks:
            if rank in self._lost:
                return RankLost(self._lost[rank])
        left = [rank for rank in ranks if rank in self._left]
        which = f"{self.where(left)} {'has' if len(left) == 1 else 'have'} left"
        return RankLost(f"{which}{self.why(left)}") if left else None

    def why(self, ranks: Iterable[int]) -> str:
        return ending(self._last_words.get(rank) for rank in ranks)

    def lost(self) -> list[int]:
        """The ranks that are known to be gone."""
        return sorted({*self._lost, *self._left}) if self._lost or self._left else []

    def tell(self, ranks: Iterable[int], group: int, error: AllfoldError) -> None:
        """Let the calls of a group fail on other ranks. This process may end right after it."""
        kind = next(number for number, kind in enumerate(_ERRORS) if isinstance(error, kind))
        frame = Frame(News.FAILED, group, kind, (-1, 0, 0), _cut(str(error)))
        self.post.send_all_now(self._staying(ranks), frame, _TELLING_SECONDS)

    def leave(self, group: Listener) -> None:
        """This rank leaves a group, and says after how many calls: those are done, and nobody shall miss it there."""
        self._say_goodbye(group, set(self.others(group.ranks)) - self._left)

    def _say_goodbye(self, group: Listener, others: set[int]) -> None:
        self.post.send_all(
            others & set(group.ranks),
            Frame(News.LEFT, group.number, 0, (group.made(), 0, 0), last_words().encode()),
        )

    def end(self) -> None:
        """This rank leaves the run."""
        if not self._ended.is_set() and self.process == os.getpid():
            # A letter that was sent arrives, as long as all is well; meanwhile this rank is there for the others.
            self.post.await_letters(lambda: () if self._lost else set(range(self.size)) - self._left, self.patience)
            self._ended.set()
            with contextlib.suppress(BlockingIOError):  # it is full: the thread wakes up anyway
                os.write(self._bell[1], b"\0")
            self._thread.join(1.0)
            with self._lock:
                others = set(self.others(range(self.size))) - self._left
                self._untold = set(others)
            for group in sorted(self._groups.values(), key=lambda one: one.number == 0):  # the world last
                self._say_goodbye(group, others)
            self.post.close(1.0)
            _worlds.discard(self)
            if self._is_told and threading.current_thread() is threading.main_thread():
                self._is_told = False
                told = signal.set_wakeup_fd(-1)
                if told != self._bell[1]:
                    signal.set_wakeup_fd(told)
            if not self._is_told and not self._thread.is_alive():
                for descriptor in self._bell:
                    os.close(descriptor)

    # ---

    def _take_in(self, source: int, frame: Frame) -> bool:
        """Whether more is awaited: not after the last of the others has left. A rank that leaves waits for a word of
        all others, as a receive ends only with one: that they have heard it, or that they leave too."""
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
                    self.post.send(source, Frame(News.HEARD))
                for one in list(self._groups.values()):
                    if source in one.ranks:
                        one.somebody_left(source)
            return
        if frame.news == News.FAILED and frame.numbers[0] >= 0:
            # Whoever said so may have ended before all were told: a launcher ends all ranks of a host with the first.
            if self._lose([frame.numbers[0]], frame.text.decode()):
                self.post.send_all(self.others(self.mine), frame)
            return
        with self._lock:
            group = self._groups.get(frame.group)
            if group is None:
                if frame.news in (News.LETTER, News.FAILED):
                    self._early.setdefault(frame.group, []).append((source, frame))
                return
        if frame.news == News.FAILED:
            group.fail(_ERRORS[frame.detail](frame.text.decode()))
        else:
            group.take_in(source, frame)

    def _lose(self, ranks: Sequence[int], text: str) -> list[int]:
        """Note that ranks are gone; those that were not known to be."""
        with self._lock:
            fresh = [rank for rank in ranks if rank not in self._lost and rank not in self._left]
            self._lost.update(dict.fromkeys(fresh, text))
            groups = [group for group in self._groups.values() if set(fresh) & set(group.ranks)]
        for group in groups:
            group.fail(RankLost(text))
        return fresh

    def _has_broken(self, peer: int) -> None:
        self._broken.setdefault(peer, time.monotonic())

    def probe(self, ranks: Iterable[int]) -> None:
        """Find out whether these ranks can still be reached."""
        self.post.send_all(self.others(ranks), Frame(News.BEAT))

    def lose_broken(self, after: float) -> None:
        """Lose ranks whose connections ended this many seconds ago, unless news has explained it meanwhile.

        The process of a rank that was alone on its host has ended, and nobody is left there to say so. A rank that sends
        no heartbeats may not learn of it, so the other ranks of this island are told.
        """
        gone = {*self._lost, *self._left}
        for island in self.islands:
            broken = [rank for rank in island if rank in self._broken and rank not in gone]
            if broken and time.monotonic() >= min(self._broken[rank] for rank in broken) + after:
                text = f"{self.where(broken)} cannot be reached any more: the connection has ended"
                for rank in broken:
                    frame = Frame(News.FAILED, 0, 0, (rank, 0, 0), _cut(text))
                    self.post.send_all_now(self._staying(self.mine), frame, _TELLING_SECONDS)
                self._lose(broken, text)

    def _watch(self) -> None:
        beaten, looked = 0.0, time.monotonic()
        bell = select.poll()  # select() takes no descriptor above 1023
        bell.register(self._bell[0], select.POLLIN)
        while not self._ended.is_set():
            signals = os.read(self._bell[0], 4096) if bell.poll(1000 * _LOOK_SECONDS) else b""
            # A handler of the user's own may have something else in mind than an end.
            is_end = signal.SIGINT in signals and signal.getsignal(signal.SIGINT) is signal.default_int_handler
            self._look_at_calls(is_end)
            here = [rank for rank in self.mine if rank != self.rank and rank not in self._left]
            dead = [rank for rank in here if rank not in self._lost and not self._is_alive(rank)]
            gone = {*self._lost, *self._left, *dead} - {self.rank}
            alive = [rank for rank in self.mine if rank not in gone]
            is_first = alive[0] == self.rank
            away = [rank for rank in range(self.size) if rank not in self.mine and rank not in self._left]
            # A rank that has left says so before its process ends, but its word may take a moment.
            if dead:
                time.sleep(0.02)
            for rank in dead:
                text = f"{self.where([rank])} is lost: its process has ended"
                if is_first and rank not in self._left:  # the others first: this rank may end when it hears of it
                    self.post.send_all(self.others(away), Frame(News.FAILED, 0, 0, (rank, 0, 0), _cut(text)))
                self._lose([rank], text)
            now = time.monotonic()
            # A rank that was stopped, or whose interpreter was blocked, could not hear the others meanwhile.
            if (missed := now - looked) > _BEAT_SECONDS:
                for first in self._heard:
                    self._heard[first] += missed
            looked = now
            if is_first and now >= beaten + _BEAT_SECONDS:
                beaten = now
                taking = [rank for rank in self.others(away) if self.post.pending(rank) < _MOST_WAITING]
                self.post.send_all(taking, Frame(News.BEAT))
            self.lose_broken(GRACE_SECONDS)
            self._lose_silent(now)

    # Not in `_watch`, whose variables would keep the last group alive after it was dropped.

    def _look_at_calls(self, is_interrupted: bool) -> None:
        for group in list(self._groups.values()):
            if is_interrupted:
                group.interrupt()
            group.look(time.monotonic())

    def _lose_silent(self, now: float) -> None:
        """Lose the ranks of islands that were not heard for too long."""
        for island in self.islands:
            there = [rank for rank in island if rank not in self._lost and rank not in self._left]
            if island is self.mine or not there or now < self._heard[island[0]] + self._seconds:
                continue
            text = f"{self.where(there)}: the host was not heard for {self._seconds:g} s"
            # If only their first rank is stopped, the others may hear why this rank goes on without them.
            for group in list(self._groups.values()):
                frame = Frame(News.FAILED, group.number, 0, (-1, 0, 0), _cut(text))
                self.post.send_all([rank for rank in there if rank in group.ranks], frame)
            self._lose(there, text)


def _cut(text: str) -> bytes:
    """As much of a sentence as fits into a frame."""
    return text.encode()[:MOST_TEXT].decode(errors="ignore").encode()
