"""Ranks that die, come late, fail, disagree or run out of memory, thousands of times, on every engine. `make faults` runs it.

    python tests/reliability/faults.py                                       some trials of every engine, fresh seeds
    python tests/reliability/faults.py --engine islands --trials 50 --first 7
    python tests/reliability/faults.py --one 1234 --engine gpu               one trial, with everything that was said in it

A trial is a plan made from its seed (`fault_plans`), carried out by real processes (`fault_run`, `fault_ranks`,
`fault_calls`) and compared with the expected outcome (`fault_judge`). The ranks of a trial are forked from a process
that has imported everything and has no threads and no communicator, so that a trial does not have to start an
interpreter. The engine "gpu" runs on the device made of NumPy in tests/engines/stream.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from typing import TextIO

from fault_judge import Verdict
from fault_plans import ENGINES, plan
from fault_run import Trial, get_ready, run_trial

TRIALS, JOBS = 500, 4


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Fault trials: who raises what, when, and what is left.")
    parser.add_argument("--engine", choices=ENGINES, help="one engine (default: all of them, one after the other)")
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"how many of each engine (default {TRIALS})")
    parser.add_argument("--first", type=int, help="the first seed; every trial has the next one (default: a fresh one)")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"how many trials at once (default {JOBS})")
    parser.add_argument("--one", type=int, metavar="SEED", help="one trial, with everything that was said in it")
    parser.add_argument("--json", action="store_true", help="a line of JSON for every trial, and no table")
    parser.add_argument("--seeds", type=int, nargs="*", help="just these seeds")
    options = parser.parse_args(arguments)
    if options.one is not None:
        return _show(run_trial(plan(options.one, options.engine or ENGINES[0])))
    first = random.SystemRandom().randrange(10**9) if options.first is None else options.first
    seeds = list(options.seeds or range(first, first + options.trials))
    results = [_trials(engine, seeds, options) for engine in ([options.engine] if options.engine else ENGINES)]
    return max(results)


def _trials(engine: str, seeds: list[int], options: argparse.Namespace) -> int:
    if options.json and options.jobs == 1:
        get_ready(engine)
        return max([_tell(run_trial(plan(seed, engine))) for seed in seeds], default=0)
    _write(f"{engine}: {len(seeds)} trials from seed {seeds[0]} on, {options.jobs} at a time\n", sys.stderr)
    began, trials = time.monotonic(), []
    for trial in _by_others(engine, seeds, options.jobs):
        trials.append(trial)
        if options.json:
            _tell(trial)
        for complaint in trial.verdict.complaints:
            first, *_, last = [*complaint.splitlines(), ""]
            said = f"{first} … {last or complaint.splitlines()[-1]}" if "\n" in complaint else complaint
            what = f"{engine} {trial.plan.seed}, {trial.plan.fault} {trial.plan.moment}: {said}"
            _write(f"\r\033[K{what}\n", sys.stderr)
        if trial.verdict.complaints:
            _write(f"  to repeat it: python {__file__} --one {trial.plan.seed} --engine {engine}\n", sys.stderr)
        if sys.stderr.isatty() or len(trials) % 100 == 0:
            wrong = sum(bool(one.verdict.complaints) for one in trials)
            end = "" if sys.stderr.isatty() else "\n"
            took = time.monotonic() - began
            _write(
                f"\r\033[K{engine}: {len(trials)} of {len(seeds)} trials, {wrong} wrong, {took:.0f} s{end}", sys.stderr
            )
    if not options.json:
        _write("\r\033[K" + table(engine, trials, time.monotonic() - began) + "\n", sys.stdout)
    return int(len(trials) < len(seeds) or any(trial.verdict.complaints for trial in trials))


def _by_others(engine: str, seeds: list[int], jobs: int) -> Iterator[Trial]:
    """Let several processes share the trials, since most of a trial is waiting; yields results as they come."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def listen(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    processes = []
    try:
        for job in range(min(jobs, len(seeds))):
            words = ["--json", "--jobs", "1", "--engine", engine, "--seeds", *map(str, seeds[job::jobs])]
            processes.append(subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True))
            threading.Thread(target=listen, args=(processes[-1],), daemon=True).start()
        left = len(processes)
        while left:
            line = lines.get()
            if line is None:
                left -= 1
                continue
            facts = json.loads(line)
            verdict = Verdict(facts["complaints"], facts["heard"], facts["able"], facts["happened"])
            yield Trial(plan(facts["seed"], engine), [], verdict, facts["seconds"])
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def _tell(trial: Trial) -> int:
    one = trial.plan
    facts = {"engine": one.engine, "seed": one.seed, "family": one.family, "fault": one.fault}
    _write(json.dumps({**facts, **asdict(trial.verdict), "seconds": trial.seconds}) + "\n", sys.stdout)
    return int(bool(trial.verdict.complaints))


# Saying ---------------------------------------------------------------------------------------------------------------


def table(engine: str, trials: list[Trial], seconds: float) -> str:
    """By kind of fault: how many trials, how many passed, and how long after the fault the others raised."""
    rows: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        rows[trial.plan.family, trial.plan.fault].append(trial)
    head = (
        f"{'family':10} {'fault':22} {'trials':>6} {'passed':>6} {'struck':>6} {'raised':>6} {'median':>9} {'worst':>9}"
    )
    lines = [f"engine {engine}", head]
    for (family, fault), some in sorted(rows.items()):
        heard = sorted(seconds for trial in some for seconds in trial.verdict.heard)
        passed = sum(not trial.verdict.complaints for trial in some)
        struck = sum(trial.verdict.happened for trial in some)
        times = f"{statistics.median(heard):7.3f} s {heard[-1]:7.3f} s" if heard else f"{'–':>9} {'–':>9}"
        lines.append(f"{family:10} {fault:22} {len(some):6} {passed:6} {struck:6} {len(heard):6} {times}")
    passed = sum(not trial.verdict.complaints for trial in trials)
    deaths = [trial.verdict for trial in trials if trial.plan.family == "death"]
    heard, able = ([seconds for one in deaths for seconds in getattr(one, name)] for name in ("heard", "able"))
    lines.append(f"{passed} of {len(trials)} trials of {engine} went as they should, in {seconds:.0f} s")
    if heard:
        lines.append(f"{len(heard)} survivors of a death raised: {_within(heard)} of them within a second,")
        lines.append(
            f"{_within(able)} within a second in which they could run; the slowest after {max(able):.1f} s of that"
        )
    return "\n".join(lines)


def _within(seconds: list[float]) -> int:
    return sum(one <= 1 for one in seconds)


def _show(trial: Trial) -> int:
    one = trial.plan
    lines = [
        f"{one.engine}, seed {one.seed}: {one.ranks} ranks, hosts {list(one.hosts)}, groups {list(map(list, one.groups))}"
    ]
    lines.append(f"{one.family}: {one.fault}, rank {one.victim}, {one.moment}, call {one.at}, after {one.delay:.6f} s")
    lines.append(f"comes: {one.comes}; timeouts {list(one.timeouts)}; arrays after an error: {list(one.reactions)}")
    lines.append(
        f"then: {one.afterwards}; GPU: staged up to {one.staged_up_to}, takes turns: {one.takes_turns}, warm: {one.warm}"
    )
    lines += [f"  call {number}: {call}" for number, call in enumerate(one.calls)]
    moments = [line["time"] for told in trial.told for line in told.lines] or [0.0]
    for rank, told in enumerate(trial.told):
        lines.append(f"rank {rank} (process {told.process}), status {told.status}")
        for line in told.lines:
            hidden = ("time", "event", "queued", "memory")
            facts = {name: value for name, value in line.items() if name not in hidden}
            lines.append(f"  {line['time'] - min(moments):9.6f}  {line['event']} {facts or ''}")
        if told.died is not None:
            lines.append(f"  {told.died - min(moments):9.6f}  seen to have ended")
    lines += [f"raised after {', '.join(f'{seconds:.3f}' for seconds in trial.verdict.heard) or '–'} s"]
    lines += trial.verdict.complaints or ["all is as it should be"]
    _write("\n".join(lines) + "\n", sys.stdout)
    return int(bool(trial.verdict.complaints))


def _write(text: str, stream: TextIO) -> None:
    print(text, end="", flush=True, file=stream)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
