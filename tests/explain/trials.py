"""Seeded trials of `allfold explain`: real runs with one fault each, on gloo and on allfold, and the right rank and line.

    python tests/explain/trials.py --trials 100 --backend gloo

Each trial is a random program (`trial_programs.py`) that three processes run with a short timeout. Its records are written as
by ALLFOLD_FLIGHT_DIR, and explained. torch's own analyser reads the same files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from trial_programs import KINDS, NAMED, RANKS, Trial, make_trial

from allfold.errors import UsageError
from allfold.explain.findings import Finding, findings
from allfold.explain.read import read_run
from allfold.launch import supervise
from allfold.launch.kept import KeptTemplate, end_kept
from allfold.launch.spawn import run_everywhere

_PATIENCE = 3.0  # seconds until a call gives up


def rank_of_trial(_: object, path: str, backend: str, folder: str, patience: float) -> None:
    """The work of a rank: run the program, and write the record as a failed rank does."""
    import torch.distributed as dist

    os.environ["ALLFOLD_FLIGHT_DIR"], os.environ["TORCH_FR_BUFFER_SIZE"] = folder, "2000"
    rank = int(os.environ["RANK"])
    limit = timedelta(seconds=patience)
    dist.init_process_group(backend, timeout=limit)
    groups = [dist.new_group(timeout=limit) for _ in range(2)]
    from allfold_autoload import flights

    flights.watch()
    assert flights._watcher is not None
    names: dict[str, Any] = {}
    exec(compile(Path(path).read_text(), path, "exec"), names)
    try:
        names["main"](rank, *groups, 2.5 * patience)
    except Exception as error:
        frames = []
        trace = error.__traceback__
        while trace is not None:
            frames.append((trace.tb_frame, trace.tb_lineno))
            trace = trace.tb_next
        flights._watcher.write(f"raised {type(error).__name__}", flights._lines(reversed(frames)))
    else:
        flights._watcher.write("ended")
    sys.stdout.flush()
    os._exit(0)


def run_trial(trial: Trial, backend: str, folder: Path, patience: float = _PATIENCE) -> Path:
    """The folder of the records. `patience`: the seconds after which a call, or the start of a group, gives up."""
    program, records = folder / "train.py", folder / "flights"
    program.write_text(trial.text)
    records.mkdir(exist_ok=True)
    with contextlib.suppress(Exception):  # ranks end without an answer, one of them by a signal
        run_everywhere(
            contextlib.nullcontext,
            rank_of_trial,
            RANKS,
            args=(str(program), backend, str(records), patience),
            survive=True,
            timeout=180,
        )
    return records


def explained(records: Path, backend: str) -> Finding | None:
    kept = sorted(records.glob("allfold-flight-*")) if backend == "allfold" else [records]
    try:
        found = findings(read_run(kept)[0])
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


def judge_torch(trial: Trial, records: Path, mended: bool) -> tuple[bool, str]:
    """Does torch's analyser name the rank? It names "Culprit rank 1" or "missing ranks: {1}". And how it ended."""
    if not mended:
        _strip(records)
    done = subprocess.run(
        [Path(sys.executable).parent / "torchfrtrace", "--prefix", "torch_flight_", "--allow-incomplete-ranks", records],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    named = re.search(r"Culprit rank (\d+)", said) or re.search(r"missing ranks: \{(\d+)\}", said)
    error = re.findall(r"^(\w+Error.*)", said, re.MULTILINE)
    return bool(named and int(named[1]) == trial.culprit), error[-1] if error else ""


def _strip(records: Path) -> None:
    """As gloo itself writes it: no members of groups."""
    import pickle

    for path in records.glob("torch_flight_*"):
        document = pickle.loads(path.read_bytes())
        document["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
        path.write_bytes(pickle.dumps(document, protocol=2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--backend", choices=["gloo", "allfold"], default="gloo")
    parser.add_argument("--torch", action="store_true", help="also run torch's own analyser on the records")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    supervise.RepeatedTemplate = KeptTemplate  # type: ignore[attr-defined]  # torch is imported once
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * 6)
    for seed in range(arguments.first, arguments.first + arguments.trials):
        trial = make_trial(seed)
        with tempfile.TemporaryDirectory() as folder:
            records = run_trial(trial, arguments.backend, Path(folder))
            found = explained(records, arguments.backend)
            rank, line, kind = judge(trial, found)
            row = [1, rank, line, rank and line, kind, 0]
            if arguments.torch and arguments.backend == "gloo":
                row[5], error = judge_torch(trial, records, mended=True)
                plain, crash = judge_torch(trial, records, mended=False)
                if arguments.verbose:
                    print(f"  torch: {row[5]} {error}; plain dumps: {plain} {crash}")
        counts[trial.kind] = [a + int(b) for a, b in zip(counts[trial.kind], row, strict=True)]
        if arguments.verbose or not (rank and line):
            said = found.sentence if found else "nothing found"
            print(f"seed {seed}: {trial.kind} by rank {trial.culprit} at {trial.lines}: {rank=} {line=} {kind=}")
            print(f"  {said}", flush=True)
    print(f"{arguments.backend}\n{'kind':<10} trials  rank  line  both  kind  torch")
    for name in KINDS:
        trials, *right = counts[name]
        print(f"{name:<10} {trials:6} " + " ".join(f"{one:5}" for one in right))
    end_kept()
    return 0


if __name__ == "__main__":
    sys.exit(main())
