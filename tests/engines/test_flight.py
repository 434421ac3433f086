"""The flight records of a failed call: attached to the error, written to files, read by people, torch and Perfetto."""

from __future__ import annotations

import json
import os
import pickle
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_ranks import live_ranks

import allfold as af
from allfold.cli import main
from allfold.cli.doctor.flight import compare_calls
from allfold.communicator.communicator import Communicator
from allfold.engines.shared_memory.flight import FOLDER, read
from allfold.errors import UsageError
from allfold.export.flight import to_chrome, to_torch

PATIENCE = 60.0


def one_does_not_come(comm: Communicator) -> Any:
    """Rank 2 makes three calls of the world and two of a pair; rank 0 then differs there, after it has waited for nothing."""
    largest = af.op(np.maximum, commutative=True)
    pair = comm.group([0, 2])
    comm.all_reduce(np.ones(1024, np.float32))
    comm.all_gather(np.ones(4), np.ones(12))
    said = []
    if comm.rank != 2:
        with pytest.raises(af.CollectiveTimeout) as late:
            comm.all_reduce(np.ones(1024, np.float32), op=largest, timeout=0.5)
        said.append(late.value)
    if pair is not None:
        with pytest.raises(af.MismatchError) as differs:
            pair.all_reduce(np.ones(3 + comm.rank), op=largest, timeout=PATIENCE)
        said.append(differs.value)
    return [(type(error).__name__, error.__notes__, error.flight) for error in said]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("flights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        results = af.spawn(one_does_not_come, 3, timeout=2 * PATIENCE)
    files = sorted(folder.iterdir())
    assert [[name for name, *_ in said] for said in results] == [
        ["CollectiveTimeout", "MismatchError"],
        ["CollectiveTimeout"],
        ["MismatchError"],
    ]
    notes = sorted(note for said in results for _, (note,), _ in said)
    assert notes == sorted(f"the last calls are in {path}; `allfold doctor --read {path}` shows them" for path in files)
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(json.dumps(flight) for said in results for *_, flight in said) == sorted(
        json.dumps(json.loads(path.read_text())) for path in files
    )
    return files


def test_a_file_without_calls_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flight.json"
    path.write_text("[]")
    assert main(["doctor", "--read", str(path)]) == 2
    assert capsys.readouterr().err == "allfold doctor: --read: this file holds no calls of any rank\n"


def test_what_is_written_is_read_again(flights: list[Path]) -> None:
    world, pair = read(flights)
    assert (world["label"], world["size"], pair["size"]) == ("the world", 3, 2)
    # Rank 2 wrote no record of the world: what is known about it comes from the others.
    assert [len(member["calls"]) for member in world["members"]] == [4, 4, 3]
    assert [member["last_done"] for member in world["members"]] == [3, 3, 3]
    assert sorted(world["errors"]) == [0, 1] and world["errors"][0].startswith("CollectiveTimeout: all_reduce: rank 2")
    assert [member["calls"][-1]["elements"] for member in pair["members"]] == [3, 5]
    one = next(path for path in flights if '"label": "the world"' in path.read_text())
    # Each of the others has measured the length of a tick itself: their times for rank 2 agree, but not to the last
    # digit.
    for seen, told in zip(read([one])[0]["members"][2]["calls"], world["members"][2]["calls"], strict=True):
        for time in ("begun", "ended"):
            assert seen.pop(time) == pytest.approx(told.pop(time), rel=0, abs=1e-3)
        assert seen == told


def test_people_see_where_ranks_part(flights: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--no-color", "--read", *map(str, flights)]
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the world: 3 ranks"
    assert [line.split()[:2] for line in lines[2:7]] == [
        ["1", "0–2"],
        ["2", "0–2"],
        ["3", "0–2"],
        ["4", "0–1"],
        ["4", "2"],
    ]
    assert "all_gather(float64[12])" in lines[4] and "not ended" in lines[5] and "did not arrive" in lines[6]
    assert "call 4: rank 2 did not arrive, ranks 0 and 1 waited" in lines
    differ = "rank 0 called all_reduce(float64[3] custom), rank 1 called all_reduce(float64[5] custom)"
    assert f"call 1: {differ}" in lines
    assert main([*words, "--last", "1"]) == 1
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:4]] == [["4", "0–1"], ["4", "2"]]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["label"] == "the world"


def test_torch_blames_the_right_rank(flights: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "torch"
    assert main(["doctor", "--read", *map(str, flights), "--to", "torch", "--output", str(folder)]) == 0
    assert "torchfrtrace" in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == ["flight_0", "flight_1", "flight_2"]
    words = [
        sys.executable,
        "-m",
        "torch.distributed.flight_recorder.fr_trace",
        str(folder),
        "-o",
        str(tmp_path / "db"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Not all ranks joining collective, sequence number: 4" in said and "missing ranks: {2}" in said
    assert "Culprit rank 2; Error type: SIZE_OR_SYNTAX_MISMATCH" in said  # rank 1 of the pair is rank 2 of the world
    _, database = pickle.loads((tmp_path / "db").read_bytes())
    matched = [(one.collective_name, one.collective_seq_id) for one in database.collectives if one.pass_check]
    assert ("gloo:all_reduce", 2) in matched and ("gloo:all_gather", 3) in matched


@pytest.mark.parametrize(
    "collective", ["reduce", "broadcast", "gather", "scatter", "reduce_scatter", "all_to_all", "barrier"]
)
def test_torch_finds_nothing_wrong_with_what_is_right(collective: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch.distributed.flight_recorder.components.types")
    call = {"call": 1, "collective": collective, "dtype": "float32", "op": "sum", "elements": 12, "root": 0}
    call |= {"algorithm": "", "begun": 1.0, "ended": 2.0}
    members = [
        {"rank": rank, "process": 70 + rank, "last_call": 1, "last_done": 1, "calls": [call]} for rank in range(3)
    ]
    dumps = {
        rank: pickle.loads(dump) for rank, dump in to_torch([{"label": "a", "size": 3, "members": members}]).items()
    }
    first, *others = (torch.Op(dump["entries"][0], {"0": {0, 1, 2}}, "0") for dump in dumps.values())
    fine = (torch.MatchState.FULLY_MATCHED, torch.MatchState.UNDECIDED)
    assert all(first.match(other).state in fine for other in others)


def test_perfetto_gets_a_track_a_rank(flights: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "flight.json"
    assert main(["doctor", "--read", *map(str, flights), "--to", "perfetto", "--output", str(target)]) == 0
    rows = json.loads(target.read_text())["traceEvents"]
    tracks = [(row["pid"], row["tid"]) for row in rows if row["name"] == "thread_name"]
    assert tracks == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    slices = [row for row in rows if row["ph"] == "X"]
    assert len(slices) == 4 + 4 + 3 + 2
    assert [row["name"] for row in slices if row["pid"] == 0 and row["tid"] == 1] == [
        "all_gather",
        "all_reduce",
        "all_gather",
        "all_reduce (not ended)",
    ]
    assert to_chrome([])["traceEvents"] == []


def test_the_calls_of_a_rank_that_was_killed_are_kept() -> None:
    def work(comm: Communicator) -> Any:
        comm.broadcast(np.ones(7))
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        total = af.op(np.add, commutative=True)
        with pytest.raises(af.RankLost) as lost:
            comm.all_reduce(np.ones(7), op=total)
        with pytest.raises(af.AllfoldError) as again:  # the communicator is broken now
            comm.all_reduce(np.ones(7), op=total)
        return lost.value.flight, hasattr(lost.value, "__notes__"), hasattr(again.value, "flight")  # type: ignore[attr-defined]

    flight, has_notes, again = af.spawn(work, 2, timeout=PATIENCE, survive=True)[0]
    assert not has_notes and not again
    dead = flight["groups"][0]["members"][1]
    assert [call["collective"] for call in dead["calls"]] == ["broadcast"] and flight["error"]["type"] == "RankLost"


@pytest.mark.parametrize("way", ["plain", "in the background", "message", "message in the background"])
def test_the_recorders_are_kept_whichever_way_a_call_fails(way: str) -> None:
    def work(comm: Communicator) -> Any:
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(af.RankLost) as lost:
            if way == "plain":
                comm.all_reduce(np.ones(7))
            elif way == "in the background":
                handle = comm.all_reduce(np.ones(7), async_op=True)
                assert handle is not None
                handle.wait()
            elif way == "message":
                comm.recv(np.ones(7), 1)
            else:
                comm.irecv(np.ones(7), 1).wait()
        return lost.value.flight  # type: ignore[attr-defined]

    flight = af.spawn(work, 2, timeout=PATIENCE, survive=True)[0]
    assert flight["error"]["type"] == "RankLost" and "rank 1 (process " in flight["error"]["message"]
    assert [call["collective"] for call in flight["groups"][0]["members"][1]["calls"]] == ["barrier"]


def test_what_cannot_be_written_is_a_note_and_the_error_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(comm: Communicator) -> tuple[str, list[str]]:
        with pytest.raises(af.MismatchError) as differs:
            comm.all_reduce(np.ones(3 + comm.rank), op=af.op(np.maximum, commutative=True))
        return str(differs.value), differs.value.__notes__

    (tmp_path / "file").touch()
    monkeypatch.setenv(FOLDER, str(tmp_path / "file" / "folder"))
    for said, notes in af.spawn(work, 2, timeout=PATIENCE):
        assert said.startswith("all_reduce: rank 0 called it with float64[3]")
        assert len(notes) == 1 and notes[0].startswith("the flight recorder could not be written down: ")
        assert "Not a directory" in notes[0]


# Files from anywhere --------------------------------------------------------------------------------------------------

CALL = {"call": 1, "collective": "barrier", "dtype": "uint8", "op": "sum", "elements": 0, "root": 0, "algorithm": ""}
MEMBER = {"rank": 0, "process": 1, "standing": "open", "last_call": 1, "last_done": 1}
GROUP: dict[str, Any] = {
    "label": "x",
    "size": 2,
    "members": [{**MEMBER, "calls": [{**CALL, "begun": 1, "ended": None}]}],
}
GOOD: dict[str, Any] = {"format": "allfold-flight", "version": 1, "rank": 0, "error": None, "groups": [GROUP]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--read", "nowhere.json"], "nowhere.json: it cannot be read: No such file or directory"),
        (["--read", "/dev/null"], "/dev/null: expected a regular file of at most 256 MiB"),
        (["--read", "x", "--to", "torch"], "--to and --output go together: the format, and where to write it"),
        (["--read", "x", "--last", "0"], "--last 0: expected at least 1"),
        (["--read", "x", "--all"], "--read shows files; leave out the process and --all"),
    ],
)
def test_bad_usage_is_a_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert capsys.readouterr().err == f"allfold doctor: {sentence}\n"


def test_a_good_file_is_shown_and_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flight.json"
    path.write_text(json.dumps(GOOD | {"groups": [GROUP | {"label": "\x1b[2Jx"}]}))
    main(["doctor", "--no-color", "--read", str(path)])
    assert capsys.readouterr().out.startswith("?[2Jx: 2 ranks\n")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES = [[key] for key in GOOD]
PLACES += [["groups", 0, key] for key in GROUP]
PLACES += [["groups", 0, "members", 0, key] for key in (*MEMBER, "calls")]
PLACES += [["groups", 0, "members", 0, "calls", 0, key] for key in (*CALL, "begun", "ended")]


@given(place=st.sampled_from(PLACES), value=ANYTHING)
def test_any_change_of_a_file_is_understood_or_refused(
    tmp_path_factory: pytest.TempPathFactory, place: list[Any], value: Any
) -> None:
    document = json.loads(json.dumps(GOOD))
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_text(json.dumps(document))
    try:
        groups = read([path])
    except UsageError as error:
        assert str(error).startswith(f"{path}: ")
        return
    to_torch(groups)
    to_chrome(groups)
    assert main(["doctor", "--read", str(path), "--last", "3"]) in ((0, 1) if groups else (2,))


@pytest.mark.parametrize("size", [0, 1025, 2**27])
def test_more_ranks_than_there_can_be_are_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "many.json"
    path.write_text(json.dumps({**GOOD, "groups": [{**GROUP, "size": size}]}))
    with pytest.raises(UsageError, match="size is not a number from 1 to 1024"):
        read([path])


def test_calls_that_nobody_holds_are_not_counted_through() -> None:
    call = {"collective": "barrier", "begun": None, "ended": None}
    member = {"last_done": 10**15, "last_call": 10**15}
    calls = [{**call, "call": 10**15 - 1}, {**call, "call": 10**15}]
    group = {"members": [{**member, "rank": rank, "calls": calls} for rank in (0, 1)]}
    rows, sentences = compare_calls(group, 10**15)
    assert [row[:3] for row in rows] == [[str(one["call"]), "0–1", "barrier()"] for one in calls] and not sentences


def test_what_the_doctor_dumped_is_read_as_well(tmp_path: Path) -> None:
    """A live run, seen from outside: the same groups, without errors and without a rank that wrote them."""
    script = (
        "import sys, allfold, numpy\ncomm = allfold.init()\ncomm.all_reduce(numpy.ones(5))\nprint(flush=True)\ninput()"
    )
    with live_ranks(script, 2, ready="") as processes:
        target = tmp_path / "dump.json"
        assert main(["doctor", str(processes[0].pid), "--dump", str(target)]) == 0
        trace = tmp_path / "trace.json"
        assert main(["doctor", str(processes[0].pid), "--to", "perfetto", "--output", str(trace)]) == 0
    [group] = read([target])
    assert [member["process"] for member in group["members"]] == [process.pid for process in processes]
    assert [member["calls"][0]["elements"] for member in group["members"]] == [5, 5] and group["errors"] == {}
    assert sum(row["ph"] == "X" for row in json.loads(trace.read_text())["traceEvents"]) == 2
