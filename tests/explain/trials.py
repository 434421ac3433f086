"""Seeded trials of `allfold explain`: real runs with one fault each, on gloo and on allfold, and the right rank and line.

    python tests/explain/trials.py --trials 100 --backend gloo

Each trial is a random program (`trial_programs.py`) that three processes run with a short timeout. Its records are written as
by ALLFOLD_FLIGHT_DIR, and explained. With --torch, torch's own analyser reads the same files, and the program runs once more
with TORCH_DISTRIBUTED_DEBUG=DETAIL. Trials of `--jobs` processes run beside each other.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import pickle
import re
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
from trial_programs import KINDS, NAMED, RANKS, Trial, make_trial

from allfold.errors import UsageError
from allfold.explain.findings import Finding, findings
from allfold.explain.read import read_run
from allfold.launch import supervise
from allfold.launch.kept import KeptTemplate
from allfold.launch.spawn import run_everywhere
from allfold.record.facts import BEGINS, facts_of_files

_PATIENCE = 3.0  # seconds until a call gives up


def rank_of_trial(_: object, path: str, backend: str, folder: str, patience: float, way: str) -> None:
    """The work of a rank: run the program, and write its records as a failed rank does."""
    os.environ["ALLFOLD_FLIGHT_DIR"], os.environ["TORCH_FR_BUFFER_SIZE"] = folder, "2000"
    import torch.distributed as dist

    from allfold.record import install

    if way == "detail":
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    if way == "record":
        os.environ["ALLFOLD_RECORD"] = folder
        install.install()
    rank = int(os.environ["RANK"])
    limit = timedelta(seconds=patience)
    dist.init_process_group(backend, timeout=limit)
    groups = [dist.new_group(timeout=limit) for _ in range(2)]
    from allfold_autoload import flights

    flights.watch()
    assert flights._watcher is not None
    names: dict[str, Any] = {}
    exec(compile(Path(path).read_text(), path, "exec"), names)
    words = ""
    try:
        names["main"](rank, *groups, 2.5 * patience)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        Path(folder, f"error-{rank}").write_text("".join(traceback.format_exception(error)))
        frames = []
        trace = error.__traceback__
        while trace is not None:
            frames.append((trace.tb_frame, trace.tb_lineno))
            trace = trace.tb_next
        flights._watcher.write(f"raised {type(error).__name__}", flights._lines(reversed(frames)))
    else:
        flights._watcher.write("ended")
    if install._recorder is not None:
        install._recorder.end(words)
    sys.stdout.flush()
    os._exit(0)


def run_trial(trial: Trial, backend: str, folder: Path, patience: float = _PATIENCE, way: str = "flights") -> Path:
    """The folder of the records. `patience`: the seconds after which a call, or the start of a group, gives up.

    `way`: "flights", "record" (as `allfold record` writes it), or "detail" (TORCH_DISTRIBUTED_DEBUG=DETAIL).
    """
    program, records = folder / "train.py", folder / way
    program.write_text(trial.text)
    records.mkdir(exist_ok=True)
    with contextlib.suppress(Exception):  # ranks end without an answer, one of them by a signal
        run_everywhere(
            contextlib.nullcontext,
            rank_of_trial,
            RANKS,
            args=(str(program), backend, str(records), patience, way),
            survive=True,
            timeout=180,
        )
    return records


def explained(records: Path, backend: str) -> Finding | None:
    ours = "rank-*.allfold" if records.name == "record" else "allfold-flight-*" if backend == "allfold" else "*"
    try:
        found = findings(read_run(sorted(records.glob(ours)), others={BEGINS: facts_of_files})[0])
    except UsageError:  # there are no records
        return None
    return found[0] if found else None


def judge(trial: Trial, found: Finding | None) -> tuple[bool, bool, bool]:
    """Right rank, right line, right kind."""
    if found is None:
        return False, False, False
    line = int(found.place.rpartition(":")[2] or 0)
    kinds = NAMED.get(trial.kind, (trial.kind,))
    return bool(found.ranks) and found.ranks[0] == trial.culprit, line in trial.lines, found.kind in kinds


class Named(NamedTuple):
    """The answer of one tool to one trial: was the rank named, and the line?"""

    rank: bool
    line: bool
    said: str = ""


def judge_analyser(trial: Trial, records: Path) -> Named:
    """torch's analyser. It names "Culprit rank 1" or "missing ranks: {1}", and prints stacks of calls."""
    said = _in_a_child(_analyse, records)
    named = re.search(r"Culprit rank (\d+)", said) or re.search(r"missing ranks: \{(\d+)\}", said)
    error = re.findall(r"^(\w+(?:Error|Exception).*)", said, re.MULTILINE)
    rank = bool(named and int(named[1]) == trial.culprit)
    lines = {int(line) for line in re.findall(r"train\.py:(\d+)", said)}
    return Named(rank, bool(lines & set(trial.lines)), error[-1] if error else "")


def judge_detail(trial: Trial, records: Path) -> Named:
    """The errors that ranks raise with DETAIL.

    They name ranks in pairs, so a rank in a pair counts; they name no line, so the one in that rank's traceback counts.
    """
    errors = {path.name: path.read_text() for path in records.glob("error-*")}
    said = "\n".join(errors.values())
    ranks = {int(rank) for rank in re.findall(r"\b[Rr]ank (\d+) (?:is running|successfully|failed)", said)}
    for several in re.findall(r"Ranks? ([\d, ]+?) failed to pass monitoredBarrier", said):
        ranks |= {int(word) for word in several.split(",") if word.strip().isdecimal()}
    own = errors.get(f"error-{trial.culprit}", "")
    lines = {int(line) for line in re.findall(r'train\.py", line (\d+)', own)}
    last = said.strip().splitlines()[-1][:200] if said.strip() else ""
    return Named(trial.culprit in ranks, trial.culprit in ranks and bool(lines & set(trial.lines)), last)


def _analyse(records: Path) -> None:
    from torch.distributed.flight_recorder.fr_trace import main as analyse

    sys.argv = ["torchfrtrace"]
    try:
        analyse(["--prefix", "torch_flight_", "--allow-incomplete-ranks", str(records)])
    except (Exception, SystemExit):
        traceback.print_exc()


def _in_a_child(work: Any, *args: Any) -> str:
    """The output of work that may exit, or raise, in a process of its own, which has imported torch already."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                with open(1, "w", closefd=False) as sys.stdout, open(2, "w", closefd=False) as sys.stderr:
                    work(*args)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        output.seek(0)
        return output.read().decode(errors="replace")


def strip(records: Path) -> None:
    """Make dumps like those that gloo itself writes: no members of groups."""
    for path in records.glob("torch_flight_*"):
        document = pickle.loads(path.read_bytes())
        document["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
        path.write_bytes(pickle.dumps(document, protocol=2))


def try_seed(seed: int, backend: str, torch_too: bool) -> dict[str, Any]:
    """One trial: what each tool has named."""
    importlib.import_module("torch")  # then the process that ranks are forked from imports it, too
    supervise.RepeatedTemplate = KeptTemplate  # type: ignore[attr-defined]
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    trial = make_trial(seed)
    with tempfile.TemporaryDirectory() as folder:
        records = run_trial(trial, backend, Path(folder))
        found = explained(records, backend)
        rank, line, kind = judge(trial, found)
        row: dict[str, Any] = {"seed": seed, "kind": trial.kind, "culprit": trial.culprit, "lines": trial.lines}
        row |= {"rank": rank, "line": line, "verdict": kind, "said": found.sentence if found else "nothing found"}
        found = explained(run_trial(trial, backend, Path(folder), way="record"), backend)
        rank, line, kind = judge(trial, found)
        row["record"] = Named(rank, line, found.sentence if found else "nothing found")
        if torch_too:
            importlib.import_module("torch.distributed.flight_recorder.fr_trace")
            row["fr_trace"] = judge_analyser(trial, records)
            strip(records)
            row["fr_trace, gloo's own dumps"] = judge_analyser(trial, records)
            row["DETAIL"] = judge_detail(trial, run_trial(trial, backend, Path(folder), way="detail"))
    return row


_TOOLS = ("record", "fr_trace", "fr_trace, gloo's own dumps", "DETAIL")


def print_table(rows: list[dict[str, Any]], backend: str) -> bool:
    """The shares of each kind; true if rank and line are right in 99 of 100 trials."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for name in (row["kind"], "all"):
            count = counts[name]
            both = row["rank"] and row["line"]
            count.update(trials=1, rank=row["rank"], line=row["line"], both=both, verdict=row["verdict"])
            for tool in _TOOLS:
                if tool in row:
                    named = Named(*row[tool])
                    count.update({f"{tool}: rank": named.rank, f"{tool}: both": named.rank and named.line})
    columns = ["trials", "rank", "line", "both", "verdict"]
    columns += [f"{tool}: {what}" for tool in _TOOLS for what in ("rank", "both") if any(tool in row for row in rows)]
    print(f"{backend}\n{'kind':<10} " + "  ".join(columns))
    for name in (*KINDS, "all"):
        print(f"{name:<10} " + "  ".join(f"{counts[name][column]:{len(column)}}" for column in columns))
    return counts["all"]["record: both"] >= 0.99 * counts["all"]["trials"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--backend", choices=["gloo", "allfold"], default="gloo")
    parser.add_argument("--torch", action="store_true", help="also torch's own analyser, and a run with DETAIL")
    parser.add_argument("--jobs", type=int, default=1, help="trials beside each other")
    parser.add_argument("--rows", help="a file to which each trial is appended as a line of JSON")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.trials)
    rows = []
    with (
        open(arguments.rows or os.devnull, "a") as file,
        ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool,
    ):
        for row in pool.map(partial(try_seed, backend=arguments.backend, torch_too=arguments.torch), seeds):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            if arguments.verbose or not (row["rank"] and row["line"] and row["record"].rank and row["record"].line):
                print(
                    "seed {seed}: {kind} by rank {culprit} at {lines}: rank={rank} line={line} verdict={verdict}".format(
                        **row
                    )
                )
                print(f"  {row['said']}\n  record: {row['record']}", flush=True)
                if arguments.verbose:
                    print("".join(f"  {tool}: {row[tool]}\n" for tool in _TOOLS if tool in row), end="", flush=True)
    return int(not print_table(rows, arguments.backend))


if __name__ == "__main__":
    sys.exit(main())
