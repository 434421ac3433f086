"""allfold where there is no engine, and no Linux: what works there works, and what does not says so in one sentence."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from allfold.cli import COMMANDS
from allfold.record import format

WITHOUT = [sys.executable, str(Path(__file__).with_name("without_engine.py"))]
WORKS: list[tuple[str, ...]] = [
    ("list",),
    ("show", "ring", "--ranks", "4"),
    ("show", "ring", "--ranks", "4", "--html", "ring.html"),
    ("show", "ring", "--ranks", "4", "--svg", "ring.svg"),
    ("verify", "mine.py:mine", "--collective", "all_reduce", "--ranks", "1-5"),
    ("verify", "--all", "--collective", "all_gather", "--ranks", "2,3,8"),
    ("compare", "--collective", "all_reduce", "--ranks", "8"),
    ("plan", "--topology", "dgx_h100", "--ranks", "8"),
    ("plan", "--hosts", "2,3"),
    ("simulate", "ring", "--ranks", "8"),
    ("find", "--topology", "dgx1", "--collective", "all_gather", "--save", "found.json", "--certificate", "bound.json"),
    ("check-bound", "bound.json", "dgx1"),
    ("show", "found.json"),
    ("topo",),
    ("export", "ring", "--ranks", "4", "--to", "msccl-xml"),
    ("export", "ring", "--ranks", "4", "--to", "mscclpp-json"),
    ("export", "ring", "--ranks", "4", "--to", "chakra", "--output", "traces"),
    ("export", "ring", "--ranks", "4", "--to", "perfetto", "--output", "trace.json"),
    ("demo",),
    ("demo", "--json"),
    ("studio", "--help"),
    ("explain", "records"),
    ("diverge", "record"),
    ("completion", "bash"),
    ("learn",),
    ("learn", "start"),
    ("learn", "words"),
    ("learn", "studio", "--help"),
    ("learn", "solution", "2"),
]
NEEDS_THE_ENGINE: list[tuple[str, ...]] = [
    ("run", "-n", "2", "mine.py"),
    ("record", "-n", "2", "mine.py"),
    ("replay", "record", "--rank", "0"),
    ("bench", "-n", "2"),
    ("tune", "-n", "2"),
    ("doctor", "--all"),
    ("doctor", "4711"),
]
RECORD = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "entries": [
        {
            "process_group": ["0", "default_pg"],
            "collective_seq_id": 1,
            "profiling_name": "gloo:all_reduce",
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "state": "completed",
            "is_p2p": False,
        }
    ],
}
MINE = """
from allfold import algorithm, copy, reduce

@algorithm("all_reduce", "mine")
def mine(ranks):
    "Everything to rank 0, and back."
    for rank in range(1, ranks):
        yield [reduce(chunk=0, source=rank, destination=0)]
    for rank in range(1, ranks):
        yield [copy(chunk=0, source=0, destination=rank)]
"""
RUN_ALL = """
import contextlib, io, json, sys
from allfold.cli import main
answers = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    answers.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""
IMPORT_ALL = """
import importlib, pkgutil, allfold
names = [module.name for module in pkgutil.walk_packages(allfold.__path__, "allfold.", onerror=lambda name: None)]
for name in names:
    # torch and MPI are the builds for Linux here, and Ray is not there; they are only imported when they are asked for.
    if not name.startswith(
        ("allfold.torch", "allfold.ray", "allfold.testing.torch_cases", "allfold.fabrics.", "allfold._native._engine")
        + ("allfold.check.", "allfold.intercept.", "allfold.record.", "allfold.__main__")
    ):
        importlib.import_module(name)
print(len(names))
"""
IN_PYTHON = """
import numpy as np, allfold as af
from allfold.errors import EngineMissing
from allfold.communicator.communicator import connect
plan = af.schedule("all_reduce", "ring", ranks=4)
assert af.verify(plan).same_bits
assert [one.tolist() for one in af.replay(plan, [np.arange(4.0)] * 4)] == [[0, 4, 8, 12]] * 4
for ask in (lambda: af.spawn(print, 2), lambda: af.init(), lambda: af.start(print, 2), lambda: connect(0, 1, "k")):
    try:
        ask()
    except EngineMissing as error:
        assert isinstance(error, af.UsageError) and "Linux" in str(error) and "macOS" in str(error), error
    else:
        raise SystemExit("it did not say that there is no engine")
print("fine")
"""
AS_THREADS = """
import array, threading
import numpy as np, allfold as af

def work(comm, lock):
    x = np.full(5, comm.rank + 1.0)
    comm.all_reduce(x, algorithm="ring")
    assert x.tolist() == [10.0] * 5
    parts = bytearray(2 * comm.size)  # arrays that are not NumPy's
    comm.all_gather(bytes([comm.rank] * 2), parts)
    assert parts == bytes([0, 0, 1, 1, 2, 2, 3, 3])
    numbers = array.array("d", [comm.rank, 2.0])
    comm.scan(numbers)
    assert numbers.tolist() == [sum(range(comm.rank + 1)), 2.0 * (comm.rank + 1)]
    overlapping = np.arange(8.0) + 100 * comm.rank
    comm.all_to_all(overlapping, overlapping)
    assert overlapping[::2].tolist() == [2 * comm.rank + 100 * rank for rank in range(4)]
    assert comm.all_gather(np.arange(comm.rank), counts=[0, 1, 2, 3]).tolist() == [0, 0, 1, 0, 1, 2]
    assert comm.all_gather_object({"rank": comm.rank})[2] == {"rank": 2}
    sending = comm.isend(x[::2], (comm.rank + 1) % 4)  # not contiguous
    assert comm.recv(np.empty(3)).source == (comm.rank - 1) % 4
    sending.wait()
    pair = comm.group([comm.rank // 2 * 2, comm.rank // 2 * 2 + 1])
    assert pair.all_reduce(comm.rank) == comm.rank // 2 * 4 + 1
    for wrong in (object(), np.ones(3)[::2].tobytes()):
        try:
            comm.all_reduce(wrong)
        except af.UsageError:
            pass
        else:
            raise SystemExit("it took anything")
    assert af.init() is comm
    return lock

lock = threading.Lock()
assert af.spawn(work, 4, args=(lock,), ranks_are="threads") == [lock] * 4
assert af.start(lambda comm: comm.size, 3, ranks_are="threads") == 3
def differs(comm):
    comm.all_reduce(np.ones(4 + comm.rank))
try:
    af.spawn(differs, 2, ranks_are="threads")
except af.RankFailed as error:
    assert "rank 0 called it with float64[4] sum, rank 1 with float64[5] sum (call 1 of the world)" in str(error)
try:
    af.spawn(work, 2, ranks_are="threads", engine="shared_memory")
except af.UsageError as error:
    print(type(error).__name__)
"""


LEARN = """
from pathlib import Path
from allfold.learn.judge import judge
from allfold.learn.lesson import lessons
from allfold.learn.worker import judge_file
from allfold.errors import UsageError
from allfold.learn import checks
# What is proved for more ranks is the same with the engine, and faster: tests/learn
checks.UP_TO, checks._TELLING = 5, (3, 4, 2, 5, 1)
solved = 0
for lesson in lessons():
    file = Path(f"{lesson.name}.py")
    predictions = {one.name: 1 for one in lesson.predictions}
    file.write_text(f"{lesson.read('solution.py')}\\nPREDICTIONS = {predictions}\\n")
    found = judge_file(lesson, file, run=True)
    assert found["error"] is None, found
    assert len([one for one in found["predictions"] if "answer" in one]) == len(lesson.predictions), found
    for one in found["exercises"]:
        assert one["passed"], one
        solved += 1
        # Timings need the engine.
        assert "needs allfold's engine" in (one.get("run") or ("needs allfold's engine",))[0], one
try:
    judge(lesson, file)
except UsageError as error:
    assert "limits" in str(error)
else:
    raise SystemExit("it was judged without limits")
print(solved)
"""


def without(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*WITHOUT, *words], capture_output=True, text=True, cwd=folder, timeout=240)


def test_every_module_can_be_imported(tmp_path: Path) -> None:
    done = without("-c", IMPORT_ALL, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 150


def test_every_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "records").mkdir()
    for rank in range(2):
        (tmp_path / f"records/dump_{rank}").write_text(json.dumps(RECORD))
    (tmp_path / "record").mkdir()
    one = format.Writer(str(tmp_path / "record" / format.file_name(0)))
    one.write(format.HEAD, {"rank": 0, "time": 0} | {key: {} for key in ("program", "variables", "facts", "random")})
    one.close()
    asked = [*WORKS, *NEEDS_THE_ENGINE]
    assert {words[0] for words in asked} == set(COMMANDS), "every command is tried"
    done = without("-c", RUN_ALL, json.dumps(asked), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for words, (status, out, err) in zip(asked, json.loads(done.stdout), strict=True):
        if words in WORKS:
            assert status == 0 and not err.startswith("allfold"), (words, status, err)
            assert out or {"--html", "--svg", "--output", "--save"} & set(words), words
        else:
            assert status == 2 and not out, (words, status, out)
            assert err.startswith(f"allfold {words[0]}: ") and err.count("\n") == 1, err
            assert "engine" in err and "Linux" in err and "this is macOS" in err and "verify" in err, err
    assert "<svg" in (tmp_path / "ring.svg").read_text() and "<html" in (tmp_path / "ring.html").read_text()


def test_in_python(tmp_path: Path) -> None:
    done = without("-c", IN_PYTHON, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_ranks_may_be_threads(tmp_path: Path) -> None:
    done = without("-c", AS_THREADS, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "EngineMissing\n"), done.stderr


IN_PYTEST = """
import numpy as np, pytest

@pytest.mark.ranks(2, 3, threads=True)
def test_sum(comm, rank, world_size, capsys):
    assert comm.all_reduce(rank) == sum(range(world_size))

@pytest.mark.ranks(2)
def test_processes(comm): ...
"""


def test_pytest_runs_tests_whose_ranks_are_threads(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(IN_PYTEST)
    done = without("-m", "pytest", "-p", "no:cacheprovider", "test_it.py", folder=tmp_path)
    assert "2 passed" in done.stdout and "1 failed" in done.stdout, done.stdout
    assert "run needs allfold's engine" in done.stdout


def test_lessons_are_judged(tmp_path: Path) -> None:
    done = without("-c", LEARN, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) >= 25


def test_the_studio_serves(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*WITHOUT, "-m", "allfold", "studio", "--no-browser"], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().rpartition(" ")[2].strip()
        with urllib.request.urlopen(url, timeout=60) as answer:
            page = answer.read().decode()
        assert answer.status == 200 and "<html" in page
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_an_engine_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    """A broken file is not taken for a missing one."""
    code = (
        "import sys, importlib.abc\n"
        "class Broken(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'allfold._native._engine': raise ImportError('GLIBC_2.99 not found')\n"
        "sys.meta_path.insert(0, Broken())\n"
        "import allfold as af\n"
        "assert af.verify(af.schedule('all_reduce', 'ring', ranks=3))\n"
        "af.spawn(print, 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert "EngineMissing" in done.stderr and "cannot be loaded here: GLIBC_2.99 not found" in done.stderr


@pytest.mark.parametrize("words", [("--version",), ("plan", "--measured", "--collective", "all_reduce")])
def test_as_a_program(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = without("-m", "allfold", *words, folder=tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if words == ("--version",) else 2)
