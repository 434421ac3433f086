"""Files of every kind, good and bad, through the command: what it says, and with which exit status."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from dumps import FILE, dump, entry, write

from allfold.cli import main
from allfold.errors import UsageError
from allfold.explain.findings import findings
from allfold.explain.read import read_run

EVERYBODY = {"0": range(3)}


def explain(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main(["explain", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_dump_of_nccl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = [
        entry("all_reduce", 1, 8),
        entry("broadcast", 2, 9, state="started"),
        entry("all_reduce", 3, 10, state="scheduled"),
    ]
    odd = [entry("all_reduce", 1, 8), entry("all_reduce", 2, 10, state="started")]
    folder = write(tmp_path, {0: dump(usual, EVERYBODY), 1: dump(odd, EVERYBODY), 2: dump(usual, EVERYBODY)})
    status, out, _ = explain(capsys, folder)
    assert status == 1
    assert out.splitlines()[0] == (
        "rank 1 left out broadcast(float32[4]) at train.py:9 (call 2 of the world), which ranks 0 and 2 made; it went on to "
        "all_reduce(float32[4]) at train.py:10; the last call that all made is call 1, all_reduce(float32[4]) at train.py:8"
    )


def test_states_of_nccl_are_believed(tmp_path: Path) -> None:
    # Rank 1's file was written a moment earlier: the others' call is done, so nobody waits.
    both = [entry("all_reduce", 1, 8), entry("all_reduce", 2, 8)]
    run, _ = read_run(
        [write(tmp_path, {0: dump(both, EVERYBODY), 1: dump(both[:1], EVERYBODY), 2: dump(both, EVERYBODY)})]
    )
    assert findings(run) == []


def test_gloo_without_members_and_states(tmp_path: Path) -> None:
    # As gloo writes it: no groups, everything "scheduled" and "retired". Group 7 is of ranks 1 and 2.
    small = ("7", "undefined")
    first = entry("all_reduce", 1, 8, library="gloo")
    late = entry("all_reduce", 1, 12, library="gloo", group=small)
    dumps = {0: [first], 1: [first, late], 2: [first, late, entry("barrier", 2, 13, library="gloo", group=small)]}
    run, _ = read_run([write(tmp_path, {rank: dump(entries) for rank, entries in dumps.items()}, "gloo_")])
    assert run.groups["7"].ranks == (1, 2) and run.groups["0"].ranks == (0, 1, 2)
    assert findings(run)[0].sentence.startswith(
        "rank 1 has not made barrier(float32[4]) at train.py:13 (call 2 of group 7)"
    )


def test_the_size_of_a_world_is_seen_in_what_is_gathered(tmp_path: Path) -> None:
    gather = entry("all_gather", 1, 8, library="gloo") | {"output_sizes": [[4, 4]]}
    run, _ = read_run([write(tmp_path, {rank: dump([gather]) for rank in (0, 1, 2)}, "gloo_")])
    assert run.missing() == [3] and findings(run)[0].kind == "missing"


def test_buffers_that_begin_late(tmp_path: Path) -> None:
    held = [entry("all_reduce", number, 8, record=number - 1, state="started") for number in range(100, 110)]
    dumps = {0: held, 1: held[3:], 2: [*held[5:], entry("all_reduce", 110, 8, record=109, state="started")]}
    run, _ = read_run([write(tmp_path, {rank: dump(entries, EVERYBODY) for rank, entries in dumps.items()})])
    found = findings(run)[0]
    assert found.kind == "absent" and found.ranks == (0, 1) and found.number == 110


def test_coalesced_calls_are_one_call(tmp_path: Path) -> None:
    def coalesced(*operations: str) -> list[dict[str, Any]]:
        parts = [entry(name, 1, 8, record=at, state="started") for at, name in enumerate((*operations, "coalesced"))]
        return [*parts, entry("all_reduce", 2, 9, record=9, state="started")]

    dumps = {0: coalesced("_all_gather_base", "_all_gather_base"), 1: coalesced("_all_gather_base", "_all_gather_base")}
    run, _ = read_run([write(tmp_path, {rank: dump(one, {"0": range(2)}) for rank, one in dumps.items()})])
    assert [call.operation for call in run.ranks[0].calls] == ["coalesced all_gather_single", "all_reduce"]
    assert [found.kind for found in findings(run)] == ["stuck"]  # in the all_reduce, with equal calls


def test_messages_of_nccl(tmp_path: Path) -> None:
    send = entry("send 0->1", 1, 20, p2p=1, state="started") | {"is_p2p": True}
    receive = entry("recv 1<-0", 1, 21, p2p=1, state="started") | {"is_p2p": True}
    again = entry("recv 1<-0", 1, 22, p2p=2, state="started", record=1) | {"is_p2p": True}
    run, _ = read_run([write(tmp_path, {0: dump([send], {"0": [0, 1]}), 1: dump([receive, again], {"0": [0, 1]})})])
    assert findings(run)[0].sentence.startswith(
        "rank 1 receives from rank 0 at train.py:22, and rank 0 has made no matching send"
    )


def test_a_dump_as_json(tmp_path: Path) -> None:
    for rank, line in ((0, 8), (1, 8)):
        one = dump([entry("all_reduce", 1, line, 4 + rank) | {"process_group": ["0", "default_pg"]}], {"0": range(2)})
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(one))
    run, _ = read_run([tmp_path])
    assert findings(run)[0].kind == "shape"


WATCHDOG = (
    "[rank{rank}]:[E1118 20:00:00.1 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation timeout\n"
    "[rank{rank}]:[E1118 20:00:00.1 ProcessGroupNCCL.cpp:683] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum={number}, OpType={op}, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for "
    "600029 milliseconds before timing out.\n"
)
GLOO = (
    "[rank{rank}]: Traceback (most recent call last):\n"
    '[rank{rank}]:   File "/home/me/train.py", line {line}, in <module>\n'
    "[rank{rank}]:     dist.all_reduce(x)\n"
    '[rank{rank}]:   File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce\n'
    "[rank{rank}]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation\n"
)
DETAIL = (
    "[rank0]: RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=8, OpType=BROADCAST, TensorShape=[4], TensorDtypes=Float, TensorDeviceTypes=x), "
    "but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=8, OpType=ALLREDUCE, TensorShape=[4], "
    "TensorDtypes=Float, TensorDeviceTypes=x).Collectives differ in the following aspects: Op type: BROADCAST vs ALLREDUCE\n"
)
TORCHRUN = "Root Cause (first observed failure):\n[0]:\n  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 7)\n"


def test_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        "watchdog": (
            "".join(WATCHDOG.format(rank=rank, number=5, op="BROADCAST" if rank else "ALLREDUCE") for rank in range(3)),
            "rank 0 made all_reduce([4]) (call 5 of the world), where ranks 1 and 2 made broadcast([4])",
        ),
        "gloo": (
            "".join(GLOO.format(rank=rank, line=9 if rank == 1 else 12) for rank in range(3)),
            "calls failed on ranks 0 and 2 at train.py:12, rank 1 at train.py:9, and logs alone do not say why",
        ),
        "detail": (
            DETAIL,
            "rank 1 made all_reduce(float32[4]) (call 8 of the group), where rank 0 made broadcast(float32[4])",
        ),
        "dead": (GLOO.format(rank=0, line=12) + TORCHRUN, "rank 2 was killed by signal 9"),
        "ours": (
            "[rank0]: allfold.errors.CollectiveTimeout: all_reduce: rank 2 did not arrive within 4 s\n",
            "allfold.errors.CollectiveTimeout: all_reduce: rank 2 did not arrive within 4 s",
        ),
    }
    for name, (text, sentence) in cases.items():
        path = tmp_path / f"{name}.log"
        path.write_text(text)
        status, out, _ = explain(capsys, path)
        assert status == 1 and out.startswith(sentence), f"{name}: {out}"


def test_a_log_beside_records_says_how_a_rank_died(tmp_path: Path) -> None:
    entries = [entry("all_reduce", 1, 8, library="gloo"), entry("all_reduce", 2, 9, library="gloo")]
    write(tmp_path, {0: dump(entries), 1: dump(entries)}, "gloo_")
    (tmp_path / "torchrun.log").write_text(GLOO.format(rank=0, line=9) + TORCHRUN)
    found = findings(read_run([tmp_path])[0])[0]
    assert (found.kind, found.ranks) == ("dead", (2,)) and found.sentence.startswith(
        "rank 2 was killed by signal 9; the last"
    )


def test_json_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange = [
        entry("all_reduce", 1, 8) | {"frames": [{"name": "</script><b>", "filename": "<img src=x>.py", "line": 1}]}
    ]
    folder = tmp_path / "flights"
    folder.mkdir()
    write(folder, {0: dump([entry("all_reduce", 1, 8, 5)], {"0": range(2)}), 1: dump(strange, {"0": range(2)})})
    status, out, _ = explain(capsys, folder, "--json", "--html", tmp_path / "x.html")
    said = json.loads(out)
    assert status == 1 and said["format"] == "allfold-explanation" and said["findings"][0]["kind"] == "shape"
    assert said["findings"][0]["calls"]["0"]["stack"][0] == [FILE, 8, "main"]
    page = (tmp_path / "x.html").read_text()
    assert "<script" not in page and "<img" not in page and "http" not in page.replace("http-equiv", "")
    assert '<td class="bad"' in page and "default-src 'none'" in page


def test_status_0_where_nothing_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = dump([entry("all_reduce", 1, 8)], {"0": range(2)})
    status, out, _ = explain(capsys, write(tmp_path, {0: one, 1: one}))
    assert status == 0 and out.startswith("nothing wrong found in 2 ranks, 2 calls in 1 group\n")


def test_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = tmp_path / "nccl_trace_rank_0"
    named.write_bytes(pickle.dumps({"version": "2.10"}, 2))
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("nothing here")
    cases = {
        tmp_path / "no such folder": "cannot be read",
        tmp_path / "empty": "there are no files",
        named: "it has no entries",
        tmp_path / "notes.txt": "no line in it is about a timeout",
    }
    for path, says in cases.items():
        status, out, err = explain(capsys, path)
        assert (status, out) == (2, "") and says in err and "Traceback" not in err, path


def test_a_hostile_pickle_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"cos\nsystem\n(S'touch /tmp/x'\ntR.")
    (tmp_path / "nccl_trace_rank_1").write_bytes(b"\x80\x02cos\nsystem\nX\x01\x00\x00\x00x\x85R.")
    status, _, err = explain(capsys, tmp_path / "nccl_trace_rank_1")
    assert status == 2 and "nothing in this file was executed" in err
    assert explain(capsys, tmp_path)[0] == 2


def test_damaged_dumps_never_end_in_a_traceback(tmp_path: Path) -> None:
    good = pickle.dumps(dump([entry("all_reduce", number, 8) for number in (1, 2)], EVERYBODY), protocol=2)
    chance = random.Random(1)
    path = tmp_path / "nccl_trace_rank_0"
    for _ in range(150):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice(
                [0, 1, 0x28, 0x4E, 0x5D, 0x7D, 0xFF, chance.randrange(256)]
            )
        path.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        try:
            findings(read_run([path])[0])
        except UsageError as error:
            assert str(error)


@pytest.mark.parametrize(
    "strange", [None, 1, "x", [], [1], {}, {"a": 1}, 2**80, -1, [[]], [["x"]], [[2**70]]], ids=repr
)
def test_every_field_may_be_anything(tmp_path: Path, strange: Any) -> None:
    fields = [*entry("send 0->1", 1, 8)]
    for field in fields:
        odd = dump([entry("all_reduce", 1, 8), entry("send 0->1", 1, 8, p2p=1) | {field: strange}], EVERYBODY)
        path = tmp_path / "nccl_trace_rank_0"
        path.write_bytes(pickle.dumps(odd, 2))
        try:
            findings(read_run([path])[0])
        except UsageError as error:
            assert str(error)
    for field in dump([]):
        path.write_bytes(pickle.dumps({**dump([entry("all_reduce", 1, 8)], EVERYBODY), field: strange}, 2))
        try:
            findings(read_run([path])[0])
        except UsageError as error:
            assert str(error)
