"""Bounds on random networks, against prices, simulations, the checker and all sets of ranks.

`python tests/search/bounds.py --seeds 1000` tries a thousand networks (`make bounds`); the tests try some.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from random import Random

from networks import by_all_sets, network

import allfold as af
from allfold.collectives import COLLECTIVES
from allfold.errors import UsageError
from allfold.price import Topology, cost, simulate
from allfold.price.check_bound import check_bound
from allfold.registry import algorithms
from allfold.schedules import Schedule
from allfold.search.find import find
from allfold.search.found import Found

ROUNDING = 1e-9
SIZES = (0, 1, 1000, 10**6, 10**9)


def complaints(topology: Topology, collective: str, size: int, root: int | None, seconds: float) -> Iterator[str]:
    """What is wrong with the bound of one collective on one network, if anything."""
    found = find(collective, topology, size, root=root, seconds=seconds)
    bound = found.bound
    proved = check_bound(json.loads(json.dumps(found.certificate.to_json())), topology)
    if not bound <= proved or float(proved) > bound * (1 + ROUNDING):
        yield f"the bound is {bound}, and {float(proved)} is proved"
    for schedule in (found.schedule, *_built_in(collective, topology.ranks, root)):
        priced = cost(schedule, topology, size)
        for what, least in (("find", bound), ("plan", priced.bounds.time)):
            if priced.time < least * (1 - ROUNDING):
                yield f"{schedule.algorithm} is priced {priced.time}, below the bound {least} of {what}"
            took = simulate(schedule, topology, size).duration
            if took < least * (1 - ROUNDING):
                yield f"{schedule.algorithm} takes {took} in the simulation, less than the bound {least} of {what}"
        if priced.time < found.time * (1 - ROUNDING):
            yield f"{schedule.algorithm} is priced {priced.time}, below what was found, {found.time}"
    # Where switches fold, only cuts of the graph are looked for.
    if size and COLLECTIVES[collective].carries_data and topology.ranks <= 5 and not topology.folding:
        least = float(by_all_sets(collective, topology, root, size)) * size
        if bound < least * (1 - 1e-6):
            yield f"the bound is {bound}, but a set of ranks says {least}: {_why(found)}"


def _why(found: Found) -> str:
    return f"{found.certificate.kind}, {found.why}"


def _built_in(collective: str, ranks: int, root: int | None) -> Iterator[Schedule]:
    for name in algorithms(collective, ranks, root):
        try:
            yield af.schedule(collective, name, ranks, root)
        except UsageError:
            continue  # not for this number of ranks


def trial(seed: int, seconds: float = 1.0, most: int = 5) -> Iterator[str]:
    """One network, one collective and one size, by the seed."""
    random = Random(seed)
    try:
        topology = network(seed, most)
    except UsageError as error:
        if "cannot be reached" not in str(error) and "takes whole messages" not in str(error):
            yield f"{seed}: {error}"
        return
    collective = random.choice([*COLLECTIVES])
    root = random.randrange(topology.ranks) if COLLECTIVES[collective].rooted else None
    size = random.choice(SIZES)
    for complaint in complaints(topology, collective, size, root, seconds):
        yield f"seed {seed}, {collective} of {size} bytes on {topology.ranks} ranks, root {root}: {complaint}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many networks (default: 1000)")
    parser.add_argument("--most", type=int, default=6, metavar="N", help="ranks of a network, at most (default: 6)")
    arguments = parser.parse_args()
    started, wrong = time.monotonic(), 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            for complaint in trial(seed, 2.0, arguments.most):
                wrong += 1
                print(complaint)
        except Exception as error:
            wrong += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
    print(f"{arguments.seeds} networks in {time.monotonic() - started:.0f} s: {wrong} complaints")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
