"""gloo, through torch: TCP between the ranks, and torch's store as the place where they meet."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._autograd import _enable_record_function as let_profilers_see
from torch._C._autograd import _profiler_enabled as profiler_is_on

from ..errors import AllfoldError, UsageError
from . import tags
from .addresses import choose_address
from .fabric import FOREVER, Board, Bytes, Disconnected, Fabric
from .secret import Secret, check_unsealed

# A wait that times out closes every connection of its group, on live peers too. So none does: allfold's own waits end
# earlier, and leave gloo's behind.
_NEVER = timedelta(days=365)
_CONNECTING = timedelta(seconds=120)
_FOREVER = timedelta(seconds=FOREVER)
_NO_PRIORITY = os.sched_param(0)
_LONG = (1 << 16) + 512  # bytes: of what is small to the islands' engine, and its head


class StoreBoard(Board):
    """The ranks' places in a store of torch's."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, secret: Secret | None = None, below: Any = None
    ) -> None:
        """`secret`: that ranks who connect must know, where the store is sealed. `below`: what must live as long as it."""
        self.store, self.rank, self.size = store, rank, size
        self.secret, self._below = secret, below

    def gather(self, what: str, own: bytes, timeout: float) -> list[bytes | None]:
        self.put(what, own)
        deadline = time.monotonic() + timeout
        found: list[bytes | None] = []
        for rank in range(self.size):
            try:
                left = max(0.001, min(deadline - time.monotonic(), 1e6))
                self.store.wait([f"{what}/{rank}"], timedelta(seconds=left))
                found.append(self.read(what, rank))
            except RuntimeError:  # what every kind of store raises when the time is up
                found.append(None)
        return found

    def some(self, name: str, ranks: Sequence[int]) -> StoreBoard:
        store, secret = dist.PrefixStore(name, self.store), self.secret and self.secret.within(name)
        return StoreBoard(store, list(ranks).index(self.rank), len(ranks), secret, self)

    def with_secret(self, secret: Secret) -> StoreBoard:
        return StoreBoard(_Sealed(self.store, secret), self.rank, self.size, secret, self)

    def connect(self, host: str, timeout: float) -> Gloo:
        is_one_host = len(set(self.gather_all("host", host, timeout))) == 1
        return Gloo(self, "127.0.0.1" if is_one_host else choose_address(self, host, timeout))

    def decide(self, what: str, proposal: bytes) -> bytes:
        with _store_errors():
            return self._unsealed(what, self.store.compare_set(what, "", proposal.decode("ascii")))

    def present(self, what: str) -> list[int]:
        with _store_errors():
            return [rank for rank in range(self.size) if self.store.check([f"{what}/{rank}"])]

    def put(self, what: str, own: bytes) -> None:
        with _store_errors():
            self.store.set(f"{what}/{self.rank}", own)

    def read(self, what: str, rank: int) -> bytes:
        """What a rank has put up."""
        try:
            return self._unsealed(f"{what}/{rank}", self.store.get(f"{what}/{rank}"))
        except AllfoldError as error:
            raise AllfoldError(f"rank {rank} is refused: {error}") from None

    def _unsealed(self, name: str, value: bytes) -> bytes:
        return value if self.secret is not None else check_unsealed(name, value)


class _Sealed(dist.Store):  # type: ignore[misc]
    """A store in which every entry is sealed, gloo's own too. Counters cannot be, and are not used."""

    def __init__(self, store: dist.Store, secret: Secret) -> None:
        super().__init__()
        self._store, self._secret = store, secret

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, self._secret.seal(key, value))

    def get(self, key: str) -> bytes:
        return self._secret.open(key, self._store.get(key))

    def compare_set(self, key: str, expected: str, desired: str | bytes) -> bytes:
        if expected:
            raise AllfoldError(f"{key!r}: a sealed store keeps the first value, and compares with nothing else")
        sealed = self._secret.seal(key, desired.encode() if isinstance(desired, str) else bytes(desired))
        return self._secret.open(key, self._store.compare_set(key, expected, sealed.decode("ascii")))

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check(keys))

    def wait(self, keys: list[str], timeout: timedelta = _NEVER) -> None:
        self._store.wait(keys, timeout)


def board_in(store: dist.Store, rank: int, size: int, secret: Secret | None) -> StoreBoard:
    """A board in a store; with a secret, everything that is put up there is sealed."""
    if secret is None:
        return StoreBoard(store, rank, size)
    return StoreBoard(_Sealed(store, secret), rank, size, secret)


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise AllfoldError(
            f"the store where the ranks meet cannot be reached: {_first_line(error)}; it may have ended with its keeper, rank 0"
        ) from None


_boards = 0  # made by this process from its environment


def board_from_environment(environ: Mapping[str, str], rank: int, size: int, timeout: float) -> StoreBoard:
    """The board of a run: in the file that `allfold run` names, or at MASTER_ADDR and MASTER_PORT."""
    global _boards
    _boards += 1
    if path := environ.get("ALLFOLD_STORE"):
        store: dist.Store = dist.FileStore(path, size)
    elif "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        address, port = environ["MASTER_ADDR"], environ["MASTER_PORT"]
        place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        limit = timedelta(seconds=min(timeout, 1e6))
        try:
            store, _, _ = next(dist.rendezvous(f"tcp://{place}", rank, size, timeout=limit))
        except (RuntimeError, ValueError) as error:
            raise AllfoldError(f"init: rank {rank} of {size} found no store at {place}: {_first_line(error)}") from None
    elif size == 1:
        store = dist.HashStore()
    else:
        raise UsageError(
            "the ranks are on several hosts: to meet through gloo they need MASTER_ADDR and MASTER_PORT, which torchrun "
            "sets; set them to an address of rank 0's host and a free port there, the same for all ranks"
        )
    # Under srun, a port that nobody has named may be another step's as well. (Ranks of torchrun may be of several steps.)
    step = "" if "RANK" in environ else f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')} "
    generation = step + environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    secret = Secret.from_environment(environ)
    return board_in(dist.PrefixStore(f"allfold {generation} {_boards}", store), rank, size, secret)


_all: weakref.WeakSet[Gloo] = weakref.WeakSet()


def _forked() -> None:
    """A forked child has the process groups, but not their threads, which destroying them would wait for: it does not."""
    for one in list(_all):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one._group))


os.register_at_fork(after_in_child=_forked)


class Gloo(Fabric):
    """A process group of gloo's own, used for nothing but messages."""

    name = "gloo"

    def __init__(self, board: StoreBoard, address: str, device: _Device | None = None) -> None:
        self.rank, self.size, self.address = board.rank, board.size, address
        self._board, self._device = board, device or _Device(address)
        self.is_cut = False
        self.waiting: set[threading.Event] = set()  # those who wait for long transfers
        options = dist.ProcessGroupGloo._Options()
        options._devices = [self._device.gloo]
        options._threads = 1
        options._timeout = _CONNECTING
        try:
            self._group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", board.store), board.rank, board.size, options)
        except RuntimeError as error:
            raise AllfoldError(
                f"gloo could not connect rank {self.rank} with the other {self.size - 1}: {error}"
            ) from None
        self._group._set_default_timeout(_NEVER)
        self._device.connected()
        _all.add(self)
        if board.secret is not None:
            board.secret.challenge(self, _CONNECTING.total_seconds())

    def send(self, peer: int, data: Bytes, tag: int) -> _Sending:
        work = self._begin(self._group.send, data, tag, peer)
        return _Long(work, data, peer, self) if data.size > _LONG else _Sending(work, data, peer)

    def receive(self, peer: int, data: Bytes, tag: int) -> _Sending:
        work = self._begin(self._group.recv, data, tag, peer)
        return _Long(work, data, peer, self) if data.size > _LONG else _Sending(work, data, peer)

    def receive_any(self, data: Bytes, tag: int) -> _Sending:
        return _Sending(self._begin(self._group.recv_anysource, data, tag), data, None)

    def _begin(self, begin: Callable[..., Any], data: Bytes, tag: int, *peer: int) -> Any:
        """Begin a transfer.

        No profiler of torch's sees it: one that is on keeps memory for every transfer until it ends. Ours may end after
        the profiler was stopped, and would write to memory that is gone.

        The thread of gloo's device does not preempt ours meanwhile. We hold the lock of a connection here, and when that
        thread finds it locked, it tries again and again until the kernel takes the core from it: 4 ms, in one of ten
        calls on two cores.
        """
        is_profiled = profiler_is_on()
        if is_profiled:
            let_profilers_see(False)
        self._device.run_as(os.SCHED_BATCH)
        try:
            return begin([_tensor(data)], *peer, tag)
        except RuntimeError as error:
            raise Disconnected(_first_line(error), *(peer or (None,))) from None
        finally:
            self._device.run_as(os.SCHED_OTHER)
            if is_profiled:
                let_profilers_see(True)

    def cut(self) -> None:
        self.is_cut = True
        # gloo can give up nothing, but a wait that times out closes all connections of its group, and so ends all waits.
        # With a peer that is gone it does not time out; so with all of them, of which the others then fail at once.
        for peer in range(self.size):
            if peer != self.rank:
                with contextlib.suppress(RuntimeError, Disconnected):
                    work = self._begin(self._group.recv, np.empty(1, np.uint8), tags.CUT, peer)
                    work.wait(timedelta(milliseconds=1))
        for waiting in list(self.waiting):
            waiting.set()

    def another(self, name: str, ranks: Sequence[int]) -> Gloo:
        return Gloo(self._board.some(name, ranks), str(self.address), self._device)


class _Sending:
    """One of gloo's transfers, in either direction."""

    def __init__(self, work: Any, data: Bytes, peer: int | None) -> None:
        self._work, self._peer = work, peer
        self._data = data  # a tensor of read-only memory does not keep it alive

    def wait(self, within: float = FOREVER) -> int:
        try:
            self._work.wait(_FOREVER if within == FOREVER else timedelta(seconds=within))
            return int(self._work._source_rank()) if self._peer is None else self._peer
        except RuntimeError as error:
            raise Disconnected(_first_line(error), self._peer) from None


class _Long(_Sending):
    """A long transfer. If it is cut off in the middle, gloo's wait never ends: so another thread waits, and is left."""

    def __init__(self, work: Any, data: Bytes, peer: int, fabric: Gloo) -> None:
        super().__init__(work, data, peer)
        self._fabric, self._over = fabric, threading.Event()
        self._error: Disconnected | None = None

    def wait(self, within: float = FOREVER) -> int:
        self._fabric.waiting.add(self._over)
        if not self._fabric.is_cut:
            _elsewhere(self._wait)
            self._over.wait(within)
        self._fabric.waiting.discard(self._over)
        if self._error is not None:
            raise self._error
        if self._work is not None:
            raise Disconnected("it was given up", self._peer)
        assert self._peer is not None
        return self._peer

    def _wait(self) -> None:
        try:
            super().wait()
        except Disconnected as error:
            self._error = error
        self._work = None
        self._over.set()


_tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_idle = threading.Semaphore(0)


def _elsewhere(task: Callable[[], None]) -> None:
    """Do something in another thread, one that is idle or a new one."""
    if not _idle.acquire(blocking=False):
        threading.Thread(target=_work_on_tasks, name="allfold gloo", daemon=True).start()
    _tasks.put(task)


def _work_on_tasks() -> None:
    while True:
        _tasks.get()()
        _idle.release()


def _tensor(data: Bytes) -> torch.Tensor:
    """The same memory. torch warns of read-only arrays, which are only sent from here."""
    if not data.flags.writeable:
        memory = (ctypes.c_uint8 * data.size).from_address(data.ctypes.data)
        return torch.frombuffer(memory, dtype=torch.uint8) if data.size else torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(data)


class _Device:
    """gloo's end of all connections of this process, at one of the addresses of this host."""

    def __init__(self, address: str) -> None:
        before = _threads()
        try:
            self.gloo = dist.ProcessGroupGloo.create_device(hostname=address)
        except RuntimeError as error:
            raise AllfoldError(f"gloo cannot listen at {address}: {_first_line(error)}") from None
        self._begun = _threads() - before
        self._threads: list[int] = []  # those that move the data, if we may say when they run

    def connected(self) -> None:
        """Find its threads, which have their names by now."""
        self._threads = [thread for thread in self._begun if _is_for_us_to_schedule(thread)]

    def run_as(self, policy: int) -> None:
        with contextlib.suppress(OSError):  # a thread may end
            for thread in self._threads:
                os.sched_setscheduler(thread, policy, _NO_PRIORITY)


def _threads() -> set[int]:
    return set(map(int, os.listdir("/proc/self/task")))


def _is_for_us_to_schedule(thread: int) -> bool:
    try:
        with open(f"/proc/self/task/{thread}/comm") as file:
            if file.read().strip() != "gloo_tcp_loop" or os.sched_getscheduler(thread) != os.SCHED_OTHER:
                return False
        for policy in (os.SCHED_BATCH, os.SCHED_OTHER):
            os.sched_setscheduler(thread, policy, _NO_PRIORITY)
    except OSError:  # it may be forbidden
        return False
    return True


def _first_line(error: Exception) -> str:
    """What gloo says, without the place in its source, advice and the stack."""
    line = str(error).strip().split("\n")[0].partition(". This is typically")[0]
    return line.partition("] ")[2] or line if line.startswith("[/") else line
