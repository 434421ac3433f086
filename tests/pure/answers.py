"""Print proofs, prices, searches and refusals as JSON: they are the same with the engine, without it, and in 32 bits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import allfold as af
from allfold.collectives import COLLECTIVES
from allfold.price import cost, find_topology, plan, simulate
from allfold.registry import algorithms

RANKS = 4
NETWORKS = ("torus:shape=2x2", "fat_tree", "dgx1")  # one way per pair, split ways, cables listed one by one


def answers() -> Iterator[Any]:
    for collective in COLLECTIVES:
        for place, name in enumerate(algorithms(collective)):
            try:
                made = af.schedule(collective, name, RANKS)
            except af.UsageError as error:
                yield str(error)
                continue
            yield af.verify(made).to_json()
            network = find_topology(NETWORKS[place % len(NETWORKS)], RANKS)
            yield cost(made, network, 2**20).to_json(), simulate(made, network, 2**20).duration
    yield plan("all_reduce", find_topology("dragonfly", 16), ranks=16, size=2**20).winner.to_json()
    for network in NETWORKS:
        found = af.find("all_gather", find_topology(network, RANKS), 2**24, ranks=RANKS, method="greedy")
        yield found.schedule.digest.hex(), found.bound
    yield af.find("broadcast", "dgx1", 2**24, method="throughput", chunks=4).bound
    try:
        af.verify(af.schedule("all_reduce", _wrong, 3))
    except af.ScheduleError as error:
        yield str(error).replace(__file__, "")


def _wrong(ranks: int) -> Iterator[list[af.Move]]:
    yield [af.reduce(chunk=0, source=rank, destination=0) for rank in range(1, ranks)]


if __name__ == "__main__":
    print(json.dumps(list(answers())))
