"""A rank that ends because of an exception: the errors of the others name that exception, however the rank ends."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

import allfold as af
from allfold.communicator.communicator import Communicator, connect
from allfold.engines.last_words import who_left
from allfold.wording import name_ranks

PATIENCE = 60.0


def fails(comm: Communicator) -> None:
    comm.all_reduce(np.ones(4))
    raise ValueError("the data of step 3 is bad")


def closes(comm: Communicator) -> None:
    try:
        fails(comm)
    finally:
        comm.close()


def aborts(comm: Communicator) -> None:
    try:
        fails(comm)
    finally:
        comm.abort()


def exits(comm: Communicator) -> None:
    """As torch.multiprocessing.spawn does it."""
    try:
        fails(comm)
    except Exception:
        sys.exit(1)


def rank(number: int, key: str, way: str, report: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # tracebacks
    comm = connect(number, 2, key, PATIENCE)
    if number == 0:
        {"fails": fails, "closes": closes, "aborts": aborts, "exits": exits}[way](comm)
    comm.all_reduce(np.ones(4))
    try:
        comm.all_reduce(np.ones(4))
    except af.RankLost as error:
        report.send(str(error))


@pytest.mark.parametrize("way", ["fails", "closes", "aborts", "exits"])
def test_children_of_multiprocessing(way: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")  # whose children end without atexit
    reports, report = context.Pipe(duplex=False)
    ranks = [context.Process(target=rank, args=(number, str(tmp_path), way, report)) for number in range(2)]
    for one in ranks:
        one.start()
    report.close()
    assert reports.poll(PATIENCE)
    said = reports.recv()
    for one in ranks:
        one.join(PATIENCE)
    assert " after ValueError: the data of step 3 is bad (call 2 of the world)" in said
    assert ("rank 0 has left: it is ending after" in said) == (way == "closes")


SCRIPT = """
import sys, numpy as np, allfold as af
comm = af.init(timeout=60)
comm.barrier()
if comm.rank == 0:
    raise ValueError("the data of step 3\\nis bad")
try:
    comm.barrier()
except af.RankLost as error:
    print(error)
"""


def test_a_script_that_ends_with_an_exception(tmp_path: Path) -> None:
    environ = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": str(tmp_path).replace(":", "-"), "MASTER_PORT": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**environ, "RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = ranks[1].communicate(timeout=PATIENCE)[0]
    ranks[0].communicate(timeout=PATIENCE)
    assert "ValueError: the data of step 3 is bad (call 2 of the world)" in said


def test_the_loss_of_another_rank_is_not_taken_for_the_cause() -> None:
    def work(comm: Communicator) -> str:
        pair = comm.group([0, 1])
        assert pair is not None
        if comm.rank == 0:
            try:
                raise af.RankLost("another rank")
            except af.RankLost:
                pair.close()
            return ""
        with pytest.raises(af.RankLost) as caught:
            pair.barrier()
        return str(caught.value)

    said = af.spawn(work, 2, timeout=PATIENCE)[1]
    assert "rank 0 has left: it closed its communicator" in said


@pytest.mark.parametrize(
    "words, said",
    [
        ({1: ""}, "rank 1 has left: closed"),
        ({2: "", 1: ""}, "ranks 1 and 2 have left"),
        ({0: "", 1: "ValueError: bad"}, "rank 1 has left: it is ending after ValueError: bad"),
        ({0: "RankLost: rank 1 has left", 1: "ValueError: bad"}, "rank 1 has left: it is ending after ValueError: bad"),
        ({0: "", 1: "RankLost: rank 3 is gone"}, "rank 1 has left: it is ending after RankLost: rank 3 is gone"),
        (
            {2: "ValueError: bad", 1: "ValueError: bad"},
            "ranks 1 and 2 have left: they are ending after ValueError: bad",
        ),
        (
            {0: "", 2: "KeyError: 3", 1: "ValueError: bad"},
            "rank 1 has left: it is ending after ValueError: bad; rank 2 has left: it is ending after KeyError: 3",
        ),
    ],
)
def test_ranks_that_end_after_an_exception_are_named_before_those_that_followed(
    words: dict[int, str], said: str
) -> None:
    assert who_left(words, name_ranks, without=": closed") == said
