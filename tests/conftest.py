"""What all tests need: signals as they are on a terminal, no tuning of this machine, the same examples every time,
ranks that need not import the tests.

In the background, or under nohup, tests run with interrupts and hang-ups ignored. Every process that they start would
inherit that, and the launcher correctly keeps ignoring what it was told to ignore.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped]
import pytest
from hypothesis import settings

from allfold.launch import supervise
from allfold.launch.kept import KeptTemplate, end_kept

for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# A tuning file on this machine must not change what is tested.
os.environ.setdefault("ALLFOLD_TUNING", "off")
# NumPy's BLAS starts a thread per core, which spins for a while: a third of what importing NumPy takes, in every process.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The same examples for everybody, and more of them at night.
# To search further: pytest -m hypothesis --hypothesis-profile=default
settings.register_profile("some", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("exhaustive", derandomize=True, deadline=None, max_examples=300)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile") is None:
        settings.load_profile("some" if config.getoption("markexpr") == "not exhaustive" else "exhaustive")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have functions of tests pickled by value: a rank that imports the test's module also imports pytest, and more."""
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(module)
    gc.freeze()  # thousands of tests and what they import: no garbage


@pytest.fixture(autouse=True, scope="module")
def kept_templates(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ranks come from kept processes, which have imported everything, except where it is tested how they come."""
    with pytest.MonkeyPatch.context() as patch:
        if "launch" not in Path(request.path).parts:
            patch.setattr(supervise, "RepeatedTemplate", KeptTemplate)
        yield


def pytest_sessionfinish() -> None:
    end_kept()
