"""Tuning between hosts: what is measured, what is chosen from it, and that runs use it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launched import command, launched

import allfold as af
from allfold.collectives import COLLECTIVES
from allfold.communicator.communicator import Communicator
from allfold.engines.engine import MeasuredNetwork, Wire
from allfold.engines.islands.crossing import BUILT_IN, IN_ORDER, Crossing, Tuned, tuned_of
from allfold.engines.shared_memory.choice import folds_from_left
from allfold.engines.shared_memory.tuning import TuningError
from allfold.tune.file import read_hosts
from allfold.tune.hosts import CrossingTiming, HostsRun, choose, fitted, ways_of

KIB, MIB = 2**10, 2**20
LEADERS, WHOLE, CUT = Crossing(64 * MIB), Crossing(0, 32 * MIB), Crossing(0, 4 * MIB)


def allfold(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a command says, without a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        return subprocess.CompletedProcess(arguments, *command(None, *arguments))


@pytest.fixture(scope="module")
def tuned_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuning file of 2 and 1 ranks, measured once for all tests."""
    path = tmp_path_factory.mktemp("tuning") / "tuning.json"
    options = ("--seconds", "1", "--sizes", "1K,256K", "--output", str(path), "--json")
    status, out, err = launched(command, 3, "tune", *options, hosts=(2, 1))[0]
    assert status == 0, err
    said = json.loads(out)
    assert (said["hosts"], said["fabric"], said["path"]) == ([2, 1], "tcp", str(path))
    return path


def test_what_was_measured_is_written_and_shown(tuned_file: Path) -> None:
    (run,) = read_hosts(tuned_file)
    assert {one.bytes for one in run.timings} == {1 * KIB, 256 * KIB}
    assert {one.way for one in run.timings} == {"leaders", "every rank"}
    assert all(0 < one.seconds < 60 for one in run.timings)
    assert run.network.wires[0].hosts == ([0, 1], [2]) and 0 < run.network.wires[0].latency < 1
    shown = allfold("plan", "--measured", str(tuned_file), "--hosts", "--size", "256K")
    assert shown.returncode == 0 and "between 2 + 1 ranks on 2 hosts over tcp" in shown.stdout, shown.stderr
    assert shown.stdout.count("256K") == 2 and "1K" not in shown.stdout
    again = json.loads(allfold("plan", "--measured", str(tuned_file), "--hosts", "--json").stdout)
    assert again[0]["predicted"] == [None] * 4  # hosts with different numbers of ranks are no topology


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ranks", "7"), "all_reduce of 7 ranks between hosts was not tuned; the file has all_reduces of 2+1 ranks"),
        (("--collective", "broadcast"), "broadcast of any number of ranks between hosts was not tuned"),
        (("--size", "3M"), "nothing of that size was measured between hosts; the file has 1K, 256K"),
    ],
)
def test_what_was_not_measured_is_said(tuned_file: Path, arguments: tuple[str, ...], says: str) -> None:
    done = allfold("plan", "--measured", str(tuned_file), "--hosts", *arguments)
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--hosts", "give the number of ranks on each host (--hosts 2,3), or add --measured"),
        ("--hosts 4", "or the total with --ranks"),
        ("--hosts a,b", "--hosts a,b: expected a number of hosts, or the number of ranks on each"),
        ("--hosts 5", "--hosts 5: give the number of ranks"),
        ("--hosts 1 --ranks 5", "expected at least two hosts"),
        ("--hosts 600,600", "at most 1,024 ranks"),
        ("--hosts 4,4 --ranks 7", "4+4 is 8 ranks, and the run has 7"),
        ("--hosts 2,2 --collective gether", "did you mean 'gather'"),
        ("--hosts 2,2 --topology torus", "--topology is for a plan"),
        ("--hosts 2,2 --sweep", "--sweep is for a plan"),
        ("--measured x.json --hosts 2", "expected the number of ranks on each host"),
    ],
)
def test_hosts_that_a_plan_cannot_have(words: str, says: str) -> None:
    done = allfold("plan", *words.split())
    assert done.returncode == 2 and says in done.stderr, done.stderr


def test_a_plan_between_hosts_names_what_runs() -> None:
    done = allfold("plan", "--hosts", "2", "--ranks", "5", "--json", ALLFOLD_TUNING="off")
    found = json.loads(done.stdout)
    assert [(one["size"], one["collective"]) for one in found] == [
        (size, collective) for size in (64 * KIB, 64 << 20) for collective in COLLECTIVES
    ]
    for one in found:
        name, parameters = BUILT_IN.schedule(one["collective"], [[0, 1, 2], [3, 4]], one["size"])
        assert (one["algorithm"], one["parameters"]) == (name, parameters)
    crossing = {one["collective"]: one["messages_between_hosts"] for one in found[: len(COLLECTIVES)]}
    assert crossing == {
        "all_reduce": 2,
        "reduce": 1,
        "broadcast": 1,
        "gather": 1,
        "scatter": 1,
        "all_gather": 2,
        "reduce_scatter": 2,
        "all_to_all": 12,
        "scan": 1,
        "exscan": 1,
        "barrier": 2,
    }


def test_the_commands_that_a_plan_between_hosts_names_work() -> None:
    for collective, size in (("reduce", "1K"), ("all_reduce", "64M"), ("scatter", "64M")):
        said = allfold(
            "plan", "--hosts", "1,3", "--collective", collective, "--size", size, ALLFOLD_TUNING="off"
        ).stdout
        for line in said.splitlines()[-2:]:
            program, *words = line.split()
            done = allfold(*words)
            assert program == "allfold" and done.returncode == 0 and done.stdout, (line, done.stderr)


def test_a_plan_between_hosts_knows_what_was_tuned(tuned_file: Path) -> None:
    done = allfold("plan", "--hosts", "2,1", ALLFOLD_TUNING=str(tuned_file))
    assert done.returncode == 0 and "2 + 1 ranks, as tuned for these hosts" in done.stdout, done.stdout + done.stderr
    shown = allfold("plan", "--measured", str(tuned_file), "--hosts", "2,1")
    assert shown.returncode == 0 and "between 2 + 1 ranks" in shown.stdout, shown.stderr
    assert allfold("plan", "--measured", str(tuned_file), "--hosts", "2,2").returncode == 2


def test_one_host_is_not_tuned_by_a_launcher(tmp_path: Path) -> None:
    said = launched(command, 2, "tune", "--output", str(tmp_path / "tuning.json"))
    assert max(status for status, *_ in said) == 2, said
    assert "".join(err for *_, err in said).count("allfold tune -n 2") == 1, said


def crossing_of(comm: Communicator, length: int) -> tuple[Any, bytes]:
    array = np.random.default_rng(comm.rank).standard_normal(length).astype(np.float32)
    comm.all_reduce(array)
    group = comm.group([0, 2])
    inner = None if group is None else group.engine.crossing  # type: ignore[attr-defined]
    return (comm.engine.crossing, inner), array.tobytes()  # type: ignore[attr-defined]


def test_runs_use_what_was_tuned_for_as_many_hosts_and_ranks(
    tuned_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads(tuned_file.read_text())
    wanted = Crossing(1000, 40_000)
    document["hosts"][0]["crossing"] = {"leaders_up_to": 1000, "segment": 40_000, "across": None}
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps(document))
    path.chmod(0o600)
    length = 100_003
    plain = af.spawn(crossing_of, 3, args=(length,), hosts=(2, 1), timeout=60)
    monkeypatch.setenv("ALLFOLD_TUNING", str(path))
    tuned = af.spawn(crossing_of, 3, args=(length,), hosts=(2, 1), timeout=60)
    assert [one[0] for one in plain] == [(BUILT_IN, BUILT_IN), (BUILT_IN, None), (BUILT_IN, BUILT_IN)]
    assert [one[0] for one in tuned] == [(wanted, BUILT_IN), (wanted, None), (wanted, BUILT_IN)]
    assert {one[1] for one in plain} == {one[1] for one in tuned} and len({one[1] for one in plain}) == 1
    monkeypatch.setenv("ALLFOLD_TUNING", "off")
    assert af.spawn(crossing_of, 3, args=(1,), hosts=(2, 1), timeout=60)[0][0] == (BUILT_IN, BUILT_IN)


@pytest.mark.parametrize(
    ("hosts", "says"),
    [
        ({}, "hosts is {}; expected a list"),
        ([1], "a run between hosts is 1; expected an object"),
        ([{"hosts": [2], "fabric": "tcp", "crossing": {}}], "hosts has 1 entries"),
        ([{"hosts": [2, 0], "fabric": "tcp", "crossing": {}}], "ranks of a host is 0"),
        ([{"hosts": [2, 1], "fabric": "tcp", "crossing": {"across": "ring"}}], "across is 'ring'"),
        (
            [{"hosts": [2, 1], "fabric": "tcp", "crossing": {"leaders_up_to": -1, "segment": 1}}],
            "leaders_up_to is -1",
        ),
        ([{"hosts": [2, 1], "fabric": "tcp", "crossing": {"leaders_up_to": 1, "segment": 0}}], "segment is 0"),
        ([{"hosts": [2, 1], "fabric": 7, "crossing": {"leaders_up_to": 1, "segment": 1}}], "fabric is 7"),
    ],
)
def test_a_damaged_file_is_refused(hosts: Any, says: str) -> None:
    with pytest.raises(TuningError, match="it is damaged: ") as error:
        tuned_of({"hosts": hosts})
    assert says in str(error.value)


def timings(*rows: tuple[int, float, float, float | None]) -> list[CrossingTiming]:
    """By size: the seconds of leaders, of all ranks at once and in segments of 4 MiB."""
    found = []
    for size, leaders, whole, cut in rows:
        ways = [(replace(LEADERS, leaders_up_to=size), leaders), (WHOLE, whole), (CUT, cut)]
        found += [CrossingTiming(size, way, seconds) for way, seconds in ways if seconds]
    return found


def test_the_border_lies_between_the_sizes_that_leaders_won_and_lost() -> None:
    rows = timings((KIB, 1, 2, None), (MIB, 3, 4, None), (4 * MIB, 9, 7, None), (64 * MIB, 0, 90, 80))
    assert choose(rows) == Crossing(2 * MIB, 4 * MIB, None)
    assert choose(timings((KIB, 1, 2, None), (MIB, 0, 4, None))).leaders_up_to == KIB  # not tried beyond
    assert choose(timings((KIB, 2, 1, None))).leaders_up_to == 0
    assert choose(timings((KIB, 1, 2, None))) == replace(BUILT_IN, leaders_up_to=KIB)


@pytest.mark.parametrize("islands", [2, 3, 5, 8])
def test_whatever_is_chosen_folds_in_the_order_of_the_islands(islands: int) -> None:
    assert all(folds_from_left("all_reduce", name, islands) for name in IN_ORDER)


def test_the_ways_of_a_size_differ() -> None:
    for islands in (2, 3, 9):
        for size in (1, KIB, 4 * MIB, 5 * MIB, 64 * MIB):
            ways = list(ways_of(size, islands))
            keys = [(way.leaders_up_to >= size, min(way.segment, size), way.across) for way in ways]
            assert len(set(keys)) == len(keys) >= 1


def timed_on(true: HostsRun, sizes: Sequence[int]) -> HostsRun:
    """The run with the timings that its network gives."""
    blank = replace(true, timings=tuple(CrossingTiming(size, way, 1.0) for size in sizes for way in ways_of(size, 2)))
    said = blank.predicted()
    return replace(
        true, timings=tuple(replace(one, seconds=now) for one, now in zip(blank.timings, said, strict=True) if now)
    )


# A message of 64 KiB takes hardly longer than a short one; long ones are slower per byte than the bandwidth would allow.
TIMES = [(8, 300e-6), (1 << 16, 340e-6), (1 << 18, 900e-6), (1 << 20, 4e-3), (1 << 23, 36e-3)]
MEASURED = (KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)


@pytest.mark.parametrize("sizes", [[], [(8, 1e-5), (1 << 23, 9e-3)]])
def test_the_simulation_is_fitted_to_the_timings(sizes: list[tuple[int, float]]) -> None:
    """Whatever was measured of single messages, calls are simulated as they were measured, and those between nearly so."""
    wire = Wire(hosts=([0, 1], [2, 3]), latency=300e-6, overhead=20e-6, bandwidth=1e9, all_ranks=1e9, sizes=TIMES)
    true = HostsRun(Tuned((2, 2), "tcp", BUILT_IN), "", MeasuredNetwork([wire], 8e9, 20e9), ())
    wrong = replace(wire, latency=50e-6, all_ranks=3e9, sizes=sizes)
    known = replace(timed_on(true, MEASURED), network=MeasuredNetwork([wrong], 8e9, 20e9))
    found = fitted(known)
    assert found.timings == known.timings and found.tuned == known.tuned
    for some, most in ((MEASURED, 1.15), ((128 * KIB, 512 * KIB, 2 * MIB, 8 * MIB, 32 * MIB), 1.2)):
        asked = timed_on(true, some).timings
        for size in some:
            best = min((one for one in asked if one.bytes == size), key=lambda one: one.seconds)
            (said,) = replace(found, timings=(best,)).predicted()
            assert said is not None
            assert 1 / most < said / best.seconds < most, (size, said, best)


def test_a_run_between_hosts_survives_its_file() -> None:
    wire = Wire(hosts=([0], [1]), latency=1e-4, overhead=1e-5, bandwidth=1e9, all_ranks=1e9)
    run = HostsRun(
        Tuned((1, 1), "mpi", CUT),
        "today",
        MeasuredNetwork([wire], float("inf"), 1e9),
        (CrossingTiming(8, LEADERS, 0.25),),
    )
    assert HostsRun.from_json(json.loads(json.dumps(run.to_json(), allow_nan=False))) == run
