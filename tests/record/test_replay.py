"""Replays of trainings, and records of runs that end badly; what a damaged file makes of them."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import trainings
from worlds import record, replay

from allfold.errors import RankFailed, UsageError
from allfold.record import format
from allfold.record.diverge import compare_ranks, compare_runs
from allfold.record.keep import Keep
from allfold.record.read import path_of, read_rank, read_run, why_no_replay


def _all_trainings(rank: int) -> list[Any]:
    return [training(rank) for training in trainings.TRAININGS]


def test_trainings_alone_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    trained = record(tmp_path, 2, "gloo", "all", _all_trainings)
    assert trained[0] != trained[1]
    lines = {call.form.stack[0].function for one in read_run(tmp_path).values() for call in one.calls}
    assert lines >= {"data_parallel", "_train", "pipeline"}
    for rank, (again, outcome) in enumerate(replay(tmp_path, 2, "gloo", _all_trainings)):
        assert outcome.startswith("all "), outcome
        assert again == trained[rank]


def _staged(rank: int) -> list[float]:
    """A pipeline whose stages make calls: torch first runs them on memory that nobody has written."""
    from torch.distributed import _functional_collectives
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    alone = [dist.new_group([one]) for one in range(2)][rank]

    class Summed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _functional_collectives.all_reduce(x.detach(), "sum", alone) + x * self.weight

    stage = PipelineStage(Summed(), rank, 2, torch.device("cpu"))
    losses: list[torch.Tensor] = []
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, target: (out - target).square().mean())
    old = [torch.full((2, 1000), float(time.time_ns() % 1_000_003)) for _ in range(50)]
    del old  # torch's allocator gives this memory out again
    if rank == 0:
        schedule.step(torch.ones(4, 1000))
    else:
        schedule.step(target=torch.ones(4, 1000), losses=losses)
    return [one.item() for one in losses]


def test_stages_that_make_calls_do_not_depend_on_what_was_in_memory(tmp_path: Path) -> None:
    trained = record(tmp_path, 2, "gloo", "all", _staged)
    for rank, (again, outcome) in enumerate(replay(tmp_path, 2, "gloo", _staged)):
        assert outcome.startswith("all "), outcome
        assert again == trained[rank]


def _on_a_full_disk(rank: int) -> float:
    limit = 1 << 20  # of any file, in place of a disk that is full
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    x = torch.ones(50_000)
    for _ in range(20):
        dist.all_reduce(x, dist.ReduceOp.MAX)
    return float(x.sum())


def test_a_disk_that_is_full_ends_the_record_and_not_the_run(tmp_path: Path) -> None:
    assert record(tmp_path, 2, "gloo", "all", _on_a_full_disk) == [50_000.0] * 2
    for one in read_run(tmp_path).values():
        assert one.note == "stops before its program does: File too large" and one.ended is None
        assert 3 <= len(one.calls) <= 6 and all(call.ended is not None for call in one.calls[:-1])
    for _, outcome in replay(tmp_path, 2, "gloo", _on_a_full_disk):
        assert "stopped recording (File too large)" in outcome, outcome


def _ends_badly(rank: int, how: str) -> Any:
    x = torch.ones(4) * rank
    dist.all_reduce(x)
    dist.isend(x, 1 - rank)  # nobody waits for it
    if how in ("killed", "failed"):
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:  # the other has made two calls and waits in its third, which this one does not make
            other = int(store.get("process"))
            time.sleep(0.5)
            if how == "failed":
                os._exit(3)
            os.kill(other, signal.SIGKILL)
            time.sleep(60)
        store.set("process", str(os.getpid()))
    if how == "other":
        dist.all_reduce(x.double())
    if how in ("killed", "failed", "failed_again", "plain"):
        dist.all_reduce(x)
    if how == "rpc":
        import torch.distributed.rpc as rpc

        rpc.init_rpc("one", rank=rank, world_size=2)
    return x.tolist()


def test_a_replay_ends_where_the_run_did_and_where_the_program_differs(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=r"rank 0 .*SIGKILL"):
        record(tmp_path / "killed", 2, "gloo", "all", _ends_badly, "killed")
    killed = read_run(tmp_path / "killed")
    assert (killed[0].ended, len(killed[0].calls), killed[0].calls[2].ended) == (None, 3, None)
    (_, first), (_, second) = replay(tmp_path / "killed", 2, "gloo", _ends_badly, "plain")
    assert "made call 3, all_reduce(float32[4], sum) at test_replay.py" in first and "was killed" in first, first
    assert "the record ends before all_reduce(float32[4], sum) at test_replay.py" in second, second

    with pytest.raises(RankFailed, match="exited with status 3"):
        record(tmp_path / "failed", 2, "gloo", "all", _ends_badly, "failed")
    failure = read_run(tmp_path / "failed")[0].calls[2].failure
    assert failure is not None and failure[0] == "RuntimeError"
    (error, outcome), _ = replay(tmp_path / "failed", 2, "gloo", _ends_badly, "failed_again")
    assert (error, outcome) == (failure[1], "all 3 calls were made as recorded")

    plain = record(tmp_path / "plain", 2, "gloo", "all", _ends_badly, "plain")
    for how, said in (
        ("plain", "all 3 calls were made as recorded"),
        ("nothing", "the program ended after 2 of the 3 calls"),
        ("other", "all_reduce(float64[4], sum) at test_replay.py"),
        ("rpc", "torch.distributed.rpc cannot be replayed"),
    ):
        for rank, (found, outcome) in enumerate(replay(tmp_path / "plain", 2, "gloo", _ends_badly, how)):
            assert said in outcome, (how, outcome)
            assert how != "plain" or found == plain[rank]


def _file(path: Path, rank: int = 0, keep: str = "all") -> Path:
    """A record of one call of two ranks, without its ranks."""
    path.mkdir(exist_ok=True)
    file = path / format.file_name(rank)
    writer = format.Writer(str(file))
    empty: dict[str, Any] = {}
    writer.write(
        format.HEAD,
        {"rank": rank, "keep": keep, "time": 0, "program": empty, "variables": empty, "facts": empty, "random": empty},
    )
    writer.write(format.WORLD, {"rank": rank, "size": 2, "backend": "gloo", "state": {}})
    writer.write(format.GROUP, {"group": 0, "name": "0", "ranks": [0, 1], "description": "default_pg", "timeout": 1800})
    tensor = ["float32", [1000]]
    form = {"form": 0, "operation": "all_reduce", "group": 0, "inputs": [tensor], "outputs": [tensor], "stack": []}
    writer.write(format.FORM, form | {"reduction": "sum"})
    data = torch.arange(1000.0)
    for number in range(1, 4):
        writer.write(format.CALL, [number, 0, number, [number], number])
        place = writer.write_data([(data.data_ptr(), data.nbytes)]) if keep == "all" else None
        writer.write(format.DONE, [number, [7], place, None])
    writer.write(format.STORE, ["get", "key", True, "value"])
    writer.write(format.ENDS, {"words": ""})
    writer.close()
    return file


def test_damaged_files_are_read_up_to_the_damage(tmp_path: Path) -> None:
    file = _file(tmp_path)
    whole = file.read_bytes()
    assert (len(read_rank(file).calls), read_rank(file).note) == (3, "")
    draw = random.Random(1)
    damaged, said = tmp_path / "rank-1.allfold", set()
    for number in range(600):
        if number % 2:
            contents = whole[: draw.randrange(len(whole))]
        else:
            contents = bytearray(whole)
            for _ in range(draw.randrange(1, 4)):
                contents[draw.randrange(len(whole))] = draw.randrange(256)
        damaged.write_bytes(contents)
        try:
            found = read_rank(damaged)
        except UsageError as error:
            said.add(str(error).partition(" ")[2].split(":")[0][:20])
        else:
            assert len(found.calls) <= 3
            said.add(found.note[:12])
            compare_runs({0: found}, {0: read_rank(file)})
            compare_ranks({0: found})
    assert {"ends within ", "is damaged a", "has no HEAD block", "is not a record of a"} <= said, said


def test_what_cannot_be_used_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = _file(tmp_path / "all")
    with pytest.raises(UsageError, match="has no record of rank 3; it has ranks 0"):
        path_of(tmp_path / "all", 3)
    with pytest.raises(UsageError, match="there is no folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="has no record of a run"):
        read_run(tmp_path)
    assert why_no_replay(read_rank(file)) is None
    assert "record with --keep all" in (why_no_replay(read_rank(_file(tmp_path / "digests", keep="digests"))) or "")
    file.write_bytes(file.read_bytes().replace(b"allfold record 1\n", b"allfold record 2\n"))
    with pytest.raises(UsageError, match="has format 2; this allfold reads format 1"):
        read_rank(file)
    for text in ("window=0", "window", "some"):
        with pytest.raises(UsageError, match="expected digests, window=CALLS"):
            Keep.of(text)


def test_old_outputs_give_their_space_back(tmp_path: Path) -> None:
    writer = format.Writer(str(tmp_path / "file"))
    data = torch.ones(1 << 18)
    places = [writer.write_data([(data.data_ptr(), data.nbytes)]) for _ in range(4)]
    before = os.stat(tmp_path / "file").st_blocks
    assert writer.drop(places[0], data.nbytes)
    writer.close()
    assert os.stat(tmp_path / "file").st_blocks <= before - 1024
    contents = (tmp_path / "file").read_bytes()
    assert contents[places[1] : places[1] + data.nbytes] == data.numpy().tobytes()
