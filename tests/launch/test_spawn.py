"""Functions as ranks: what they are given, what they return, and what they print."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import PATIENCE, everywhere, with_allfold

import allfold
from allfold.errors import RankFailed, UsageError
from allfold.launch.environment import Place
from allfold.launch.spawn import launch, run_everywhere


def test_results_come_by_rank_from_processes_of_their_own() -> None:
    offset = 100
    results = everywhere(lambda place, factor: (offset + factor * place.rank, place.size, os.getpid()), 5, 3)
    assert [result[:2] for result in results] == [(100 + 3 * rank, 5) for rank in range(5)]
    assert len({process for *_, process in results} | {os.getpid()}) == 6


def test_large_results_and_arguments_travel() -> None:
    argument = bytes(5_000_000)
    assert everywhere(lambda place, given: given + b"x", 2, argument) == [argument + b"x"] * 2


def test_the_environment_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("RANK", "17")
    first, second = everywhere(lambda place: dict(os.environ), 2)
    for rank, environ in enumerate((first, second)):
        for name in ("ALLFOLD_RANK", "RANK", "LOCAL_RANK"):
            assert environ[name] == str(rank)
        for name in ("ALLFOLD_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            assert environ[name] == "2"
        assert environ["MASTER_ADDR"] == "127.0.0.1"
        assert environ["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
        assert "TORCHELASTIC_USE_AGENT_STORE" not in environ
    assert first["ALLFOLD_KEY"] == second["ALLFOLD_KEY"]
    assert len(first["ALLFOLD_KEY"]) >= 32
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert everywhere(lambda place: os.environ["OMP_NUM_THREADS"], 1) == ["7"]


def test_what_a_script_defines_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from contextlib import nullcontext\n"
        "from dataclasses import dataclass\n"
        "from allfold.launch.spawn import run_everywhere\n"
        "@dataclass\n"
        "class Answer:\n"
        "    rank: int\n"
        "def helper(rank): return Answer(rank)\n"
        "def work(place): return helper(place.rank)\n"
        "results = run_everywhere(nullcontext, work, 2)\n"
        "assert results == [Answer(0), Answer(1)], results\n"
        "print('once')\n"
    )
    finished = subprocess.run([sys.executable, script], capture_output=True, text=True, env=with_allfold(), check=False)
    assert (finished.stdout, finished.stderr) == ("once\n", "")


SCRIPT_WITH_CLASSES = """\
import argparse, enum, multiprocessing, pickle, sys
import allfold

class Kind(enum.Enum):
    ONE = 1

class Answer:
    def __init__(self, number): self.number = number

def twice(answer): return Answer(2 * answer.number)

def work(comm, given):
    assert sys.modules["__main__"].__file__ == __file__
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, required=True)
    number = parser.parse_args().number
    assert pickle.loads(pickle.dumps(Kind.ONE)) is Kind.ONE and pickle.loads(pickle.dumps(twice)) is twice
    assert isinstance(pickle.loads(pickle.dumps(given)), Answer)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.map(twice, [Answer(number)])[0]

print([one.number for one in allfold.spawn(work, 2, args=(Answer(1),))])
"""


def test_ranks_have_the_arguments_and_the_classes_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT_WITH_CLASSES)
    command = [sys.executable, script, "--number", "21"]
    finished = subprocess.run(command, capture_output=True, text=True, env=with_allfold(), check=False)
    assert (finished.stdout, finished.stderr) == ("[42, 42]\n", "")


def test_a_script_that_multiprocessing_imports_starts_no_ranks(tmp_path: Path) -> None:
    """A script without a guard would otherwise start ranks that start processes that start ranks."""
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, allfold\n"
        "def work(comm):\n"
        "    process = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    process.start()\n"
        "    process.join()\n"
        "    return process.exitcode\n"
        "print(allfold.spawn(work, 1))\n"
    )
    finished = subprocess.run([sys.executable, script], capture_output=True, text=True, env=with_allfold(), check=False)
    assert finished.stdout == "[1]\n" and "put what starts ranks under if __name__ == '__main__':" in finished.stderr


async def asynchronous(place: Place) -> None: ...


class Asynchronous:
    async def __call__(self, place: Place) -> None: ...


def yields(place: Place) -> Iterator[int]:
    yield place.rank


@pytest.mark.parametrize(
    ("work", "options", "sentence"),
    [
        (print, {"args": 5}, r"args must be a tuple of the arguments after the communicator, as in args=\(5,\)"),
        (print, {"args": "ab"}, r"as in args=\('ab',\)"),
        (asynchronous, {}, "asynchronous is async"),
        (yields, {}, "yields is a generator"),
        (partial(yields), {}, "yields is a generator"),
        (print, {"hosts": 2.0}, r"hosts: expected a number of hosts, or the number of ranks on each, not 2\.0"),
        (Asynchronous(), {}, "__call__ is async"),
        (print, {"hosts": np.array([1, 2])}, r"hosts: 1\+2 is 3 ranks, and the run has 2"),
        (print, {"hosts": None.__class__}, "hosts: expected a number of hosts"),
    ],
)
def test_work_that_cannot_be_meant(work: Any, options: Any, sentence: str) -> None:
    for start in (allfold.spawn, allfold.start):
        with pytest.raises(UsageError, match=sentence):
            start(work, 2, **options)


@pytest.mark.parametrize(
    "options", [{"ranks": 0}, {"timeout": -1}, {"args": 5}, {"hosts": 2.0}, {"engine": "no"}, {"ranks_are": "no"}]
)
def test_pytest_shows_none_of_our_lines(options: Any) -> None:
    with pytest.raises(UsageError) as caught:
        allfold.spawn(print, **{"ranks": 2, **options})
    assert {Path(line.path) for line in caught.traceback.filter(caught)} == {Path(__file__)}


def test_a_coroutine_that_comes_back_is_closed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RankFailed, match="returned a coroutine, whose body never ran"):
        everywhere(lambda place: asynchronous(place), 1)
    assert "never awaited" not in capfd.readouterr().err


def test_what_ranks_write_goes_where_this_process_writes(capsys: pytest.CaptureFixture[str]) -> None:
    def work(place: Place) -> None:
        os.write(1, f"output of {place.rank}\n".encode())
        print("errors", file=sys.stderr, end="")

    everywhere(work, 2)
    output, errors = capsys.readouterr()
    assert sorted(output.splitlines()) == ["output of 0", "output of 1"] and errors == "errorserrors"
    redirected = io.StringIO()
    with redirect_stdout(redirected):
        everywhere(lambda place: print("é"), 1)
    assert redirected.getvalue() == "é\n" and capsys.readouterr().out == ""


def test_pytest_shows_the_test_and_not_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import allfold\ndef test_it():\n    allfold.spawn(lambda comm: 1 / 0, 1)  # the line\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", tmp_path, tmp_path]
    finished = subprocess.run(command, capture_output=True, text=True, env=with_allfold(), check=False)
    assert "# the line" in finished.stdout and "ZeroDivisionError" in finished.stdout
    assert "_native.require_engine" not in finished.stdout and "supervisor.watch" not in finished.stdout


def test_spawn_works_beside_other_threads_and_from_them() -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.extend(everywhere(lambda place: place.rank, 2)))
    thread.start()
    thread.join(PATIENCE)
    assert results == [0, 1]


def test_wrong_usage_is_refused() -> None:
    for ranks in (0, -1, 2.0, True, "2"):
        with pytest.raises(UsageError, match="ranks"):
            everywhere(lambda place: None, ranks)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be pickled"):
        everywhere(lambda place, lock: None, 1, threading.Lock())
    with pytest.raises(UsageError, match="no-such-command"):
        launch(["no-such-command"], 1)


def test_work_that_a_rank_cannot_unpickle_is_named() -> None:
    class Elsewhere:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.listdir, ("/no/such/folder",)

    with pytest.raises(RankFailed, match=r"rank 0 cannot unpickle its work, .* FileNotFoundError: .*/no/such/folder"):
        everywhere(lambda place, what: None, 1, Elsewhere())


def test_what_is_entered_is_left_after_the_result_was_pickled_and_not_after_an_error(tmp_path: Path) -> None:
    class Reluctant:
        def __reduce__(self) -> tuple[type[str], tuple[str]]:
            (tmp_path / "pickled").touch()
            return str, ("result",)

    @contextmanager
    def enter(place: Place) -> Iterator[Place]:
        yield place
        (tmp_path / ("left in time" if (tmp_path / "pickled").exists() else "left too early")).touch()

    def work(place: Place, fails: bool) -> Reluctant:
        if fails:
            raise ValueError("broken")
        return Reluctant()

    with pytest.raises(RankFailed, match="broken"):
        run_everywhere(enter, work, 1, args=(True,))
    assert not list(tmp_path.iterdir())
    results: list[object] = list(run_everywhere(enter, work, 1, args=(False,)))
    assert results == ["result"]
    assert (tmp_path / "left in time").exists()


def test_output_with_prefixes(capfd: pytest.CaptureFixture[str]) -> None:
    def work(place: Place) -> None:
        sys.stdout.write(f"one {place.rank}\ntwo ")
        sys.stdout.write(f"{place.rank}\n")
        sys.stderr.write("error\nno newline at the end")

    everywhere(work, 2, prefix_output=True)
    output, errors = capfd.readouterr()
    assert sorted(output.splitlines()) == ["[0] one 0", "[0] two 0", "[1] one 1", "[1] two 1"]
    expected = [f"[{rank}] {line}" for rank in range(2) for line in ("error", "no newline at the end")]
    assert sorted(errors.splitlines()) == expected


def test_spawn_gives_every_rank_its_communicator() -> None:
    pytest.importorskip("allfold.communicator.communicator")
    from allfold.launch.spawn import spawn

    assert spawn(lambda comm, more: (comm.rank, comm.size, more), 3, args=("x",)) == [
        (rank, 3, "x") for rank in range(3)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((lambda comm: None), 1, {"timeout": -1}), "spawn: timeout must be a non-negative number of seconds, not -1"),
        ((3, 2, {}), "spawn: expected a function that every rank calls, got 3"),
        (((lambda comm: None), 100_000, {}), "100000 ranks are too many for one machine; the maximum is 1024"),
    ],
)
def test_what_cannot_be_spawned_is_refused_before_anything_starts(arguments: Any, message: str) -> None:
    work, ranks, options = arguments
    with pytest.raises(UsageError, match=message):
        allfold.spawn(work, ranks, **options)


@pytest.mark.parametrize("streams", ["<&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_streams_may_be_closed(streams: str, tmp_path: Path) -> None:
    work = "import sys, allfold as af; found = af.spawn(lambda comm: comm.all_reduce(1), 2, prefix_output={})\n"
    said = f"open({str(tmp_path / 'said')!r}, 'a').write(str(found))\n"
    script = tmp_path / "script.py"
    script.write_text("".join(work.format(prefix) + said for prefix in (False, True)))
    command = f'exec "$0" "$1" {streams}'
    done = subprocess.run(["sh", "-c", command, sys.executable, script], env=with_allfold(), check=False)
    assert done.returncode == 0 and (tmp_path / "said").read_text() == "[2, 2][2, 2]"


def test_too_few_open_files_for_a_rank_are_named() -> None:
    script = "import allfold as af; af.spawn(lambda comm: comm.barrier(), 16)"
    command = ["sh", "-c", 'ulimit -n 32; exec "$0" -c "$1"', sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, env=with_allfold(), check=False)
    assert done.returncode == 1
    assert "16 ranks need more open files than this process may have (32, `ulimit -n`)" in done.stderr.splitlines()[-1]
    assert "During handling" not in done.stderr and "OSError" not in done.stderr


def test_too_few_open_files_are_named() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(2)  # the numbers of files are limited, and open ones may lie far above the first that is free
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 6, hard))
    try:
        for start in (lambda: everywhere(lambda place: None, 8), lambda: launch([sys.executable, "-c", "pass"], 8)):
            with pytest.raises(
                UsageError, match=r"8 ranks need more open files than this process may have \(\d+, `ulimit -n`\)"
            ):
                start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert everywhere(lambda place: place.rank, 2) == [0, 1]
