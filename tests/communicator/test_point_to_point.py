"""Messages between real processes: they arrive complete and in order, and the errors when they do not."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import allfold
from allfold import ANY_TAG, Message
from allfold.communicator.communicator import Communicator, connect
from allfold.dtypes import DTYPES
from allfold.errors import AllfoldError, CollectiveTimeout, MismatchError, RankLost, UsageError
from allfold.launch.threads import run_threads

PATIENCE = 60.0  # seconds after which something that should happen at once is taken not to happen
LONG = 3 << 18  # elements of float32 that no ring holds
SIZES = (0, 1, 3, 1000, 65537, LONG)


def pattern(length: int, *seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(length, np.float32)


def fails(expected: type[Exception], function: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """The message of the error that a call should raise."""
    try:
        function(*arguments, **named)
    except expected as error:
        return str(error)
    raise AssertionError(f"{function} did not raise")


def everyone(work: Callable[..., Any], ranks: int) -> list[Any]:
    return allfold.spawn(work, ranks=ranks, timeout=PATIENCE)


# What arrives ---------------------------------------------------------------------------------------------------------


def all_pairs(comm: Communicator) -> None:
    for length in SIZES:
        incoming = np.empty(length + 2, np.float32)
        for shift in range(comm.size):  # shift 0: to oneself
            to, source = (comm.rank + shift) % comm.size, (comm.rank - shift) % comm.size
            sent = comm.isend(pattern(length, comm.rank, to), to, tag=length)
            incoming[:] = -1
            came = comm.recv(incoming, source, tag=length)
            assert came == Message(source, length, length)
            assert np.array_equal(incoming[:length], pattern(length, source, comm.rank))
            assert (incoming[length:] == -1).all()
            assert sent.wait() is None and sent.done()


def test_every_pair_and_every_size() -> None:
    everyone(all_pairs, 4)


@pytest.mark.parametrize("engine", ["shared_memory", "reference"])
def test_the_same_with_ranks_as_threads(engine: str) -> None:
    run_threads(all_pairs, 3, timeout=PATIENCE, engine=engine)


def all_dtypes(comm: Communicator) -> None:
    for number, dtype in enumerate(DTYPES.values()):
        array = np.arange(100).astype(dtype.carrier)
        if comm.rank == 0:
            comm.send(array, 1, number, dtype=dtype.name)
        else:
            incoming = np.zeros_like(array)
            assert comm.recv(incoming, 0, number, dtype=dtype.name) == (0, number, 100)
            assert np.array_equal(incoming, array)


def kinds_of_arrays(comm: Communicator) -> None:
    matrix = np.arange(24.0).reshape(4, 6)
    if comm.rank == 0:
        comm.send(matrix[:, ::2], 1)
        comm.isend(matrix.T, 1).wait()
        comm.send(np.float64(7.0), 1)
        comm.send(b"bytes", 1)
        comm.send(comm.empty(3, np.int64), 1)
        return
    incoming = np.zeros((4, 12))
    assert comm.recv(incoming[:, ::4], 0).elements == 12
    assert np.array_equal(incoming[:, ::4], matrix[:, ::2]) and incoming.sum() == matrix[:, ::2].sum()
    incoming = np.zeros((6, 8))
    pending = comm.irecv(incoming[:, ::2], 0)
    assert pending.wait() == (0, 0, 24) and np.array_equal(incoming[:, ::2], matrix.T)
    assert pending.wait() == (0, 0, 24)  # and again, at once
    scalar = np.zeros(())
    assert comm.recv(scalar, 0).elements == 1 and scalar == 7.0
    text = bytearray(10)
    assert comm.recv(text, 0).elements == 5 and text.startswith(b"bytes")
    assert comm.recv(comm.empty(3, np.int64), 0).elements == 3


def order(comm: Communicator) -> None:
    number = np.zeros(1, np.int64)
    if comm.rank == 0:
        for number[0] in range(10_000):
            comm.send(number, 1, tag=5)
    else:
        for expected in range(10_000):
            comm.recv(number, 0, tag=5)
            assert number[0] == expected
    # Tags out of order, short and long ones, sent before anybody asks for them.
    lengths = (1, LONG, 0, 70_000, 3)
    if comm.rank == 0:
        pending = [comm.isend(pattern(length, tag), 1, tag) for tag, length in enumerate(lengths)]
        comm.send(np.zeros(0), 1, tag=99)
        for sent in pending:
            sent.wait()
    else:
        comm.recv(np.zeros(0), 0, tag=99)
        for tag, length in reversed(list(enumerate(lengths))):
            incoming = np.zeros(length, np.float32)
            assert comm.recv(incoming, 0, tag) == (0, tag, length)
            assert np.array_equal(incoming, pattern(length, tag))
    # Receives with the same tag are filled in the order in which they were posted, long or short.
    arrays = [np.zeros(LONG if index % 3 == 0 else 2, np.float32) for index in range(9)]
    if comm.rank == 1:
        receives = [comm.irecv(array, 0, 1) for array in arrays]
        assert [pending.wait() for pending in receives] == [Message(0, 1, len(array)) for array in arrays]
        assert all((array == index).all() for index, array in enumerate(arrays))
    else:
        for index, array in enumerate(arrays):
            comm.send(array + index, 1, 1)


def test_types_arrays_and_order() -> None:
    def work(comm: Communicator) -> None:
        all_dtypes(comm)
        kinds_of_arrays(comm)
        order(comm)

    everyone(work, 2)


def anybody(comm: Communicator) -> None:
    if comm.rank:
        for index in range(10):
            comm.send(np.array([comm.rank, index]), 0, tag=comm.rank * 100 + index)
        comm.send(pattern(LONG, comm.rank), 0, tag=7)
        return
    incoming = np.zeros(2, np.int64)
    seen: dict[int, int] = dict.fromkeys(range(1, comm.size), 0)
    for _ in range(10 * (comm.size - 1)):
        source, tag, elements = (
            comm.recv(incoming, tag=ANY_TAG) if sum(seen.values()) < 5 else first(comm, seen, incoming)
        )
        index = seen[source]
        assert (tag, elements, *incoming) == (source * 100 + index, 2, source, index)
        seen[source] += 1
    long = np.zeros(LONG, np.float32)
    for came in sorted(comm.recv(long, tag=7).source for _ in seen):
        assert seen.pop(came) == 10


def first(comm: Communicator, seen: dict[int, int], incoming: np.ndarray[Any, Any]) -> Message:
    """The next message from the rank that has sent the fewest so far."""
    return comm.recv(incoming, min(seen, key=lambda rank: seen[rank]), ANY_TAG)


def oneself(comm: Communicator) -> None:
    incoming = np.zeros(LONG, np.float32)
    comm.send(pattern(LONG, 1), comm.rank, 3)
    comm.send(pattern(10, 2), comm.rank, 4)
    assert comm.recv(incoming, comm.rank, 4).elements == 10
    assert comm.recv(incoming, tag=3) == (comm.rank, 3, LONG) and np.array_equal(incoming, pattern(LONG, 1))
    pending = comm.irecv(incoming)
    assert not pending.done()
    comm.send(pattern(5, 3), comm.rank)
    assert pending.done() and pending.wait() == (comm.rank, 0, 5)


def test_any_source_any_tag_and_oneself() -> None:
    def work(comm: Communicator) -> None:
        oneself(comm)
        comm.barrier()
        anybody(comm)

    everyone(work, 4)


# Several things at once -----------------------------------------------------------------------------------------------


def around(comm: Communicator) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    token, incoming = pattern(LONG, comm.rank), np.zeros(LONG, np.float32)
    for step in range(1, comm.size + 1):
        receiving, sending = comm.irecv(incoming, left), comm.isend(token, right)
        assert receiving.wait() == (left, 0, LONG)
        sending.wait()
        token, incoming = incoming, token
        assert np.array_equal(token, pattern(LONG, (comm.rank - step) % comm.size))


def head_on(comm: Communicator) -> None:
    """Long blocking sends in both directions at once: each is received while the other waits for room."""
    incoming = np.zeros(LONG, np.float32)
    other = comm.rank ^ 1
    comm.send(pattern(LONG, comm.rank), other)
    comm.recv(incoming, other)
    assert np.array_equal(incoming, pattern(LONG, other))


def beside_a_collective(comm: Communicator) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    incoming, total = np.zeros(LONG, np.float32), np.ones(1000)
    if comm.rank % 2 == 0:  # nobody waits for this send, and its receiver enters the collective only after it
        sending = comm.isend(pattern(LONG, comm.rank), right, 1)
        comm.all_reduce(total)
        sending.wait()
    else:
        comm.recv(incoming, left, 1)
        assert np.array_equal(incoming, pattern(LONG, left))
        comm.all_reduce(total)
    assert (total == comm.size).all()
    # And the reverse: the receiver is in a collective that the sender enters only after its blocking send.
    if comm.rank % 2 == 0:
        comm.send(pattern(LONG, comm.rank), right, 2)
        comm.barrier()
    else:
        receiving = comm.irecv(incoming, left, 2)
        comm.barrier()
        assert receiving.wait().elements == LONG  # type: ignore[union-attr]
        assert np.array_equal(incoming, pattern(LONG, left))


def nobody_waits(comm: Communicator) -> None:
    """Handles that are dropped at once: their messages still arrive, and their arrays live for as long as needed."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for tag in range(40):
        comm.isend(pattern(LONG // 16, comm.rank, tag), right, tag)
    for tag in range(40):
        incoming = np.zeros(LONG // 16, np.float32)
        comm.recv(incoming, left, tag)
        assert np.array_equal(incoming, pattern(LONG // 16, left, tag))
    comm.barrier()


def ring_all_reduce(comm: Communicator) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for length in (comm.size, 1000, LONG):
        inputs = [np.random.default_rng([rank, length]).integers(-99, 99, length) for rank in range(comm.size)]
        array = inputs[comm.rank].copy()
        parts = np.array_split(array, comm.size)
        incoming = np.zeros_like(max(parts, key=len))
        for step in range(2 * comm.size - 2):
            sending = comm.isend(parts[(comm.rank - step) % comm.size], right)
            part = parts[(comm.rank - step - 1) % comm.size]
            came = comm.recv(incoming, left).elements
            assert came == len(part)
            part[:] = incoming[:came] + (part if step < comm.size - 1 else 0)
            sending.wait()
        assert np.array_equal(array, np.sum(inputs, axis=0))


def several_threads(comm: Communicator) -> None:
    failures: list[BaseException] = []

    def talk(tag: int) -> None:
        try:
            right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            for turn in range(30):
                length = LONG // 8 if turn % 10 == 0 else turn
                sending = comm.isend(pattern(length, comm.rank, tag, turn), right, tag)
                incoming = np.zeros(length, np.float32)
                assert comm.recv(incoming, None if turn % 2 else left, tag) == (left, tag, length)
                assert np.array_equal(incoming, pattern(length, left, tag, turn))
                sending.wait()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def in_groups(comm: Communicator) -> None:
    group = comm.group([2, 0] if comm.rank % 2 == 0 else [1, 3])
    assert group is not None
    value = np.array([comm.rank])
    group.send(value, 1 - group.rank, 1)
    comm.send(value + 100, comm.rank ^ 1, 1)  # the same tag in another communicator is another message
    assert group.recv(value, tag=1) == (1 - group.rank, 1, 1) and value[0] == (comm.rank + 2) % 4
    assert comm.recv(value, tag=1) == (comm.rank ^ 1, 1, 1) and value[0] == 100 + (comm.rank ^ 1)
    group.close()


def at_once(comm: Communicator) -> list[str]:
    for work in (around, head_on, beside_a_collective, nobody_waits, ring_all_reduce, several_threads, in_groups):
        work(comm)
        comm.barrier()
    return list(sys.modules)


def test_several_things_at_once() -> None:
    for modules in everyone(at_once, 4):
        assert "torch" not in modules


def test_several_things_at_once_with_ranks_as_threads() -> None:
    def work(comm: Communicator) -> None:
        around(comm)
        beside_a_collective(comm)
        several_threads(comm)

    run_threads(work, 2, timeout=PATIENCE)


@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_a_ring_all_reduce_made_of_messages(ranks: int) -> None:
    everyone(ring_all_reduce, ranks)


# What goes wrong ------------------------------------------------------------------------------------------------------


def wrong_usage(comm: Communicator) -> None:
    array = np.zeros(3)
    assert fails(UsageError, comm.send, array, 2).startswith("send: destination must be a rank from 0 to 1, not 2")
    assert "from 0 to 1, not -1" in fails(UsageError, comm.isend, array, -1)
    assert "must be a rank from 0 to 1 or None, not -1" in fails(UsageError, comm.recv, array, -1)
    assert "destination must be a whole number, not None" in fails(UsageError, comm.send, array, None)
    assert "source must be a whole number, not 0.5" in fails(UsageError, comm.irecv, array, 0.5)
    for call in (comm.send, comm.recv):
        for tag in (-2, 1 << 31):
            assert f"not {tag}" in fails(UsageError, call, array, 0, tag)
        assert f"not {1 << 70}" in fails(UsageError, call, array, 0, 1 << 70)
    assert "not -1" in fails(UsageError, comm.send, array, 0, ANY_TAG)
    assert "read-only" in fails(UsageError, comm.recv, b"fixed", 0)
    assert "send: " in fails(UsageError, comm.send, "text", 0)
    assert "send: " in fails(UsageError, comm.send, array, 0, dtype="float99")
    comm.send(array, comm.rank, (1 << 31) - 1)
    assert comm.recv(array, np.int64(comm.rank), ANY_TAG).tag == (1 << 31) - 1  # type: ignore[arg-type]


def mismatches(comm: Communicator) -> None:
    if comm.rank == 1:
        for length in (4, LONG):
            comm.send(np.ones(length, np.float32), 0, 1)
            comm.send(np.ones(2, np.int32), 0, 1)
            comm.send(np.full(2, 7, np.float32), 0, 1)
            comm.recv(np.zeros(0), 0, 2)
        comm.send(np.zeros(4, np.uint16), 0, 3)
        return
    array = np.zeros(3, np.float32)
    for length in (4, LONG):
        said = fails(MismatchError, comm.recv, array, 1, 1)
        expected = f"recv: rank 1 sent float32[{length}] with tag 1, rank 0 has room for float32[3] (the world)"
        assert said == expected
        assert (array == 0).all()
        said = fails(MismatchError, comm.irecv(array, None, 1).wait)
        assert said == "irecv: rank 1 sent int32[2] with tag 1, rank 0 has room for float32[3] (the world)"
        assert comm.recv(array, 1, 1).elements == 2 and list(array) == [7, 7, 0]  # the next message is intact
        comm.send(np.zeros(0), 1, 2)
        array[:] = 0
    assert "uint16[4]" in fails(MismatchError, comm.recv, np.zeros(4, np.uint16), 1, 3, dtype="bfloat16")


def timeouts(comm: Communicator) -> None:
    incoming, nothing = np.zeros(LONG, np.float32), np.zeros(0)
    if comm.rank == 0:
        said = fails(CollectiveTimeout, comm.recv, incoming, 1, 7, timeout=0.05)
        assert said == "recv: nothing arrived from rank 1 with tag 7 within 0.05 s (the world)"
        comm.send(incoming[:5], 0, 8)
        said = fails(CollectiveTimeout, comm.recv, incoming, None, 7, timeout=0.0)
        assert "from any rank with tag 7 within 0 s; these did arrive: float32[5] from rank 0 with tag 8" in said
        pending = comm.irecv(incoming, 1, 7, timeout=0.05)
        assert "irecv: nothing arrived from rank 1 with tag 7 within 0.05 s" in fails(CollectiveTimeout, pending.wait)
        assert "within 0.01 s" in fails(CollectiveTimeout, pending.wait, 0.01)
        # A message that found no room is not sent; one that found some is completed later, from a copy and in order.
        array = pattern(LONG, 1)
        said = fails(CollectiveTimeout, comm.send, array, 1, 1, timeout=0.05)
        assert said.startswith("send: rank 1 took only ") and "bytes of float32[786432] with tag 1" in said
        array[:] = 0
        assert "took nothing of float64[0]" in fails(CollectiveTimeout, comm.send, nothing, 1, 1, timeout=0.05)
        comm.barrier()
        comm.send(pattern(3, 2), 1, 1)
        assert pending.wait(PATIENCE) == (1, 7, 9)
    else:
        comm.barrier()
        assert comm.recv(incoming, 0, 1).elements == LONG and np.array_equal(incoming, pattern(LONG, 1))
        assert comm.recv(incoming, 0, 1).elements == 3 and np.array_equal(incoming[:3], pattern(3, 2))
        comm.send(incoming[:9], 0, 7)


def stopped_in_the_middle(comm: Communicator) -> None:
    """A sender that stops in the middle of a message: the receiver times out, and gets all of it later."""
    incoming = np.zeros(LONG, np.float32)
    process = np.array([os.getpid()])
    if comm.rank == 1:
        comm.send(process, 0)
        pending = comm.isend(pattern(LONG, 5), 0, 5)
        comm.barrier()
        pending.wait()
        return
    comm.recv(process, 1)
    comm.barrier()
    os.kill(int(process[0]), signal.SIGSTOP)
    while " (stopped)" not in Path(f"/proc/{process[0]}/status").read_text():
        pass
    said = fails(CollectiveTimeout, comm.recv, incoming, 1, 5, timeout=0.05)
    os.kill(int(process[0]), signal.SIGCONT)
    assert (
        said.startswith("recv: only ") and f" of {4 * LONG} bytes arrived from rank 1 with tag 5 within 0.05 s" in said
    )
    incoming[:] = 0
    assert comm.recv(incoming, 1, ANY_TAG) == (1, 5, LONG) and np.array_equal(incoming, pattern(LONG, 5))


def closing(comm: Communicator) -> None:
    group = comm.group([0, 1])
    assert group is not None
    array = np.zeros(LONG)
    if comm.rank == 0:
        receiving, sending = group.irecv(array, 1), group.isend(array, 1)
        said: list[str] = []
        # It may reach its receive before or after the end.
        blocked = threading.Thread(target=lambda: said.append(fails(AllfoldError, group.recv, array, 1, 2)))
        blocked.start()
        group.close()
        comm.send(np.zeros(0), 1, 3)
        blocked.join()
        for pending in (receiving, sending):
            assert pending.done() and "this communicator was closed" in fails(RankLost, pending.wait)
        assert len(said) == 1 and "recv: this communicator" in said[0]
        assert "recv: this communicator is closed" in fails(UsageError, group.recv, array, 1)
    else:
        # Not even the part that arrived counts as a message. Checked after the end only: before it, the rest may still
        # arrive.
        comm.recv(np.zeros(0), 0, 3)
        said_here = fails(RankLost, group.recv, array, 0)
        assert said_here.startswith("recv: rank 0 has left: it closed its communicator (group 1 of the world")
        assert "send: rank 0 has left" in fails(RankLost, group.send, array[:1], 0)
        assert "recv: every other rank has left" in fails(RankLost, group.recv, array)
        group.close()
    comm.barrier()


def aborting(comm: Communicator) -> None:
    group = comm.group([0, 1])
    assert group is not None
    if comm.rank == 0:
        comm.recv(np.zeros(0), 1)
        group.abort()
    else:
        pending = group.irecv(np.zeros(1), 0)
        comm.send(np.zeros(0), 0)
        assert "recv: rank 0 gave up" in fails(RankLost, group.recv, np.zeros(1), 0)
        assert "irecv: rank 0 gave up" in fails(RankLost, pending.wait)
    comm.barrier()


def leaving(comm: Communicator) -> None:
    """What a rank sent before it left can still be received."""
    array = np.zeros(3, np.float32)
    if comm.rank == 1:
        comm.send(array + 1, 0, 1)
        comm.send(array + 2, 0, 2)
        return
    assert "recv: rank 1 has left" in fails(RankLost, comm.recv, array, 1, 9)
    assert comm.recv(array, None, 2).elements == 3 and (array == 2).all()
    assert comm.recv(array, 1, ANY_TAG).tag == 1 and (array == 1).all()


def test_what_is_said_when_it_goes_wrong() -> None:
    def work(comm: Communicator) -> None:
        for part in (wrong_usage, mismatches, timeouts, stopped_in_the_middle, closing, aborting, leaving):
            part(comm)

    everyone(work, 2)


DYING = """
import os, signal, sys
import numpy as np
from allfold.communicator.communicator import connect
comm = connect(1, 2, sys.argv[1])
comm.send(np.full(4, 6.0), 0, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_peer_that_dies() -> None:
    key = secrets.token_hex(16)
    with subprocess.Popen([sys.executable, "-c", DYING, key]) as dying:
        comm = connect(0, 2, key, PATIENCE)
        array = np.zeros(LONG)
        gone = f"rank 1 (process {dying.pid}) is gone: killed by signal 9 (Killed) (the world)"
        receiving, sending = comm.irecv(array, 1, 2), comm.isend(array, 1)
        assert fails(RankLost, comm.recv, np.zeros(4), 1, 3) == f"recv: {gone}"
        assert fails(RankLost, comm.recv, np.zeros(4), None, 3) == f"recv: {gone}"
        while not (receiving.done() and sending.done()):  # nobody waits for them
            pass
        assert fails(RankLost, receiving.wait) == f"irecv: {gone}"
        assert fails(RankLost, sending.wait) == f"isend: {gone}"
        assert fails(RankLost, comm.send, array, 1) == f"send: {gone}"
        assert comm.recv(array, 1, 1).elements == 4 and (array[:4] == 6).all()
        comm.close()


def test_an_interrupt_ends_a_wait() -> None:
    comm = connect(0, 1, secrets.token_hex(16), PATIENCE)
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        comm.recv(np.zeros(1))
    comm.send(np.ones(1), 0)
    assert comm.recv(np.zeros(1)).elements == 1  # the interrupted receive no longer takes messages
    comm.close()
