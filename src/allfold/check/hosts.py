"""Compares calls across hosts, through torch's store: blocking ones before they are made, others while a rank waits.

The first rank of each host has a thread for this. While a rank anywhere waits, these threads publish what is on the boards of
their hosts, and look for what is wrong in all of it. The first error becomes that of all hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

import torch.distributed as dist

from ..explain.calls import RunFacts
from ..explain.findings import Finding, findings
from .site import Site
from .story import facts_of, run_from
from .wait import LINE_BEGINS, Waits, late_seconds

_ROUND_SECONDS = 0.2
_WAITING_SECONDS = 0.25
_ANSWER_SECONDS = 0.1
_SETTLE_SECONDS = 4.0
_MOST_PAUSE_SECONDS = 0.005
_MOST_CALLS = 40  # of each rank in each group, in what hosts tell each other
_DIFFERENCES = ("left out", "one more", "shape", "type", "operation", "reduction", "root", "arguments")
_FAILURE, _ASKED = "failure", "asked"


class Hosts:
    """The other hosts, as a rank sees them."""

    def __init__(self, site: Site, waits: Waits) -> None:
        self._site, self._waits, self._board = site, waits, site.board
        # Connections of its own: a rank may wait in the other ones.
        self._store, self._lock = site.store.clone(), threading.Lock()
        self._brief, self._brief_lock = site.store.clone(), threading.Lock()
        self._over = threading.Event()
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        if site.rank == site.ranks[0]:
            self._thread = threading.Thread(target=self._watch, name="allfold-check-hosts", daemon=True)
            self._thread.start()

    def meet(self, group: Any, number: int, hash_of_call: int, seconds: float) -> None:
        """Wait until this call has been begun on all hosts, and raise if it is not the same there."""
        lanes, own = group.lanes, self._site.hosts[self._site.rank]
        keys = [f"{lanes.id()} {number} {host}" for host in group.hosts]
        begin = time.monotonic()
        with self._lock:
            if group.own == 0:  # all ranks of this host have agreed
                self._store.set(f"{lanes.id()} {number} {own}", str(hash_of_call))
                if (
                    number > 2
                ):  # all ranks have made the call before this one, so they are done with the one before that
                    self._store.delete_key(f"{lanes.id()} {number - 2} {own}")
            try:
                while not self._store.check(keys):
                    waited = time.monotonic() - begin
                    if waited > _WAITING_SECONDS / 2:
                        self._board.begin_wait(lanes.id(), number)
                    self._raise_failure()
                    if waited > seconds:
                        raise self._waits.late(lanes, number, seconds)
                    time.sleep(min(_MOST_PAUSE_SECONDS, waited / 10))
                if len(set(self._store.multi_get(keys))) > 1:
                    self.settle(lanes, number)
                    raise self._waits.fail("mismatch", f"the hosts made different calls as call {number} of the group")
            except dist.DistError:
                name = lanes.name().decode()
                raise self._waits.fail(
                    "lost",
                    f"the store of the run has ended, with the process that holds it (usually rank 0); call {number} of {name} "
                    "was not compared",
                ) from None
            finally:
                self._board.end_wait()

    def settle(self, lanes: Any, number: int) -> None:
        """Raise what the threads of the hosts find: ranks differ, and those of this host do not show which of them is wrong."""
        end = time.monotonic() + _SETTLE_SECONDS
        self._board.begin_wait(lanes.id(), number)
        try:
            while time.monotonic() < end:
                self._raise_failure()
                time.sleep(_MOST_PAUSE_SECONDS)
        finally:
            self._board.end_wait()

    def tell(self, words: str) -> str:
        """Make this the error of all hosts, unless there is one; returns the one that counts."""
        try:
            with self._brief_lock:
                return str(self._brief.compare_set(_FAILURE, "", words), "utf-8", "replace")
        except RuntimeError:  # the store has ended
            return words

    def run(self) -> RunFacts:
        """The calls of all ranks: those that other hosts have published, and those on the board of this host."""
        own = facts_of(self._board, self._site.ranks, _MOST_CALLS)
        others = {host for host in self._site.hosts if host != self._site.ranks[0]}
        try:
            with self._brief_lock:
                return run_from([own, *_published(self._brief, others)])
        except RuntimeError:  # the store has ended
            return run_from([own])

    def _raise_failure(self) -> None:
        if (failure := self._waits.failure()) is not None:
            raise failure

    def end(self) -> None:
        """This rank makes no more calls: tell the other hosts so."""
        if self._over.is_set() or self._process != os.getpid():
            return
        self._over.set()
        if self._thread is not None:
            self._thread.join(10 * _ROUND_SECONDS)

    # The thread of the host ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        with contextlib.suppress(RuntimeError):  # the process that holds the store has ended
            store = self._store.clone()
            self._follow(store)
            self._publish(store)

    def _follow(self, store: Any) -> None:
        """Publish and look while a rank anywhere waits, until the run has failed or this rank makes no more calls."""
        asked, before, say_at = 0, "", late_seconds()
        while not self._over.wait(_ROUND_SECONDS):
            if store.check([_FAILURE]):
                self._board.fail(store.get(_FAILURE))
                return
            if self._board.failure() is not None:
                return  # the rank that found it has told the others
            now = time.monotonic_ns()
            waited = max([(now - since) / 1e9 for _, since, _, _ in self._board.waits()], default=0.0)
            is_waiting = waited > _WAITING_SECONDS
            count = store.add(_ASKED, int(is_waiting))
            if count != asked:
                self._publish(store)
            asked = count
            if not is_waiting:
                before, say_at = "", late_seconds()
                continue
            before = self._look(store, before)
            if waited > say_at:
                say_at *= 4
                self._say_who_is_late(store, waited)

    def _publish(self, store: Any) -> None:
        waiting = {rank for rank, *_ in self._board.waits()}
        others = [rank for rank in self._site.ranks if rank not in waiting and self._board.standing(rank) == "here"]
        for rank in others:
            self._board.ask(rank)
        end = time.monotonic() + _ANSWER_SECONDS
        while time.monotonic() < end and not all(self._board.answer_of(rank) for rank in others):
            time.sleep(0.002)
        facts = facts_of(self._board, self._site.ranks, _MOST_CALLS)
        store.set(f"facts {self._site.ranks[0]}", json.dumps(facts))

    def _run(self, store: Any) -> tuple[RunFacts, list[dict[str, Any]]]:
        hosts = _published(store, set(self._site.hosts))
        return run_from(hosts), hosts

    def _look(self, store: Any, before: str) -> str:
        """The sentence about an error, or "". The same one twice is the error of the run."""
        run, hosts = self._run(store)
        if len(hosts) < len(set(self._site.hosts)):
            return ""
        found = next(iter(findings(run)), None)
        if found is None:
            return ""
        kind = _kind(run, found, hosts)
        if kind and found.sentence == before:
            value = store.compare_set(_FAILURE, "", f"{kind} {found.sentence}")
            self._board.fail(value)
        return found.sentence if kind else ""

    def _say_who_is_late(self, store: Any, waited: float) -> None:
        run, hosts = self._run(store)
        waiting = [int(name) for host in hosts for name, facts in host["ranks"].items() if facts["waits"] is not None]
        found = next(iter(findings(run)), None)
        if found is not None and waiting and min(waiting) in self._site.ranks and found.kind in ("late", "absent"):
            sys.stderr.write(f"{LINE_BEGINS}after {waited:.0f} s, {found.sentence}\n")
            sys.stderr.flush()


def _published(store: Any, hosts: set[int]) -> list[dict[str, Any]]:
    """The facts of these hosts, each named by its first rank."""
    keys = [f"facts {host}" for host in sorted(hosts)]
    return [json.loads(store.get(key)) for key in keys if store.check([key])]


def _kind(run: RunFacts, found: Finding, hosts: list[dict[str, Any]]) -> str:
    """The kind of error that a finding is; "" if it may be none: a rank that is late comes yet."""
    waits = {int(name): facts["waits"] for host in hosts for name, facts in host["ranks"].items() if facts["waits"]}
    if found.circle:
        return "mismatch" if set(found.circle) <= set(waits) else ""
    if found.ranks and any(run.ranks[rank].ended for rank in found.ranks if rank in run.ranks):
        return "lost" if found.kind in ("dead", "left out") else "mismatch" if found.kind in _DIFFERENCES else ""
    return "mismatch" if found.kind in _DIFFERENCES else ""
