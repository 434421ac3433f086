"""Times a small test with ranks, run in several ways: make a gloo group, all_reduce once, destroy the group.

    python benchmarks/rank_tests.py [--ranks 4] [--rounds 5]

The ways take turns, so that all see the same machine. `allfold.testing` starts its kept process once, before the rounds;
the time of that is printed separately.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Processes of mp.spawn import this file. They need none of this.
if os.environ.get("BENCHMARK_WAY") == "mp.spawn":
    MultiProcessTestCase: Any = object
    MultiProcContinuousTest: Any = object
else:
    from torch.testing._internal.common_distributed import MultiProcContinuousTest, MultiProcessTestCase

    from allfold.testing import run

RANKS = int(os.environ.get("BENCHMARK_RANKS", "4"))  # spawned processes import this file, and need it too


def small_test(_: Any = None) -> None:
    x = torch.ones(4)
    dist.all_reduce(x)
    assert x[0] == dist.get_world_size()


def spawned(rank: int, ranks: int, file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    small_test()
    dist.destroy_process_group()


class OfTorch(MultiProcessTestCase):
    @property
    def world_size(self) -> int:
        return RANKS

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def test_small(self) -> None:
        spawned(self.rank, self.world_size, self.file_name)


class Continuous(MultiProcContinuousTest):
    """Its processes and its group live as long as the class, so a test is a message to each rank and one all_reduce."""

    world_size = RANKS

    @classmethod
    def backend_str(cls) -> str:
        return "gloo"

    def test_small(self) -> None:
        small_test()


def by_spawn() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BENCHMARK_WAY"] = "mp.spawn"
        mp.spawn(spawned, (RANKS, os.path.join(folder, "store")), nprocs=RANKS)
        del os.environ["BENCHMARK_WAY"]


def by_test_case() -> None:
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(OfTorch)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        result = unittest.TextTestRunner(stream=said).run(suite)
    assert result.wasSuccessful(), said.getvalue()


def by_continuous_test() -> None:
    result = unittest.TestResult()
    with contextlib.redirect_stderr(io.StringIO()):
        Continuous("test_small").run(result)
    assert result.testsRun == 1 and result.wasSuccessful() and not result.skipped, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.ranks != RANKS:
        os.environ["BENCHMARK_RANKS"] = str(options.ranks)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    ways: dict[str, Callable[[], object]] = {
        "allfold.testing, gloo": lambda: run(small_test, RANKS, backend="gloo"),
        "allfold.testing, allfold": lambda: run(small_test, RANKS, backend="allfold"),
        "kept ranks, gloo": lambda: run(small_test, RANKS, backend="gloo", keep=True),
        "kept ranks, allfold": lambda: run(small_test, RANKS, backend="allfold", keep=True),
        "MultiProcContinuousTest*, gloo": by_continuous_test,
        "mp.spawn, gloo": by_spawn,
        "MultiProcessTestCase, gloo": by_test_case,
    }
    Continuous.setUpClass()
    begin = time.perf_counter()
    next(iter(ways.values()))()
    print(f"first test of allfold.testing: {time.perf_counter() - begin:.1f} s; load {os.getloadavg()[0]:.1f}")
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - begin)
    Continuous.tearDownClass()
    for name, found in times.items():
        print(f"{name:32} median {statistics.median(found):7.3f} s   {min(found):.3f} to {max(found):.3f} s")
    print("* one group for all tests of a class; the others make a fresh group in every test")
    print(f"{RANKS} ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
