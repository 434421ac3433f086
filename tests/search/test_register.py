"""A found schedule gets a name, and is then an algorithm like any other, for just its ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import allfold as af
from allfold.cli import main
from allfold.collectives import COLLECTIVES
from allfold.errors import UsageError
from allfold.price import find_topology
from allfold.price.cost.plan import Planner
from allfold.registry import REGISTRY
from allfold.search.found import Found


@pytest.fixture(scope="module")
def found() -> Found:
    return af.find("all_gather", "one_host:ranks=2", size=2**16, method="greedy")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with REGISTRY.scope():
        yield


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


def test_it_serves_no_other_number_of_ranks(found: Found) -> None:
    af.register(found.schedule, "mine")
    with pytest.raises(UsageError, match=r"mine\(ranks=2\) works for that number of ranks only; you asked for 3 ranks"):
        af.schedule("all_gather", "mine", 3)
    assert "mine" not in af.algorithms("all_gather", 3) and "mine" in af.algorithms("all_gather", 2)
    assert Planner("all_gather", find_topology("one_host:ranks=3"), 3).plan(2**16).winner.algorithm != "mine"
    with pytest.raises(UsageError, match="all_reduce has no algorithm 'mine'"):
        af.schedule("all_reduce", "mine", 2)

    def work(comm: object) -> None:
        comm.all_gather(np.zeros(1), np.zeros(3), algorithm="mine")  # type: ignore[attr-defined]

    with pytest.raises(af.RankFailed, match="you asked for 3 ranks"):
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


def everything(comm: object, schedules: dict[str, af.Schedule]) -> list[str]:
    """Calls every collective by its schedule, and names those that gave something wrong."""
    ranks, rank = comm.size, comm.rank  # type: ignore[attr-defined]
    wrong = []
    for collective, found in schedules.items():
        call, root = getattr(comm, collective), found.root
        whole = np.arange(5 * ranks, dtype=np.float32)
        mine = whole[5 * rank : 5 * rank + 5]
        total = ranks * (ranks + 1) / 2
        rooted = {} if root is None else {"root": root}
        if collective in ("all_reduce", "reduce"):
            buffer = whole * (rank + 1)
            call(buffer, algorithm=found, **rooted)
            right = (rank != root and root is not None) or (buffer == whole * total).all()
        elif collective == "broadcast":
            buffer = whole if rank == root else np.zeros_like(whole)
            call(buffer, algorithm=found, **rooted)
            right = (buffer == whole).all()
        elif collective == "scatter":
            part = np.zeros(5, np.float32)
            call(part, whole if rank == root else None, algorithm=found, **rooted)
            right = (part == mine).all()
        elif collective == "reduce_scatter":
            part = np.zeros(5, np.float32)
            call(whole * (rank + 1), part, algorithm=found)
            right = (part == mine * total).all()
        elif collective == "all_to_all":
            result = np.zeros_like(whole)
            call(np.repeat(np.arange(ranks) + 10.0 * rank, 5).astype(np.float32), result, algorithm=found)
            right = (result == np.repeat(rank + 10.0 * np.arange(ranks), 5)).all()
        else:
            result = np.zeros_like(whole)
            call(mine, result if root in (None, rank) else None, algorithm=found, **rooted)
            right = root not in (None, rank) or (result == whole).all()
        wrong += [] if right else [collective]
    return wrong


@pytest.mark.parametrize(
    "some",
    [("all_reduce", "all_to_all", "gather"), pytest.param(tuple(COLLECTIVES), marks=pytest.mark.exhaustive)],
    ids=len,
)
@pytest.mark.parametrize(
    ("topology", "ranks", "hosts"), [("one_host:ranks=3", 3, None), ("hosts:hosts=2,ranks_per_host=2", 4, 2)]
)
def test_what_is_found_runs_here_and_between_pretended_hosts(
    topology: str, ranks: int, hosts: int | None, some: tuple[str, ...]
) -> None:
    schedules = {}
    for collective, promise in COLLECTIVES.items():
        if promise.carries_data and collective in some:
            root = ranks - 1 if promise.rooted else None
            schedules[collective] = af.find(collective, topology, size=2**20, root=root, seconds=0.3).schedule
    assert af.spawn(everything, ranks, args=(schedules,), hosts=hosts) == [[]] * ranks


def test_bench_measures_a_file_beside_others(found: Found, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "gather.json")
    af.schedule("all_gather", "ring", 2).save(file)  # its name is taken by another of the same table
    found.schedule.save(tmp_path / "found.json")
    words = ["--peers", "none", "-b", "64", "-e", "64", "-i", "2", "--json", "-"]
    assert main(["bench", "--algo", f"{file},ring,{tmp_path / 'found.json'},auto", *words]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    (point,) = table["points"]
    assert (point["collective"], point["ranks"]) == ("all_gather", 2)
    names = [one["algorithm"] for one in point["ours"]]
    assert names == [file, "ring", found.schedule.algorithm, "auto"]
    assert all(one["wrong"] == 0 for one in point["ours"])
    for more, sentence in (
        (["-n", "3"], "works only for --collective all_gather -n 2"),
        (["--collective", "all_reduce"], "works only for --collective all_gather -n 2"),
    ):
        assert main(["bench", "--algo", file, *more]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["bench", "--algo", str(tmp_path / "none.json")]) == 2
    assert "none.json cannot be read" in capsys.readouterr().err


def test_without_a_topology_it_is_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find", "--collective", "broadcast", "--ranks", "3", "--size", "64K", "--seconds", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 3
