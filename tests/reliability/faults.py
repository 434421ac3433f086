"""Ranks that die, stop, disagree or run out of memory, a thousand times over. `make faults` runs it.

    python tests/reliability/faults.py                          1,000 trials
    python tests/reliability/faults.py --trials 50 --seed 7     some of them, from another seed on
    python tests/reliability/faults.py --one 1234               one trial, with everything that was said in it

A trial is a plan made from its seed (`fault_plans`), carried out by real processes (`fault_run`, `fault_ranks`) and
compared with the expected outcome (`fault_judge`). The ranks of a trial are forked from a process that has imported
everything and has no threads and no communicator, so that a trial does not have to start an interpreter.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict

from fault_judge import Verdict
from fault_plans import plan
from fault_run import Trial, run_trial

TRIALS, JOBS = 1000, 2


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Fault trials of the engine: who hears what, when, and what is left.")
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"how many (default {TRIALS})")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; every trial has the next one")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"how many trials at once (default {JOBS})")
    parser.add_argument("--one", type=int, metavar="SEED", help="one trial, with everything that was said in it")
    parser.add_argument(
        "--json", action="store_true", help="a line of JSON for every trial, here, one by one, and no table"
    )
    options = parser.parse_args(arguments)
    if options.one is not None:
        return _show(run_trial(plan(options.one)))
    seeds = range(options.seed, options.seed + options.trials)
    if options.json:
        return max([_tell(run_trial(plan(seed))) for seed in seeds], default=0)
    began, trials = time.monotonic(), []
    for trial in _by_others(seeds, options.jobs):
        trials.append(trial)
        for complaint in trial.verdict.complaints:
            _write(f"\r\033[Kseed {trial.plan.seed}, {trial.plan.fault} {trial.plan.moment}: {complaint}\n", sys.stderr)
        if sys.stderr.isatty() or len(trials) % 100 == 0:
            wrong = sum(bool(one.verdict.complaints) for one in trials)
            end = "" if sys.stderr.isatty() else "\n"
            took = time.monotonic() - began
            _write(f"\r\033[K{len(trials)} of {options.trials} trials, {wrong} wrong, {took:.0f} s{end}", sys.stderr)
    _write("\r\033[K" + table(trials, time.monotonic() - began) + "\n", sys.stdout)
    return int(len(trials) < options.trials or any(trial.verdict.complaints for trial in trials))


def _by_others(seeds: range, jobs: int) -> Iterator[Trial]:
    """Let several processes share the trials, since most of a trial is waiting; yields results as they come."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def listen(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    processes = []
    try:
        for job in range(jobs):
            share = range(len(seeds) * job // jobs, len(seeds) * (job + 1) // jobs)
            words = ["--json", "--seed", str(seeds.start + share.start), "--trials", str(len(share))]
            command = [sys.executable, __file__, *words]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            threading.Thread(target=listen, args=(processes[-1],), daemon=True).start()
        while jobs:
            line = lines.get()
            if line is None:
                jobs -= 1
                continue
            facts = json.loads(line)
            verdict = Verdict(facts["complaints"], facts["heard"], facts["able"], facts["happened"])
            yield Trial(plan(facts["seed"]), [], verdict, facts["seconds"])
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def _tell(trial: Trial) -> int:
    facts = {"seed": trial.plan.seed, "fault": trial.plan.fault, **asdict(trial.verdict), "seconds": trial.seconds}
    _write(json.dumps(facts) + "\n", sys.stdout)
    return int(bool(trial.verdict.complaints))


# Saying ---------------------------------------------------------------------------------------------------------------


def table(trials: list[Trial], seconds: float) -> str:
    """By kind of fault: how many trials, how many went as expected, and how long after it survivors heard of it."""
    rows: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        rows[trial.plan.family, trial.plan.fault].append(trial)
    lines = [
        f"{'family':10} {'fault':22} {'trials':>6} {'passed':>6} {'struck':>6} {'heard':>6} {'median':>9} {'worst':>9}"
    ]
    for (family, fault), some in sorted(rows.items()):
        heard = sorted(seconds for trial in some for seconds in trial.verdict.heard)
        passed = sum(not trial.verdict.complaints for trial in some)
        struck = sum(trial.verdict.happened for trial in some)
        times = f"{statistics.median(heard):7.3f} s {heard[-1]:7.3f} s" if heard else f"{'–':>9} {'–':>9}"
        lines.append(f"{family:10} {fault:22} {len(some):6} {passed:6} {struck:6} {len(heard):6} {times}")
    passed = sum(not trial.verdict.complaints for trial in trials)
    deaths = [trial.verdict for trial in trials if trial.plan.family == "death"]
    heard, able = ([seconds for one in deaths for seconds in getattr(one, name)] for name in ("heard", "able"))
    lines.append(f"{passed} of {len(trials)} trials went as they should, in {seconds:.0f} s")
    if heard:
        lines.append(f"{len(heard)} survivors of a death heard of it: {_within(heard)} of them within a second,")
        lines.append(
            f"{_within(able)} within a second in which they could run; the slowest after {max(able):.1f} s of that"
        )
    return "\n".join(lines)


def _within(seconds: list[float]) -> int:
    return sum(one <= 1 for one in seconds)


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
