"""What every fabric must do, as checks that real processes run: `fabric_checks.py FABRIC CHECK… [@RANK SIZE FILE]`.

Every rank prints a line for every check that it has passed. The tests of the fabrics start the ranks and read the lines.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from allfold.fabrics.board import Board
from allfold.fabrics.fabric import Bytes, Disconnected, Fabric
from allfold.fabrics.tags import MOST_TAG

RANKS = 3
PATIENCE = 60.0
VICTIM = RANKS - 1

Check = Callable[[Board, Fabric], None]


def pattern(count: int, *seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def empty(count: int = 8) -> Bytes:
    return np.full(count, 0xEE, np.uint8)


def others(fabric: Fabric) -> list[int]:
    return [rank for rank in range(fabric.size) if rank != fabric.rank]


def meet(fabric: Fabric, tag: int = MOST_TAG) -> None:
    """Nobody leaves before everybody has come."""
    moving = [fabric.receive(rank, empty(), tag) for rank in others(fabric)]
    moving += [fabric.send(rank, empty(), tag) for rank in others(fabric)]
    for one in moving:
        one.wait()


# Messages -------------------------------------------------------------------------------------------------------------


def in_order_per_pair_and_tag(board: Board, fabric: Fabric) -> None:
    tags, messages = (0, 7, 2**16, MOST_TAG - 1), range(20)
    sending = [
        fabric.send(rank, pattern(64, fabric.rank, rank, tag, number), tag)
        for number in messages
        for tag in tags
        for rank in others(fabric)
    ]
    for tag in reversed(tags):
        for rank in others(fabric):
            for number in messages:
                data = empty(64)
                assert fabric.receive(rank, data, tag).wait() == rank
                assert np.array_equal(data, pattern(64, rank, fabric.rank, tag, number)), (rank, tag, number)
    for one in sending:
        one.wait()


def waits_in_any_order(board: Board, fabric: Fabric) -> None:
    received = {(rank, tag): empty(5000) for rank in others(fabric) for tag in range(100)}
    receiving = {(rank, tag): fabric.receive(rank, data, tag) for (rank, tag), data in received.items()}
    sending = [fabric.send(rank, pattern(5000, fabric.rank, tag), tag) for rank, tag in reversed(received)]
    for one in np.random.default_rng(fabric.rank).permutation(len(receiving)):
        rank, tag = list(receiving)[one]
        assert receiving[rank, tag].wait() == rank
        assert np.array_equal(received[rank, tag], pattern(5000, rank, tag))
    for sent in sending:
        assert sent.wait() in others(fabric)


def from_any_rank(board: Board, fabric: Fabric) -> None:
    if fabric.rank == 0:
        for turn in range(5):
            received = [empty() for _ in others(fabric)]
            receiving = [fabric.receive_any(data, 40 + turn) for data in received]
            sources = [one.wait() for one in receiving]
            assert sorted(sources) == others(fabric)
            assert [int(data[0]) for data in received] == sources
    else:
        for turn in range(5):
            fabric.send(0, np.full(8, fabric.rank, np.uint8), 40 + turn).wait()


def exact_sizes_in_place(board: Board, fabric: Fabric) -> None:
    to, source = (fabric.rank + 1) % fabric.size, (fabric.rank - 1) % fabric.size
    for count in (1, 3, 8, 4095, 65_537, 1 << 20, 5_000_001):
        around, sent = empty(count + 32), pattern(count, count, fabric.rank)
        receiving = fabric.receive(source, around[16 : 16 + count], 3)
        fabric.send(to, sent, 3).wait()
        receiving.wait()
        assert np.array_equal(around[16:-16], pattern(count, count, source))
        assert (around[:16] == 0xEE).all() and (around[-16:] == 0xEE).all()


def shorter_messages_leave_the_rest(board: Board, fabric: Fabric) -> None:
    lengths = (1, 100, 70_000)
    rooms = {(rank, length): empty(80_000) for rank in others(fabric) for length in lengths}
    moving = [fabric.receive(rank, room, 5) for (rank, _), room in rooms.items()]
    moving += [
        fabric.send(rank, pattern(length, fabric.rank, length), 5) for rank in others(fabric) for length in lengths
    ]
    for one in moving:
        one.wait()
    for (rank, length), room in rooms.items():
        assert (room[:length] == pattern(length, rank, length)).all() and (room[length:] == 0xEE).all()


def a_group_of_its_own(board: Board, fabric: Fabric) -> None:
    ranks = [2, 0]
    if fabric.rank not in ranks:
        return
    group = fabric.another("pair", ranks)
    assert (group.size, group.rank) == (2, ranks.index(fabric.rank)) and group.name == fabric.name
    peer = 1 - group.rank
    wide, narrow = empty(), empty()
    receiving = [fabric.receive(ranks[peer], wide, 9), group.receive(peer, narrow, 9)]
    sending = [group.send(peer, np.full(8, 1, np.uint8), 9), fabric.send(ranks[peer], np.full(8, 2, np.uint8), 9)]
    for one in (*receiving, *sending):
        one.wait()
    assert (narrow == 1).all() and (wide == 2).all()


def after_a_cut_memory_is_its_owners_again(board: Board, fabric: Fabric) -> None:
    """Rank 0 gives up a long message that nobody has asked for yet, and changes what it sent."""
    given_up, word = fabric.another("given up", range(fabric.size)), np.ones(8, np.uint8)
    data = np.ones(4 << 20, np.uint8)
    if fabric.rank == 0:
        sending = given_up.send(1, data, 5)
        given_up.cut()
        data[:] = 9
        fabric.send(1, word, 6).wait()
        fabric.receive(1, word, 6).wait()
        del sending
    elif fabric.rank == 1:
        fabric.receive(0, word, 6).wait()
        data[:] = 0
        try:
            given_up.receive(0, data, 5).wait(PATIENCE)
            assert (data == 1).all(), "it came as it was changed later"
        except Disconnected:
            pass
        fabric.send(0, word, 6).wait()
    meet(fabric, 7)


def one_thread_waits_while_another_works(board: Board, fabric: Fabric) -> None:
    heard = [empty() for _ in others(fabric)]
    receiving = [fabric.receive(rank, data, 50) for rank, data in zip(others(fabric), heard, strict=True)]
    sources: list[int] = []
    waiting = [threading.Thread(target=lambda one=one: sources.append(one.wait())) for one in receiving]
    for thread in waiting:
        thread.start()
    for _ in range(300):
        meet(fabric, 51)
    assert not sources
    meet(fabric, 51)
    sending = [fabric.send(rank, np.full(8, fabric.rank, np.uint8), 50) for rank in others(fabric)]
    for thread in waiting:
        thread.join(PATIENCE)
    assert sorted(sources) == others(fabric) == [int(data[0]) for data in heard]
    for one in sending:
        one.wait()


# The board ------------------------------------------------------------------------------------------------------------


def what_all_put_up(board: Board, fabric: Fabric) -> None:
    own = bytes([board.rank]) * (board.rank * 50_000)
    assert board.gather("own", own, PATIENCE) == [bytes([rank]) * (rank * 50_000) for rank in range(board.size)]
    assert board.gather("own again", b"x", PATIENCE) == [b"x"] * board.size
    some = board.some("two", [1, 0]) if board.rank < 2 else board.some("one", [2])
    assert some.gather("own", b"%d" % board.rank, PATIENCE) == ([b"1", b"0"] if board.rank < 2 else [b"2"])


def a_rank_that_does_not_come(board: Board, fabric: Fabric) -> None:
    if board.rank != 1:
        found = board.gather("without 1", b"here", 0.5)
        assert found == [b"here", None, b"here"], found
        assert board.present("without 1") == [0, 2]
    meet(fabric)
    board.put("without 1", b"late")
    meet(fabric)
    assert board.present("without 1") == [0, 1, 2]


def a_barrier_waits_for_everybody(board: Board, fabric: Fabric) -> None:
    for late in range(fabric.size):
        if fabric.rank == late:
            time.sleep(0.1)
        board.put(f"before barrier {late}", b"here")
        fabric.barrier(9, PATIENCE)
        assert board.present(f"before barrier {late}") == list(range(fabric.size))


def one_decision(board: Board, fabric: Fabric) -> None:
    for turn in range(5):
        decided = board.decide(f"turn {turn}", b"%d" % board.rank)
        assert board.gather(f"decided {turn}", decided, PATIENCE) == [decided] * board.size
        assert decided in [b"%d" % rank for rank in range(board.size)]
    meet(fabric)  # nobody leaves while another reads the board: rank 0 may keep it


CHECKS: list[Check] = [
    in_order_per_pair_and_tag,
    waits_in_any_order,
    from_any_rank,
    exact_sizes_in_place,
    shorter_messages_leave_the_rest,
    a_group_of_its_own,
    after_a_cut_memory_is_its_owners_again,
    one_thread_waits_while_another_works,
    what_all_put_up,
    a_rank_that_does_not_come,
    a_barrier_waits_for_everybody,
    one_decision,
]
"""What every fabric passes, as long as no rank dies."""


def those_who_are_left_go_on(board: Board, fabric: Fabric) -> None:
    """The last rank kills itself. Not among CHECKS: nothing can follow."""
    if fabric.rank == VICTIM:
        for rank in others(fabric):
            fabric.receive(rank, empty(), 1).wait()
        os.kill(os.getpid(), signal.SIGKILL)
    receiving = fabric.receive(VICTIM, empty(), 2)
    fabric.send(VICTIM, empty(), 1).wait()
    try:
        receiving.wait()
    except Disconnected as error:
        assert str(error)
    else:
        raise AssertionError("the wait for a rank that was killed ended well")
    left = fabric.another("left", range(VICTIM))
    meet(left)
    assert board.some("left", range(VICTIM)).gather("well", b"yes", PATIENCE) == [b"yes"] * VICTIM
    meet(left)


# Starting and judging -------------------------------------------------------------------------------------------------


def passed(name: str, rank: int) -> str:
    return f"{name} passed on rank {rank}"


def start(command: list[str], **environment: str) -> subprocess.Popen[str]:
    """Ranks, without what an outer launcher may have told us."""
    outer = ("ALLFOLD_", "OMPI_", "PMIX_", "PMI_", "MPIR_", "SLURM_", "TORCHELASTIC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    return subprocess.Popen(
        command, env=kept | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def end(processes: list[subprocess.Popen[str]]) -> str:
    """What they have printed; all of them end, or are killed."""
    try:
        return "".join(process.communicate(timeout=PATIENCE * 3)[0] for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def over_tcp(rank: int, size: int, file: Path) -> tuple[Board, Fabric]:
    from allfold.fabrics.board import Board
    from allfold.fabrics.stores import FolderStore

    board = Board(FolderStore(file), rank, size)
    return board, board.connect("", PATIENCE)


def over_ucx(rank: int, size: int, file: Path) -> tuple[Board, Fabric]:
    os.environ["ALLFOLD_FABRIC"] = "ucx"
    board, control = over_tcp(rank, size, file)
    fabric = control.another("checks", range(size))
    assert (control.name, fabric.name) == ("ucx", "ucx")
    return board, fabric


def over_mpi() -> tuple[Board, Fabric]:
    from allfold.fabrics.table import board_from_environment
    from allfold.launch.environment import place_from_environment

    place = place_from_environment()
    board = board_from_environment(os.environ, place.rank, place.size, PATIENCE)
    return board, board.connect("", PATIENCE)


def main(kind: str, *words: str) -> None:
    """Run the named checks, as one rank of all."""
    faulthandler.dump_traceback_later(PATIENCE * 2, exit=True)
    place = [word for word in words if word.startswith("@")]
    names = words[: words.index(place[0])] if place else words
    arguments: tuple[Any, ...] = ()
    if place:
        rank, size, file = words[len(names) :]
        arguments = int(rank[1:]), int(size), Path(file)
    board, fabric = {"mpi": over_mpi, "tcp": over_tcp, "ucx": over_ucx}[kind](*arguments)
    known = {check.__name__: check for check in (*CHECKS, those_who_are_left_go_on)}
    for name in names:
        known[name](board, fabric)
        print(f"{passed(name, board.rank)}\n", end="", flush=True)  # one write: lines of several ranks do not mix


if __name__ == "__main__":
    main(*sys.argv[1:])
