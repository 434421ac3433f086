"""Programs written for mpi4py, in real ranks; results against plain NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each import each
from launched import launched

import allfold as af


def _collectives(_: object) -> list[Any]:
    from allfold.mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    own = np.arange(4.0) + 10 * rank
    every = [np.arange(4.0) + 10 * one for one in range(size)]

    total = np.empty(4)
    comm.Allreduce(own, total)
    assert np.array_equal(total, sum(every))
    comm.Allreduce(MPI.IN_PLACE, total, MPI.MAX)
    assert np.array_equal(total, sum(every))
    comm.Reduce(own, total, MPI.MIN, root=size - 1)
    assert rank < size - 1 or np.array_equal(total, every[0])
    comm.Scan(own, total)
    assert np.array_equal(total, sum(every[: rank + 1]))
    comm.Exscan(own, total)
    assert rank == 0 or np.array_equal(total, sum(every[:rank]))

    gathered = np.empty((size, 4))
    comm.Allgather(own, gathered)
    assert np.array_equal(gathered, every)
    comm.Iallgather(own, gathered).Wait()
    assert np.array_equal(gathered, every)
    counts = [one + 1 for one in range(size)]
    parts = np.full(sum(counts) + size, -1.0)
    places = [sum(counts[:one]) + one for one in range(size)]  # with a gap between them
    comm.Allgatherv(np.full(rank + 1, float(rank)), [parts, counts, places, MPI.DOUBLE])
    for one in range(size):
        assert (parts[places[one] : places[one] + one + 1] == one).all()
    assert (parts[[place + count for place, count in zip(places, counts, strict=True)]] == -1).all()

    sent = np.array([100 * rank + one for one in range(size) for _ in range(rank + one)], "i")
    got = np.empty(sum(rank + one for one in range(size)), "i")
    comm.Alltoallv(
        [sent, [rank + one for one in range(size)], MPI.INT], [got, [rank + one for one in range(size)], MPI.INT]
    )
    assert got.tolist() == [100 * one + rank for one in range(size) for _ in range(rank + one)]

    pair = np.array([(abs(rank - 1), rank)], dtype=[("value", "d"), ("index", "i")])
    found = np.empty(1, [("value", "d"), ("index", "i"), ("rest", "i")])
    padded = np.zeros(1, found.dtype)
    padded["value"], padded["index"] = pair["value"], pair["index"]
    comm.Allreduce([padded, 1, MPI.DOUBLE_INT], [found, 1, MPI.DOUBLE_INT], MPI.MINLOC)
    best = min((abs(one - 1), one) for one in range(size))
    assert (found["value"][0], found["index"][0]) == best

    def last(into: Any, both: Any, datatype: Any) -> None:  # neither commutative nor MPI's own
        first, second = np.frombuffer(into, "d"), np.frombuffer(both, "d")
        second[:] = 2 * first + second

    op = MPI.Op.Create(last, commute=False)
    comm.Allreduce(own, total, op)
    expected = every[0]
    for one in every[1:]:
        expected = 2 * expected + one
    assert np.array_equal(total, expected)

    assert comm.allgather((rank, "x")) == [(one, "x") for one in range(size)]
    assert comm.alltoall([(rank, one) for one in range(size)]) == [(one, rank) for one in range(size)]
    assert comm.allreduce({rank}, op=lambda left, right: left | right) == set(range(size))
    half = comm.Split(rank % 2, key=-rank)
    assert half.Get_size() == len(range(rank % 2, size, 2))
    assert half.allgather(rank) == sorted(range(rank % 2, size, 2), reverse=True)
    half.Free()
    return [rank, size]


def _messages(_: object) -> list[Any]:
    from allfold.mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    status = MPI.Status()

    # Both ways at once, synchronous, with receives posted first: nobody may wait for anybody's Wait.
    arrived = np.empty(3)
    receiving = comm.Irecv(arrived, left, 5)
    comm.Ssend(np.full(3, float(rank)), right, 5)
    receiving.Wait(status)
    assert (arrived == left).all()
    assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.DOUBLE)) == (left, 5, 3)

    # A column, into a row.
    matrix = np.arange(12.0).reshape(3, 4) + 100 * rank
    column = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
    comm.Sendrecv([matrix, 1, column], right, 0, arrived, left, 0)
    assert arrived.tolist() == [100 * left, 100 * left + 4, 100 * left + 8]

    # A synchronous send is not done before it is received; a message of any length is found by probes.
    sending = comm.issend(["an object", rank], right, tag=9)
    if size > 1:
        comm.Barrier()
        assert not sending.Test()
        comm.Barrier()
    message = comm.mprobe(MPI.ANY_SOURCE, 9, status)
    assert not comm.iprobe(MPI.ANY_SOURCE, 9)
    assert status.Get_source() == left
    assert message.recv() == ["an object", left]
    sending.wait()

    # A receive that nothing has come for can be cancelled, and takes nothing afterwards.
    receiving = comm.Irecv(arrived, left, 77)
    receiving.Cancel()
    receiving.Wait(status)
    assert status.Is_cancelled()
    comm.Barrier()
    comm.send("for the second receive", right, 77)
    assert comm.recv(source=left, tag=77) == "for the second receive"

    again = [comm.Send_init(matrix, right, 3), comm.Recv_init(np.empty_like(matrix), left, 3)]
    for _ in range(3):
        MPI.Prequest.Startall(again)
        MPI.Request.Waitall(again)

    with pytest.raises(MPI.Exception) as caught:
        receiving = comm.Irecv(np.empty(1), left, 4)
        comm.Send(np.empty(2), right, 4)
        receiving.Wait()
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    assert f"rank {left}" in str(caught.value)

    ring = comm.Create_cart([size], periods=[True])
    around = np.empty((2, 1), "i")
    ring.Neighbor_allgather(np.array([rank], "i"), around)
    assert around.ravel().tolist() == [left, right]
    assert ring.neighbor_alltoall([("down", rank), ("up", rank)]) == [("up", left), ("down", right)]
    if size > 1:
        few = comm.Create_group(comm.Get_group().Excl([0]))
        assert (few == MPI.COMM_NULL) == (rank == 0)
        if rank:
            assert few.allgather(rank) == list(range(1, size))
    return [rank, size]


@each("ranks", [1, 2, 3])
def test_collectives_give_what_numpy_gives(ranks: int) -> None:
    assert launched(_collectives, ranks) == [[rank, ranks] for rank in range(ranks)]


@each("ranks", [1, 2, 3])
def test_messages(ranks: int) -> None:
    assert launched(_messages, ranks) == [[rank, ranks] for rank in range(ranks)]


def _between_hosts(_: object) -> list[Any]:
    from allfold.mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    receiving = comm.irecv(source=left, tag=1)
    comm.ssend({"from": rank}, right, tag=1)
    assert receiving.wait() == {"from": left}
    sending = comm.isend(rank, right, tag=2)
    status = MPI.Status()
    comm.probe(MPI.ANY_SOURCE, 2, status)
    found = status.Get_source()
    assert comm.recv(source=MPI.ANY_SOURCE, tag=2) == found == left
    sending.wait()
    arrived = np.empty(1 << 17)
    comm.Sendrecv(np.full(1 << 17, float(rank)), right, 0, arrived, left, 0)
    assert (arrived == left).all()
    return [rank, int(comm.allreduce(rank))]


def test_messages_between_hosts() -> None:
    assert launched(_between_hosts, 4, hosts=2) == [[rank, 6] for rank in range(4)]


def test_ranks_that_are_threads() -> None:
    def work(_: Any) -> tuple[int, int]:
        from allfold.mpi4py import MPI

        comm = MPI.COMM_WORLD
        rank, size = comm.Get_rank(), comm.Get_size()
        receiving = comm.irecv(source=(rank - 1) % size)
        comm.ssend(rank, (rank + 1) % size)
        total = np.array([rank])
        comm.Allreduce(MPI.IN_PLACE, total)
        return receiving.wait(), int(total[0])

    assert af.spawn(work, 3, ranks_are="threads") == [(2, 3), (0, 3), (1, 3)]


def _waiting_for_each_other(_: object) -> str:
    os.environ["ALLFOLD_MPI_TIMEOUT"] = "5"
    from allfold.mpi4py import MPI

    other = 1 - MPI.COMM_WORLD.rank
    with pytest.raises(MPI.Exception) as caught:
        MPI.COMM_WORLD.ssend("an object", other, 3)
    assert caught.value.Get_error_class() == MPI.ERR_PENDING
    MPI.COMM_WORLD.Barrier()  # a rank that ended first would be what the other one reports
    return str(caught.value)


def test_two_ranks_that_wait_for_each_other() -> None:
    rest = "with tag 3 within 5 s"
    assert launched(_waiting_for_each_other, 2) == [
        f"MPI_ERR_PENDING: Ssend: rank {1 - rank} has not received the message of rank {rank} {rest}" for rank in (0, 1)
    ]


def test_a_program_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "its_module.py").write_text("from mpi4py import MPI\ncomm = MPI.COMM_WORLD\n")
    (tmp_path / "program.py").write_text("import sys, its_module\nprint(its_module.comm.allreduce(5), sys.argv[1:])\n")
    run = [sys.executable, "-m", "allfold.mpi4py", str(tmp_path / "program.py"), "a word"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("5 ['a word']\n", 0), done.stderr


@each(
    ("what", "instead"),
    [
        (lambda mpi: mpi.Win.Create(None), "comm.empty"),
        (lambda mpi: mpi.File.Open(mpi.COMM_SELF, "x"), "gather on one rank"),
        (lambda mpi: mpi.COMM_SELF.Spawn("x"), "allfold run"),
        (lambda mpi: mpi.COMM_SELF.Create_intercomm(0, mpi.COMM_SELF, 0), "Split"),
    ],
)
def test_what_is_not_there_is_refused_with_a_sentence(what: Any, instead: str) -> None:
    from allfold.mpi4py import MPI

    with pytest.raises(NotImplementedError, match=instead):
        what(MPI)


def _agreement(_: object) -> None:
    from allfold.mpi4py import MPI

    comm = MPI.COMM_WORLD
    flag = np.array([0b1011 if comm.rank == 0 else 0b1101], "i")
    if comm.rank == 0:  # before the barrier on one rank, behind it on the others
        request = comm.Iagree(flag)
        assert not request.Test()
        comm.Barrier()
    else:
        comm.Barrier()
        request = comm.Iagree(flag)
    request.Wait()
    assert flag[0] == 0b1001
    assert comm.Agree(6 if comm.rank else 3) == 2


def test_an_agreement_goes_on_beside_other_calls() -> None:
    af.spawn(_agreement, ranks=3)


def _wrong_arguments(_: object) -> None:
    from allfold.mpi4py import MPI

    comm, array, graph = MPI.COMM_WORLD, np.arange(8.0), MPI.COMM_SELF
    for call, kind, words in (
        (lambda: comm.Send(array, "x"), TypeError, "dest must be an integer, not 'x'"),
        (lambda: comm.Send(array, 1.5), TypeError, "dest must be an integer, not 1.5"),
        (lambda: comm.Send(array, 0, None), TypeError, "tag must be an integer"),
        (lambda: comm.Recv(array, None), TypeError, "source must be an integer"),
        (lambda: comm.Recv(array, 0, 0, 5), TypeError, "expected a Status, not int"),
        (lambda: comm.bcast(1, root="x"), TypeError, "root must be an integer"),
        (lambda: comm.Allreduce(MPI.IN_PLACE, array, "sum"), TypeError, "expected an Op, not str"),
        (lambda: MPI.Request.Waitall([1]), TypeError, "expected requests, not int"),
        (lambda: MPI.Request.Testany([None]), TypeError, "expected requests, not NoneType"),
        (lambda: MPI.REQUEST_NULL.Wait(5), TypeError, "expected a Status, not int"),
        (lambda: MPI.Prequest.Startall([MPI.REQUEST_NULL]), TypeError, "expected persistent requests"),
        (lambda: comm.Create(None), TypeError, "expected a Group, not NoneType"),
        (lambda: graph.Create_graph([1], [7]), MPI.Exception, "neighbours are ranks from 0 to 0, not 7"),
        (lambda: graph.Create_graph([5], [0]), MPI.Exception, "does not divide 1 edges"),
        (lambda: graph.Create_dist_graph_adjacent([9], [9]), MPI.Exception, "ranks from 0 to 0, not 9"),
        (lambda: graph.Create_dist_graph([0], [3], [0]), ValueError, "expected a degree per source"),
    ):
        with pytest.raises(kind) as raised:
            call()
        assert words in str(raised.value)
    comm.Send(array, np.int64(comm.rank), np.int32(3))  # whole numbers of any kind
    got = np.empty(8)
    comm.Recv(got, np.int64(comm.rank), np.int32(3))
    assert np.array_equal(got, array)


def test_wrong_arguments_are_named() -> None:
    af.spawn(_wrong_arguments, ranks=2)


def _error_in_the_background(_: object) -> tuple[str, str]:
    from allfold.mpi4py import MPI

    comm = MPI.COMM_WORLD
    array = np.zeros(4 + comm.rank)  # not equally long
    request = comm.Iallreduce(MPI.IN_PLACE, array)
    with pytest.raises(MPI.Exception) as raised:
        request.Wait()

    return str(raised.value), type(raised.value.__cause__).__name__


def test_an_error_in_the_background_is_an_exception_of_mpi() -> None:
    for said, cause in af.spawn(_error_in_the_background, ranks=2):
        assert said.startswith("MPI_ERR_") and "all_reduce" in said
        assert cause == "MismatchError"


def _broken(_: object) -> str:
    from allfold.mpi4py import MPI

    comm = MPI.COMM_WORLD

    def fails(into: Any, both: Any, datatype: Any) -> None:
        raise ZeroDivisionError

    op = MPI.Op.Create(fails)
    with pytest.raises((ZeroDivisionError, MPI.Exception)):
        comm.Allreduce(MPI.IN_PLACE, np.ones(3), op)
    with pytest.raises(MPI.Exception) as raised:
        comm.Barrier()
    return str(raised.value)


def test_a_call_after_an_operation_that_raised() -> None:
    for said in af.spawn(_broken, ranks=2):
        assert "broken by an earlier error" in said


def _finalized(_: object) -> None:
    from allfold.mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    MPI.Finalize()
    assert MPI.Is_finalized() and MPI.COMM_WORLD != MPI.COMM_SELF
    with pytest.raises(MPI.Exception, match="MPI_COMM_WORLD was used after Finalize"):
        MPI.COMM_WORLD.Barrier()


def test_a_call_after_finalize_is_refused() -> None:
    launched(_finalized, ranks=1)
