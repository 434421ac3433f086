"""Ranks that die, stop, disagree or run out of memory, a thousand times over. `make faults` runs it.

    python tests/faults.py                          1,000 trials
    python tests/faults.py --trials 50 --seed 7     some of them, from another seed on
    python tests/faults.py --one 1234               one trial, with everything that was said in it

A trial is a plan made from its seed (`fault_plans`), carried out by real processes (`fault_ranks`) and held against what
should have come of it (`fault_judge`). This process has no thread and no communicator of its own: it forks the ranks of
each trial, so that a trial costs no start of an interpreter, and looks afterwards whether anything is left of them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import resource
import secrets
import selectors
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: its threads would not survive the fork
from fault_judge import Told, Verdict, judge
from fault_plans import SLOW, Plan, plan
from fault_ranks import take_part

from allfold.run.rendezvous import socket_name

TRIALS = 1000
LIMIT = 60.0  # seconds for one trial, on a machine that may be busy; what takes longer hangs
PAUSE_OF_THE_SLOW = 0.2
LOOK_AGAIN = 0.02
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Trial:
    plan: Plan
    told: list[Told]
    verdict: Verdict
    seconds: float


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Fault trials of the engine: who hears what, when, and what is left.")
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"how many (default {TRIALS})")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; every trial has the next one")
    parser.add_argument("--one", type=int, metavar="SEED", help="one trial, with everything that was said in it")
    parser.add_argument("--json", action="store_true", help="a line of JSON for every trial, and no table")
    options = parser.parse_args(arguments)
    # Whatever a rank might start and leave becomes a child of this process, and is seen.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if options.one is not None:
        return _show(run_trial(plan(options.one)))
    began, trials = time.monotonic(), []
    for seed in range(options.seed, options.seed + options.trials):
        trial = run_trial(plan(seed))
        trials.append(trial)
        for complaint in trial.verdict.complaints:
            _write(f"\r\033[Kseed {seed}, {trial.plan.fault} {trial.plan.moment}: {complaint}\n", sys.stderr)
        if options.json:
            facts = {"seed": seed, "fault": trial.plan.fault, "complaints": trial.verdict.complaints}
            _write(json.dumps({**facts, "heard": trial.verdict.heard, "seconds": trial.seconds}) + "\n", sys.stdout)
        elif sys.stderr.isatty() or len(trials) % 100 == 0:
            wrong = sum(bool(one.verdict.complaints) for one in trials)
            end = "" if sys.stderr.isatty() else "\n"
            took = time.monotonic() - began
            _write(f"\r\033[K{len(trials)} of {options.trials} trials, {wrong} wrong, {took:.0f} s{end}", sys.stderr)
    if not options.json:
        _write("\r\033[K" + table(trials) + "\n", sys.stdout)
    return int(any(trial.verdict.complaints for trial in trials))


def run_trial(plan: Plan) -> Trial:
    began = time.monotonic()
    key = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        told, hung = _Run(plan, key, folder).until_all_have_ended()
        verdict = Verdict([f"hangs: {hung}"]) if hung else judge(plan, told)
        verdict.complaints += left_behind(told, key, folder)
    return Trial(plan, told, verdict, time.monotonic() - began)


# Running ----------------------------------------------------------------------------------------------------------------


class _Run:
    def __init__(self, plan: Plan, key: str, folder: str) -> None:
        self.plan = plan
        self.selector = selectors.DefaultSelector()
        self.told: list[Told] = []
        self.reports: dict[int, bytes] = {}  # what is not yet a whole line, by descriptor
        self.controls: list[int] = []
        self.ends: dict[int, int] = {}  # pidfds, by rank
        gc.collect()
        gc.freeze()  # so that a rank's collections leave the pages of this process alone
        sys.stdout.flush()
        for rank in range(plan.ranks):
            reading, report = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            control, writing = os.pipe2(os.O_CLOEXEC)
            process = os.fork()
            if process == 0:
                os.set_blocking(report, True)
                self._be(rank, key, folder, report, control)
            os.close(report)
            os.close(control)
            self.controls.append(writing)
            self.reports[reading] = b""
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
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.chdir(folder)
            os.environ["TMPDIR"] = folder
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            status = take_part(self.plan, rank, key, report, control)
        finally:
            if self.plan.finalizes and status == 0:
                os.close(report)
                raise SystemExit(0)  # noqa: B012 - up to the end of the interpreter, through whatever it still has to do
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
                self.selector.unregister(descriptor)
                return
            *lines, self.reports[descriptor] = (self.reports[descriptor] + data).split(b"\n")
            self.told[rank].lines += [json.loads(line) for line in lines]

    def _collect(self) -> None:
        for rank, one in enumerate(self.told):
            if one.died is None and os.waitid(os.P_PIDFD, self.ends[rank], os.WEXITED | os.WNOHANG | os.WNOWAIT):
                one.died = time.monotonic()
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


# What is left -----------------------------------------------------------------------------------------------------------


def left_behind(told: list[Told], key: str, folder: str) -> list[str]:
    found = []
    with contextlib.suppress(ChildProcessError):
        found.append(f"a process is left: {os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) or 'it lives'}")
    memories = {tuple(line["memory"]) for one in told for line in one.lines if line["event"] == "met"}
    for process, link, facts in _shared_memory():
        if facts in memories or process == os.getpid():
            found.append(f"process {process} still holds {link}")
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
        except OSError:  # it has ended, or is somebody else's
            continue


# Saying -----------------------------------------------------------------------------------------------------------------


def table(trials: list[Trial]) -> str:
    """By kind of fault: how many trials, how many went as they should, and how long after it survivors heard of it."""
    rows: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        rows[trial.plan.family, trial.plan.fault].append(trial)
    lines = [f"{'family':10} {'fault':22} {'trials':>6} {'passed':>6} {'struck':>6} {'heard':>6} {'median':>9} {'worst':>9}"]
    for (family, fault), some in sorted(rows.items()):
        heard = sorted(seconds for trial in some for seconds in trial.verdict.heard)
        passed = sum(not trial.verdict.complaints for trial in some)
        struck = sum(trial.verdict.happened for trial in some)
        times = f"{statistics.median(heard):7.3f} s {heard[-1]:7.3f} s" if heard else f"{'–':>9} {'–':>9}"
        lines.append(f"{family:10} {fault:22} {len(some):6} {passed:6} {struck:6} {len(heard):6} {times}")
    passed = sum(not trial.verdict.complaints for trial in trials)
    deaths = sorted(seconds for trial in trials if trial.plan.family == "death" for seconds in trial.verdict.heard)
    lines.append(f"{passed} of {len(trials)} trials went as they should, in {sum(trial.seconds for trial in trials):.0f} s")
    if deaths:
        within = sum(seconds <= 1 for seconds in deaths)
        lines.append(f"{within} of {len(deaths)} survivors of a death heard of it within a second")
    return "\n".join(lines)


def _show(trial: Trial) -> int:
    one = trial.plan
    lines = [f"seed {one.seed}: {one.ranks} ranks, groups {list(map(list, one.groups))}"]
    lines.append(f"{one.family}: {one.fault}, rank {one.victim}, {one.moment}, call {one.at}, after {one.delay:.6f} s")
    lines.append(f"timeout {one.timeout} s; whoever hears of it: {one.afterwards}")
    lines += [f"  call {number}: {call}" for number, call in enumerate(one.calls)]
    moments = [line["time"] for told in trial.told for line in told.lines] or [0.0]
    for rank, told in enumerate(trial.told):
        lines.append(f"rank {rank} (process {told.process}), status {told.status}")
        for line in told.lines:
            facts = {name: value for name, value in line.items() if name not in ("time", "event")}
            lines.append(f"  {line['time'] - min(moments):9.6f}  {line['event']} {facts or ''}")
        if told.died is not None:
            lines.append(f"  {told.died - min(moments):9.6f}  seen to have ended")
    lines += [f"heard after {', '.join(f'{seconds:.3f}' for seconds in trial.verdict.heard) or '–'} s"]
    lines += trial.verdict.complaints or ["all is as it should be"]
    _write("\n".join(lines) + "\n", sys.stdout)
    return int(bool(trial.verdict.complaints))


def _write(text: str, stream: object) -> None:
    print(text, end="", flush=True, file=stream)  # type: ignore[call-overload]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
