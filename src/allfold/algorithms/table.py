"""The families of algorithms that ship with allfold. Importing this module registers them all."""

from importlib import import_module

# In the order in which they are listed, and learned: from the naive way to the ones that build on others.
FAMILIES = [
    "naive",
    "driver",
    "rotate",
    "ring",
    "tree",
    "chain",
    "double_tree",
    "recursive",
    "swing",
    "bine",
    "direct",
    "hierarchical",
    "two_level",
    "scattered",
    "bruck",
    "pat",
    "neighbor",
    "pairwise",
    "prefix",
    "through_leaders",
    "barrier",
]

for family in FAMILIES:
    import_module(f".{family}", __package__)
