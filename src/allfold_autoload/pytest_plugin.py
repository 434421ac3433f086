"""The pytest plugin: `@pytest.mark.ranks(4)` runs a test in several processes (docs/testing.md).

pytest imports this file in every session of an environment in which allfold is installed. So it imports nothing but pytest;
what it does for tests that have the mark is in `allfold.testing.items`.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

_MARK = "ranks"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("allfold").addoption(
        "--rank-delays",
        type=int,
        metavar="SEED",
        help="delay the calls of tests with ranks at random, by up to 10 ms, to find bugs that depend on which rank is first",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "ranks(*numbers, backend=None, timeout=30, hosts=None, keep=False, threads=False, delays=None, device=None, "
        "check=True): run the test in this many processes, with each of the numbers in turn (allfold)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if (mark := metafunc.definition.get_closest_marker(_MARK)) is not None:
        from allfold.testing.items import parametrize

        parametrize(metafunc, mark)


def pytest_collection_finish(session: pytest.Session) -> None:
    marked = [(item, mark) for item in session.items if (mark := item.get_closest_marker(_MARK)) is not None]
    if marked and not session.config.option.collectonly:
        from allfold.testing.items import prepare

        prepare(marked)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    if (mark := pyfuncitem.get_closest_marker(_MARK)) is None:
        return None
    from allfold.testing.items import call

    call(pyfuncitem, mark)
    return True


def pytest_sessionfinish() -> None:
    if (kept := sys.modules.get("allfold.launch.kept_ranks")) is not None:
        kept.end_kept_ranks()


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> Any:
    """allfold's communicator of the test's ranks."""
    return _of_a_rank(request, "comm")


@pytest.fixture
def process_group(request: pytest.FixtureRequest) -> Any:
    """torch's default process group of the test's ranks, as the mark's `backend` makes it."""
    return _of_a_rank(request, "process_group")


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Any:
    """Kills ranks of the test, delays them, or slows them down: kill(2), delay(1, 0.5), slow(1, 0.01)."""
    return _of_a_rank(request, "ranks")


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> Any:
    """The rank that runs the test, a number from 0."""
    return _of_a_rank(request, "rank")


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> Any:
    """The number of ranks that run the test."""
    return _of_a_rank(request, "world_size")


def _of_a_rank(request: pytest.FixtureRequest, name: str) -> Any:
    from allfold.testing.items import placeholder

    return placeholder(request, name, request.node.get_closest_marker(_MARK))
