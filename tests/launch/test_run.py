"""`allfold run`: commands as ranks, their output and exit statuses, and signals to the launcher."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import COMMAND_LINE, PATIENCE, allfold_run, start, wait_for_end_of, with_allfold

from allfold.cli import main
from allfold.launch.supervise import Supervisor


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
        (["-n", 1025, "--", "true"], 2, "1025 ranks are too many for one machine; the maximum is 1024"),
        (["-n", 2], 2, "expected a script, -m and a module, or -- and a command"),
        (["-n", 2, "--"], 2, "expected a command after --"),
        (["-n", 2, "-m"], 2, "-m: expected the name of a module after it"),
        (["-n", 2, "no-such-script.py"], 2, "there is no script 'no-such-script.py'"),
        (["-n", 0, "no-such-script.py"], 2, "expected a whole number of ranks, at least 1; got 0"),
        (["-n", 2, "--", "no-such-command"], 2, "there is no executable command 'no-such-command'"),
        (["-n", 2, "--timeout", "-1", "--", "true"], 2, "--timeout -1: expected a number of seconds above 0"),
        (["-n", 2, "--timeout", "0.2", "--", "sleep", "1000"], 124, "ranks 0 and 1 of 2 had not finished after 0.2 s"),
    ],
)
def test_exit_statuses_and_the_last_line(
    arguments: list[object], expected: int, sentence: str | None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    if expected == 2:  # nothing is started: no need for a process
        status = main(["run", *map(str, arguments)])
        output, errors = capfdbinary.readouterr()
    else:
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


IN_THREADS = """
import sys, threading
import allfold as af

sum = None  # each rank has its own variables
comm = af.init()
sum = comm.all_reduce(comm.rank + 1)
assert threading.current_thread().name == f"rank {comm.rank}" and __name__ == "__main__"
parts = comm.gather_object((sum, sys.argv[1:]))
if parts:
    print(parts)
if sys.argv[1:] == ["raise"]:
    if comm.rank == 1:
        raise LookupError("nothing here")
    comm.barrier()
if sys.argv[1:] == ["exit"]:
    sys.exit(comm.rank * 7)
if sys.argv[1:] == ["hang"] and comm.rank == 0:
    threading.Event().wait()
sys.exit()
"""


def test_a_script_in_threads(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(IN_THREADS)
    run = ("-n", 3, "--threads")
    status, output, errors = allfold_run(*run, tmp_path / "script.py", "-n", "9")
    assert (status, output, errors) == (0, b"[(6, ['-n', '9']), (6, ['-n', '9']), (6, ['-n', '9'])]\n", b"")
    status, _, errors = allfold_run(*run, "-m", "script", "raise", cwd=tmp_path)
    *_, cause, last = errors.decode().splitlines()
    assert (status, cause) == (1, "LookupError: nothing here")
    assert last == "allfold run: rank 1 raised LookupError; then ranks 0 and 2 raised RankLost"
    assert b"launch/script.py" not in errors
    status, _, errors = allfold_run(*run, tmp_path / "script.py", "exit")
    assert (status, errors.decode()) in (
        (7, "allfold run: rank 1 exited with status 7; then rank 2 exited with status 14\n"),
        (14, "allfold run: rank 2 exited with status 14; then rank 1 exited with status 7\n"),
    )
    status, _, errors = allfold_run(*run, "--timeout", "1", tmp_path / "script.py", "hang")
    still = "rank 0 still runs, since threads cannot be ended"
    assert (status, errors.decode()) == (124, f"allfold run: rank 0 of 3 had not finished after 1 s; {still}\n")
