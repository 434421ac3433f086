"""The watcher of `allfold run --check`: every call is written to the board and compared before it is made."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import sys
import threading
import time
import weakref
from collections import deque
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..engines.last_words import last_words, note_ending, watch_multiprocessing
from ..intercept.lines import lines_of, place, place_of_main
from ..intercept.operations import POINT_TO_POINT, Go, Made, seconds_of, tensors_of, work_of
from .hosts import Hosts
from .site import Site, connect
from .story import describe
from .wait import Waits

_MOST_TEXTS = 50_000
_WATCH_SECONDS, _REPORT_SECONDS = 5.0, 1.0
_SPINS, _SPIN_SECONDS = 50, 0.1
_MOST_PENDING = 1000


class _Group:
    """One process group: its lanes on the board, and this rank's place in it."""

    def __init__(self, site: Site, group: dist.ProcessGroup) -> None:
        try:
            ranks = c10d.get_process_group_ranks(group)
        except (KeyError, ValueError, RuntimeError):  # while it is being created
            ranks = list(range(group.size()))
        name = group.group_name
        identity = hashlib.blake2b(f"{name} {ranks}".encode(), digest_size=8).digest()
        number = int.from_bytes(identity, "little") | 1  # 0 means: none
        here = [rank for rank in ranks if rank in site.ranks]
        self.hosts = sorted({site.hosts[rank] for rank in ranks})
        self.own = here.index(site.rank)
        self.lanes = site.board.group(number, _label(name, ranks, site.size).encode(), here, self.own)
        self.calls = 0
        self.seconds = seconds_of(group)


def _label(name: str, ranks: list[int], size: int) -> str:
    if len(ranks) == size:
        return "the default group" if name in ("", "0", "default_pg") else f"group {name} (all ranks)"
    shown = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"group {name} (ranks {shown})"


class _Pending(NamedTuple):
    """A background call that has not ended."""

    work: Any
    group: _Group
    number: int
    begin: float
    results: tuple[int, ...]  # addresses, by which functional collectives are waited for


class Checker:
    """Compares the calls of this rank with those of the others. One per process."""

    def __init__(self, site: Site) -> None:
        self._site, self._board = site, site.board
        self._waits = Waits(site)
        self._groups: dict[str, _Group] = {}
        self._texts: dict[Any, tuple[int, bytes]] = {}
        self._lock = threading.Lock()
        self._pending: deque[_Pending] = deque()
        self._process = os.getpid()
        self._over = threading.Event()
        self._hosts = self._waits.hosts = None if site.is_whole else Hosts(site, self._waits)
        self._thread = threading.Thread(target=self._watch, name="allfold-check", daemon=True)
        self._thread.start()
        atexit.register(self.end)
        watch_multiprocessing(self.end)

    def __call__(self, made: Made, go: Go) -> Any:
        if made.operation in POINT_TO_POINT or self._process != os.getpid():
            return go()
        key = made.key, place(3), made.background
        known = self._texts.get(key)
        if known is None:
            known = self._describe(key)
        group = self._groups.get(made.group.group_name) or self._group(made.group)
        if group.lanes is None:
            return go()
        with self._lock:  # threads that use the same group number their calls one after the other
            group.calls += 1
            number = group.calls
            outcome = group.lanes.enter(*known)
        if outcome != "agreed" and outcome != "waiting":
            raise self._error(outcome, group, number)
        if made.background or made.operation == "monitored_barrier":
            return self._remember(self._made(go), made, group, number)
        seconds = made.milliseconds / 1000 if made.milliseconds > 0 else group.seconds
        if outcome == "waiting":
            self._waits.meet(group.lanes, number, group.own, seconds)
        if self._hosts is not None and len(group.hosts) > 1:
            self._hosts.meet(group, number, known[0], seconds)
        return self._made(go)

    def _made(self, go: Go) -> Any:
        try:
            work = go()
        except Exception as error:
            self._raise_failure(error)
            raise
        if isinstance(work, dist.Work) and type(work).wait is not dist.Work.wait and hasattr(work, "__dict__"):
            # allfold's own Work objects: their errors come from the engine, which does not know the lines.
            work.wait = partial(self._wait_of_ours, type(work).wait, weakref.ref(work))
        return work

    def _remember(self, result: Any, made: Made, group: _Group, number: int) -> Any:
        """Keep a background call until it has ended, so that `wait_for_work` knows which ranks a wait is for."""
        work = work_of(result)
        if work is not None:
            pending = self._pending
            while pending and pending[0].work.is_completed():
                pending.popleft()
            results = tuple([one.data_ptr() for one in tensors_of(made.target) if one.layout is torch.strided])
            pending.append(_Pending(work, group, number, time.monotonic(), results))
            if len(pending) > _MOST_PENDING:
                pending.popleft()
        return result

    def _pending_of(self, work: Any) -> _Pending | None:
        if not self._pending:
            return None
        return next((one for one in tuple(self._pending) if one.work is work), None)

    def _forget(self, ended: _Pending | None) -> None:
        if ended is not None:
            with contextlib.suppress(ValueError):  # another thread has
                self._pending.remove(ended)

    def _wait_of_ours(self, wait: Any, reference: Any, *arguments: Any) -> Any:
        work = reference()
        found = None if arguments else self._pending_of(work)
        try:
            if found is not None and not self._over.is_set():
                self._poll(found)
            return wait(work, *arguments)
        except Exception as error:
            self._raise_failure(error, found)
            raise
        finally:
            self._forget(found)

    def _raise_failure(self, error: Exception, ended: _Pending | None = None) -> None:
        """Raise the error of the run, if there is one, in place of an error that followed from it.

        `ended`: the backend has given up this call, which may be the first sign of a rank that is late or lost.
        """
        failure = self._waits.failure()
        if failure is None and ended is not None:
            waited = time.monotonic() - ended.begin
            failure = self._waits.about_given_up(ended.group.lanes, ended.number, waited, ended.group.seconds)
        if failure is not None and not isinstance(error, type(failure)):
            raise failure from error

    def _describe(self, key: Any) -> tuple[int, bytes]:
        (operation, tensors, reduction, root, peer), where, background = key
        # As in the libraries, ranks must agree on the number of elements, not on the shape.
        counts = [(shape.numel(), str(dtype)) for shape, dtype in tensors]
        compared = f"{operation} {counts} {reduction} {root}"
        number = int.from_bytes(hashlib.blake2b(compared.encode(), digest_size=8).digest(), "little")
        text = describe((operation, tensors, reduction, root, peer), lines_of(where), background)
        if len(self._texts) > _MOST_TEXTS:
            self._texts.clear()
        self._texts[key] = number, text
        return number, text

    def _group(self, group: dist.ProcessGroup) -> _Group:
        made = self._groups[group.group_name] = _Group(self._site, group)
        if made.lanes is None:
            sys.stderr.write(
                f"allfold check: the board has no room for group {group.group_name}; its calls are not checked\n"
            )
        return made

    def _error(self, outcome: str, group: _Group, number: int) -> Exception:
        if outcome == "failed":
            error = self._waits.failure()
            assert error is not None
            return error
        return self._waits.differing(group.lanes, number)

    # Background calls ------------------------------------------------------------------------------------------------

    def wait_for_work(self, work: Any, *arguments: Any, **given: Any) -> Any:
        """torch's `Work.wait`, which cannot be interrupted; this one also ends when the run has failed."""
        # In a blocking call, all ranks have come. Messages are in the hands of the backend.
        found = self._pending_of(work)
        if found is None or arguments or given or self._over.is_set():
            return _wait_of_torch(work, *arguments, **given)
        try:
            self._poll(found)
            return _wait_of_torch(work)
        except Exception as error:
            self._raise_failure(error, found)
            raise
        finally:
            self._forget(found)

    def wait_for_tensor(self, tensor: Any, go: Go) -> Any:
        """The wait for a functional collective, as `wait_for_work`."""
        if not self._pending or self._over.is_set():
            return go()
        at = tensor.data_ptr()
        found = next((one for one in tuple(self._pending) if at and at in one.results), None)
        try:
            if found is not None:
                self._poll(found)
            return go()
        except Exception as error:
            self._raise_failure(error, found)
            raise
        finally:
            self._forget(found)

    def _poll(self, pending: _Pending) -> None:
        """Look for the end of a background call. Raises if the run has failed, or if the call cannot end.

        It also returns when all ranks have come to a call of gloo that computes its result in torch's own wait.
        """
        work, group, number, *_ = pending
        begin = time.monotonic()
        spins, ends_itself = 0, True
        until = begin + _SPIN_SECONDS
        while not work.is_completed():
            spins += 1
            if spins < _SPINS:
                os.sched_yield()
                continue
            if spins == _SPINS:
                ends_itself = _ends_itself(work)
            if not ends_itself and group.lanes.has_agreed(number):
                break
            now = time.monotonic()
            if (error := self._waits.failure()) is not None:
                raise error
            if now > until:
                until = now + _SPIN_SECONDS
                self._waits.look(group.lanes, number, group.own, now - begin, group.seconds)
            # This adds at most two percent to a wait, and at most a millisecond.
            time.sleep(min(0.001, max(2e-5, (now - begin) / 50)))
        self._board.end_wait()

    # The thread that answers ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._over.is_set():
            self._board.watch(_WATCH_SECONDS)
            if self._board.is_asked():
                self._board.answer(json.dumps(lines_of(place_of_main())[:1]).encode())
            if self._board.failure() is not None:
                # This rank may not raise the error soon: it waits in C++, or makes no call for a while.
                if not self._over.wait(_REPORT_SECONDS) and not self._waits.has_raised:
                    sys.stderr.write(f"allfold check: rank {self._site.rank}: {self._waits.failure()}\n")
                    sys.stderr.flush()
                return

    def end(self) -> None:
        """Mark this rank as one that makes no more calls."""
        if self._over.is_set() or self._process != os.getpid():
            return
        note_ending()
        self._over.set()
        self._board.end(last_words().encode()[:900])
        if self._hosts is not None:
            self._hosts.end()
        # A thread that returns from C++ while the interpreter shuts down would end the process.
        while self._thread.is_alive():
            self._board.wake(self._site.rank)
            self._thread.join(0.05)


def _ends_itself(work: Any) -> bool:
    """False for a Work object of gloo that is completed by its `wait`, such as that of a reduce_scatter. It has no future."""
    try:
        work.get_future()
    except RuntimeError:
        return False
    return True


_checker: Checker | None = None


def begin(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Checker:
    """Start to check the calls of this process."""
    global _checker
    end()
    site = connect(store, rank, size, timeout)
    _checker = Checker(site)
    if dist.Work.wait is not _wait:
        dist.Work.wait = _wait
    return _checker


def end() -> None:
    """Stop checking calls."""
    global _checker
    if _checker is not None:
        _checker.end()
        _checker = None


_wait_of_torch = dist.Work.wait


def _wait(work: Any, *arguments: Any, **given: Any) -> Any:
    """Stands in for torch's `Work.wait` while a run is checked."""
    if _checker is None or not _checker._pending:
        return _wait_of_torch(work, *arguments, **given)
    return _checker.wait_for_work(work, *arguments, **given)
