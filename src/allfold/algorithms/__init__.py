"""Every algorithm that ships with allfold, one family a file. Importing this package registers them all."""

from . import (  # noqa: F401
    barrier,
    bruck,
    chain,
    direct,
    double_tree,
    driver,
    hierarchical,
    naive,
    neighbor,
    pairwise,
    recursive,
    ring,
    rotate,
    scattered,
    swing,
    tree,
)
