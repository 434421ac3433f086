"""Every algorithm that ships with allfold, one family per file. Importing this package registers them all."""

# In the order in which they are listed, and learned: from the naive way to the ones that build on others.
# isort: off
from . import (  # noqa: F401
    naive,
    driver,
    rotate,
    ring,
    tree,
    chain,
    double_tree,
    recursive,
    swing,
    bine,
    direct,
    hierarchical,
    two_level,
    scattered,
    bruck,
    pat,
    neighbor,
    pairwise,
    prefix,
    barrier,
)
