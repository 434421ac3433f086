"""The drop-in for torch's MultiProcessTestCase: the same results as torch's, and what it says about failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import unittest
from typing import Any

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def case() -> type[Any]:
    torch = pytest.importorskip("torch")
    pytest.importorskip("expecttest")
    from torch.testing._internal.common_distributed import requires_gloo, skip_if_lt_x_gpu

    from allfold.testing import MultiProcessTestCase

    dist = torch.distributed

    class Case(MultiProcessTestCase):  # type: ignore[misc, valid-type]
        @property
        def world_size(self) -> int:
            return 2

        def setUp(self) -> None:
            super().setUp()
            self.special_return_code_checks = {getattr(self.test_special, "__wrapped__", None): 7}
            self._spawn_processes()

        @requires_gloo()
        def test_group(self) -> None:
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
            x = torch.full((2,), float(self.rank))
            dist.all_reduce(x)
            self.assertEqual(x.tolist(), [1.0, 1.0])

        def test_variables(self) -> None:
            assert os.environ["OF_THE_TEST"] == "yes" and "RANK" not in os.environ

        @skip_if_lt_x_gpu(8)
        def test_skipped_for_gpus(self) -> None:
            raise AssertionError

        def test_skipped(self) -> None:
            self.skipTest("not today")

        def test_wrong(self) -> None:
            if self.rank == 1:
                raise ValueError("the cause")

        def test_special(self) -> None:
            os._exit(7)

        def test_another_rank_exits(self) -> None:
            if self.rank == 1:
                os._exit(3)

        def test_rank_0_exits(self) -> None:
            sys.exit(3)

        def test_crash(self) -> None:
            if self.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def test_hang(self) -> None:
            if self.rank == 1:
                time.sleep(60)

    return Case


def outcome(case: type[Any], name: str) -> tuple[str, str]:
    """The outcome of a test, and the last paragraph of what unittest says about it."""
    result = unittest.TestResult()
    case(name).run(result)
    for kind, found in (("error", result.errors), ("failure", result.failures), ("skipped", result.skipped)):
        if found:
            return kind, found[0][1]
    return "passed", ""


@pytest.mark.parametrize("name", ["test_group", "test_special", "test_another_rank_exits"])
def test_what_passes(case: type[Any], name: str) -> None:
    assert outcome(case, name) == ("passed", "")


def test_ranks_have_the_variables_of_the_test(case: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_TEST", "yes")
    assert outcome(case, "test_variables") == ("passed", "")


def test_what_is_skipped(case: type[Any]) -> None:
    kind, said = outcome(case, "test_skipped_for_gpus")
    assert kind == "skipped" and said == "Need at least 8 CUDA devices"
    kind, said = outcome(case, "test_skipped")
    assert kind == "skipped" and "at subprocess level" in said


def test_failures_say_what_happened(case: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.testing._internal import common_distributed

    kind, said = outcome(case, "test_wrong")
    assert kind == "error" and "RankFailed: rank 1 of 2 raised ValueError: the cause\n\nTraceback" in said
    ours = said.partition("rank 1 of 2 raised")[2]
    assert "in test_wrong" in ours and "common_distributed" not in ours, "frames of torch's class are left out"
    kind, said = outcome(case, "test_crash")
    assert kind == "error" and "RankFailed: rank 0 of 2 was killed by SIGKILL" in said
    kind, said = outcome(case, "test_rank_0_exits")
    assert kind == "failure" and "Expected exit code 0 but got 3" in said
    monkeypatch.setitem(common_distributed.TIMEOUT_OVERRIDE, "test_hang", 2)
    kind, said = outcome(case, "test_hang")
    assert kind == "error" and "CollectiveTimeout: rank 1 of 2 had not finished after 2 s" in said
    assert "in test_hang: time.sleep(60)" in said


def test_a_module_that_cannot_be_pickled_is_imported_by_the_ranks(
    case: type[Any], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pytester.makepyfile(
        of_the_test="""
import os
import threading
from allfold.testing import DistributedTestBase

lock = threading.Lock()

class Case(DistributedTestBase):
    world_size = 2

    def test_lock(self):
        with lock:
            self.assertIn(self.rank, (0, 1))
            assert os.environ["WORLD_SIZE"] == "2"
"""
    )
    monkeypatch.syspath_prepend(path.parent)
    import of_the_test  # type: ignore[import-not-found]

    assert outcome(of_the_test.Case, "test_lock") == ("passed", "")
    assert "WORLD_SIZE" not in os.environ, "torch's class sets it, and does not undo that"


def test_without_torch_there_is_a_sentence() -> None:
    script = "import sys; sys.modules['torch'] = None; from allfold.testing import MultiProcessTestCase"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert found.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: allfold.testing.MultiProcessTestCase needs torch and what torch's test library imports, "
        "and there is no module 'torch': pip install torch expecttest numpy"
    )


def test_there_is_nothing_else() -> None:
    import allfold.testing

    with pytest.raises(AttributeError, match="has no attribute 'MultiThreadedTestCase'"):
        _ = allfold.testing.MultiThreadedTestCase
