"""Ranks that run seeded programs under the check, without a launcher's cost for each of them."""

from __future__ import annotations

import os

import torch.distributed as dist
from launched import RankAlone
from seeded import ENDS_A_RANK, Trial, run_trial, trial

from allfold.launch.spawn import run_everywhere


def run_seeds(
    seeds: list[int], backend: str, ranks: int = 3, late: str = "0.5", hosts: list[int] | None = None
) -> dict[int, list[str]]:
    """The errors of all ranks, by seed. Trials that end a rank run in new processes. `hosts`: how many ranks each host has."""
    ending = [seed for seed in seeds if trial(seed).fault in ENDS_A_RANK]
    others = [seed for seed in seeds if seed not in ending]
    found: dict[int, list[str]] = {}
    for batch in ([others] if others else []) + [[seed] for seed in ending]:
        got = run_everywhere(
            RankAlone,
            _trials,
            ranks,
            args=([trial(seed, ranks) for seed in batch], backend, late),
            timeout=240,
            survive=True,
            hosts=hosts,
        )
        for number, seed in enumerate(batch):
            found[seed] = [one[number] for one in got if one is not None]
    return found


def _trials(rank: int, trials: list[Trial], backend: str, late: str) -> list[str]:
    os.environ |= {"ALLFOLD_CHECK": "1", "ALLFOLD_CHECK_LATE": late}
    from allfold.check.install import install

    install()
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*place, is_master=rank == 0, wait_for_workers=False)
    found = []
    for one in trials:
        found.append(run_trial(one, backend, dist.PrefixStore(f"trial {one.seed}", store), rank))
        if one.fault not in ENDS_A_RANK:
            store.set(f"done {one.seed} {rank}", "1")
            store.wait([f"done {one.seed} {other}" for other in range(one.ranks)])
            store.set(f"heard {one.seed} {rank}", "1")
            if rank == 0:  # the store ends with it
                store.wait([f"heard {one.seed} {other}" for other in range(one.ranks)])
    return found
