"""All programs of this folder, one after the other, in the same processes."""

import importlib

from started import say, start

NAMES = (
    "all_reduce",
    "ring",
    "hierarchical",
    "bucketing",
    "data_parallel",
    "gradient_buckets",
    "async_and_operations",
    "zoo",
    "statistics_of_all",
)


def main(rank, size):
    for name in NAMES:
        say(f"= {name}")
        importlib.import_module(name).main(rank, size)


if __name__ == "__main__":
    start(main, __doc__)
