"""The pytest plugin, in sessions of pytest inside this one. They share the process that ranks are forked from."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import allfold.testing.items  # noqa: F401 - a session inside this one forgets what it has imported itself

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def torch() -> Any:
    """torch, imported before `pytester` is set up, which removes later modules. A second import of it would crash."""
    return pytest.importorskip("torch")


def session(pytester: pytest.Pytester, text: str, *options: str) -> tuple[dict[str, int], str]:
    """The outcomes of the tests in a file, and what pytest prints."""
    pytester.makepyfile("import os, threading, time\nimport numpy as np\nimport pytest\n" + text)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)
    return result.parseoutcomes(), result.stdout.str()


def test_a_test_runs_in_every_rank(pytester: pytest.Pytester) -> None:
    outcomes, said = session(
        pytester,
        """
FACTOR = 3

def scaled(x):
    return FACTOR * x

@pytest.fixture
def data():
    return {"a": 1}

@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("number", [1, 2])
def test_sum(comm, rank, world_size, number, data):
    x = np.full(3, scaled(number))
    comm.all_reduce(x)
    assert (comm.rank, comm.size) == (rank, world_size) and data == {"a": 1}
    assert x[0] == world_size * scaled(number)

class TestClass:
    def setup_method(self):
        self.number = 5

    @pytest.mark.ranks(2)
    def test_method(self, rank, tmp_path):
        (tmp_path / str(rank)).touch()
        assert self.number == 5

@pytest.mark.ranks(2)
def test_fixtures_of_its_own(rank, monkeypatch, capsys):
    monkeypatch.setenv("OF_A_RANK", str(rank))
    print(os.environ["OF_A_RANK"])
    assert capsys.readouterr().out == f"{rank}\\n"
    print("later")

@pytest.mark.ranks(2)
def test_skipped():
    pytest.skip("not today")

@pytest.mark.xfail(strict=True)
@pytest.mark.ranks(2)
def test_expected(rank):
    assert rank == 0
""",
        "-v",
        "-rs",
        "-k",
        "not 3ranks-1",
    )
    assert outcomes == {"passed": 5, "skipped": 1, "xfailed": 1, "deselected": 1} | (
        {"warnings": outcomes["warnings"]} if "warnings" in outcomes else {}
    )
    assert "test_sum[2ranks-1] PASSED" in said and "test_sum[3ranks-2] PASSED" in said and "not today" in said


def test_a_group_of_torch_and_a_communicator(torch: Any, pytester: pytest.Pytester) -> None:
    outcomes, _ = session(
        pytester,
        """
import torch, torch.distributed as dist

@pytest.mark.ranks(2, backend="gloo")
def test_both(process_group, comm, rank):
    x = torch.full((2,), float(rank))
    dist.all_reduce(x)
    assert process_group is dist.group.WORLD and x.tolist() == [1.0, 1.0]
    comm.barrier()

@pytest.mark.ranks(2)
def test_none():
    assert not dist.is_initialized()
    dist.init_process_group("gloo")  # the variables of a launcher are set
    assert dist.get_world_size() == 2
    dist.barrier()  # gloo fails to connect if another rank has destroyed its group already
    dist.destroy_process_group()
""",
    )
    assert outcomes["passed"] == 2 and "failed" not in outcomes


def test_failures_say_what_happened(pytester: pytest.Pytester) -> None:
    outcomes, said = session(
        pytester,
        """
@pytest.mark.ranks(2)
def test_wrong(comm, rank):
    print("here")
    assert [1, 2, rank] == [1, 2, 0]
    comm.barrier()

@pytest.mark.ranks(2, timeout=3)
def test_hang(comm, rank):
    if rank == 1:
        time.sleep(60)
    comm.barrier()

@pytest.mark.ranks(2)
def test_some_skip(rank):
    if rank == 1:
        pytest.skip("not me")
""",
    )
    assert outcomes["failed"] == 3 and "passed" not in outcomes
    for line in (
        "rank 1 of 2 raised AssertionError: assert [1, 2, 1] == [1, 2, 0]",
        "  At index 2 diff: 1 != 0",
        "[1] here",
        "ranks 0 and 1 of 2 had not finished after 3 s",
        "  rank 0 was at test_failures_say_what_happened.py:15 in test_hang: comm.barrier()",
        "  rank 1 was at test_failures_say_what_happened.py:14 in test_hang: time.sleep(60)",
        "rank 1 of 2 was skipped (not me), but other ranks were not",
    ):
        assert line in said.splitlines(), line
    assert "\n  rank 0 " in said
    assert "During handling" not in said and "pytest_pyfunc_call" not in said


def test_ranks_that_wait_for_one_that_was_skipped_say_so(pytester: pytest.Pytester) -> None:
    outcomes, said = session(
        pytester,
        """
@pytest.mark.ranks(3)
def test_processes(comm, rank):
    if rank == 1:
        pytest.skip("no luck")
    comm.barrier()

@pytest.mark.ranks(3, threads=True)
def test_threads(comm, rank):
    if rank == 1:
        pytest.xfail("known")
    comm.barrier()

@pytest.mark.ranks(2, threads=True, timeout=0.5)
def test_hang(rank):
    if rank == 1:
        pytest.skip("not me")
    time.sleep(1)
""",
    )
    assert outcomes["failed"] == 3 and "passed" not in outcomes
    assert "raised RankLost: barrier: rank 1 " in said
    assert "\n  rank 1 was skipped (no luck)\n" in said, said
    assert "  rank 1 was expected to fail (known)\n" in said, said
    assert "\n  rank 1 was skipped (not me)\n" in said and "had finished" not in said, said


def test_fixtures_that_cannot_be_used_are_named(pytester: pytest.Pytester) -> None:
    outcomes, said = session(
        pytester,
        """
@pytest.fixture
def lock():
    return threading.Lock()

@pytest.fixture
def derived(comm):
    return comm.rank

@pytest.mark.ranks(2)
def test_lock(lock):
    pass

@pytest.mark.ranks(2)
def test_derived(derived):
    pass

@pytest.mark.ranks(2)
def test_no_backend(process_group):
    pass

def test_no_mark(comm):
    pass
""",
    )
    assert (outcomes["failed"], outcomes["errors"]) == (1, 3)
    for line in (
        "the fixture 'lock' (lock) cannot be sent to the ranks; create it in the test: cannot pickle '_thread.lock' object",
        "'comm' exists in the ranks only, and fixtures run in pytest's own process; use it in the test",
        "the fixture 'process_group' needs a backend, as in @pytest.mark.ranks(4, backend=\"gloo\")",
        "the fixture 'comm' is for tests that run in ranks: mark the test with @pytest.mark.ranks(4)",
    ):
        assert line in said.splitlines(), line


def test_a_mark_that_makes_no_sense_is_an_error(pytester: pytest.Pytester) -> None:
    sentences = {
        "ranks(0)": "expected a whole number of ranks, at least 1; got 0",
        "ranks()": "expected the number of ranks, as in @pytest.mark.ranks(4)",
        "ranks(2, 2)": "the numbers of ranks must differ, not 2, 2",
        "ranks(2, time=3)": "there is no option 'time'; did you mean 'timeout'? known: "
        "backend, timeout, hosts, keep, threads, delays, device, check",
        "ranks(2, backend='mpi')": "backend must be 'allfold', 'gloo', 'nccl' or None, not 'mpi'",
        "ranks(2, keep=1)": "keep must be True or False, not 1",
        "ranks(2, timeout=-1)": "timeout must be a positive number of seconds, not -1",
        "ranks(2, 4, hosts=[2, 2])": "hosts: 2+2 is 4 ranks, and the run has 2",
    }
    for number, mark in enumerate(sentences):
        pytester.makepyfile(**{f"test_{number}": f"import pytest\n@pytest.mark.{mark}\ndef test_it():\n    pass\n"})
    said = pytester.runpytest_inprocess().stdout.str().splitlines()
    for number, sentence in enumerate(sentences.values()):
        assert f"test_{number}.py::test_it: @pytest.mark.ranks: {sentence}" in said


def test_what_cannot_run_in_ranks_is_an_error(pytester: pytest.Pytester) -> None:
    _, said = session(pytester, "@pytest.mark.ranks(2)\nasync def test_it():\n    pass\n")
    assert "test_it is async, and calling it runs nothing" in said
    pytester.makepyfile(
        "import unittest, pytest\nclass T(unittest.TestCase):\n @pytest.mark.ranks(2)\n def test_it(self): pass\n"
    )
    assert "in a unittest.TestCase, call allfold.testing.run" in pytester.runpytest_inprocess().stderr.str()


def test_the_plugin_imports_only_pytest() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import allfold_autoload.pytest_plugin\n"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('allfold_autoload')))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout == "[]\n"


@pytest.mark.exhaustive
def test_under_xdist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n@pytest.mark.ranks(2, 3)\n@pytest.mark.parametrize('n', range(20))\n"
        "def test_forked(comm, n):\n    comm.barrier()\n"
        "@pytest.mark.ranks(2, 3, keep=True)\n@pytest.mark.parametrize('n', range(20))\n"
        "def test_kept(comm, n):\n    comm.barrier()\n"
    )
    result = pytester.runpytest_subprocess("-n", "2", "-q", timeout=240)
    assert result.parseoutcomes()["passed"] == 80


def test_ranks_as_threads(pytester: pytest.Pytester) -> None:
    """All ranks share pytest's own fixtures, and pytest explains their assertions itself."""
    outcomes, said = session(
        pytester,
        """
over = threading.Event()
places = []

@pytest.fixture
def lock():
    return threading.Lock()  # it cannot be pickled

@pytest.mark.ranks(2, 3, threads=True)
def test_sum(comm, rank, world_size, lock, request):
    x = np.full(3, rank)
    comm.all_reduce(x)
    with lock:
        places.append(request.node.name)
    assert x[0] == sum(range(world_size))

def test_seen():
    assert sorted(places) == ["test_sum[2ranks]"] * 2 + ["test_sum[3ranks]"] * 3

@pytest.mark.ranks(2, threads=True)
def test_skipped():
    pytest.skip("not today")

@pytest.mark.ranks(3, threads=True)
def test_wrong(comm, rank):
    numbers = [1, 2, rank]
    assert numbers != [1, 2, 1]
    comm.barrier()

@pytest.mark.ranks(2, threads=True, timeout=0.3)
def test_hang(comm, rank):
    comm.barrier() if rank else over.wait(60)

def test_end():
    over.set()

@pytest.mark.ranks(2, threads=True)
def test_afterwards(comm):
    assert comm.all_reduce(1) == 2
""",
        "--showlocals",
        "-rs",
    )
    assert (outcomes["passed"], outcomes["failed"], outcomes["skipped"]) == (5, 2, 1), said
    assert "E       assert [1, 2, 1] != [1, 2, 1]" in said and "numbers    = [1, 2, 1]" in said and "not today" in said
    assert "E       rank 1 of 3 raised AssertionError: assert [1, 2, 1] != [1, 2, 1]" in said, said
    assert "E         rank 0 raised RankLost: barrier: rank 1 has left: it is ending after AssertionError" in said
    assert "ranks 0 and 1 of 2 had not finished after 0.3 s" in said
    assert "  rank 0 still runs, since threads cannot be ended" in said
    assert "launch/threads.py" not in said and "testing/runs.py" not in said


def test_ranks_as_threads_with_torch(pytester: pytest.Pytester) -> None:
    """Each rank has a default group of its own, and pytest's process has none afterwards."""
    outcomes, said = session(
        pytester,
        """
torch = pytest.importorskip("torch")
import torch.distributed as dist
seen = []

@pytest.mark.ranks(2, 3, threads=True, backend="allfold", delays=1)
def test_sum(process_group, comm, rank, world_size, request):
    x = torch.full((3,), float(rank))
    dist.all_reduce(x, group=process_group)
    assert x[0] == sum(range(world_size)) and comm.all_reduce(rank) == x[0]
    assert process_group is dist.group.WORLD and process_group.rank() == rank
    seen.append(process_group.size())

@pytest.mark.ranks(2, threads=True, backend="allfold")
def test_wrong(process_group, rank):
    assert rank == 0, "not on this one"
    dist.barrier()

def test_afterwards():
    assert sorted(seen) == [2, 2, 3, 3, 3] and not dist.is_initialized()
    assert type(dist.distributed_c10d._world) is dist.distributed_c10d._World
""",
    )
    assert (outcomes["passed"], outcomes["failed"]) == (3, 1), said
    assert "E       rank 1 of 2 raised AssertionError: not on this one" in said, said
    assert "E         rank 0 raised RankLost: barrier: rank 1 has left: it is ending after AssertionError" in said, said


def test_marks_that_threads_cannot_have(pytester: pytest.Pytester) -> None:
    _, said = session(
        pytester,
        """
@pytest.mark.ranks(2, threads=True, hosts=2)
def test_hosts(): ...

@pytest.mark.ranks(2, threads=True, backend="gloo")
def test_backend(): ...
""",
    )
    assert "@pytest.mark.ranks: ranks that are threads cannot simulate hosts" in said, said


def test_warnings_and_logs_are_those_of_the_rank(pytester: pytest.Pytester) -> None:
    outcomes, said = session(
        pytester,
        """
import logging, sys, warnings

@pytest.mark.ranks(2)
def test_recorded(rank, recwarn, caplog, capsysbinary):
    warnings.warn(f"from rank {rank}", UserWarning)
    logging.getLogger("mine").warning("rank %d", rank)
    print(rank)
    assert [str(one.message) for one in recwarn] == [f"from rank {rank}"]
    assert caplog.messages == [f"rank {rank}"]
    assert capsysbinary.readouterr().out == b"%d\\n" % rank

@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.filterwarnings("error:careful")
@pytest.mark.ranks(2)
def test_marked(rank, keep):
    warnings.warn("careful: this is an error", UserWarning)

@pytest.mark.ranks(2, keep=True)
def test_kept(rank):
    warnings.warn("old", DeprecationWarning)

@pytest.mark.ranks(2)
def test_other(rank):
    warnings.warn("nothing", UserWarning)
""",
        "-W",
        "error::DeprecationWarning",
    )
    assert (outcomes["passed"], outcomes["failed"]) == (2, 3)
    assert (
        "rank 0 of 2 raised UserWarning: careful: this is an error" in said or "rank 1 of 2 raised UserWarning" in said
    )
    assert "raised DeprecationWarning: old" in said


def test_a_timeout_of_pytest_timeout_says_where_the_ranks_were(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_timeout")
    outcomes, said = session(
        pytester,
        """
@pytest.mark.timeout(2, method="signal", func_only=True)
@pytest.mark.ranks(2, timeout=60)
def test_hang(comm, rank):
    if rank == 1:
        time.sleep(50)
    comm.barrier()
""",
    )
    assert outcomes["failed"] == 1
    assert "Timeout (>2.0s) from pytest-timeout.\n  rank 0 was at " in said
    assert "in test_hang: comm.barrier()\n  rank 1 was at " in said and "in test_hang: time.sleep(50)\n" in said
    assert "supervise.py" not in said


def test_a_message_that_starts_with_an_empty_line(pytester: pytest.Pytester) -> None:
    _, said = session(
        pytester,
        """
@pytest.mark.ranks(2)
def test_close(rank):
    np.testing.assert_allclose([1.0], [1.0 + rank])
""",
    )
    assert "rank 1 of 2 raised AssertionError: Not equal to tolerance" in said
