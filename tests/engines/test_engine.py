"""The native engine between real processes: bit for bit against the reference engine, and what happens when ranks die.

Everything that can be tested with ranks as threads is in the files test_engine_threads*.py.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_grid import PROVES, SIZES, Case, by_size, digest, expected_digests, fetch_all, perform

import allfold
from allfold.communicator.communicator import Communicator
from allfold.errors import RankFailed
from allfold.launch import spawn as launcher
from allfold.schedules import Move

EXHAUSTIVE = pytest.mark.exhaustive
PATIENCE = 60.0  # seconds after which something that should happen at once is taken not to happen
MOST_SHARED_BYTES = 8 * 2**20  # per rank, besides what the user allocates


def all_of(cases: list[Case], comm: Communicator) -> tuple[list[bytes], int, int]:
    digests = [digest(perform(comm, case), case.dtype) for case in cases]
    gc.collect()
    arena = comm.engine.members[comm.rank][0]
    return digests, os.fstat(arena.descriptor).st_blocks * 512, arena.in_use


@pytest.fixture
def proved_before(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks find what they run proved already, by the process that they are forked from: see `PROVES`."""
    modules = launcher._modules
    monkeypatch.setattr(launcher, "_modules", lambda *given: [*modules(*given), "engine_grid"])
    monkeypatch.setenv(PROVES, str(ranks))


@pytest.mark.usefixtures("proved_before")
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=EXHAUSTIVE)])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, *(pytest.param(ranks, marks=EXHAUSTIVE) for ranks in (1, 8, 13))])
def test_every_collective_by_every_algorithm_at_every_size(ranks: int, every: bool) -> None:
    # Half of the sizes in every run, so that every algorithm meets each with an odd number of ranks and with a power of 2.
    sizes = SIZES if ranks == 1 or every else SIZES[ranks in (3, 4, 8) :: 2]
    cases = by_size(ranks, sizes, every)
    results = allfold.spawn(partial(all_of, cases), ranks, timeout=PATIENCE * 4)
    for number, case in enumerate(cases):
        for rank, wanted in enumerate(expected_digests(case, ranks)):
            assert results[rank][0][number] == wanted, f"rank {rank} of {ranks}: {case}"
    # All the user's arrays are gone by now; what is left is the engine's own.
    for rank, (_, touched, in_use) in enumerate(results):
        assert touched <= MOST_SHARED_BYTES and in_use <= MOST_SHARED_BYTES, f"rank {rank}: {touched} of {in_use} bytes"


@pytest.mark.usefixtures("proved_before")
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=EXHAUSTIVE)])
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=EXHAUSTIVE), 3, pytest.param(5, marks=EXHAUSTIVE)])
def test_arrays_that_are_fetched_out_of_other_processes(ranks: int, every: bool) -> None:
    cases = [case for case in by_size(ranks, (1, 1000, 65537), every) if not (every and case.shared)]

    def work(comm: Communicator) -> list[bytes]:
        fetch_all(comm)
        some = [replace(case, shared=(comm.rank + number) % 5 == 1) for number, case in enumerate(cases)]
        return [digest(perform(comm, case), case.dtype) for case in some]

    results = allfold.spawn(work, ranks, timeout=PATIENCE * 4)
    for number, case in enumerate(cases):
        for rank, wanted in enumerate(expected_digests(case, ranks)):
            assert results[rank][number] == wanted, f"rank {rank} of {ranks}: {case}"


@pytest.mark.parametrize("unwilling", [[], [1]])
def test_large_arrays_are_fetched_unless_a_rank_is_told_not_to(unwilling: list[int]) -> None:
    def work(comm: Communicator) -> tuple[set[str], bool]:
        group = comm
        if comm.rank in unwilling:
            os.environ["ALLFOLD_FETCH"] = "0"
            group = comm.group([0, 1, 2])
        elif unwilling:
            group = comm.group([0, 1, 2])
        array, everyone = np.arange(500_000, dtype=np.float32) + comm.rank, np.zeros(1_500_000, np.float32)
        group.barrier()
        with group.trace() as trace:
            group.all_gather(array, everyone, algorithm="ring")
        right = all(np.array_equal(part, array - comm.rank + rank) for rank, part in enumerate(everyone.reshape(3, -1)))
        return {event.memory for event in trace.events if event.collective == "all_gather"}, right

    for memories, right in allfold.spawn(work, 3, timeout=PATIENCE):
        assert memories == {"private" if unwilling else "readable"} and right


def write_only(bytes: int, first: int = 0) -> np.ndarray[Any, Any]:
    """An array that the kernel does not read for others from the byte `first` on; its own process can read it all."""
    array = np.frombuffer(mmap.mmap(-1, bytes), np.uint8)
    start = ctypes.c_void_p(array.ctypes.data + first)
    assert ctypes.CDLL(None).mprotect(start, ctypes.c_size_t(bytes - first), mmap.PROT_WRITE) == 0
    return array


def secret(bytes: int) -> np.ndarray[Any, Any]:
    memfd_secret = 447
    descriptor = ctypes.CDLL(None).syscall(memfd_secret, 0)
    if descriptor < 0:  # the kernel has it switched off
        return write_only(bytes)
    os.ftruncate(descriptor, bytes)
    return np.frombuffer(mmap.mmap(descriptor, bytes), np.uint8)


@pytest.mark.parametrize("case", ["input", "output", "last page", "secret"])
def test_large_arrays_that_the_kernel_does_not_read_for_others(case: str) -> None:
    length = 2**20

    def work(comm: Communicator) -> set[str]:
        array, everyone = np.empty(length, np.uint8), np.empty(2 * length, np.uint8)
        if comm.rank == 1 and case == "output":
            everyone = write_only(2 * length)
        elif comm.rank == 1:
            array = (
                secret(length)
                if case == "secret"
                else write_only(length, 0 if case == "input" else length - mmap.PAGESIZE)
            )
        array[:] = comm.rank + 1
        comm.barrier()
        with comm.trace() as trace:
            comm.all_gather(array, everyone, algorithm="ring")
        assert np.array_equal(everyone, np.repeat(np.array([1, 2], np.uint8), length))
        return {event.memory for event in trace.events if event.collective == "all_gather"}

    assert allfold.spawn(work, 2, timeout=PATIENCE) == [{"private"}] * 2


def test_arrays_beyond_the_caches() -> None:
    elements = 5_000_003  # 20 MB on each of four ranks; chunks and segments of odd lengths

    def work(comm: Communicator) -> tuple[bool, bool]:
        pattern = np.arange(elements, dtype=np.float32) % 1021
        array = pattern * (comm.rank + 1)
        comm.all_reduce(array)
        other = pattern + comm.rank
        comm.broadcast(other, 2)
        return np.array_equal(array, pattern * 10), np.array_equal(other, pattern + 2)

    assert allfold.spawn(work, 4, timeout=PATIENCE) == [(True, True)] * 4


def test_a_bad_word_for_fetching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLFOLD_FETCH", "never")
    with pytest.raises(RankFailed, match=r"ALLFOLD_FETCH is 'never'; expected 1 \(.*\) or 0 \(never\)"):
        allfold.spawn(lambda comm: None, 1, timeout=PATIENCE)


def test_a_users_own_generator_and_operation_travel_to_the_ranks() -> None:
    def star(ranks: int) -> Iterator[list[Move]]:
        yield [allfold.reduce(0, r, 0) for r in range(1, ranks)]
        yield [allfold.copy(0, 0, r) for r in range(1, ranks)]

    def work(comm: Communicator) -> list[float]:
        first, second = np.full(10, comm.rank + 1.0), np.full(10, comm.rank + 1.0)
        comm.all_reduce(first, algorithm=star)
        comm.all_reduce(second, op=allfold.op(np.hypot, commutative=True))
        return [float(first[0]), round(float(second[0]) ** 2, 9)]

    assert allfold.spawn(work, 3, timeout=PATIENCE) == [[6.0, 14.0]] * 3


def test_groups_of_processes() -> None:
    def work(comm: Communicator) -> list[float]:
        pair, odd = comm.group([3, 0]), comm.group([1, 3])
        totals = []
        for group in (pair, odd, comm):
            array = comm.empty(1000, np.float64)
            array[:] = comm.rank
            if group is not None:
                group.all_reduce(array)
            totals.append(float(array[-1]))
        return totals

    assert allfold.spawn(work, 4, timeout=PATIENCE) == [[3, 0, 6], [1, 4, 6], [2, 2, 6], [3, 4, 6]]


def test_a_rank_that_is_done_may_go_while_others_are_not() -> None:
    """Rank 0 needs nobody in this broadcast; if rank 2 finds it dead, that is no reason to give up."""

    def work(comm: Communicator) -> float:
        processes = np.zeros(comm.size, np.int64)
        comm.all_gather(np.array([os.getpid()]), processes)
        array = np.full(5, float(comm.rank) + 7)
        if comm.rank == 1:
            while _is_alive(int(processes[0])):
                time.sleep(0.005)
        comm.broadcast(array, algorithm="chain")
        return float(array[0])

    assert allfold.spawn(work, 3, timeout=PATIENCE) == [7.0] * 3


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_rank_that_raises_takes_the_others_out_of_their_calls() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            raise LookupError("nothing here")
        comm.barrier()

    began = time.monotonic()
    with pytest.raises(RankFailed, match="LookupError") as caught:
        allfold.spawn(work, 3, timeout=PATIENCE)
    assert caught.value.rank == 1
    assert time.monotonic() - began < PATIENCE / 2


# Death ----------------------------------------------------------------------------------------------------------------

VICTIM = """
import json, sys, time
import numpy as np
import allfold

comm = allfold.init()
kind = sys.argv[1]
length = 3_000_000 if kind == "fetched" else 200_000
array = comm.empty(length) if kind == "shared" else np.ones(length, np.float32)
comm.all_reduce(array)
print("ready", flush=True)
if comm.rank == 1:
    sys.stdin.read()
try:
    if kind == "background":
        comm.all_reduce(array, async_op=True).wait()
    elif kind == "barrier":
        comm.barrier()
    else:
        comm.all_reduce(array)
except allfold.AllfoldError as error:
    print(json.dumps([type(error).__name__, str(error), time.monotonic()]), flush=True)
"""


@contextmanager
def started(ranks: int, *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    key = os.urandom(16).hex()
    processes = []
    try:
        for rank in range(ranks):
            environment = os.environ | {"ALLFOLD_RANK": str(rank), "ALLFOLD_SIZE": str(ranks), "ALLFOLD_KEY": key}
            command = [sys.executable, "-c", VICTIM, *arguments]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            processes.append(subprocess.Popen(command, env=environment, **pipes))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("kind", ["ordinary", "shared", "fetched", "background", "barrier"])
def test_a_rank_that_is_killed_is_named_within_two_seconds(kind: str) -> None:
    with started(3, kind) as processes:
        outputs = [process.stdout for process in processes]
        for output in outputs:
            assert output is not None and output.readline() == "ready\n"
        # Not waited for before the others have reported: a zombie process counts as dead.
        processes[1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        reports = {rank: json.loads(output.readline()) for rank, output in enumerate(outputs) if output and rank != 1}
    for name, _sentence, when in reports.values():
        assert name == "RankLost" and when - killed < 2
    # The first to notice gives up, and the other may hear of that instead.
    assert any(f"rank 1 (process {processes[1].pid}) is gone" in sentence for _, sentence, _ in reports.values()), (
        reports
    )


def test_nothing_is_left_behind() -> None:
    def own_memory() -> set[str]:
        links = set()
        for descriptor in Path("/proc/self/fd").iterdir():
            try:
                links.add(os.readlink(descriptor))
            except FileNotFoundError:  # the one that the listing itself used
                continue
        return {link for link in links if "allfold" in link and "memfd" in link}

    def work(comm: Communicator) -> tuple[int, int]:
        array = comm.empty(10**6)
        comm.all_reduce(array)
        own = [name for name in _descriptors() if "memfd:allfold" in os.readlink(f"/proc/self/fd/{name}")]
        assert own and all(os.stat(f"/proc/self/fd/{name}").st_mode & 0o777 == 0o600 for name in own)
        return os.getpid(), array.nbytes

    def bad(comm: Communicator) -> None:
        comm.empty(10**6)[:] = 1
        comm.barrier()
        if comm.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()

    gc.collect()
    held, named = own_memory(), set(Path("/dev/shm").glob("*allfold*"))
    processes = [process for process, _ in allfold.spawn(work, 3, timeout=PATIENCE)]
    with pytest.raises(RankFailed, match="rank 0"):
        allfold.spawn(bad, 3, timeout=PATIENCE)
    assert not any(_is_alive(process) for process in processes)
    assert own_memory() <= held
    assert set(Path("/dev/shm").glob("*allfold*")) <= named


def _descriptors() -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{name}")]
