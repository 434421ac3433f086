"""torch's own test suite for backends, run on gloo and on allfold. `make conformance` writes docs/conformance.md.

    python tests/torch/conformance.py                               all tests, all three columns; continues where it stopped
    python tests/torch/conformance.py --only all_gather barrier     some of them, by parts of their names or by whole names
    python tests/torch/conformance.py --backend allfold --fresh     one backend, from the start

The suite is `torch.testing._internal.distributed.distributed_test`, in the wheel. It compares backend names in about
two hundred places; here allfold compares equal to gloo and mpi in all of them. So whatever torch enables for, or
expects of, one of the two, it enables for or expects of allfold. Ranks are forked from a process that has imported
everything, because spawning them would cost seconds per test. Tests run one at a time with 4 ranks, then those that
need 8 ranks with 8. A test that fails is repeated once, with either backend, and the table says so. allfold runs
twice: with all ranks on one host, and with half of them on each of two simulated hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "conformance"
TABLE = ROOT / "docs" / "conformance.md"
# By name of a column: the backend, and the number of simulated hosts.
COLUMNS = {"gloo": ("gloo", 1), "allfold": ("allfold", 1), "allfold-on-2-hosts": ("allfold", 2)}
RANKS, MORE_RANKS = 4, 8
LIMIT_SECONDS = 180
# How ranks start: as above, or as in torch's repository, where every rank imports torch, or by allfold's drop-in for
# torch's class (`drop_in.py`).
WAYS = ("fork", "torch", "drop-in")
TOO_FEW_RANKS = "Skipped due to small world size."


class Allfold(str):
    """The name of our backend. It also compares equal to two others, and is found in sets that contain gloo."""

    def __eq__(self, other: object) -> bool:
        return other in ("gloo", "mpi") or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run torch's test-suite for backends on gloo and on allfold.")
    parser.add_argument("--backend", choices=COLUMNS, help="one of them; all otherwise")
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        metavar="PART",
        help="tests with these names, or with these parts in their names",
    )
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of results and logs")
    parser.add_argument("--way", choices=WAYS, default=WAYS[0], help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)  # inside a process that runs tests
    options = parser.parse_args(arguments)
    if options.ranks:
        return _run_inside(options)
    for backend in [options.backend] if options.backend else COLUMNS:
        if options.fresh:
            (options.results / f"{backend}.jsonl").unlink(missing_ok=True)
        for ranks in (RANKS, MORE_RANKS):
            if ranks > RANKS and not any(_needs_more(one) for one in read_results(options.results, backend).values()):
                continue
            # One process for each: the suite decides at import what it tests.
            command = [
                sys.executable,
                __file__,
                "--backend",
                backend,
                "--ranks",
                str(ranks),
                "--results",
                options.results,
                "--way",
                options.way,
            ]
            with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
                environment = _environment(backend, ranks, Path(folder)) | {"CONFORMANCE_WAY": options.way}
                done = subprocess.run([*command, "--only", *options.only], env=environment, check=False)
            if done.returncode:
                return done.returncode
    results = {column: read_results(options.results, column) for column in COLUMNS}
    behind = behind_gloo(results)
    if not options.backend and not options.only:
        TABLE.write_text(table(results), encoding="utf-8")
        print(f"{TABLE.relative_to(ROOT)} written; tests that pass with gloo and not with allfold: {len(behind)}")
    return 1 if behind and not options.backend else 0


# The table ------------------------------------------------------------------------------------------------------------


def behind_gloo(results: dict[str, dict[str, Any]]) -> list[str]:
    """The tests that pass with gloo, and ran with allfold and did not pass."""
    return sorted(
        {
            name
            for column in list(COLUMNS)[1:]
            for name, result in results[column].items()
            if result["outcome"] != "pass" and results["gloo"].get(name, {}).get("outcome") == "pass"
        }
    )


def table(results: dict[str, dict[str, Any]]) -> str:
    versions = sorted({result["torch"] for found in results.values() for result in found.values()})
    names = sorted(set().union(*results.values()))
    skipped = [name for name in names if all(found[name]["outcome"] == "skip" for found in results.values())]
    gpus = [name for name in skipped if _wants_gpus(results["allfold"][name]["reason"])]
    behind = behind_gloo(results)

    lines = [
        "# Conformance",
        "",
        "torch ships a test suite for its distributed backends in the wheel. This page shows its results for allfold, and for",
        "gloo as a comparison. `make conformance` runs the suite and writes this page. [Documentation index](index.md)",
        "",
        f"torch {', '.join(versions)}; class `DistributedTest._DistTestBase` of",
        f"`torch.testing._internal.distributed.distributed_test`, {len(names)} tests; {RANKS} ranks, {MORE_RANKS} where a",
        "test needs them. In the last column the ranks are on two simulated hosts: each half of the ranks shares memory, and",
        "the halves exchange messages over allfold's default fabric, TCP ([hosts.md](hosts.md)).",
        "",
        _row("", *(column.replace("-", " ") for column in COLUMNS)),
        _row(*["---"] * (1 + len(COLUMNS))),
        *(
            _row(outcome, *(sum(one["outcome"] == outcome for one in found.values()) for found in results.values()))
            for outcome in ("pass", "fail", "skip")
        ),
        "",
        f"Tests that pass with gloo and do not pass with allfold: {', '.join(f'`{name}`' for name in behind) or 'none'}.",
        "",
        "The suite compares backend names in many places. In these places the runner (`tests/torch/conformance.py`) lets",
        "allfold compare equal to gloo and mpi. So whatever torch enables for one of the two, or expects of it, it enables",
        "for allfold or expects of allfold. `dist.get_backend()` still returns allfold, so tests that look for the backend's",
        "name in a profile do that only with gloo.",
        "",
        f"{len(skipped)} tests are skipped everywhere. {len(gpus)} of them are for GPUs or GPU backends; the others",
        "are listed at the end.",
        "",
        _row("test", *(column.replace("-", " ") for column in COLUMNS)),
        _row(*["---"] * (1 + len(COLUMNS))),
        *(
            _row(f"`{name}`", *(_cell(found[name]) for found in results.values()))
            for name in names
            if name not in skipped
        ),
        "",
        "Skipped everywhere, and why:",
        "",
        *(f"- `{name}`: {results['allfold'][name]['reason']}" for name in skipped if name not in gpus),
        "",
    ]
    return "\n".join(lines)


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _wants_gpus(reason: str) -> bool:
    return any(word in reason.lower() for word in ("gpu", "cuda", "nccl"))


def _cell(result: dict[str, Any]) -> str:
    return f"{result['outcome']}: {result['reason']}" if result["reason"] else str(result["outcome"])


# Running --------------------------------------------------------------------------------------------------------------


def read_results(folder: Path, backend: str) -> dict[str, Any]:
    path = folder / f"{backend}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result["test"]: result for result in map(json.loads, lines)}  # the last result counts


def _run_inside(options: argparse.Namespace) -> int:
    backend, folder = options.backend, options.results
    folder.mkdir(parents=True, exist_ok=True)
    known = read_results(folder, backend)
    suite = _load_suite(backend) if options.way == "fork" else importlib.import_module("suite_as_in_torch").Suite
    import torch

    names = unittest.TestLoader().getTestCaseNames(suite)
    if options.ranks > RANKS:
        names = [name for name in names if name in known and _needs_more(known[name])]
    elif not options.only:
        names = [name for name in names if known.get(name, {"outcome": "fail"})["outcome"] == "fail"]
    names = [name for name in names if not options.only or any(_means(part, name) for part in options.only)]
    suite.setUpClass()
    for number, name in enumerate(names, 1):
        start = time.monotonic()
        outcome, reason = _run_test(suite, name, folder / f"{backend}.{name}.log")
        if outcome == "fail":
            again, _ = _run_test(suite, name, folder / f"{backend}.{name}.again.log")
            outcome, reason = (
                (again, f"at the second attempt; the first: {reason}") if again == "pass" else (outcome, reason)
            )
        seconds = round(time.monotonic() - start, 1)
        facts = {"test": name, "outcome": outcome, "reason": reason, "seconds": seconds, "torch": torch.__version__}
        with (folder / f"{backend}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")
        print(f"{backend} {number}/{len(names)} {outcome} {name} {seconds} s {reason}", flush=True)
    return 0


def _needs_more(result: dict[str, Any]) -> bool:
    return bool(result["reason"] == TOO_FEW_RANKS)


def _means(part: str, name: str) -> bool:
    return part == name if part.startswith("test_") else part in name


def _load_suite(column: str) -> type[unittest.TestCase]:
    import torch.multiprocessing as multiprocessing
    from torch.testing._internal.common_distributed import DistTestCases

    import allfold.torch.bootstrap  # noqa: F401  registers the backend, and has all of it here before ranks are forked

    DistTestCases.backend_feature["plugin"].add("allfold")
    backend, hosts = COLUMNS[column]
    name = Allfold(backend) if backend == "allfold" else backend
    with mock.patch.object(os, "environ", {**os.environ, "BACKEND": name}):
        from torch.testing._internal.distributed import distributed_test as suite

    class Conformance(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, *rest: Any, **more: Any) -> None:
            if hosts > 1:
                os.environ["ALLFOLD_HOSTID"] = str(rank * hosts // int(os.environ["WORLD_SIZE"]))
            super()._run(rank, *rest, **more)

    return Conformance


def _run_test(suite: type[unittest.TestCase], name: str, log: Path) -> tuple[str, str]:
    """The outcome of one test, and the reason if it did not pass; what a failed one printed stays in the log."""
    result = unittest.TestResult()
    with _output_to(log):
        suite(name).run(result)
    for _, text in result.errors + result.failures:
        with log.open("a", encoding="utf-8") as file:
            file.write(text)
        return "fail", _one_line(next((line for line in reversed(text.splitlines()) if "Error: " in line), "no result"))
    log.unlink()
    return ("skip", _one_line(result.skipped[0][1])) if result.skipped else ("pass", "")


def _environment(backend: str, ranks: int, folder: Path) -> dict[str, str]:
    for part in ("barrier", "test_dir", "init_dir"):
        (folder / part).mkdir()
    return {
        **os.environ,
        "BACKEND": COLUMNS[backend][0],
        "WORLD_SIZE": str(ranks),
        "TEMP_DIR": str(folder),
        "INIT_METHOD": f"file://{folder}/init_dir/shared_init_file",
        "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(LIMIT_SECONDS),
    }


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Redirect everything that this process and its children print, at the level of descriptors."""
    saved = [os.dup(descriptor) for descriptor in (1, 2)]
    with path.open("wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, old in zip((1, 2), saved, strict=True):
                os.dup2(old, descriptor)
                os.close(old)


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:160]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
