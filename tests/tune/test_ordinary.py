"""How ordinary arrays are moved: what tuning chooses, that all ranks follow it, and that no result changes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_tune import a_run

import allfold as af
from allfold import _native
from allfold.bench.case import case_of_size
from allfold.cli import main
from allfold.communicator.communicator import connect
from allfold.engines.shared_memory.choice import ALWAYS, Way, way_at, ways
from allfold.engines.shared_memory.tuning import VARIABLE
from allfold.proved import programs_of
from allfold.tune.file import read_runs, write_runs
from allfold.tune.ordinary import Moved, _different, choose_ways, compare, describe, gains, measure_ways, segments

USUAL = Way(ALWAYS, False)
SIZES = [16 * 1024 * 4**power for power in range(6)]  # 16 KiB to 16 MiB


@pytest.fixture(autouse=True)
def no_file_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def timed(
    collective: str, algorithm: str, ranks: int, ratio_of: Callable[[Way, int], float], fetches: bool = True
) -> list[Moved]:
    """What measuring would give if each way took `ratio_of` times as long as the built-in one."""
    moved = []
    for size in SIZES:
        case = case_of_size(collective, size, ranks)
        usual, *others = _different(case, algorithm, fetches).values()
        assert usual[1:] == way_at(case.size, ways(collective, ranks))[1:] or not fetches
        moved += [Moved(collective, algorithm, case.size, way, ratio_of(way, size), 0.01) for way in others]
    return moved


# Choosing -------------------------------------------------------------------------------------------------------------


def test_only_what_differs_is_measured() -> None:
    def kinds(collective: str, size: int, fetches: bool = True) -> list[str]:
        found = _different(case_of_size(collective, size, 4), "direct", fetches).values()
        return [describe(way, collective) for way in found]

    small = kinds("all_reduce", 16 * 1024)
    assert {word.split()[0] for word in small} == {"push", "pull", "fetch"} and len(small) == 3
    assert not any("fetch" in word for word in kinds("all_reduce", 16 * 1024, fetches=False))
    # Where nothing is reduced nothing is handed out, and a short array is one segment whatever its length may be.
    assert len(kinds("all_gather", 16 * 1024)) == 2
    large = kinds("all_gather", 2**24)
    assert {"fetch", "pull", "pull in 1M"} <= set(large)
    beyond = kinds("all_gather", 2**26)
    assert len(beyond) > len(large) and any("in rows" in word for word in beyond)


def test_nothing_is_chosen_where_nothing_is_faster() -> None:
    random = np.random.default_rng(0)
    for collective, ratio in (("all_reduce", 1.0), ("all_gather", 1.0), ("all_reduce", 0.99), ("broadcast", 1.5)):
        algorithm = "driver" if collective == "broadcast" else "direct"
        moved = timed(collective, algorithm, 4, lambda *_, ratio=ratio: ratio * (1 + 0.01 * random.random()))
        assert choose_ways(4, moved) == {}


def test_a_fetch_is_chosen_from_the_size_on_where_it_is_faster() -> None:
    moved = timed("all_reduce", "direct", 4, lambda way, size: size**-0.5 * 512 if way.fetches else 1.1)
    rows = choose_ways(4, moved)["all_reduce"]
    assert [way.fetches for way in rows] == [False, True] and rows[0][1:] == USUAL[1:]
    assert 2**17 < rows[0].limit < 2**19.5 and rows[-1].limit == ALWAYS
    assert min(gains(4, "all_reduce", rows, moved).values()) == pytest.approx(0.125)


def test_a_fetch_is_given_up_where_it_is_slower() -> None:
    moved = timed("all_gather", "direct", 4, lambda way, size: 2.0 if way.fetches else 0.6)
    rows = choose_ways(4, moved)["all_gather"]
    assert not any(way.fetches for way in rows)
    # Where the system forbids it, nothing is known about it.
    moved = timed("all_gather", "direct", 4, lambda way, size: 2.0, fetches=False)
    assert choose_ways(4, moved) == {}


def test_segments_and_directions_are_chosen() -> None:
    other = (_native.MOST_HANDED == 0) * 3

    def ratio_of(way: Way, size: int) -> float:
        return 2.0 if way.fetches else (0.8 if way.handed == other else 1.0) * (0.8 if way.segment == 2**20 else 1.0)

    rows = choose_ways(4, timed("all_reduce", "direct", 4, ratio_of))["all_reduce"]
    assert {way.handed for way in rows} == {other} and rows[-1].segment == 2**20


def test_the_noisier_a_ratio_the_more_it_must_gain() -> None:
    moved = timed("broadcast", "driver", 4, lambda way, size: 0.9 if way.fetches else 1.0)
    assert choose_ways(4, moved)
    assert not choose_ways(4, [replace(one, noise=0.1) for one in moved])
    assert not choose_ways(4, moved, unrest=0.5)


def test_what_disturbs_both_does_not_count() -> None:
    usual = [1.0, 5.0, 1.1, 0.9, 9.0]
    ratio, noise = compare([one * 0.8 for one in usual], usual)
    assert ratio == pytest.approx(0.8) and noise == pytest.approx(0.0)
    ratio, noise = compare([0.8, 0.8, 80.0, 0.7, 0.9], [1.0] * 5)
    assert ratio == pytest.approx(0.8) and 0 < noise < 0.2


# Obeying --------------------------------------------------------------------------------------------------------------


def moved_how(comm: Any, collective: str, elements: int) -> tuple[set[str], int]:
    """The memory mode with which a call was really made, and its segments."""
    array = np.ones(elements, np.float32)
    with comm.trace() as trace:
        if collective == "all_gather":
            comm.all_gather(array, np.empty(elements * comm.size, np.float32))
        else:
            getattr(comm, collective)(array)
    return {event.memory for event in trace.events}, 1 + max(event.segment for event in trace.events)


def test_ranks_obey_the_ways_of_rank_0_and_groups_theirs(tmp_path: Path) -> None:
    """Also ranks that have another file, or a damaged one."""
    files = [tmp_path / f"{rank}.json" for rank in range(3)]
    of_all = {"all_reduce": [Way(2**16, False, segment=2**14), Way(ALWAYS, True)]}
    of_pairs = {"all_reduce": [Way(ALWAYS, False, segment=2**13)], "all_gather": [Way(ALWAYS, True)]}
    runs = {ranks: a_run(ranks, all_reduce=[(ALWAYS, "direct", True)]) for ranks in (2, 3)}
    write_runs(files[0], {2: replace(runs[2], ways=of_pairs), 3: replace(runs[3], ways=of_all)})
    write_runs(files[1], {3: replace(runs[3], ways={"all_reduce": [Way(ALWAYS, False, segment=2**20)]})})
    files[2].write_text("{")

    def work(comm: Any) -> Any:
        os.environ[VARIABLE] = str(files[comm.rank])
        with connect(comm.rank, comm.size, key) as other:
            found = [moved_how(other, "all_reduce", 2**elements) for elements in (14, 15)]
            pair = other.group([0, 1])
            if pair is not None:
                pair.barrier()
                found += [moved_how(pair, "all_reduce", 2**15), moved_how(pair, "all_gather", 2**13)]
        return found

    key = f"test {os.getpid()} {tmp_path}"
    *pair, third = af.spawn(work, ranks=3)
    by_the_rule, short, shorter = (
        segments(programs_of("all_reduce", "direct", ranks, None, "private"), size, segment)
        for ranks, size, segment in ((3, 2**16, 0), (3, 2**16, 2**14), (2, 2**17, 2**13))
    )
    assert 1 == by_the_rule < short < shorter  # how many depends on the processor
    assert third == [({"private"}, short), ({"readable"}, 1)]
    assert pair == [[*third, ({"private"}, shorter), ({"readable"}, 1)]] * 2


def test_no_way_changes_a_result() -> None:
    """Every way, on lengths that nothing divides, against the reference engine."""
    chosen = [
        Way(ALWAYS, fetches, handed, segment, in_rows)
        for fetches, handed, segment, in_rows in [
            (False, 0, 4096, True),
            (False, 7, 4096, False),
            (False, 1, 2**20, True),
            (False, 2, 12345, False),
            (True, 0, 0, False),
        ]
    ]
    inputs = np.random.default_rng(1).standard_normal((3, 30_011)).astype(np.float32)
    names = {"all_reduce": ("direct", "ring", "tree"), "broadcast": ("scatter_all_gather", "chain")}

    def work(comm: Any) -> bool:
        for collective, algorithms in names.items():
            for algorithm in algorithms:
                built = af.schedule(collective, algorithm, comm.size, 0 if collective == "broadcast" else None)
                expected = af.replay(built, list(inputs))[comm.rank]
                for way in chosen:
                    comm.engine.choose_ways(collective, [Way(7, False), way])
                    for _ in range(2):
                        array = inputs[comm.rank].copy()
                        getattr(comm, collective)(array, algorithm=algorithm)
                        assert array.tobytes() == expected.tobytes(), (collective, algorithm, way)
        return True

    assert all(af.spawn(work, ranks=3))


def test_a_program_cannot_have_segments_beyond_its_work_area() -> None:
    def work(comm: Any) -> str:
        comm.engine.choose_ways("all_reduce", [Way(ALWAYS, False, segment=2**20 + 1)])
        try:
            comm.all_reduce(np.zeros(1000, np.float32), algorithm="ring")
        except af.UsageError as error:
            return str(error)
        return ""

    assert all("segments that are larger than a work area" in one for one in af.spawn(work, ranks=2))


# The command ----------------------------------------------------------------------------------------------------------


def test_every_way_that_differs_is_measured() -> None:
    chosen = {"all_gather": [(ALWAYS, "direct", True)], "barrier": [(ALWAYS, "direct", False)]}
    found = measure_ways(2, [4096, 65536], chosen, True, 0.4, lambda *_: None)
    assert {(one.collective, one.algorithm, one.size) for one in found} == {("all_gather", "direct", 65536)}
    assert all(one.ratio > 0 and one.noise >= 0 for one in found)


def test_tune_measures_ways_and_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f.json"
    words = ["tune", "-n", "2", "--sizes", "4K,64K", "--collectives", "all_gather,barrier", "--seconds", "0.5"]
    assert main([*words, "--output", str(path)]) == 0
    capsys.readouterr()
    run = read_runs(path)[2]
    # Which algorithm is fastest here, and so whether it can be moved in several ways, differs from run to run.
    assert {(one.collective, one.size) for one in run.moved} <= {("all_gather", 65536)}
    assert all(one.ratio > 0 and one.noise >= 0 for one in run.moved) and "barrier" not in run.ways
    # A file that says something, whatever this machine has found.
    tuned = replace(run, ways={"all_gather": [Way(2**17, False), Way(ALWAYS, True)]})
    write_runs(path, {2: tuned, 3: replace(tuned, ranks=3, ways={})})
    assert main(["tune", "--show", "--output", str(path)]) == 0
    out = capsys.readouterr().out
    assert "2 ranks on" in out and "3 ranks on" in out and "pull to 128K, fetch" in out and tuned.date in out
    assert main(["tune", "--show", "-n", "2", "--output", str(path), "--json"]) == 0
    [document] = json.loads(capsys.readouterr().out)
    assert document["ordinary"]["all_gather"][-1][:2] == [None, True]
    assert main(["tune", "--show", "-n", "5", "--output", str(path)]) == 2
    assert "5 ranks were not tuned; the file has 2, 3" in capsys.readouterr().err
    assert main(["tune", "--show", "--seconds", "3"]) == 2
    assert "--show measures nothing" in capsys.readouterr().err
    before = [one.ratio for one in run.moved]
    assert main(["tune", "-n", "2", "--refit", "--output", str(path)]) == 0
    again = read_runs(path)[2]
    assert [one.ratio for one in again.moved] == pytest.approx(before, rel=1e-3) and again.ways == run.ways
