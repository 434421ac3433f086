"""What only the fabric over MPI must do; started as `fabric_checks.py` is."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from fabric_checks import Check, empty, main, meet, others, pattern

from allfold.errors import UsageError
from allfold.fabrics import mpi
from allfold.fabrics.fabric import Board, Disconnected, Fabric, Transfer
from allfold.fabrics.tags import MOST_TAG


def fails(function: Callable[..., Any], *arguments: Any) -> str:
    try:
        function(*arguments)
    except UsageError as error:
        return str(error)
    raise AssertionError(f"{function} did not raise")


def long_messages_in_pieces(board: Board, fabric: Fabric) -> None:
    before, mpi.SEGMENT = mpi.SEGMENT, 1000
    to, source = (fabric.rank + 1) % fabric.size, (fabric.rank - 1) % fabric.size
    for count in (1000, 1001, 5000, 123_456):
        first, second = empty(count), empty(count)
        receiving = [fabric.receive(source, data, 4) for data in (first, second)]
        sending = [fabric.send(to, pattern(count, fabric.rank, number), 4) for number in range(2)]
        assert [one.wait() for one in receiving] == [source] * 2 and [one.wait() for one in sending] == [to] * 2
        assert np.array_equal(first, pattern(count, source, 0)) and np.array_equal(second, pattern(count, source, 1))
    assert "pieces" in fails(fabric.receive_any, empty(1001), 4)
    mpi.SEGMENT = before


def tags_of_a_library_with_short_ones(board: Board, fabric: Fabric) -> None:
    assert isinstance(board, mpi.MpiBoard)
    before, board.store.most_tag = board.store.most_tag, 2**29 - 1
    four = fabric.another("four communicators", range(fabric.size))
    tags = [5, 5 + 2**29, 5 + 2**30, 5 + 3 * 2**29, MOST_TAG]
    for rank in others(fabric):
        received = [empty() for _ in tags]
        receiving = [four.receive(rank, data, tag) for tag, data in zip(tags, received, strict=True)]
        sending = [four.send(rank, pattern(8, tag), tag) for tag in reversed(tags)]
        for one in (*receiving, *sending):
            one.wait()
        for tag, data in zip(tags, received, strict=True):
            assert np.array_equal(data, pattern(8, tag)), tag
    board.store.most_tag = 999
    few = fabric.another("few tags", range(fabric.size))
    meet(few, 7999)
    assert fails(few.send, 0, empty(), 8000) == "tag 8000: expected 0 to 7999, the most that this MPI has room for"
    board.store.most_tag = before


def wrong_use_is_refused(board: Board, fabric: Fabric) -> None:
    assert fails(fabric.send, fabric.size, empty(), 0) == f"rank {fabric.size}: expected 0 to {fabric.size - 1}"
    assert "expected 0 to" in fails(fabric.receive, -1, empty(), 0)
    assert "expected 0 to" in fails(fabric.receive, 0, empty(), -1)
    assert "expected 0 to" in fails(fabric.receive, 0, empty(), MOST_TAG + 1)
    if fabric.rank == 0:
        fabric.send(1, empty(64), 60).wait()
    elif fabric.rank == 1:
        assert "rank 0: " in fails(lambda: fabric.receive(0, empty(8), 60).wait())
    meet(fabric)


def messages_to_oneself(board: Board, fabric: Fabric) -> None:
    data = empty(1 << 20)
    receiving = fabric.receive(fabric.rank, data, 8)
    fabric.send(fabric.rank, pattern(1 << 20, 1), 8).wait()
    assert receiving.wait() == fabric.rank and np.array_equal(data, pattern(1 << 20, 1))


def wait_in_vain(transfer: Transfer) -> None:
    with contextlib.suppress(Disconnected):
        transfer.wait()


def what_is_open_at_the_end(board: Board, fabric: Fabric) -> None:
    """A receive that nothing matches, a large one that has begun, and a thread that was left behind."""
    meet(fabric)
    threading.Thread(target=wait_in_vain, args=(fabric.receive_any(empty(), 70),), daemon=True).start()
    fabric.receive((fabric.rank + 1) % fabric.size, empty(), 71)
    fabric.receive((fabric.rank - 1) % fabric.size, empty(1 << 26), 72)
    fabric.send((fabric.rank + 1) % fabric.size, empty(1 << 26), 72)
    fabric.send((fabric.rank + 1) % fabric.size, empty(1 << 26), 73)


def mpi_ends_before_python(board: Board, fabric: Fabric) -> None:
    from mpi4py import MPI

    what_is_open_at_the_end(board, fabric)
    rank = board.rank
    MPI.Finalize()
    try:
        fabric.send((rank + 1) % fabric.size, empty(), 1)
    except Disconnected as error:
        assert str(error) == "this process has ended its part in MPI"
    else:
        raise AssertionError("sent after the end")


MORE: list[Check] = [
    long_messages_in_pieces,
    tags_of_a_library_with_short_ones,
    wrong_use_is_refused,
    messages_to_oneself,
]
ENDS: list[Check] = [what_is_open_at_the_end, mpi_ends_before_python]

if __name__ == "__main__":
    main("mpi", *sys.argv[1:], more=[*MORE, *ENDS])
