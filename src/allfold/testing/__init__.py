"""Tests of distributed code: `run` a function on several ranks, forked from a process that is kept between tests.

The pytest plugin, `@pytest.mark.ranks(4)`, does the same for test functions, and `MultiProcessTestCase` for classes that are
derived from torch's class of that name (docs/testing.md).
"""

from typing import Any

from allfold.testing.rank import RankOfTest
from allfold.testing.runs import run

__all__ = ["ranks", "run"]

ranks = RankOfTest.ranks

_FOR_TORCH = ("DistributedTestBase", "MultiProcessTestCase")


def __getattr__(name: str) -> Any:
    if name not in _FOR_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from allfold.testing import torch_cases  # only here: it imports torch's test library, which takes seconds

    return getattr(torch_cases, name)
