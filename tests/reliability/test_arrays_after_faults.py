"""A call that failed gives its arrays back: late ranks neither write into them nor trust what they read there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import allfold as af
from allfold.communicator.communicator import Communicator

ELEMENTS = 1 << 20  # long enough that ordinary arrays are fetched out of their processes
SENT, CHANGED = 7.0, 99.0


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not arrive"
        time.sleep(0.005)


# A late rank reads ----------------------------------------------------------------------------------------------------


def reads(comm: Communicator, collective: str, shared: bool, folder: Path) -> str:
    """Rank 0 gives up, and changes its array at once; rank 1 comes after that."""

    def array(elements: int, value: float) -> Any:
        made = comm.empty(elements, np.float32) if shared else np.empty(elements, np.float32)
        made[:] = value
        return made

    whole, part = array(2 * ELEMENTS, SENT), array(ELEMENTS, SENT if comm.rank == 0 else 0)
    is_root = comm.rank == 0
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "broadcast": (comm.broadcast, (part,)),
        "scatter": (comm.scatter, (array(ELEMENTS, 0), whole if is_root else None)),
        "all_gather": (comm.all_gather, (part, array(2 * ELEMENTS, 0))),
        "all_to_all": (comm.all_to_all, (whole, array(2 * ELEMENTS, 0))),
        "reduce_scatter": (comm.reduce_scatter, (whole, array(ELEMENTS, 0))),
    }
    call, arguments = calls[collective]
    comm.barrier()
    if is_root:
        with pytest.raises(af.CollectiveTimeout):
            call(*arguments, timeout=0.2)
        whole[:] = part[:] = CHANGED
        (folder / "changed").touch()
        wait_for(folder / "done")
        return ""
    wait_for(folder / "changed")
    try:
        call(*arguments, timeout=20)
    except af.AllfoldError as error:
        return f"{type(error).__name__}: {error}"
    else:
        return f"it returned {np.unique(arguments[-1] if arguments[-1] is not None else arguments[0])}"
    finally:
        (folder / "done").touch()


@pytest.mark.parametrize(
    ("collective", "shared"),
    [("broadcast", True), ("scatter", True), ("scatter", False), ("all_gather", False), ("reduce_scatter", True)],
)
def test_a_late_rank_does_not_return_data_that_were_changed_after_a_timeout(
    collective: str, shared: bool, tmp_path: Path
) -> None:
    _, said = af.spawn(reads, 2, args=(collective, shared, tmp_path), survive=True, timeout=60)
    assert said.startswith("CollectiveTimeout: ") and "rank 0 gave up" in said, said


# A late rank writes ---------------------------------------------------------------------------------------------------


def writes(comm: Communicator, late: int, folder: Path) -> tuple[int, list[float]]:
    """One rank gives up and drops its array; the other comes when a new array lies in the same place."""
    array = comm.empty(ELEMENTS, np.float32)
    array[:] = 1
    comm.barrier()
    if comm.rank == late:
        wait_for(folder / "new array")
        with pytest.raises(af.CollectiveTimeout, match=f"rank {1 - late} gave up"):
            comm.all_reduce(array, timeout=20)
        (folder / "done").touch()
        return 0, []
    with pytest.raises(af.CollectiveTimeout):
        comm.all_reduce(array, timeout=0.2)
    place = array.ctypes.data
    del array
    other = comm.empty(ELEMENTS, np.float32)
    other[:] = 5
    (folder / "new array").touch()
    wait_for(folder / "done")
    return other.ctypes.data - place, np.unique(other).tolist()


@pytest.mark.parametrize("late", [0, 1])
def test_a_late_rank_does_not_write_into_memory_that_was_given_back(late: int, tmp_path: Path) -> None:
    moved, held = af.spawn(writes, 2, args=(late, tmp_path), survive=True, timeout=60)[1 - late]
    assert moved == 0  # nobody was writing, so the memory is free again
    assert held == [5]


def holds_on(comm: Communicator, stops: bool, folder: Path) -> dict[str, Any]:
    """Rank 1 has begun to write when rank 0 gives up, and goes on when rank 0 has its array back."""

    def plus(left: Any, right: Any) -> Any:
        if comm.rank == 1 and not (folder / "pid").exists():
            (folder / "pid.new").write_text(str(os.getpid()))
            (folder / "pid.new").rename(folder / "pid")
            if stops:
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                wait_for(folder / "go on")
        return left + right

    array = comm.empty(ELEMENTS, np.float32)
    array[:] = 1
    comm.barrier()
    # Direct: each rank reduces a part, and writes it into the arrays of all.
    arguments: Any = dict(op=af.op(plus, commutative=True), algorithm="direct")
    if comm.rank == 1:
        with pytest.raises(af.AllfoldError) as caught:
            comm.all_reduce(array, timeout=30, **arguments)
        (folder / "done").touch()
        return {"late": str(caught.value)}
    place, bytes = array.ctypes.data, array.nbytes
    try:
        comm.all_reduce(array, timeout=0.5, **arguments)
    except af.CollectiveTimeout as error:
        said = str(error)
    wait_for(folder / "pid")
    array[:] = 5
    (folder / "go on").touch()
    os.kill(int((folder / "pid").read_text()), signal.SIGCONT)
    wait_for(folder / "done")
    held = np.unique(array).tolist()
    shared = comm.engine.native.in_shared_memory(array)  # type: ignore[attr-defined]
    del array
    new = comm.empty(ELEMENTS, np.float32)
    return {"said": said, "held": held, "shared": shared, "overlaps": abs(new.ctypes.data - place) < bytes}


@pytest.mark.parametrize("stops", [False, True], ids=["busy", "stopped"])
def test_an_array_is_taken_away_from_a_rank_that_does_not_stop_writing(stops: bool, tmp_path: Path) -> None:
    first, second = af.spawn(holds_on, 2, args=(stops, tmp_path), survive=True, timeout=60)
    assert "rank 1 arrived but did not do its part" in first["said"]
    assert first["held"] == [5]
    assert not first["shared"]  # it has pages of its own now
    assert not first["overlaps"]  # the old ones are kept away from new arrays
    assert "rank 0 gave up" in second["late"]


# A call behind background calls ---------------------------------------------------------------------------------------


def interrupted(comm: Communicator, folder: Path) -> list[float]:
    """Rank 0 is interrupted in a call that waits for its turn, and uses the array of that call again."""

    def raises(*_: object) -> None:
        raise InterruptedError

    signal.signal(signal.SIGALRM, raises)
    first, second = np.ones(10), np.ones(10)
    comm.barrier()
    if comm.rank == 1:
        wait_for(folder / "rewritten")
        comm.all_reduce(first, timeout=20)
        with pytest.raises(af.CollectiveTimeout, match="rank 0 did not arrive"):
            comm.all_reduce(second, timeout=0.3)
        return []
    handle = comm.all_reduce(first, async_op=True, timeout=20)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(InterruptedError):
        comm.all_reduce(second, timeout=20)
    second[:] = 5
    (folder / "rewritten").touch()
    handle.wait(20)
    return [*np.unique(first).tolist(), *np.unique(second).tolist()]


def test_a_call_that_is_interrupted_before_its_turn_is_not_made(tmp_path: Path) -> None:
    assert af.spawn(interrupted, 2, args=(tmp_path,), survive=True, timeout=60)[0] == [2, 5]
