"""Running a fault trial: fork its ranks, collect their reports, and check that they leave nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
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
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: its threads would not survive the fork
os.environ.setdefault("ALLFOLD_TUNING", "off")  # a tuning file on this machine must not change what is tested
from fault_judge import Told, Verdict, judge
from fault_plans import SLOW, Plan
from fault_ranks import take_part

from allfold.engines.shared_memory.choice import choices
from allfold.engines.shared_memory.rendezvous import socket_name
from allfold.proved import programs_of

LIMIT = 75.0  # seconds for one trial, on a machine that may be busy; longer counts as a hang
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


def get_ready(engine: str) -> None:
    """Import what the ranks of a trial need, once for all of them."""
    modules = {
        "shared_memory": (),
        "islands": ("allfold.engines.islands.meeting", "allfold.fabrics.table", "allfold.fabrics.ucx"),
        "gpu": ("numpy_device", "allfold.engines.stream.engine"),
    }
    for module in ("numpy.ma", "numpy.random", "allfold.engines.shared_memory.engine", *modules[engine]):
        importlib.import_module(module)
    _prove_the_usual()


@lru_cache(maxsize=1)
def _prove_the_usual() -> None:
    """What nearly every rank would prove for itself: groups are made by an all_gather, and every trial ends with a barrier."""
    for size in range(2, 7):
        for collective in ("all_gather", "barrier"):
            for _, algorithm, _ in choices(collective, size):
                programs_of(collective, algorithm, size, None, "private")


def run_trial(plan: Plan) -> Trial:
    get_ready(plan.engine)
    # Any process that a rank leaves behind becomes a child of this process, and is noticed.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    key = secrets.token_hex(16)
    # Not a context manager: ranks whose interpreters shut down normally leave every context that was open at the fork.
    folder = tempfile.mkdtemp()
    run = _Run(plan, key, folder)
    told, hung = run.until_all_have_ended()
    verdict = judge(plan, told) if hung is None else Verdict([f"hangs: {hung}"])
    verdict.complaints += left_behind(told, key, folder)
    shutil.rmtree(folder)
    return Trial(plan, told, verdict, time.monotonic() - began)


class _Run:
    def __init__(self, plan: Plan, key: str, folder: str) -> None:
        self.plan, self.folder = plan, folder
        self.selector = selectors.DefaultSelector()
        self.told: list[Told] = []
        self.reports: dict[int, bytes] = {}  # what is not yet a whole line, by descriptor
        self.pipes: list[int] = []  # where they come from, by rank
        self.controls: list[int] = []
        self.ends: dict[int, int] = {}  # pidfds, by rank
        self.has_come = False  # the late rank was told to
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
                self._be(rank, key, report, control)
            os.close(report)
            os.close(control)
            self.controls.append(writing)
            self.reports[reading] = b""
            self.pipes.append(reading)
            self.told.append(Told(process))
            self.ends[rank] = os.pidfd_open(process)
            self.selector.register(reading, selectors.EVENT_READ, rank)
            self.selector.register(self.ends[rank], selectors.EVENT_READ, None)

    def _be(self, rank: int, key: str, report: int, control: int) -> None:
        """What the child does; it never returns from here."""
        status = 1
        try:
            self.selector.close()
            for descriptor in [*self.reports, *self.controls, *self.ends.values()]:
                os.close(descriptor)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.chdir(self.folder)
            os.environ["TMPDIR"] = self.folder
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            self.stacks = open(f"stacks of rank {rank}", "w")  # noqa: SIM115 - until the rank ends
            faulthandler.register(signal.SIGUSR2, self.stacks)
            status = take_part(self.plan, rank, key, self.folder, report, control)
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
                    return self.told, self._hangs()
                for selected, _ in self.selector.select(LOOK_AGAIN):
                    if selected.data is not None:
                        self._listen(selected.data, selected.fd)
                self._collect()
                self._look_after_the_victim()
                if not released and self._all_have_spoken():
                    released = True
                    self._release()
            return self.told, None
        finally:
            if not released:
                self._release()
            self._bury()

    def _hangs(self) -> str:
        """Which ranks hang, and where."""
        alive = [rank for rank, one in enumerate(self.told) if one.died is None]
        for rank in alive:
            os.kill(self.told[rank].process, signal.SIGCONT)
            os.kill(self.told[rank].process, signal.SIGUSR2)
        time.sleep(0.5)
        stacks = [Path(self.folder, f"stacks of rank {rank}").read_text() for rank in alive]
        where = "".join(f"\n  rank {rank}:\n{stack}" for rank, stack in zip(alive, stacks, strict=True))
        return f"rank{'s' * (len(alive) > 1)} {', '.join(map(str, alive))} after {LIMIT:g} s{where}"

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

    def _look_after_the_victim(self) -> None:
        """Let a late rank come, and a stopped one go on, when it is time."""
        plan, victim = self.plan, self.told[self.plan.victim]
        if victim.died is not None or self.has_come or plan.family not in ("late", "slow"):
            return
        if "stop" in plan.fault and victim.stopped is None:
            with contextlib.suppress(ChildProcessError):  # it has just ended
                if os.waitid(os.P_PID, victim.process, os.WSTOPPED | os.WNOHANG | os.WNOWAIT):
                    victim.stopped = time.monotonic()
            if victim.stopped is None:
                return  # on a busy machine it may stop after the others have failed, and even after the end
        if not self.controls:
            self.has_come = True  # whatever it does now, nobody waits for it
        elif plan.fault in SLOW or plan.comes == "racing":
            pause = PAUSE_OF_THE_SLOW if plan.fault in SLOW else plan.lateness
            self.has_come = victim.stopped is not None and time.monotonic() > victim.stopped + pause
        else:
            others = [one for rank, one in enumerate(self.told) if rank != plan.victim]
            failed = [one.died is not None or one.last("end") is not None for one in others]
            self.has_come = plan.comes != "never" and (any(failed) if plan.comes == "first" else all(failed))
            if self.has_come and "stop" not in plan.fault:
                os.write(self.controls[plan.victim], b"c")
        if self.has_come and victim.stopped is not None:
            os.kill(victim.process, signal.SIGCONT)

    def _all_have_spoken(self) -> bool:
        for rank, one in enumerate(self.told):
            never = rank == self.plan.victim and (self.plan.family, self.plan.comes) == ("late", "never")
            if one.died is None and one.last("settled") is None and not never:
                return False
        return True

    def _release(self) -> None:
        victim = self.told[self.plan.victim]
        if self.plan.comes == "never" and victim.died is None and victim.last("settled") is None:
            os.kill(victim.process, signal.SIGKILL)
        for descriptor in self.controls:
            os.close(descriptor)
        self.controls.clear()

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
    memories = {tuple(facts) for one in told for line in one.lines for facts in line.get("memory", [])}
    deadline = time.monotonic() + A_LOOK
    while held := [(process, link) for process, link, facts in _shared_memory() if facts in memories]:
        if time.monotonic() > deadline:
            found += [f"process {process} still holds {link}" for process, link in held]
            break
        time.sleep(LOOK_AGAIN)
    found += [f"this process holds {link}" for process, link, _ in _shared_memory() if process == os.getpid()]
    if socket_name(key, os.geteuid())[1:] in Path("/proc/net/unix").read_bytes():
        found.append("the socket of the meeting is still there")
    ours = ("stacks of rank ", "store")
    files = [path.relative_to(folder) for path in Path(folder).rglob("*")]
    found += [f"there is a file {path}" for path in files if not path.parts[0].startswith(ours)]
    return found


def _shared_memory() -> Iterator[tuple[int, str, tuple[int, int]]]:
    for links in Path("/proc").glob("[0-9]*/fd"):
        try:
            for name in os.listdir(links):
                link = os.readlink(links / name)
                if link.startswith(("/memfd:allfold", "/memfd:numpy-device")):
                    facts = os.stat(links / name)
                    yield int(links.parent.name), link, (facts.st_dev, facts.st_ino)
        except OSError:  # it has ended, or belongs to another user
            continue
