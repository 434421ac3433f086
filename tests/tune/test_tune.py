"""Tuning: the file, that all ranks follow it in the same way, and the commands."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import allfold as af
from allfold.cli import main
from allfold.communicator.communicator import connect
from allfold.engines.shared_memory.choice import ALWAYS, Way, folds_from_left
from allfold.engines.shared_memory.tuning import (
    VARIABLE,
    Tuning,
    TuningError,
    check_document,
    choices_of,
    find_tuning,
    machine,
    read_document,
    tuning_path,
)
from allfold.tune import timing
from allfold.tune.file import TunedRun, read_runs, runs_of, write_runs
from allfold.tune.measured import measured
from allfold.tune.ordinary import Moved
from allfold.tune.timing import Measurement
from allfold.tune.tune import choose_again

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_file_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


# The file -------------------------------------------------------------------------------------------------------------


def a_run(ranks: int = 2, **choices_of_it: list[tuple[int, str, bool]]) -> TunedRun:
    return TunedRun(
        ranks=ranks,
        machine=machine(),
        date="2026-01-01 00:00 UTC",
        unrest=0.01,
        any_order=False,
        choices=choices_of_it or {"broadcast": [(1000, "driver", False), (ALWAYS, "tree", True)]},
        ways={"broadcast": (Way(2000, False, segment=2**18), Way(ALWAYS, True))},
        measured=(
            Measurement("broadcast", "driver", False, 65536, 1e-5),
            Measurement("broadcast", "tree", False, 65536, 2e-5),
        ),
        moved=(Moved("broadcast", "tree", 2**20, Way(ALWAYS, True), 0.9, 0.01),),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "tuning.json"
    write_runs(path, {2: a_run()})
    return path


def test_what_is_written_is_read_again(path: Path) -> None:
    runs = read_runs(path)
    one, other = runs[2], a_run()
    assert list(runs) == [2] and one.measured == other.measured
    assert read_document(path) == json.loads(path.read_bytes())
    assert os.listdir(path.parent) == [path.name]  # nothing half-written beside it
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    tuned = choices_of(read_document(path))
    assert tuned.of("broadcast", 2) == [(1000, "driver", False), (ALWAYS, "tree", True)]
    assert tuned.of("broadcast", 3) is None and tuned.of("gather", 2) is None
    assert tuned.ways_of("broadcast", 2) == list(other.ways["broadcast"]) == list(one.ways["broadcast"])
    assert tuned.ways_of("gather", 2) is None and one.moved == other.moved
    assert Tuning.unpack(tuned.pack(5)) == tuned and Tuning.unpack(tuned.pack(1)) == Tuning()


def test_files_from_before_there_were_ways_are_read(path: Path) -> None:
    change(path, lambda d: [d["runs"]["2"].pop(name) for name in ("ordinary", "ordinary_measurements")])
    assert choices_of(read_document(path)).ways == {} and read_runs(path)[2].moved == ()


def test_a_file_that_cannot_be_written_leaves_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(af.UsageError, match="No space left"):
        write_runs(path, {2: a_run(), 4: a_run(4)})
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


def change(path: Path, alter: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_bytes())
    alter(document)
    path.write_text(json.dumps(document))


def first_choices(document: dict[str, Any]) -> list[Any]:
    rows: list[Any] = document["runs"]["2"]["choices"]["broadcast"]
    return rows


def first_ways(document: dict[str, Any]) -> list[Any]:
    rows: list[Any] = document["runs"]["2"]["ordinary"]["broadcast"]
    return rows


BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda d: d.update(format="something"), "not a tuning file"),
    "another version of the format": (lambda d: d.update(version=2), "stale: made for version 2"),
    "another allfold": (lambda d: d.update(allfold="0.0.9"), "stale: made for allfold 0.0.9"),
    "another processor": (lambda d: d["machine"].update(processor="Z80"), "stale: made for the machine processor Z80"),
    "other cores": (lambda d: d["machine"].update(cores=10**6), "stale: made for the machine"),
    "no runs": (lambda d: d.pop("runs"), "no runs"),
    "no number of ranks": (lambda d: d["runs"].update({"two": d["runs"]["2"]}), "'?two'? is not a number of ranks"),
    "no rank": (lambda d: d["runs"].update({"0": d["runs"]["2"]}), "no choices for 0 ranks"),
    "an unknown collective": (lambda d: d["runs"]["2"]["choices"].update(dance=[]), "no collective dance"),
    "an unknown algorithm": (lambda d: first_choices(d)[0].__setitem__(1, "magic"), "no algorithm magic"),
    "an algorithm that is no name": (lambda d: first_choices(d)[0].__setitem__(1, ["tree"]), "no algorithm"),
    "no choices": (lambda d: first_choices(d).clear(), "no list of choices"),
    "limits that do not grow": (lambda d: first_choices(d)[0].__setitem__(0, 2**63), "impossible"),
    "a limit below zero": (lambda d: first_choices(d)[0].__setitem__(0, -5), "impossible"),
    "a limit that is a truth": (lambda d: first_choices(d)[0].__setitem__(0, True), "impossible"),
    "a limit with a fraction": (lambda d: first_choices(d)[0].__setitem__(0, 10.5), "impossible"),
    "nothing for large sizes": (lambda d: first_choices(d).pop(), "it has no entry for more than 1000 bytes"),
    "a choice of two parts": (lambda d: first_choices(d)[0].pop(), "is not"),
    "ordinary arrays that are no object": (lambda d: d["runs"]["2"].update(ordinary=[]), "is not an object"),
    "ordinary arrays of no collective": (lambda d: d["runs"]["2"]["ordinary"].update(dance=[]), "no collective dance"),
    "no ways": (lambda d: first_ways(d).clear(), "has no list of choices"),
    "a way of two parts": (lambda d: first_ways(d)[0].pop(), "is not .up to, fetches, handed, segment, in_rows."),
    "ways whose limits do not grow": (lambda d: first_ways(d)[0].__setitem__(0, 2**63), "impossible"),
    "no way for large sizes": (lambda d: first_ways(d).pop(), "no entry for more than 2000 bytes"),
    "a fetch that is a number": (lambda d: first_ways(d)[0].__setitem__(1, 1), "fetches is 1, not true or false"),
    "less than nobody": (lambda d: first_ways(d)[0].__setitem__(2, -1), "handed is -1, not a number of ranks"),
    "half a peer": (lambda d: first_ways(d)[0].__setitem__(2, 0.5), "handed is 0.5, not a number of ranks"),
    "no segment": (lambda d: first_ways(d)[0].__setitem__(3, 0), "a segment of 0 bytes; expected 4096 to 1048576"),
    "a segment beyond the work area": (lambda d: first_ways(d)[0].__setitem__(3, 2**20 + 1), "a segment of 1048577"),
    "rows that are a word": (lambda d: first_ways(d)[0].__setitem__(4, "yes"), "in_rows is yes, not true or false"),
    "another order": (
        lambda d: d["runs"].update({"4": {"choices": {"all_reduce": [[None, "ring", True]]}}}),
        "ring does not fold in rank order",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_stale_or_damaged_file_is_ignored_with_a_warning(
    what: str, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alter, reason = BAD[what]
    change(path, alter)
    monkeypatch.setenv(VARIABLE, str(path))
    with caplog.at_level(logging.WARNING, "allfold"):
        assert find_tuning() == Tuning()
    [record] = caplog.records
    assert record.name.startswith("allfold") and str(path) in record.getMessage()
    with pytest.raises(TuningError, match=reason):
        choices_of(read_document(path))


def test_another_order_is_obeyed_where_the_user_asked_for_it(path: Path) -> None:
    row = {"any_order": True, "choices": {"all_reduce": [[None, "ring", True]]}}
    change(path, lambda d: d["runs"].update({"4": row}))
    assert choices_of(read_document(path)).of("all_reduce", 4) == [(ALWAYS, "ring", True)]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 200_000, b'{"format": NaN}', b"null"])
def test_what_is_not_json_is_damaged(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(TuningError):
        read_document(path)


def test_files_that_others_could_have_written_are_not_trusted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in (0o666, 0o664, 0o622):
        path.chmod(mode)
        with pytest.raises(TuningError, match="can write to it"):
            read_document(path)
    path.chmod(0o644)
    assert read_document(path)
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(TuningError, match="belongs to another user"):
        read_document(path)


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path, path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(TuningError, match="not a regular file"):
            read_document(odd)
    path.write_bytes(b" " * (8 * 2**20 + 1))
    with pytest.raises(TuningError, match="bytes; expected at most"):
        read_document(path)


def test_where_the_file_is(tmp_path: Path) -> None:
    assert tuning_path({VARIABLE: "off", "HOME": "/h"}) == (None, True)
    assert tuning_path({VARIABLE: "/x.json"}) == (Path("/x.json"), True)
    assert tuning_path({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == (Path("/c/allfold/tuning.json"), False)
    for ignored in ({}, {"XDG_CONFIG_HOME": ""}, {"XDG_CONFIG_HOME": "relative"}):
        assert tuning_path({**ignored, "HOME": "/h"}) == (Path("/h/.config/allfold/tuning.json"), False)
    assert tuning_path({}) == (None, False)


def test_no_file_is_no_trouble_unless_it_was_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert find_tuning() == Tuning() and not caplog.records
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent.json"))
    assert find_tuning() == Tuning()
    assert "there is no such file" in caplog.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, as the keys that lead there."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield from places(one, (*path, key))


def a_document() -> dict[str, Any]:
    runs = {"2": a_run().to_json(), "3": a_run(3, all_reduce=[(5, "naive", False), (ALWAYS, "driver", True)]).to_json()}
    return {"format": "allfold-tuning", "version": 1, "allfold": af.__version__, "machine": machine(), "runs": runs}


PLACES = list(places(a_document()))


@given(st.sampled_from(PLACES), JSON | st.just(...))
def test_any_change_of_a_file_is_understood_or_refused(place: tuple[Any, ...], value: Any) -> None:
    document: Any = a_document()
    inside = document
    for key in place[:-1]:
        inside = inside[key]
    if not place:
        document = value if value is not ... else {}
    elif value is ...:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    content = json.dumps(document).encode()
    try:
        tuned = choices_of(check_document(content))
    except TuningError:
        return
    for ranks, rows in tuned.choices.items():
        for collective, row in rows.items():
            assert row[-1][0] == ALWAYS and [limit for limit, *_ in row] == sorted({limit for limit, *_ in row})
            assert all(name in af.algorithms(collective) and type(reach) is bool for _, name, reach in row)
            assert all(folds_from_left(collective, name, ranks) for _, name, _ in row) or value is True
    for of in tuned.ways.values():
        for ways in of.values():
            assert ways[-1].limit == ALWAYS and [way.limit for way in ways] == sorted({way.limit for way in ways})
            assert all(way.segment == 0 or 4096 <= way.segment <= 2**20 for way in ways)
            assert all(type(way.handed) is int and type(way.fetches) is type(way.in_rows) is bool for way in ways)
    assert Tuning.unpack(tuned.pack(1024)) == tuned
    try:
        runs = runs_of(check_document(content))
    except TuningError:
        return
    for run in runs.values():
        assert all(one.seconds > 0 for one in run.measured)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_refused(content: bytes) -> None:
    with pytest.raises(TuningError):
        check_document(content)


# Obeying --------------------------------------------------------------------------------------------------------------


def taken(comm: Any, collective: str = "broadcast", elements: int = 1000) -> set[tuple[str, str]]:
    """The algorithm and the memory mode with which a call was really made."""
    with comm.trace() as trace:
        getattr(comm, collective)(np.zeros(elements, np.float32))
    return {(event.algorithm, event.memory) for event in trace.events}


def test_ranks_obey_the_file_and_groups_theirs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_runs(
        path,
        {
            2: a_run(2, broadcast=[(ALWAYS, "scatter_all_gather", False)]),
            3: a_run(3, broadcast=[(2000, "chain", False), (ALWAYS, "tree", False)]),
        },
    )
    monkeypatch.setenv(VARIABLE, str(path))

    def work(comm: Any) -> tuple[Any, ...]:
        pair = comm.group([0, 1])
        inside = taken(pair) if pair is not None else {("scatter_all_gather", "private")}
        return taken(comm, elements=100), taken(comm), inside, taken(comm, "all_reduce")

    for small, large, pair, other in af.spawn(work, ranks=3):
        assert small == {("chain", "private")} and large == {("tree", "private")}
        assert pair == {("scatter_all_gather", "private")}
        assert other == {("naive", "private")}  # the file says nothing about it
    monkeypatch.setenv(VARIABLE, "off")
    assert {frozenset(taken) for taken in af.spawn(taken, ranks=3)} == {frozenset({("driver", "private")})}


def test_ranks_with_different_files_choose_alike(tmp_path: Path) -> None:
    """Rank 0's file counts, also for ranks that have another, a damaged one or none."""
    files = [tmp_path / f"{rank}.json" for rank in range(4)]
    write_runs(files[0], {4: a_run(4, broadcast=[(ALWAYS, "chain", False)])})
    write_runs(files[1], {4: a_run(4, broadcast=[(ALWAYS, "tree", True)])})
    files[2].write_text("{")

    def work(comm: Any) -> Any:
        os.environ[VARIABLE] = str(files[comm.rank])
        array = np.arange(5000, dtype=np.float32) * (comm.rank == 0)
        with connect(comm.rank, comm.size, key) as other:
            found = taken(other)
            other.broadcast(array)
        return found, float(array.sum())

    key = f"test {os.getpid()} {tmp_path}"
    assert af.spawn(work, ranks=4) == [({("chain", "private")}, float(np.arange(5000, dtype=np.float32).sum()))] * 4


def test_an_operation_that_is_not_commutative_keeps_its_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(a_run(3, all_reduce=[(ALWAYS, "ring", False)]), any_order=True)
    write_runs(path, {3: run})
    monkeypatch.setenv(VARIABLE, str(path))

    def work(comm: Any) -> list[float]:
        first = af.op(lambda left, right: left, commutative=False)
        array = np.full(3, comm.rank + 1, np.float32)
        comm.all_reduce(array, op=first)
        total = np.full(3, comm.rank, np.float32)
        with comm.trace() as trace:
            comm.all_reduce(total)
        assert {event.algorithm for event in trace.events} == {"ring"}
        return [*array, *total]

    assert af.spawn(work, ranks=3) == [[1, 1, 1, 3, 3, 3]] * 3


# The commands ---------------------------------------------------------------------------------------------------------


def test_tune_measures_writes_and_is_obeyed(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "here" / "f.json"
    words = ("tune", "-n", "2", "--sizes", "4K,64K", "--collectives", "broadcast,barrier", "--seconds", "0.2")
    status, out, _ = call(*words, "--output", str(output))
    assert status == 0 and "chosen here" in out and str(output) in out
    runs = read_runs(output)
    assert {one.collective for one in runs[2].measured} == {"broadcast", "barrier"}
    assert len(runs[2].measured) == 2 * 2 * len(af.algorithms("broadcast")) + len(af.algorithms("barrier"))
    assert all(one.seconds > 0 for one in runs[2].measured) and set(runs[2].choices) == {"broadcast", "barrier"}
    status, out, _ = call("tune", "-n", "2", "--refit", "--output", str(output), "--json")
    assert (
        status == 0 and json.loads(out)["measurements"] == json.loads(output.read_bytes())["runs"]["2"]["measurements"]
    )
    monkeypatch.setenv(VARIABLE, str(output))
    expected = next(name for limit, name, _ in find_tuning().of("broadcast", 2) or () if limit >= 4000)
    assert {name for one in af.spawn(taken, ranks=2) for name, _ in one} == {expected}


def test_another_number_of_ranks_is_added(call: Call, path: Path) -> None:
    words = ("tune", "-n", "3", "--sizes", "4K", "--collectives", "barrier", "--seconds", "0.1", "--output", str(path))
    assert call(*words)[0] == 0
    assert set(read_runs(path)) == {2, 3}
    path.write_text("{")
    status, _, err = call(*words)
    assert status == 0 and "damaged" in err and "replaced" in err
    assert set(read_runs(path)) == {3}


def test_an_interrupted_tune_leaves_nothing(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(timing, "measure", interrupted)
    status, _, _ = call("tune", "-n", "2", "--collectives", "barrier", "--output", str(tmp_path / "new" / "f.json"))
    assert status == 130 and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-n", "1"), "expected 2 to 64 ranks"),
        (("--seconds", "0"), "expected a time above 0"),
        (("--collectives", "dance"), "unknown collective"),
        (("--sizes", "x"), "expected a number of bytes"),
        (("--sizes", "0"), "at least 1 byte"),
        (("--output", "/dev/null/f.json"), "cannot be written"),
        (("--output", "/"), "cannot be written"),
        (("--output", "a" * 5000), "cannot be written: File name too long"),
        (("--refit", "--sizes", "1K"), "leave out --sizes"),
    ],
)
def test_tune_refuses_what_makes_no_sense(words: tuple[str, ...], sentence: str, call: Call) -> None:
    status, _, err = call("tune", *words)
    assert status == 2 and sentence in err


def test_help_holds_an_example(call: Call) -> None:
    status, out, _ = call("tune", "--help")
    assert status == 0 and "$ allfold tune -n 4" in out


def synthetic() -> TunedRun:
    measured = tuple(
        Measurement(collective, name, shared, size, 1e-6 * (place + 1) + size * (1e-10 if shared else 2e-10))
        for collective in ("broadcast", "all_reduce")
        for place, name in enumerate(af.algorithms(collective, 2))
        for shared in (False, True)
        for size in (2**14, 2**16, 2**20)
    )
    return choose_again(replace(a_run(), measured=measured, moved=()))


def test_measurements_are_selected(path: Path) -> None:
    write_runs(path, {2: synthetic()})
    found = measured(path, None, ["broadcast"], ["tree"], [2**16])
    assert [(one.algorithm, one.size) for one in found.measured] == [("tree", 2**16)] * 2
    assert len(measured(path).measured) == len(synthetic().measured)
    with pytest.raises(af.UsageError, match="3 ranks were not tuned; the file has 2"):
        measured(path, 3)
    with pytest.raises(af.UsageError, match="nothing like that was measured"):
        measured(path, sizes=[7])
    with pytest.raises(TuningError, match="there is no tuning file"):
        measured(path.parent / "absent.json")


def test_plan_shows_what_was_measured(call: Call, path: Path) -> None:
    write_runs(path, {2: synthetic()})
    status, out, _ = call("plan", "--measured", str(path), "--collective", "broadcast", "--size", "64K")
    assert status == 0
    rows = [line.split() for line in out.splitlines() if line.startswith("64K")]
    assert [row[2] for row in rows] == 2 * list(af.algorithms("broadcast", 2))  # the fastest first
    status, out, _ = call("plan", "--measured", str(path), "--json")
    document = json.loads(out)
    assert status == 0 and {row["collective"] for row in document["rows"]} == {"all_reduce"}
    assert {row["ranks"] for row in document["rows"]} == {2} and all(row["measured"] > 0 for row in document["rows"])
    assert call("plan", "--measured", str(path), "--topology", "laptop")[0] == 2
    assert call("plan", "--measured", str(path), "--sweep")[0] == 2
    status, _, err = call("plan", "--measured")
    assert status == 2 and "there is no tuning file" in err


def test_the_file_of_another_machine_can_be_looked_at(path: Path) -> None:
    change(path, lambda d: d["machine"].update(processor="Z80"))
    assert measured(path).machine["processor"] == "Z80"
    with pytest.raises(TuningError, match="stale"):
        read_runs(path)
