"""mpi4py's own test suite, run on allfold with 1 to 5 ranks. `make conformance-mpi` writes docs/conformance-mpi.md.

    python tests/mpi4py/mpi_conformance.py                          all tests; continues where it stopped
    python tests/mpi4py/mpi_conformance.py --only cco_buf --ranks 2  the files whose names have this part, with 2 ranks
    python tests/mpi4py/mpi_conformance.py --fresh                   from the start

The suite is in mpi4py's sdist, which pip downloads. Each file runs in ranks of its own, in which `import mpi4py` is
allfold's. After each test the ranks compare how it went: if it failed on one of them, the file goes on behind it with new
ranks, so that one failure cannot spoil the next test. A test that needs a part of MPI which allfold refuses counts as
not there, and one of `DIFFERS` that fails as different.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "conformance-mpi"
TABLE = ROOT / "docs" / "conformance-mpi.md"
SIZES = (1, 2, 3, 4, 5)
CALL_SECONDS = 30  # that a call may wait
FILE_SECONDS = 900
# Files of which nothing is offered: what they test is refused with a sentence (docs/howto-mpi.md).
REFUSED = {
    "test_cco_buf_inter": "intercommunicators",
    "test_cco_obj_inter": "intercommunicators",
    "test_cco_vec_inter": "intercommunicators",
    "test_comm_inter": "intercommunicators",
    "test_dynproc": "ranks that join later",
    "test_spawn": "ranks that join later",
    "test_file": "files",
    "test_io": "files",
    "test_rma": "windows",
    "test_rma_nb": "windows",
    "test_win": "windows",
    "test_session": "sessions",
    "test_p2p_buf_part": "partitioned messages",
    "test_cffi": "MPI's C interface",
    "test_ctypes": "MPI's C interface",
    "test_mpiapi": "MPI's C interface",
    "test_mpiabi": "MPI's C interface",
    "test_doc": "mpi4py's own docstrings",
    "test_package": "mpi4py's own package",
    "test_toplevel": "mpi4py's own package",
    "test_util_dtlib": "mpi4py.util",
    "test_util_pkl5": "mpi4py.util",
    "test_util_pool": "mpi4py.util",
    "test_util_sync": "mpi4py.util",
}
# Tests that fail here, and are meant to: what they ask for is of mpi4py's own making, or of a part that is refused.
DIFFERS = {
    "TestErrhandlerComm.testCreate": "demands that there are at most 32 error handlers: here there is no limit",
    "TestOp.testCreateMany": "demands that there are at most 32 operations: here there is no limit",
    "TestObjModel.testConstants": "takes memoryview(MPI.BOTTOM): a class of Python's cannot be an integer and a buffer",
    "testCommLock": "looks into MPI._comm_lock_table, a table inside mpi4py",
    "TestMessageRMA.testMessageBad": "demands errors of messages to windows, which are refused before they are looked at",
}
_WORST = ("pass", "skip", "differs", "not there", "fail")


def version() -> str:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith("mpi4py=="))


def sdist() -> Path:
    """The folder of mpi4py's sdist, downloaded once."""
    name = f"mpi4py-{version()}"
    if not (FOLDER / name / "test").is_dir():
        FOLDER.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "mpi4py"]
        subprocess.run([*pip, "-d", str(FOLDER), f"mpi4py=={version()}"], check=True)
        with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
    return FOLDER / name


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run mpi4py's own test suite on allfold.")
    parser.add_argument("--only", nargs="*", default=[], metavar="PART", help="files whose names have this part")
    parser.add_argument("--ranks", nargs="*", type=int, default=SIZES, help="numbers of ranks")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--table", action="store_true", help="only write the page, from the results so far")
    parser.add_argument("--inside", nargs=3, metavar=("FILE", "FIRST", "RESULTS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        return run_inside(*options.inside)
    suite = sdist() / "test"
    files = sorted(path.stem for path in suite.glob("test_*.py") if path.stem not in REFUSED)
    chosen = [name for name in files if not options.only or any(part in name for part in options.only)]
    for name in chosen if not options.table else []:
        for ranks in options.ranks:
            results = FOLDER / f"{name}-{ranks}.jsonl"
            if options.fresh or options.only:
                results.unlink(missing_ok=True)
            run_file(suite / f"{name}.py", ranks, results)
            counts = {word: sum(one["outcome"] == word for one in read(results)) for word in _WORST}
            print(
                f"{name} with {ranks}: {', '.join(f'{count} {word}' for word, count in counts.items() if count)}",
                flush=True,
            )
            for one in read(results):
                if one["outcome"] == "fail":
                    print(f"    {one['test']}: {one['reason']}", flush=True)
    found = {(name, ranks): read(FOLDER / f"{name}-{ranks}.jsonl") for name in files for ranks in SIZES}
    if not options.only:
        TABLE.write_text(table(found), encoding="utf-8")
        print(f"{TABLE.relative_to(ROOT)} written")
    return int(any(one["outcome"] == "fail" for (name, _), tests in found.items() if name in chosen for one in tests))


def read(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [one for one in map(json.loads, lines) if one["test"] != "end"]


def run_file(file: Path, ranks: int, results: Path) -> None:
    """Run the tests of a file that have no result yet."""
    command = [sys.executable, "-m", "allfold", "run", "-n", str(ranks), __file__, "--inside", str(file)]
    environment = {**os.environ, "ALLFOLD_MPI_TIMEOUT": str(CALL_SECONDS), "PYTHONDONTWRITEBYTECODE": "1"}
    while not (results.exists() and '"end"' in results.read_text(encoding="utf-8")):
        before = len(read(results))
        with tempfile.TemporaryFile("w+") as log:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [*command, str(before), str(results)],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    timeout=FILE_SECONDS,
                    check=False,
                )
            log.seek(0)
            text = log.read()
        if len(read(results)) == before and '"end"' not in (results.read_text() if results.exists() else ""):
            # The ranks ended in the middle of a test.
            last = next(
                (line for line in reversed(text.splitlines()) if line.startswith("test: ")), f"test: {file.stem}"
            )
            reason = next(
                (line for line in reversed(text.splitlines()) if line.startswith("allfold run: ")), text[-200:]
            )
            write(results, last.removeprefix("test: "), "fail", reason)
            if last == f"test: {file.stem}":
                write(results, "end", "end", "")


def write(results: Path, test: str, outcome: str, reason: str) -> None:
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": test, "outcome": outcome, "reason": reason}) + "\n")


# In a rank ------------------------------------------------------------------------------------------------------------


def run_inside(file: str, first: str, results: str) -> int:
    import unittest

    from allfold.mpi4py.__main__ import stand_in

    stand_in()
    sys.path.insert(0, str(Path(file).parent))
    from mpi4py import MPI

    judges = MPI.COMM_WORLD.Dup()
    module = __import__(Path(file).stem)
    tests = list(_flat(unittest.defaultTestLoader.loadTestsFromModule(module)))
    for test in tests[int(first) :]:
        name = test.id().partition(".")[2]
        if judges.rank == 0:
            print(f"test: {name}", flush=True)
        own = _outcome(test, module)
        every = judges.allgather(own)
        worst, reason = max(every, key=lambda one: _WORST.index(one[0]))
        if judges.rank == 0:
            write(Path(results), name, worst, reason)
        if worst in ("fail", "differs") and judges.size > 1:
            return 0
    if judges.rank == 0:
        write(Path(results), "end", "end", "")
    return 0


def _flat(suite: Any) -> Any:
    for one in suite:
        if hasattr(one, "__iter__"):
            yield from _flat(one)
        else:
            yield one


def _outcome(test: Any, module: Any) -> tuple[str, str]:
    import unittest

    class Result(unittest.TestResult):
        def addError(self, test: Any, err: Any) -> None:
            super().addError(test, err)
            found.append(err)

        def addFailure(self, test: Any, err: Any) -> None:
            super().addFailure(test, err)
            found.append(err)

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            super().addSubTest(test, subtest, err)
            if err is not None:
                found.append(err)

    found: list[Any] = []
    result = Result()
    unittest.TestSuite([test]).run(result)
    if found:
        refused = [reason for err in found if (reason := _refusal(err[1])) is not None]
        if len(refused) == len(found):
            return "not there", refused[0]
        name = test.id().partition(".")[2]
        for one, why in DIFFERS.items():
            if name.endswith(one):
                return "differs", why
        kind, error, trace = found[0]
        last = trace
        while last.tb_next is not None:
            last = last.tb_next
        place = f"{Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}"
        return "fail", f"{kind.__name__}: {str(error).splitlines()[0] if str(error) else ''} ({place})"
    if result.skipped:
        return "skip", result.skipped[0][1]
    return "pass", ""


def _refusal(error: BaseException | None) -> str | None:
    """The sentence with which allfold refused a part of MPI, if that is what went wrong."""
    while error is not None:
        if type(error).__name__ == "NotOffered":
            return str(error)
        error = error.__cause__ or error.__context__
    return None


# The page -------------------------------------------------------------------------------------------------------------


def table(found: dict[tuple[str, int], list[dict[str, Any]]]) -> str:
    names = sorted({name for name, _ in found})
    sizes = [ranks for ranks in SIZES if any(found[name, ranks] for name in names)]
    totals = {ranks: Counter(one["outcome"] for name in names for one in found[name, ranks]) for ranks in sizes}
    every = [(name, ranks, one) for (name, ranks), tests in found.items() for one in tests]
    refused = sorted({(one["test"], one["reason"]) for _, _, one in every if one["outcome"] == "not there"})
    differing = sorted(
        {(f"{one['test']}` of `{name}", one["reason"]) for name, _, one in every if one["outcome"] == "differs"}
    )
    failed = [one for one in every if one[2]["outcome"] == "fail"]
    lines = [
        "# Conformance with mpi4py",
        "",
        "mpi4py ships a test suite in its sdist. This page shows its results on [allfold's MPI](howto-mpi.md).",
        "`make conformance-mpi` downloads the sdist, runs the suite and writes this page. [Documentation index](index.md)",
        "",
        f"mpi4py {version()}, {len(names)} files of the suite. *skip*: the suite itself skips the test here. *not there*: the",
        "test needs a part of MPI that allfold refuses. *differs*: the test asks for more than MPI does (below).",
        "",
        _row("", *(f"{ranks} rank{'s' if ranks > 1 else ''}" for ranks in sizes)),
        _row(*["---"] * (1 + len(sizes))),
        *(
            _row(word, *(totals[ranks][word] for ranks in sizes))
            for word in ("pass", "fail", "skip", "not there", "differs")
        ),
        "",
        f"Failures: {'none.' if not failed else ''}",
        "",
        *(f"- `{one['test']}` of `{name}` with {ranks}: {one['reason']}" for name, ranks, one in failed),
        *([""] if failed else []),
        "Passed, by file:",
        "",
        _row("file", *(f"{ranks} rank{'s' if ranks > 1 else ''}" for ranks in sizes)),
        _row(*["---"] * (1 + len(sizes))),
        *(_row(f"`{name}`", *(_cell(found[name, ranks]) for ranks in sizes)) for name in names),
        "",
        "Differs:",
        "",
        *(f"- `{test}`: {reason}" for test, reason in differing),
        "",
        "Not there:",
        "",
        *(f"- `{test}`: {reason}" for test, reason in refused),
        "",
        "Files that were not run, because they test nothing but a part of MPI or of mpi4py that allfold does not have:",
        "",
        *(f"- `{name}`: {what}" for name, what in sorted(REFUSED.items())),
        "",
    ]
    return "\n".join(lines)


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _cell(tests: list[dict[str, Any]]) -> str:
    runs = [one for one in tests if one["outcome"] != "skip"]
    return (
        f"{sum(one['outcome'] == 'pass' for one in runs)} of {len(runs)}" if runs else "skipped" if tests else "not run"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
