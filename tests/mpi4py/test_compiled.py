"""The calls that the extension makes without Python do what the Python functions do that they replace."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from launched import launched

import allfold as af
from allfold.launch.threads import run_threads

SEEDS = int(os.environ.get("ALLFOLD_MPI_SEEDS", "1"))  # random programs
TYPES = ("?", "b", "B", "h", "i", "l", "q", "L", "e", "f", "d", "F", "D", "S1")
COLLECTIVES = (
    "Bcast", "Reduce", "Allreduce", "Allgather", "Alltoall", "Gather", "Scatter", "Reduce_scatter_block", "Scan", "Exscan",
)  # fmt: skip
REDUCTIONS = ("Reduce", "Allreduce", "Reduce_scatter_block", "Scan", "Exscan")
ROOTED = ("Bcast", "Reduce", "Gather", "Scatter")
# By call: how many parts the buffers hold, as powers of the number of ranks.
PARTS = {"Allgather": (0, 1), "Gather": (0, 1), "Alltoall": (1, 1), "Scatter": (1, 0), "Reduce_scatter_block": (1, 0)}


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (TypeError, ValueError, RuntimeError, BufferError, KeyError) as error:
        return type(error), str(error)


def drawn(source: random.Random, size: int, dtype: Any) -> Any:
    """Small whole numbers, which every type holds, and whose sums no order changes."""
    values = np.array([source.randint(0, 3) for _ in range(size)])
    return values.astype("U1").astype(dtype) if np.dtype(dtype).kind == "S" else values.astype(dtype)


def message(source: random.Random, MPI: Any, data: Any) -> Any:
    """One of the forms of a message."""
    datatype = {"d": MPI.DOUBLE, "i": MPI.INT, "l": MPI.LONG, "B": MPI.UNSIGNED_CHAR}.get(data.dtype.char)
    form = source.randint(0, 9)
    if form == 0 and datatype is not None:
        return [data, datatype]
    if form == 1 and datatype is not None:
        return (data, None, datatype)
    if form == 3 and data.size % 2 == 0:
        return np.asfortranarray(data.reshape(2, -1))
    if form == 4:
        return memoryview(data)
    return data.reshape(1, -1) if form == 5 else data


class Steps:
    """A random program: the same calls on all ranks, made of a seed."""

    def __init__(self, seed: int, MPI: Any, comm: Any) -> None:
        self.seed, self.MPI, self.comm = seed, MPI, comm

    def step(self, number: int) -> tuple[str, Any]:
        """The name of a call and its results: those in buffers, or its error."""
        MPI, comm = self.MPI, self.comm
        shared, own = random.Random(f"{self.seed} {number}"), random.Random(f"{self.seed} {number} {comm.rank}")
        name, size = shared.choice(COLLECTIVES), comm.size
        dtype = np.dtype(shared.choice(TYPES))
        length = shared.choice((0, 1, 2, 3, 8, 100, 5000))
        sends, gets = (size**power * length for power in PARTS.get(name, (0, 0)))
        buffers = [drawn(own, sends, dtype), drawn(own, gets, dtype)]
        fault = shared.randint(0, 20) if name not in ROOTED else -1  # one that all ranks notice
        if fault == 1:
            buffers[0] = drawn(own, sends, "i2")
        if fault == 2:
            buffers[0] = np.append(buffers[0], buffers[0][:1])
        arguments: list[Any] = [message(own, MPI, one) for one in buffers]
        if fault == 0:
            arguments[-1] = buffers[-1]
            buffers[-1].setflags(write=False)
        if fault == 3:
            arguments[0] = np.repeat(buffers[0], 2)[::2]  # not contiguous
        if fault == 4 and dtype.kind != "S":
            arguments[-1] = buffers[-1].real.astype(">f8")
        if name == "Bcast":
            del arguments[1]
        elif shared.random() < 0.2 and name not in ROOTED:
            arguments[0] = MPI.IN_PLACE
        more: dict[str, Any] = {}
        if name in REDUCTIONS and shared.random() < 0.8:
            more["op"] = getattr(MPI, shared.choice(("SUM", "MAX", "MIN", "PROD", "BAND", "LOR")))
        if name in ROOTED:
            more["root"] = shared.choice((*range(size), *range(size), 99))
        error = outcome(lambda: getattr(comm, name)(*arguments, **more))
        if error is not None:
            return name, error
        found = [np.asarray(one[0] if isinstance(one, (list, tuple)) else one).tobytes() for one in arguments]
        return name, found


def compared(_: object, seed: int, steps: int, in_a_thread: bool = False) -> int:
    from allfold.mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup() if in_a_thread else MPI.COMM_WORLD  # the world of a thread is found by Python
    calls = comm._ob.calls
    program = Steps(seed, MPI, comm)
    errors = 0
    for number in range(steps):
        results = []
        for ways in ("python", "compiled", "mixed"):
            calls.is_open = ways == "compiled" or (ways == "mixed" and comm.rank % 2 == 0)
            results.append(program.step(number))
        assert results[0] == results[1] == results[2], (seed, number, results)
        errors += isinstance(results[0][1], tuple)
    return errors


def test_random_collectives_do_what_the_python_functions_do() -> None:
    for seed, ranks in itertools.product(range(SEEDS), (1, 2, 3)):
        assert sum(launched(compared, ranks, seed, 150)) > 0, "no step of the program failed"


@pytest.mark.parametrize("ranks", (2, 3))
def test_random_collectives_of_threads_do_what_the_python_functions_do(ranks: int) -> None:
    """Here and below: threads, for the sanitizers (`make sanitize`)."""
    for seed in range(SEEDS):
        assert sum(run_threads(compared, ranks, args=(seed, 150, True))) > 0, "no step of the program failed"


def oracle(_: object) -> None:
    """Results of compiled calls against NumPy's."""
    from allfold.mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    for char, length in itertools.product("bHilfdD", (1, 7, 3000)):
        every = np.array([[(7 * one + 3 * place) % 5 for place in range(size * length)] for one in range(size)]).astype(
            char
        )
        own, row = every[rank, :length].copy(), every[rank].copy()
        total, part, whole = np.zeros_like(own), np.zeros_like(own), np.zeros((size, length), char)
        comm.Allreduce(own, total)
        assert np.array_equal(total, every[:, :length].sum(0).astype(char))
        comm.Scan(own, total, MPI.PROD)
        assert np.array_equal(total, every[: rank + 1, :length].prod(0).astype(char))
        total[:] = 9
        comm.Exscan(own, total)
        assert np.array_equal(total, every[:rank, :length].sum(0).astype(char) if rank else np.full_like(total, 9))
        comm.Reduce_scatter_block(row, part)
        assert np.array_equal(part, every[:, rank * length : (rank + 1) * length].sum(0).astype(char))
        comm.Allgather(own, whole)
        assert np.array_equal(whole, every[:, :length])
        whole[:] = 0
        whole[rank] = own
        comm.Allgather(MPI.IN_PLACE, whole)
        assert np.array_equal(whole, every[:, :length])
        comm.Alltoall(row, whole)
        expected = every[:, rank * length : (rank + 1) * length]
        assert np.array_equal(whole, expected)
        whole[:] = row.reshape(size, -1)
        comm.Alltoall(MPI.IN_PLACE, whole)
        assert np.array_equal(whole, expected)
        for root in range(size):
            comm.Reduce(own, total, root=root)
            assert np.array_equal(own, every[rank, :length])
            assert rank != root or np.array_equal(total, every[:, :length].sum(0).astype(char))
            comm.Gather(own, whole if rank == root else None, root)
            assert rank != root or np.array_equal(whole, every[:, :length])
            comm.Scatter(row if rank == root else None, part, root=root)
            assert np.array_equal(part, every[root, rank * length : (rank + 1) * length])
            comm.Scatter(row if rank == root else None, MPI.IN_PLACE if rank == root else part, root=root)
            assert np.array_equal(row, every[rank])
            comm.Bcast(part, root)
            assert np.array_equal(part, every[root, root * length : (root + 1) * length])
        # A count that is less than the memory: the rest stays.
        longer = np.append(own, own[:1])
        comm.Allreduce([own, length, MPI._typedict[char]], [longer, length, MPI._typedict[char]])
        assert np.array_equal(longer[:-1], every[:, :length].sum(0).astype(char))
        assert longer[-1] == own[0]


def test_results_are_numpys() -> None:
    for ranks in (1, 2, 4):
        launched(oracle, ranks)


def frames(work: Callable[[], Any]) -> list[str]:
    """The Python functions that are entered meanwhile, but `work` itself."""
    entered: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is not work.__code__:
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return entered


def without_python(_: object) -> None:
    from allfold.mpi4py import MPI

    half = MPI.COMM_WORLD.Split(0)
    own, other, request = np.ones(2), np.empty(2), MPI.Request
    for comm in (MPI.COMM_WORLD, MPI.COMM_SELF, half):
        calls: list[Callable[[], Any]] = [
            lambda comm=comm: comm.Barrier(),
            lambda comm=comm: comm.Bcast(own, root=0),
            lambda comm=comm: comm.Reduce([own, MPI.DOUBLE], [other, MPI.DOUBLE], op=MPI.SUM, root=0),
            lambda comm=comm: comm.Allreduce(MPI.IN_PLACE, own, op=MPI.MAX),
            lambda comm=comm: comm.Allgather(own, other),
            lambda comm=comm: comm.Scan([own, 2, MPI.DOUBLE], other),
            lambda comm=comm: comm.Sendrecv(own, dest=0, sendtag=3, recvbuf=other, source=0, recvtag=3),
            lambda comm=comm: request.Waitall([comm.Irecv(other, source=0), comm.Isend(own, dest=0, tag=1)]),
            lambda comm=comm: (comm.Isend(own, 0).Wait(), comm.Recv(other)),
            lambda comm=comm: (comm.Isend(own, 0).Test(), comm.Irecv(other).Test()),
        ]
        for call in calls:
            call()  # the first one compiles its program
            assert frames(call) == []


def test_common_calls_enter_no_python() -> None:
    launched(without_python, 1)


def states(_: object) -> None:
    from allfold.mpi4py import MPI

    world = MPI.COMM_WORLD
    comm, own, other = world.Dup(), np.ones(3), np.zeros(3)
    seen: list[int] = []
    comm.Set_errhandler(MPI.Comm.Create_errhandler(lambda _, code: seen.append(code)))
    with pytest.raises(MPI.Exception) as raised:
        comm.Send(own, 77)
    assert raised.value.Get_error_class() == MPI.ERR_RANK == seen[0]
    # Behind a call in the background, which takes its turn.
    request = comm.Iallreduce(own, other)
    comm.Allreduce(MPI.IN_PLACE, own)
    request.Wait()
    assert (other == world.size).all()
    assert (own == world.size).all()
    # Errors that the engine finds go through the error handler, too. The message is lost.
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for receive in (comm.Recv, lambda *given: comm.Irecv(*given).Wait()):
        request = comm.Isend(own, right, 5)
        with pytest.raises(MPI.Exception) as raised:
            receive(other[:1], left, 5)
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE == seen[-1]
        request.Wait()
    # All of several are waited for, and the first error is raised.
    sends = [comm.Isend(own, right, 6) for _ in range(2)]
    requests = [comm.Irecv(other[:1], left, 6), comm.Irecv(other, left, 6)]
    with pytest.raises(MPI.Exception):
        MPI.Request.Waitall(requests)
    assert requests == [MPI.REQUEST_NULL] * 2
    assert (other == own).all()
    MPI.Request.Waitall(sends)
    # Requests that nobody waits for.
    for _ in range(100):
        comm.Isend(own, right, 7)
        comm.Irecv(np.empty(3), left, 7)
    gc.collect()
    comm.Barrier()
    status = MPI.Status()
    request = comm.Irecv(other, left, 8)
    request.Cancel()
    request.Wait(status)
    assert status.Is_cancelled()
    comm.Free()
    for call in (lambda: comm.Barrier(), lambda: comm.Send(own, 0), lambda: comm.Allreduce(own, other)):
        with pytest.raises(MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_COMM
    revoked = world.Dup()
    revoked.Revoke()
    with pytest.raises(MPI.Exception) as raised:
        revoked.Send(own, 0)
    assert raised.value.Get_error_class() == MPI.ERR_REVOKED
    world.Barrier()


def test_errors_and_states_are_as_in_python() -> None:
    launched(states, 2)


def exchanged(_: object, seed: int, steps: int, in_a_thread: bool = False) -> None:
    """Messages of all lengths, sent and received in different ways, with some ranks' calls made in Python."""
    from allfold.mpi4py import MPI

    comm, Request = MPI.COMM_WORLD.Dup() if in_a_thread else MPI.COMM_WORLD, MPI.Request
    rank, size = comm.rank, comm.size
    for number in range(steps):
        shared, own = random.Random(f"{seed} {number}"), random.Random(f"{seed} {number} {rank}")
        comm._ob.calls.is_open = own.random() < 0.7
        shift, tag = shared.randrange(size), shared.randrange(3)
        right, left = (rank + shift) % size, (rank - shift) % size
        length, char = shared.choice((0, 1, 2, 9, 1000, 9000, 70000, 300000)), shared.choice("Bhifd")

        def sent(by: int, length: int = length, char: str = char, number: int = number) -> Any:
            return ((np.arange(length) + 31 * by + number) % 100).astype(char)

        mine, got, status = sent(rank), np.full(length, 7, char), MPI.Status()
        is_object = shared.random() < 0.2
        if is_object:
            sending = comm.isend((number, mine.tobytes()), right, tag)
            source = own.choice((left, MPI.ANY_SOURCE)) if size == 1 or (size == 2 and shift) else left
            value = (
                comm.recv(None, source, tag, status) if own.random() < 0.7 else comm.irecv(None, left, tag).wait(status)
            )
            assert value == (number, sent(left).tobytes())
            sending.wait()
        else:
            way = own.randrange(6)
            if way == 0:
                sending = comm.Isend(own.choice((mine, memoryview(mine), mine.reshape(1, -1))), dest=right, tag=tag)
                comm.Recv(got, source=left, tag=own.choice((tag, MPI.ANY_TAG)), status=status)
                sending.Wait()
            elif way == 1:
                pair = [comm.Irecv(got, left, tag), comm.Isend(mine, right, tag)]
                Request.Waitall(pair)
            elif way == 2:
                pair = [comm.Isend(mine, right, tag), comm.Irecv(got, left, tag)]
                statuses: list[Any] = []
                Request.Waitall(pair, statuses)
                status = statuses[1]
            elif way == 3:
                comm.Sendrecv(mine, right, tag, got, left, tag, status if own.random() < 0.5 else None)
            elif way == 4:
                receiving = comm.Irecv(got, left, tag)
                comm.Send(mine, right, tag)
                while not receiving.Test(status):
                    pass
            else:
                comm.Send(mine, dest=right, tag=tag)
                comm.Irecv(got, left, tag).Wait(status)
            assert np.array_equal(got, sent(left)), (seed, number, way)
            if status.Get_source() != MPI.ANY_SOURCE:
                assert (status.Get_source(), status.Get_tag(), status.Get_count()) == (left, tag, got.nbytes)
    comm._ob.calls.is_open = True
    comm.Barrier()


def test_random_messages_arrive() -> None:
    for seed, ranks in itertools.product(range(SEEDS), (1, 2, 3)):
        launched(exchanged, ranks, seed, 200)


@pytest.mark.parametrize("ranks", (2, 3))
def test_random_messages_of_threads_arrive(ranks: int) -> None:
    for seed in range(SEEDS):
        run_threads(exchanged, ranks, args=(seed, 200, True))


def in_threads(_: object) -> Any:
    from allfold.mpi4py import MPI

    total = np.array([MPI.COMM_WORLD.rank + 1])
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, total)
    return int(total[0])


def around_threads(_: object) -> None:
    """A process with a world of its own whose threads are ranks of another one."""
    from allfold.mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    assert af.spawn(in_threads, ranks=3, ranks_are="threads") == [6, 6, 6]
    assert MPI.COMM_WORLD.size == 1
    MPI.COMM_WORLD.Barrier()


def test_threads_that_are_ranks_have_their_own_world() -> None:
    launched(around_threads, 1)


def lost(_: object) -> list[str]:
    from allfold.mpi4py import MPI

    comm, found = MPI.COMM_WORLD, []
    comm.Barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for call in (lambda: comm.Recv(np.empty(1), 1), lambda: comm.Allreduce(MPI.IN_PLACE, np.ones(1)), comm.Barrier):
        with pytest.raises(MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_PROC_FAILED
        found.append(str(raised.value))
    return found


def test_a_lost_rank_is_named() -> None:
    with pytest.raises(af.errors.AllfoldError, match="rank 1"):
        launched(lost, 2)


def equal_types(_: object) -> None:
    """NumPy's types of long and long long are equal; MPI's are not."""
    from allfold.mpi4py import MPI

    comm = MPI.COMM_WORLD
    calls = comm._ob.calls
    for calls.is_open in (False, True):
        for char, name in (("q", "LONG_LONG"), ("l", "LONG"), ("q", "LONG_LONG")):
            own, total = np.ones(3, char), np.zeros(3, char)
            comm.Allreduce([own, getattr(MPI, name)], total)
            assert (total == comm.size).all()
        with pytest.raises(ValueError, match="mismatch in send and receive MPI datatypes"):
            comm.Allreduce(np.ones(3, "q"), np.ones(3, "l"))


def test_types_of_equal_arrays_are_told_apart() -> None:
    launched(equal_types, 1)


class Interrupted(BaseException):
    pass


def interrupts(_: object) -> None:
    from allfold.mpi4py import MPI

    comm = MPI.COMM_WORLD

    def stop(*_: object) -> None:
        raise Interrupted

    signal.signal(signal.SIGALRM, stop)
    if comm.rank == 0:
        for call in (
            lambda: comm.Recv(np.empty(1), 1, 9),
            lambda: comm.recv(source=1, tag=9),
            lambda: comm.Irecv(np.empty(1), 1, 9).Wait(),
            lambda: MPI.Request.Waitall([comm.Irecv(np.empty(1), 1, 9)]),
            lambda: comm.Barrier(),
        ):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Interrupted):
                call()
        with pytest.raises(MPI.Exception):
            comm.Barrier()
    else:
        with pytest.raises(MPI.Exception):
            comm.Recv(np.empty(1), 0, 10)  # ends when rank 0 gives up


def test_interrupts_end_calls() -> None:
    launched(interrupts, 2)
