"""Starting ranks: what they are given, what they return, and that none outlives a failure."""

from __future__ import annotations

import io
import os
import pty
import resource
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from launchers import MPICH, OPEN_MPI, SLURM, TORCHRUN

import allfold
from allfold.errors import CollectiveTimeout, RankFailed, RankLost, UsageError
from allfold.launch.environment import Place
from allfold.launch.spawn import launch, run_everywhere
from allfold.launch.supervise import Supervisor

PATIENCE = 30.0  # seconds after which something that should happen at once is taken not to happen

# Functions ------------------------------------------------------------------------------------------------------------


def everywhere(work: Callable[..., Any], ranks: int, *args: object, **options: Any) -> list[Any]:
    """Like spawn, but with the bare place instead of a communicator."""
    return run_everywhere(nullcontext, work, ranks, args=args, **options)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def wait_for_end_of(processes: list[int], patience: float = PATIENCE) -> None:
    for process in processes:
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        try:
            assert select.select([descriptor], [], [], patience)[0], f"process {process} is still there"
        finally:
            os.close(descriptor)


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    # Fewer is fine: what an earlier test left to the garbage collector may go at any time.
    assert set(os.listdir("/proc/self/fd")) <= before


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


def yields(place: Place) -> Iterator[int]:
    yield place.rank


@pytest.mark.parametrize(
    ("work", "options", "sentence"),
    [
        (print, {"args": 5}, r"args is the tuple of what follows the communicator, as in args=\(5,\)"),
        (print, {"args": "ab"}, r"as in args=\('ab',\)"),
        (asynchronous, {}, "asynchronous is async"),
        (yields, {}, "yields is a generator"),
        (partial(yields), {}, "yields is a generator"),
        (print, {"hosts": 2.0}, r"hosts: expected a number of hosts, or the number of ranks on each, not 2\.0"),
        (print, {"hosts": None.__class__}, "hosts: expected a number of hosts"),
    ],
)
def test_work_that_cannot_be_meant(work: Any, options: Any, sentence: str) -> None:
    for start in (allfold.spawn, allfold.start):
        with pytest.raises(UsageError, match=sentence):
            start(work, 2, **options)


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


def fail_on_rank_one(place: Place, how: str) -> object:
    if place.rank != 1:
        return place.rank
    if how == "raise":
        raise LookupError("no such luck")
    if how == "sys.exit":
        sys.exit(4)
    if how == "sys.exit 0":
        sys.exit()
    if how == "sys.exit text":
        sys.exit("a last word")
    if how == "os._exit":
        os._exit(3)
    if how == "os._exit 0":
        os._exit(0)
    if how == "generator":
        return (number for number in range(3))
    if how == "unpicklable":
        return threading.Lock()
    os.kill(os.getpid(), signal.Signals[how])
    return None


@pytest.mark.parametrize(
    ("how", "sentence", "in_traceback", "exit_code"),
    [
        ("raise", "raised LookupError", "LookupError: no such luck", 1),
        ("sys.exit", "exited with status 4", "SystemExit: 4", 4),
        ("sys.exit 0", "exited with status 0", "SystemExit", 0),
        ("sys.exit text", "exited with status 1", "SystemExit: a last word", 1),
        ("os._exit", "exited with status 3", "", 3),
        ("os._exit 0", "exited with status 0 before it returned a result", "", 0),
        ("generator", "raised UsageError", "rank 1 returned a generator, whose body never ran", 1),
        ("unpicklable", "raised UsageError", "rank 1 returned a lock that cannot be pickled", 1),
        ("SIGKILL", "was killed by SIGKILL", "", -9),
        ("SIGTERM", "was killed by SIGTERM", "", -15),
    ],
)
def test_a_rank_that_fails_is_named(how: str, sentence: str, in_traceback: str, exit_code: int) -> None:
    with pytest.raises(RankFailed, match=r"^rank 1 \(process \d+\) ") as caught:
        everywhere(fail_on_rank_one, 3, how)
    message, failure = str(caught.value), caught.value
    assert message.splitlines()[0].partition(") ")[2] == sentence
    assert (failure.rank, failure.exit_code) == (1, exit_code)
    assert in_traceback in failure.traceback
    assert bool(failure.traceback) == bool(in_traceback)
    assert message.count(failure.traceback.rstrip() or sentence) == 1
    if how == "raise":
        assert "in fail_on_rank_one" in failure.traceback
        assert "worker.py" not in failure.traceback


def fail_one_after_the_other(place: Place, folder: str) -> None:
    """Rank 2 fails first, then rank 1, then rank 3; rank 0 only because it has lost one."""
    before = {1: 2, 3: 1, 0: 3}.get(place.rank)
    if before is not None:
        mark = Path(folder) / str(before)
        wait_for(mark.exists)
        wait_for_end_of([int(mark.read_text())])
    (Path(folder) / "new").write_text(str(os.getpid()))
    (Path(folder) / "new").rename(Path(folder) / str(place.rank))
    if place.rank == 3:
        os._exit(7)
    raise RankLost("rank 2 was lost") if place.rank == 0 else ValueError(place.rank)


def test_of_several_ranks_that_fail_all_are_named(tmp_path: Path) -> None:
    with pytest.raises(RankFailed) as caught:
        everywhere(fail_one_after_the_other, 4, str(tmp_path), survive=True)
    assert (caught.value.rank, caught.value.ranks) == (2, [2, 1, 3, 0])
    said = str(caught.value).splitlines()[0].partition(") ")[2]
    assert said == (
        "raised ValueError; then rank 1 raised ValueError, rank 3 exited with status 7, rank 0 raised RankLost"
    )
    _, _, errors = allfold_run("-n", 2, "--survive", "--", "sh", "-c", 'test "$RANK" = 1 && exit 7; exit 8')
    assert errors.count(b"exited with status") == 2 and b"; then rank " in errors


def test_the_cause_goes_before_what_follows_from_it(tmp_path: Path) -> None:
    def work(place: Place) -> None:
        mark = tmp_path / "lost"
        if place.rank == 0:
            wait_for(mark.exists)
            raise ValueError("the cause")
        mark.touch()
        try:
            raise RankLost("rank 0 was lost")
        except RankLost as error:
            raise RuntimeError("it follows") from error

    with pytest.raises(RankFailed, match="the cause") as caught:
        everywhere(work, 2)
    assert caught.value.rank == 0


def test_of_several_causes_the_first_in_time_wins_and_others_may_finish(tmp_path: Path) -> None:
    def work(place: Place) -> None:
        mark = tmp_path / "process of rank 1"
        if place.rank == 1:
            (tmp_path / "new").write_text(str(os.getpid()))
            (tmp_path / "new").rename(mark)
            raise ValueError("the first")
        wait_for(mark.exists)
        wait_for_end_of([int(mark.read_text())])
        (tmp_path / "rank 0 had its time").touch()
        raise ValueError("the second")

    with pytest.raises(RankFailed, match="the first"):
        everywhere(work, 2)
    assert (tmp_path / "rank 0 had its time").exists()


def test_ranks_that_will_not_end_are_ended(tmp_path: Path) -> None:
    def work(place: Place) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stubborn = subprocess.Popen(["sleep", "1000"])  # processes that a rank starts end with it
        (tmp_path / f"{place.rank}.new").write_text(f"{os.getpid()} {stubborn.pid}")
        (tmp_path / f"{place.rank}.new").rename(tmp_path / f"{place.rank}.ready")
        if place.rank == 0:
            wait_for(lambda: len(list(tmp_path.glob("*.ready"))) == 3)
            raise ValueError("enough")
        signal.pause()

    start = time.monotonic()
    with pytest.raises(RankFailed, match="enough"):
        everywhere(work, 3)
    assert time.monotonic() - start < PATIENCE
    wait_for_end_of([int(word) for file in tmp_path.glob("*.ready") for word in file.read_text().split()], 5)


def test_the_timeout_names_who_had_not_finished() -> None:
    def work(place: Place) -> None:
        if place.rank > 0:
            signal.pause()

    # Long enough for rank 0 to finish on a busy machine: the interpreters take a tenth of this to start.
    with pytest.raises(CollectiveTimeout, match=r"^spawn: ranks 1 and 2 of 3 had not finished after 3 s"):
        everywhere(work, 3, timeout=3)


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


# Commands -------------------------------------------------------------------------------------------------------------

COMMAND_LINE = "import sys; from allfold.cli import main; sys.exit(main())"


def with_allfold() -> dict[str, str]:
    source = str(Path(allfold.__file__).parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])}


def start(
    *arguments: object, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.PIPE, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", COMMAND_LINE, "run", *map(str, arguments)]
    return subprocess.Popen(command, env=with_allfold(), stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, cwd=cwd)


def allfold_run(
    *arguments: object, stdin: int = subprocess.DEVNULL, cwd: Path | None = None
) -> tuple[int, bytes, bytes]:
    with start(*arguments, stdin=stdin, cwd=cwd) as process:
        output, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, output, errors


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


def test_a_script_a_module_and_a_command(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    # One write per line: without prefixes, nothing keeps partial lines of different ranks apart.
    script.write_text(
        "import os, sys\nsys.stdout.write(f\"{os.environ['RANK']} {os.environ['WORLD_SIZE']} {sys.argv[1:]}\\n\")\n"
    )
    status, output, _ = allfold_run("-n", 2, script, "-n", "9", "--prefix", "--", "x")
    assert status == 0
    assert sorted(output.decode().splitlines()) == [f"{rank} 2 ['-n', '9', '--prefix', '--', 'x']" for rank in (0, 1)]
    status, output, _ = allfold_run("-n", 2, "--prefix", "-m", "script", "-n", "9", cwd=tmp_path)
    assert status == 0
    assert sorted(output.decode().splitlines()) == [f"[{rank}] {rank} 2 ['-n', '9']" for rank in (0, 1)]
    status, output, _ = allfold_run("-n", 1, "--", "sh", "-c", 'echo "$RANK $*"', "sh", "-n", "--timeout")
    assert (status, output) == (0, b"0 -n --timeout\n")


@pytest.mark.parametrize(
    ("arguments", "expected", "sentence"),
    [
        (["-n", 1, "--", "true"], 0, None),
        (["-n", 3, "--", "sh", "-c", 'test "$RANK" != 1 || exit 7'], 7, r"rank 1 (process {}) exited with status 7"),
        (
            ["-n", 2, "--", "sh", "-c", "test $RANK = 0 || kill -9 $$"],
            137,
            r"rank 1 (process {}) was killed by SIGKILL",
        ),
        (["-n", 2, "--", "sh", "-c", "kill -SEGV $$"], 139, r"rank {} (process {}) was killed by SIGSEGV"),
        (["-n", 0, "--", "true"], 2, "expected a whole number of ranks, at least 1; got 0"),
        (["-n", 1025, "--", "true"], 2, "1025 ranks on one machine are too many; the most is 1024"),
        (["-n", 2], 2, "expected a script, -m and a module, or -- and a command"),
        (["-n", 2, "--"], 2, "expected a command after --"),
        (["-n", 2, "-m"], 2, "-m: expected the name of a module after it"),
        (["-n", 2, "no-such-script.py"], 2, "there is no script 'no-such-script.py'"),
        (["-n", 0, "no-such-script.py"], 2, "expected a whole number of ranks, at least 1; got 0"),
        (["-n", 2, "--", "no-such-command"], 2, "there is no command 'no-such-command' that can be run"),
        (["-n", 2, "--timeout", "-1", "--", "true"], 2, "--timeout -1: expected a number of seconds above 0"),
        (["-n", 2, "--timeout", "0.2", "--", "sleep", "1000"], 124, "ranks 0 and 1 of 2 had not finished after 0.2 s"),
    ],
)
def test_exit_statuses_and_the_last_line(arguments: list[object], expected: int, sentence: str | None) -> None:
    status, output, errors = allfold_run(*arguments)
    assert (status, output) == (expected, b"")
    lines = [line for line in errors.decode().splitlines() if line.startswith("allfold run: ")]
    if sentence is None:
        assert errors == b""
    else:
        assert len(lines) == 1
        position = 0
        for piece in sentence.split("{}"):
            position = lines[0].index(piece, position)


def test_a_script_that_starts_processes_itself_is_told_to_start_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(1)\nimport torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)\n")
    status, _, errors = allfold_run("-n", 2, script)
    assert status == 1
    assert f"line 4 of {script} starts processes of its own" in errors.decode()
    assert errors.decode().rstrip().endswith(f"start it once: python {script}")
    script.write_text("import sys\nsys.exit(1)\n")
    assert "of its own" not in allfold_run("-n", 2, script)[2].decode()


def test_a_breakpoint_in_one_rank_has_the_terminal(tmp_path: Path) -> None:
    """Rank 0 waits in its collective for longer than its timeout, while rank 1 is at its prompt."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, allfold\n"
        "comm = allfold.init(timeout=0.2)\n"
        "breakpoint()\n"
        "comm.barrier()\n"
        "os.write(1, b'done %d\\n' % comm.rank)\n"
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "allfold", "run", "-n", "2", "--prefix", "--pdb", "1", script]
    running = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=with_allfold())
    os.close(theirs)
    seen = b""

    def see(what: bytes) -> None:
        nonlocal seen
        while what not in seen:
            assert select.select([ours], [], [], PATIENCE)[0], seen
            seen += os.read(ours, 4096)
        seen = seen.partition(what)[2]

    try:
        see(b"(Pdb) ")
        os.write(ours, b"import time; time.sleep(0.6); print('rank', comm.rank)\n")
        see(b"\nrank 1")
        see(b"(Pdb) ")
        os.write(ours, b"continue\n")
        see(b"done")
        see(b"done")
        assert running.wait(PATIENCE) == 0
    finally:
        running.kill()
        running.wait()
        os.close(ours)


def test_lines_never_mix_and_junk_passes_through(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "for line in range(200):\n"
        "    os.write(1, b'begin ')\n"
        "    os.write(1, b'end %d\\n' % line)\n"
        "os.write(1, b'\\xff\\x00\\x1b junk\\n\\n')\n"
        "os.write(1, b'x' * 300_000)\n"
    )
    status, output, errors = allfold_run("-n", 3, "--prefix", script)
    assert (status, errors) == (0, b"")
    for rank in range(3):
        prefix = b"[%d] " % rank
        lines = [line.removeprefix(prefix) for line in output.splitlines() if line.startswith(prefix)]
        expected = [b"begin end %d" % line for line in range(200)]
        assert lines == [*expected, b"\xff\x00\x1b junk", b"", b"x" * 300_000]
    assert output.count(b"\n") == 3 * 203


def test_prefixes_are_coloured_on_a_terminal() -> None:
    leader, terminal = os.openpty()
    with start("-n", 1, "--prefix", "--", "echo", "hello", stdout=terminal) as process:
        os.close(terminal)
        process.communicate(timeout=PATIENCE)
    assert b"\x1b[36m[0] \x1b[0mhello" in os.read(leader, 1000)
    os.close(leader)


def test_input_goes_to_the_first_rank() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a line\n")
    os.close(writing)
    status, output, _ = allfold_run("-n", 2, "--prefix", "--", "cat", stdin=reading)
    os.close(reading)
    assert (status, output) == (0, b"[0] a line\n")


def test_a_reader_that_goes_away_ends_the_run() -> None:
    with start("-n", 2, "--prefix", "--", "yes") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() in (b"[0] y\n", b"[1] y\n")
        process.stdout.close()
        assert process.wait(PATIENCE) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


# A rank of these ignores a polite request, says who it is, and stays. Its own child stays as well.
STUBBORN = "trap '' TERM INT HUP; sleep 1000 & echo $$ $!; wait; wait"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_the_launcher_ends_everything(number: signal.Signals, status: int) -> None:
    with start("-n", 3, "--prefix", "--", "sh", "-c", STUBBORN) as launcher:
        assert launcher.stdout is not None
        ranks = [int(word) for _ in range(3) for word in launcher.stdout.readline().split()[1:]]
        launcher.send_signal(number)
        assert launcher.wait(PATIENCE) == status
    assert len(ranks) == 6
    wait_for_end_of(ranks, 5)


def test_the_launcher_never_sleeps_for_good() -> None:
    # A signal may come just before the kernel puts the launcher to sleep; then only a timeout wakes it.
    supervisor = Supervisor(prefix_output=False)
    for deadline in (None, time.monotonic() + 1000):
        assert 0 < supervisor._patience(deadline) <= 1
    supervisor.selector.close()


def test_a_second_signal_does_not_wait_for_anybody() -> None:
    with start("-n", 2, "--prefix", "--", "sh", "-c", STUBBORN) as launcher:
        assert launcher.stdout is not None
        ranks = [int(word) for _ in range(2) for word in launcher.stdout.readline().split()[1:]]
        launcher.send_signal(signal.SIGINT)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(PATIENCE) in (130, 143)
    wait_for_end_of(ranks, 5)


SPAWNING = """
import os, signal, sys
from contextlib import nullcontext
from allfold.launch.spawn import run_everywhere
def work(place):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b"%d\\n" % os.getpid())
    signal.pause()
run_everywhere(nullcontext, work, 3)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("kind", ["spawn", "run"])
def test_nothing_outlives_the_launcher(kind: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", SPAWNING]
    if kind == "run":
        rank = (
            "import os, signal; signal.signal(15, signal.SIG_IGN); os.write(1, b'%d\\n' % os.getpid()); signal.pause()"
        )
        command = [sys.executable, "-c", COMMAND_LINE, "run", "-n", "3", "--", sys.executable, "-c", rank]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=with_allfold()
    ) as launcher:
        assert launcher.stdout is not None
        ranks = [int(launcher.stdout.readline()) for _ in range(3)]
        launcher.send_signal(number)
        launcher.wait(PATIENCE)
    wait_for_end_of(ranks, 5)
    if kind == "spawn" and number == signal.SIGINT:
        assert launcher.returncode == -signal.SIGINT  # the KeyboardInterrupt came through


def test_executables_get_signals_as_they_know_them() -> None:
    # Python ignores SIGPIPE; a command that inherited that would write into a closed pipe forever.
    status, output, _ = allfold_run("-n", 1, "--", "sh", "-c", "grep SigIgn /proc/self/status")
    assert status == 0
    assert int(output.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


def test_the_help_holds_an_example() -> None:
    status, output, _ = allfold_run("--help")
    assert status == 0
    assert b"$ allfold run -n 4 --prefix sum.py" in output


# The whole way --------------------------------------------------------------------------------------------------------


def test_spawn_gives_every_rank_its_communicator() -> None:
    pytest.importorskip("allfold.communicator.communicator")
    from allfold.launch.spawn import spawn

    assert spawn(lambda comm, more: (comm.rank, comm.size, more), 3, args=("x",)) == [
        (rank, 3, "x") for rank in range(3)
    ]


# Prints who did the work, whether in this process, and that the communicator is unusable afterwards.
STARTING = """
import os, sys
import allfold as af

def work(comm, word):
    if word == "raise" and comm.rank == 1:
        raise LookupError("no such luck")
    comm.barrier()
    work.held = comm
    return f"{comm.rank} of {comm.size}: {word} in {os.getpid()}"

result = af.start(work, 3, args=(sys.argv[1],))
who, _, process = result.rpartition(" ")
where = "here" if process == str(os.getpid()) else "elsewhere"
if where == "here":
    try:
        work.held.barrier()
    except af.UsageError as error:
        where += ", " + str(error)
sys.stdout.write(f"{who} {where}\\n")
"""


@pytest.fixture
def starting(tmp_path: Path) -> Path:
    script = tmp_path / "starting.py"
    script.write_text(STARTING)
    return script


def without_launcher() -> dict[str, str]:
    prefixes = ("ALLFOLD_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_")
    others = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {name: text for name, text in with_allfold().items() if not name.startswith(prefixes) and name not in others}


def as_rank(rank: int, size: int) -> str:
    return f"{rank} of {size}: word in here, barrier: this communicator is closed"


def test_start_spawns_where_no_launcher_did(starting: Path) -> None:
    command = [sys.executable, str(starting), "word"]
    done = subprocess.run(command, capture_output=True, text=True, env=without_launcher(), timeout=PATIENCE)
    assert (done.stdout, done.stderr) == ("0 of 3: word in elsewhere\n", "")


@pytest.mark.parametrize("ranks", [1, 2])
def test_start_is_a_rank_of_allfold_run(starting: Path, ranks: int) -> None:
    status, output, errors = allfold_run("-n", ranks, starting, "word")
    assert (status, errors) == (0, b"")
    assert sorted(output.decode().splitlines()) == [as_rank(rank, ranks) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("variables", "rank_names", "size_names", "run_name"),
    [
        (TORCHRUN, ["RANK", "LOCAL_RANK"], ["WORLD_SIZE", "LOCAL_WORLD_SIZE"], "TORCHELASTIC_RUN_ID"),
        (
            OPEN_MPI,
            ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"],
            ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"],
            "PMIX_NAMESPACE",
        ),
        (MPICH, ["PMI_RANK", "MPI_LOCALRANKID"], ["PMI_SIZE", "MPI_LOCALNRANKS"], "PMI_JOBID"),
        (SLURM, ["SLURM_PROCID", "SLURM_LOCALID"], ["SLURM_NTASKS"], "SLURM_JOB_ID"),
    ],
    ids=["torchrun", "Open MPI", "MPICH", "srun"],
)
def test_start_is_a_rank_of_other_launchers(
    starting: Path, variables: dict[str, str], rank_names: list[str], size_names: list[str], run_name: str
) -> None:
    common = without_launcher() | variables | dict.fromkeys(size_names, "2") | {run_name: secrets.token_hex(8)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(starting), "word"],
            env=common | dict.fromkeys(rank_names, str(rank)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        output, _ = process.communicate(timeout=PATIENCE)
        assert (process.returncode, output) == (0, as_rank(rank, 2) + "\n")


def test_an_error_comes_out_of_start_as_it_is_under_a_launcher_and_as_rank_failed_else(starting: Path) -> None:
    status, output, errors = allfold_run("-n", 2, starting, "raise")
    assert (status, output) == (1, b"")
    assert b"\nLookupError: no such luck\n" in errors and b"RankFailed" not in errors
    command = [sys.executable, str(starting), "raise"]
    done = subprocess.run(command, capture_output=True, text=True, env=without_launcher(), timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (1, "")
    assert "allfold.errors.RankFailed: rank 1" in done.stderr and "LookupError: no such luck" in done.stderr


def test_start_without_the_rank_that_it_stands_for() -> None:
    def work(comm: Any) -> int:
        if comm.rank == 0:
            os._exit(3)
        return int(comm.rank)

    assert allfold.start(work, 2, survive=True) is None
    with pytest.raises(RankFailed, match="rank 0"):
        allfold.start(work, 2)


@pytest.mark.parametrize("variables", [{}, {"RANK": "0", "WORLD_SIZE": "1"}], ids=["alone", "launched"])
def test_start_refuses_what_spawn_refuses(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    for ranks in (0, -1, 2.0, True, "2"):
        with pytest.raises(UsageError, match="expected a whole number of ranks, at least 1"):
            allfold.start(lambda comm: None, ranks)  # type: ignore[arg-type]


def test_start_refuses_half_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UsageError, match="WORLD_SIZE is not set although RANK='0' is"):
        allfold.start(lambda comm: None, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((lambda comm: None), 1, {"timeout": -1}), "spawn: the timeout is a number of seconds from 0 up, not -1"),
        ((3, 2, {}), "spawn: expected a function that every rank calls, got 3"),
        (((lambda comm: None), 100_000, {}), "100000 ranks on one machine are too many; the most is 1024"),
    ],
)
def test_what_cannot_be_spawned_is_refused_before_anything_starts(arguments: Any, message: str) -> None:
    work, ranks, options = arguments
    with pytest.raises(UsageError, match=message):
        allfold.spawn(work, ranks, **options)
