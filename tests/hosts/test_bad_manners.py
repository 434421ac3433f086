"""Bad manners across pretended hosts: forked children, ranks and groups that leave, arguments that others would refuse."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
from saying import AT_ONCE, said_by

import allfold as af
from allfold.communicator.communicator import Communicator


def differ_in_length(comm: Communicator, root: int, which: list[int]) -> list[tuple[str, str, float]]:
    """Some ranks have other lengths. Ranks that have nothing to wait for hear of it in one of the next calls: that call, and
    the error."""
    length, said = 3 if comm.rank in which else 1, []
    array, whole = np.ones(length, np.float32), np.ones(comm.size * length, np.float32)
    for call in (
        lambda group: group.gather(array, whole if group.rank == root else None, root=root, timeout=60.0),
        lambda group: group.scatter(array=whole if group.rank == root else None, output=array, root=root, timeout=60.0),
        lambda group: group.reduce(array, root=root, timeout=60.0),
        lambda group: group.broadcast(array, root=root, timeout=60.0),
        lambda group: group.all_gather(array, whole, timeout=60.0),
        lambda group: group.reduce_scatter(whole, array, timeout=60.0),
    ):
        group = comm.group(range(comm.size))  # broken after it
        comm.barrier()  # all ranks have made it: one that is still making it would get the error there
        said.append(said_by(lambda call=call, group=group: (call(group), group.barrier(timeout=60.0))))
        time.sleep(1)  # who has heard of it does nothing that would tell the others
    return said


_NAMES = ("gather", "scatter", "reduce", "broadcast", "all_gather", "reduce_scatter")


@pytest.mark.parametrize(("root", "which"), [(1, [3, 4]), (0, [3, 4]), (0, [1]), (0, [4])])
def test_a_mismatch_frees_all_ranks_at_once(root: int, which: list[int]) -> None:
    for said in af.spawn(differ_in_length, 5, hosts=(3, 2), timeout=120, args=(root, which)):
        for name, (kind, text, seconds) in zip(_NAMES, said, strict=True):
            assert kind == "MismatchError" and seconds < AT_ONCE, (kind, text, seconds)
            assert text.startswith(f"{name}: "), text


def goes_ahead(comm: Communicator) -> list[tuple[str, str, float]]:
    """One rank makes another call than the rest, and the rest make no call that waits for it: gathers and reduces to a root
    that is elsewhere, and broadcasts from one rank."""
    said = []
    for name in ("gather", "reduce", "broadcast"):
        group = comm.group(range(comm.size))
        comm.barrier()  # all ranks have made the group
        root = 0 if name == "broadcast" else comm.size - 1

        def calls(name: str = name, group: Communicator = group, root: int = root) -> None:
            for number in range(30):
                array = np.ones(2 if number == 3 and group.rank == 0 else 1)
                if name == "gather":
                    group.gather(array, np.empty(group.size) if group.rank == root else None, root=root, timeout=60.0)
                else:
                    getattr(group, name)(array, root=root, timeout=60.0)

        said.append(said_by(calls))
        time.sleep(1)
    return said


@pytest.mark.parametrize("hosts", [(1, 1, 1), (2, 2)])
def test_a_rank_that_goes_ahead_hears_of_a_mismatch_in_a_later_call(hosts: tuple[int, ...]) -> None:
    for said in af.spawn(goes_ahead, sum(hosts), hosts=hosts, timeout=120):
        for kind, text, seconds in said:
            assert kind == "MismatchError" and seconds < AT_ONCE, (kind, text, seconds)
            assert "(call 4 of group " in text and text.count(" float64[") == 2 and "rank 0 " in text, text


def goes_on(comm: Communicator) -> list[float]:
    """Ranks that need nothing from the others make all calls before the others make the first."""
    sums = []
    for name, root, first in (("gather", 0, 3), ("reduce", 0, 3), ("broadcast", 0, 0), ("scatter", 0, 0)):
        if comm.rank != first:
            comm.recv(np.empty(1), first, timeout=30.0)
        for number in range(5):
            array, whole = np.full(2, float(comm.rank + number)), np.arange(8.0) + number
            there = whole if comm.rank == root else None
            if name == "gather":
                comm.gather(array, there, root=root, timeout=30.0)
            elif name == "scatter":
                comm.scatter(array=there, output=array, root=root, timeout=30.0)
            else:
                getattr(comm, name)(array, root=root, timeout=30.0)
            sums.append(float(whole.sum() if name == "gather" else array.sum()))
        if comm.rank == first:
            for rank in {0, 1, 2, 3} - {first}:
                comm.send(np.empty(1), rank)
    return sums


def test_a_rank_does_not_wait_for_ranks_from_which_it_needs_nothing() -> None:
    for rank, sums in enumerate(af.spawn(goes_on, 4, hosts=(2, 2), timeout=60)):
        gathered, reduced, broadcast, scattered = (sums[at : at + 5] for at in (0, 5, 10, 15))
        calls = np.arange(5.0)
        if rank == 0:
            assert gathered == list(12 + 8 * calls) and reduced == list(12 + 8 * calls)
        assert broadcast == list(2 * calls) and scattered == list(4 * rank + 1 + 2 * calls)


def forks(comm: Communicator) -> list[tuple[float, str]]:
    results = []
    for what in ("close", "abort", "shrink"):
        comm.barrier()
        said = ""
        if comm.rank == 0:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                kind, _, _ = said_by(getattr(comm, what))
                os.write(writing, kind.encode() or b"nothing")
                os._exit(0)
            os.close(writing)
            said = os.read(reading, 100).decode()
            os.waitpid(child, 0)
        array = np.ones(4)
        for _ in range(3):
            comm.all_reduce(array, "max", timeout=15.0)
        results.append((float(array[0]), said))
    return results


def test_a_forked_child_does_no_harm() -> None:
    first, second = af.spawn(forks, 2, hosts=2, timeout=60)
    assert first == [(1.0, "nothing"), (1.0, "UsageError"), (1.0, "UsageError")] and second == [(1.0, "")] * 3


def lowest_rank_leaves(comm: Communicator) -> str:
    group = comm.group([0, 1, 3])
    if group is None:
        comm.close()
        return "left"
    for _ in range(60):  # for longer than a host may be silent
        group.all_reduce(np.ones(4), timeout=10.0)
        time.sleep(0.1)
    return "fine"


def test_a_host_is_heard_after_its_lowest_rank_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLFOLD_HOST_SECONDS", "4")  # on a busy machine a host may be silent for two
    assert af.spawn(lowest_rank_leaves, 4, hosts=2, timeout=60, survive=True) == ["fine", "fine", "left", "fine"]


def closes_a_group(comm: Communicator, who: int) -> tuple[str, str, float]:
    group = comm.group(range(comm.size))
    assert group is not None
    group.barrier()
    comm.barrier()  # all have left that of the group
    said = ("", "", 0.0)
    if comm.rank == who:
        group.close()
    else:
        said = said_by(lambda: group.all_reduce(np.ones(4), timeout=60.0))
    comm.barrier()
    return said


@pytest.mark.parametrize(("hosts", "who"), [((1, 1), 0), ((1, 2), 1), ((2, 1), 1)])
def test_who_closes_a_group_is_named(hosts: tuple[int, ...], who: int) -> None:
    for rank, (kind, text, seconds) in enumerate(
        af.spawn(closes_a_group, sum(hosts), args=(who,), hosts=hosts, timeout=60)
    ):
        if rank != who:
            assert kind == "RankLost" and f"rank {who} on " in text and "has left group 1" in text, text
            assert seconds < AT_ONCE


def odd_arguments(comm: Communicator) -> list[tuple[str, str, Any]]:
    torch = pytest.importorskip("torch")
    said = []
    for what, array, op in (
        ("conjugated", torch.full((4,), 1 + 1j).conj(), "sum"),
        ("masked", np.ma.array(np.ones(4), mask=False), "sum"),
        ("no operation", np.ones(4), None),
        ("sparse", torch.ones(4).to_sparse(), "sum"),
        ("complex maximum", np.ones(4, np.complex64), "max"),
    ):
        kind, _, _ = said_by(lambda array=array, op=op: comm.all_reduce(array, op))
        result = None if kind else np.asarray(array.resolve_conj() if what == "conjugated" else array)[0].item()
        said.append((what, kind, result))
        after = np.ones(3)
        comm.all_reduce(after, timeout=10.0)
        assert after[0] == comm.size
    return said


def test_odd_arguments_are_answered_as_on_one_host() -> None:
    one, several = (af.spawn(odd_arguments, 2, hosts=hosts, timeout=60) for hosts in (None, 2))
    assert one == several
    right = [("conjugated", "", 2 - 2j), ("masked", "UsageError", None)]
    assert several[0] == right + [(what, "UsageError", None) for what in ("no operation", "sparse", "complex maximum")]


def aborts_groups(comm: Communicator) -> list[str]:
    """The other rank may still be making the group when it is aborted."""
    seen = []
    for _ in range(40):
        try:
            group = comm.group([0, 1])
            if comm.rank == 0 and group is not None:
                group.abort()
        except Exception as error:
            seen.append(f"{isinstance(error, af.AllfoldError)}: {error}")
    return seen


def test_making_a_group_fails_with_a_typed_error() -> None:
    for seen in af.spawn(aborts_groups, 2, hosts=2, timeout=100):
        assert all(one.startswith("True") for one in seen), seen


def sends_and_leaves(comm: Communicator) -> tuple[str, str, float]:
    if comm.rank == 0:
        comm.send(np.full(3, 7.0), 1)
        comm.close()
        time.sleep(2)
        return "", "", 0.0
    time.sleep(1)
    array = np.zeros(3)
    said = said_by(lambda: comm.recv(array, 0, timeout=5.0))
    return said if said[0] else ("", str(array.tolist()), said[2])


def test_a_message_can_be_received_after_its_sender_has_left() -> None:
    assert af.spawn(sends_and_leaves, 2, hosts=2, timeout=60)[1][:2] == ("", "[7.0, 7.0, 7.0]")


def sends_to_its_neighbour_and_leaves(comm: Communicator) -> tuple[str, list[float]]:
    array = np.full(3, comm.rank, np.float32)
    if comm.rank == 2:
        comm.isend(array, 3, tag=1).wait()
        comm.isend(array, 3, tag=2).wait()
        comm.close()
    if comm.rank != 3:
        return "", []
    said = "no message with tag 3"
    while "has left" not in said:  # until the news that rank 2 has left is here
        said = said_by(lambda: comm.irecv(array, 2, tag=3).wait(timeout=0.1))[1]
    second = np.empty(3, np.float32)
    pending = [comm.irecv(second, 2, tag=2), comm.irecv(array, 2, tag=1)]
    for one in pending:
        one.wait(timeout=30.0)
    return said, [*array.tolist(), *second.tolist()]


def test_a_message_from_the_same_host_can_be_received_after_its_sender_has_left() -> None:
    said, came = af.spawn(sends_to_its_neighbour_and_leaves, 4, hosts=2, timeout=60)[3]
    assert "rank 2 on host1 has left" in said and came == [2.0] * 6
