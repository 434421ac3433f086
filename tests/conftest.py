"""What all tests need: signals as they are on a terminal, no tuning of this machine, the same examples every time,
ranks that need not import the tests.

In the background, or under nohup, tests run with interrupts and hang-ups ignored. Every process that they start would
inherit that, and the launcher correctly keeps ignoring what it was told to ignore.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped]
import pytest
from hypothesis import settings
from warm_templates import WarmTemplate, end_servers

from allfold.launch import supervise

for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# A tuning file on this machine must not change what is tested.
os.environ.setdefault("ALLFOLD_TUNING", "off")

# The same examples for everybody. To search further: pytest -m hypothesis --hypothesis-profile=default
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have functions of tests pickled by value: a rank that imports the test's module also imports pytest, and more."""
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(module)


@pytest.fixture(autouse=True, scope="module")
def warm_templates(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ranks come from processes that have imported everything, except where it is tested how they come."""
    with pytest.MonkeyPatch.context() as patch:
        if "launch" not in Path(request.path).parts:
            patch.setattr(supervise, "Template", WarmTemplate)
        yield


def pytest_sessionfinish() -> None:
    end_servers()
