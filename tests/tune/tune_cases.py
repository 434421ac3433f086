"""Machines and measurements that the tests of tuning share."""

from __future__ import annotations

from dataclasses import replace

import allfold as af
from allfold.tune.caches import Setting
from allfold.tune.model import Item

SETTING = Setting(cores=16, own_cache=2.0**21, last_cache=2.0**25, fetches=True)
CROWDED = replace(SETTING, cores=2)


def every_item(ranks: int, sizes: tuple[int, ...], collectives: tuple[str, ...]) -> list[Item]:
    return [
        Item(collective, name, ranks, shared, size)
        for collective in collectives
        for name in af.algorithms(collective)
        for shared in (False, True)
        for size in sizes
    ]
