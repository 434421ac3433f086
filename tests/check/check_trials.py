"""Many seeded trials of `--check`: how often does the error name the right rank and the right line? (make check-trials)"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import cloudpickle  # type: ignore[import-untyped]
import ranks
import seeded

from allfold.launch import supervise
from allfold.launch.kept import KeptTemplate, end_kept

_BATCH = 18


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--backend", default="gloo")
    arguments = parser.parse_args()
    for module in (ranks, seeded):
        cloudpickle.register_pickle_by_value(module)
    supervise.RepeatedTemplate = KeptTemplate
    right: Counter[str] = Counter()
    done: Counter[str] = Counter()
    last = arguments.first + arguments.trials
    for begin in range(arguments.first, last, _BATCH):
        seeds = list(range(begin, min(begin + _BATCH, last)))
        for seed, sentences in ranks.run_seeds(seeds, arguments.backend).items():
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
    end_kept()
    return int(sum(right.values()) < 0.99 * sum(done.values()))


if __name__ == "__main__":
    sys.exit(main())
