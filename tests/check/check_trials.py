"""Many seeded trials of `--check`: how often does the error name the right rank and the right line? (make check-trials)"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import cloudpickle  # type: ignore[import-untyped]
import ranks
import seeded

from allfold.launch import supervise
from allfold.launch.kept import KeptTemplate

_BATCH = 18


def try_seeds(seeds: list[int], backend: str, hosts: list[int] | None) -> dict[int, list[str]]:
    """The outcome of each rank, by seed."""
    for module in (ranks, seeded):
        cloudpickle.register_pickle_by_value(module)
    supervise.RepeatedTemplate = KeptTemplate
    return ranks.run_seeds(seeds, backend, hosts=hosts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--jobs", type=int, default=1, help="trials beside each other")
    parser.add_argument("--hosts", action="store_true", help="two simulated hosts, one with two of the three ranks")
    arguments = parser.parse_args()
    hosts = [1, 2] if arguments.hosts else None
    right: Counter[str] = Counter()
    done: Counter[str] = Counter()
    last = arguments.first + arguments.trials
    batches = [list(range(begin, min(begin + _BATCH, last))) for begin in range(arguments.first, last, _BATCH)]
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        for found in pool.map(partial(try_seeds, backend=arguments.backend, hosts=hosts), batches):
            for seed, sentences in found.items():
                one = seeded.trial(seed)
                said = {sentence for sentence in sentences if sentence}
                good = len(said) == 1 and seeded.names_it(one, next(iter(said)).partition(": ")[2])
                done[one.fault] += 1
                right[one.fault] += good
                if not good:
                    print(f"seed {seed} ({one.fault}, rank {one.rank}, line {one.line}): {sorted(said)}", flush=True)
            print(f"{sum(right.values())} of {sum(done.values())} right", flush=True)
    for fault, count in done.items():
        print(f"{fault}: {right[fault]} of {count}")
    return int(sum(right.values()) < 0.99 * sum(done.values()))


if __name__ == "__main__":
    sys.exit(main())
