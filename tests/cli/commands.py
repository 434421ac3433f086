"""Commands in this process and in one of their own, and a file of algorithms for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

Call = Callable[..., tuple[int, str, str]]
"""A command's words; its exit status, what it printed, and what it said on stderr."""

MINE = '''\
from allfold import algorithm, copy, reduce


def share(ranks, steps):
    for step in range(steps):
        yield [reduce(chunk=(r - 1 - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]
    for step in range(ranks - 1):
        yield [copy(chunk=(r - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]


@algorithm("all_reduce")
def my_ring(ranks):
    """The ring again."""
    yield from share(ranks, ranks - 1)


def short_ring(ranks):
    yield from share(ranks, ranks - 2)


def raising(ranks):
    yield [reduce(0, 1, 0)]
    raise LookupError("lost the way")


NUMBER = 3
'''


def process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8", **environment}
    command = [sys.executable, "-m", "allfold", *words]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=variables, timeout=120)
