"""Running a fault trial: fork its ranks, collect their reports, and check that they leave nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import secrets
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: its threads would not survive the fork
from fault_judge import Told, Verdict, judge
from fault_plans import SLOW, Plan
from fault_ranks import take_part

from allfold.engines.shared_memory.rendezvous import socket_name

LIMIT = 60.0  # seconds for one trial, on a machine that may be busy; longer counts as a hang
PAUSE_OF_THE_SLOW = 0.2
LOOK_AGAIN = 0.02
A_LOOK = 30.0  # seconds: an `allfold doctor --all` of this user briefly maps the memory of every run
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Trial:
    plan: Plan
    told: list[Told]
    verdict: Verdict
    seconds: float


def run_trial(plan: Plan) -> Trial:
    # Any process that a rank leaves behind becomes a child of this process, and is noticed.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    key = secrets.token_hex(16)
    # Not a context manager: ranks whose interpreters shut down normally leave every context that was open at the fork.
    folder = tempfile.mkdtemp()
    told, hung = _Run(plan, key, folder).until_all_have_ended()
    verdict = Verdict([f"hangs: {hung}"]) if hung else judge(plan, told)
    verdict.complaints += left_behind(told, key, folder)
    shutil.rmtree(folder)
    return Trial(plan, told, verdict, time.monotonic() - began)


class _Run:
    def __init__(self, plan: Plan, key: str, folder: str) -> None:
        self.plan = plan
        self.selector = selectors.DefaultSelector()
        self.told: list[Told] = []
        self.reports: dict[int, bytes] = {}  # what is not yet a whole line, by descriptor
        self.pipes: list[int] = []  # where they come from, by rank
        self.controls: list[int] = []
        self.ends: dict[int, int] = {}  # pidfds, by rank
        gc.collect()
        gc.freeze()  # so that a rank's garbage collections do not touch this process's pages
        sys.stdout.flush()
        for rank in range(plan.ranks):
            reading, report = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            control, writing = os.pipe2(os.O_CLOEXEC)
            process = os.fork()
            if process == 0:
                os.close(reading)
                os.close(writing)
                os.set_blocking(report, True)
                self._be(rank, key, folder, report, control)
            os.close(report)
            os.close(control)
            self.controls.append(writing)
            self.reports[reading] = b""
            self.pipes.append(reading)
            self.told.append(Told(process))
            self.ends[rank] = os.pidfd_open(process)
            self.selector.register(reading, selectors.EVENT_READ, rank)
            self.selector.register(self.ends[rank], selectors.EVENT_READ, None)

    def _be(self, rank: int, key: str, folder: str, report: int, control: int) -> None:
        """What the child does; it never returns from here."""
        status = 1
        try:
            self.selector.close()
            for descriptor in [*self.reports, *self.controls, *self.ends.values()]:
                os.close(descriptor)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.chdir(folder)
            os.environ["TMPDIR"] = folder
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            status = take_part(self.plan, rank, key, report, control)
        finally:
            if self.plan.finalizes and status == 0:
                os.close(report)
                raise SystemExit(0)  # through the normal shutdown of the interpreter
            os._exit(status)

    def until_all_have_ended(self) -> tuple[list[Told], str | None]:
        deadline = time.monotonic() + LIMIT
        released = False
        try:
            while any(one.died is None for one in self.told):
                if time.monotonic() > deadline:
                    alive = [rank for rank, one in enumerate(self.told) if one.died is None]
                    return self.told, f"rank{'s' * (len(alive) > 1)} {', '.join(map(str, alive))} after {LIMIT:g} s"
                for selected, _ in self.selector.select(LOOK_AGAIN):
                    if selected.data is not None:
                        self._listen(selected.data, selected.fd)
                self._collect()
                self._look_after_the_victim(released)
                if not released and self._all_have_spoken():
                    released = True
                    self._release()
            return self.told, None
        finally:
            if not released:
                self._release()
            self._bury()

    def _listen(self, rank: int, descriptor: int) -> None:
        while True:
            try:
                data = os.read(descriptor, 65536)
            except BlockingIOError:
                return
            if not data:
                if descriptor in self.selector.get_map():
                    self.selector.unregister(descriptor)
                return
            *lines, self.reports[descriptor] = (self.reports[descriptor] + data).split(b"\n")
            self.told[rank].lines += [json.loads(line) for line in lines]

    def _collect(self) -> None:
        for rank, one in enumerate(self.told):
            if one.died is None and os.waitid(os.P_PIDFD, self.ends[rank], os.WEXITED | os.WNOHANG | os.WNOWAIT):
                one.died = time.monotonic()
                self._listen(rank, self.pipes[rank])
                self.selector.unregister(self.ends[rank])
                if rank != self.plan.victim or self.plan.buried:
                    self._wait_for(rank)

    def _wait_for(self, rank: int) -> None:
        if self.told[rank].status is None:
            self.told[rank].status = os.waitstatus_to_exitcode(os.waitpid(self.told[rank].process, 0)[1])

    def _look_after_the_victim(self, released: bool) -> None:
        victim = self.told[self.plan.victim]
        if "stop" not in self.plan.fault or victim.died is not None:
            return
        with contextlib.suppress(ChildProcessError):  # it has just ended
            if victim.stopped is None and os.waitid(os.P_PID, victim.process, os.WSTOPPED | os.WNOHANG | os.WNOWAIT):
                victim.stopped = time.monotonic()
        pause = PAUSE_OF_THE_SLOW if self.plan.fault in SLOW else 0.0 if released else LIMIT
        if victim.stopped is not None and time.monotonic() > victim.stopped + pause:
            os.kill(victim.process, signal.SIGCONT)

    def _all_have_spoken(self) -> bool:
        for rank, one in enumerate(self.told):
            if rank == self.plan.victim and self.plan.family in ("death", "stuck"):
                continue
            said = "went on" if self.plan.afterwards == "shrink" else "end"
            end = one.last("end")
            if one.died is None and one.last(said) is None and (end is None or end["error"] is not None):
                return False
        return True

    def _release(self) -> None:
        for descriptor in self.controls:
            os.close(descriptor)
        self.controls.clear()
        victim = self.told[self.plan.victim]
        if self.plan.fault in ("sleep", "hold the interpreter") and victim.died is None:
            os.kill(victim.process, signal.SIGKILL)

    def _bury(self) -> None:
        for rank, one in enumerate(self.told):
            if one.died is None:
                os.kill(one.process, signal.SIGKILL)
            self._wait_for(rank)
        for descriptor in [*self.reports, *self.ends.values()]:
            os.close(descriptor)
        self.selector.close()


# What is left ---------------------------------------------------------------------------------------------------------


def left_behind(told: list[Told], key: str, folder: str) -> list[str]:
    found = []
    with contextlib.suppress(ChildProcessError):
        found.append(f"a process is left: {os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) or 'it lives'}")
    memories = {tuple(line["memory"]) for one in told for line in one.lines if line["event"] == "met"}
    deadline = time.monotonic() + A_LOOK
    while held := [(process, link) for process, link, facts in _shared_memory() if facts in memories]:
        if time.monotonic() > deadline:
            found += [f"process {process} still holds {link}" for process, link in held]
            break
        time.sleep(LOOK_AGAIN)
    found += [f"this process holds {link}" for process, link, _ in _shared_memory() if process == os.getpid()]
    if socket_name(key, os.geteuid())[1:] in Path("/proc/net/unix").read_bytes():
        found.append("the socket of the meeting is still there")
    found += [f"there is a file {path}" for path in Path(folder).rglob("*")]
    return found


def _shared_memory() -> Iterator[tuple[int, str, tuple[int, int]]]:
    for links in Path("/proc").glob("[0-9]*/fd"):
        try:
            for name in os.listdir(links):
                link = os.readlink(links / name)
                if link.startswith("/memfd:allfold"):
                    facts = os.stat(links / name)
                    yield int(links.parent.name), link, (facts.st_dev, facts.st_ino)
        except OSError:  # it has ended, or belongs to another user
            continue
