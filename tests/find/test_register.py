"""A found schedule gets a name, and is then an algorithm like any other, for just its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import allfold as af
from allfold.errors import UsageError
from allfold.find.found import Found
from allfold.price import find_topology
from allfold.price.cost.plan import Planner
from allfold.registry import _registry


@pytest.fixture(scope="module")
def found() -> Found:
    return af.find("all_gather", "one_host:ranks=2", size=2**16, seconds=2)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    before = {collective: dict(known) for collective, known in _registry.items()}
    yield
    for collective, known in before.items():
        _registry[collective].clear()
        _registry[collective].update(known)


def test_calls_plan_and_verify_know_it_by_its_name(found: Found) -> None:
    af.register(found.schedule, "mine")
    assert "mine" in af.algorithms("all_gather")
    made = af.schedule("all_gather", "mine", 2)
    assert made.title == "mine(ranks=2)" and made.digest == found.schedule.digest
    assert af.verify(made).across_hosts
    planned = Planner("all_gather", find_topology("one_host:ranks=2"), 2, ["mine", "ring"]).plan(2**16)
    assert {cost.algorithm for cost in planned.costs} == {"mine", "ring"}

    def work(comm: object) -> list[float]:
        result = np.zeros(6, np.float32)
        comm.all_gather(np.full(3, comm.rank + 1, np.float32), result, algorithm="mine")  # type: ignore[attr-defined]
        return [float(number) for number in result]

    assert af.spawn(work, ranks=2) == [[1, 1, 1, 2, 2, 2]] * 2
    assert af.spawn(work, ranks=2, hosts=2) == [[1, 1, 1, 2, 2, 2]] * 2


def test_it_serves_no_other_number_of_ranks(found: Found) -> None:
    af.register(found.schedule, "mine")
    with pytest.raises(UsageError, match=r"mine\(ranks=2\) is a schedule for just that; 3 ranks are asked for"):
        af.schedule("all_gather", "mine", 3)
    assert "mine" not in af.algorithms("all_gather", 3) and "mine" in af.algorithms("all_gather", 2)
    assert Planner("all_gather", find_topology("one_host:ranks=3"), 3).plan(2**16).winner.algorithm != "mine"
    with pytest.raises(UsageError, match="all_reduce has no algorithm 'mine'"):
        af.schedule("all_reduce", "mine", 2)

    def work(comm: object) -> None:
        comm.all_gather(np.zeros(1), np.zeros(3), algorithm="mine")  # type: ignore[attr-defined]

    with pytest.raises(af.RankFailed, match="for just that; 3 ranks are asked for"):
        af.spawn(work, ranks=3)


def test_names_are_kept_apart(found: Found) -> None:
    with pytest.raises(UsageError, match="already has an algorithm 'ring'"):
        af.register(found.schedule, "ring")
    with pytest.raises(UsageError, match="cannot be the name of an algorithm"):
        af.register(found.schedule, "my schedule")
    with pytest.raises(UsageError, match="expected a schedule"):
        af.register(found)  # type: ignore[arg-type]
    assert af.register(found.schedule).name == found.schedule.algorithm
    af.register(found.schedule, "mine")
    other = af.schedule("all_gather", "ring", 4)
    assert af.register(other, "mine").made is not None
    assert af.schedule("all_gather", "mine", 4).digest == other.digest

    with pytest.raises(UsageError, match="already has an algorithm 'mine'"):

        @af.algorithm("all_gather", "mine")
        def another(ranks: int) -> Iterator[list[af.Move]]:
            yield []


def test_what_is_saved_is_loaded(found: Found, tmp_path: Path) -> None:
    file = tmp_path / "gather.json"
    found.schedule.save(file)
    assert af.load(file) == found.schedule
    with pytest.raises(UsageError, match=r"none\.json cannot be read"):
        af.load(tmp_path / "none.json")
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(UsageError, match=r"empty\.json: this is not a schedule"):
        af.load(tmp_path / "empty.json")


def test_what_is_built_in_is_not_what_was_registered(found: Found) -> None:
    af.register(found.schedule, "mine")
    again = af.find("all_gather", "one_host:ranks=2", size=2**16, method="built_in")
    assert again.schedule.algorithm != "mine"
