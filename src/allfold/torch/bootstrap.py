"""Connects the ranks of a torch group: first through torch's store, then by the engine's own rendezvous.

Every rank writes its location and its engine into the store. Rank 0 reads them all and writes a verdict: a secret key,
whether the ranks are in several places, and the engine; or the error that all ranks raise.
"""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from ..communicator.communicator import Communicator, connect, join
from ..engines.choose import fitting_engine, named
from ..engines.engine import Processes, check_same_engine
from ..engines.islands.meeting import here
from ..errors import CollectiveTimeout, MismatchError, UsageError
from ..fabrics.board import Board
from ..fabrics.secret import Secret
from ..fabrics.torch_store import TorchStore
from ..launch.environment import in_this_thread
from ..wording import name_ranks
from .group import Group
from .work import GroupTimeout

_PLACE, _VERDICT = "place", "verdict"
_WORLD_ADDRESSES, _GROUP_ADDRESSES = 2**44, 2**40  # of 2**47 that a process has


def create(options: Any, backend_options: Any) -> Group:
    """The group that torch asks for; `options` are torch's `_DistributedBackendOptions`."""
    from .patches import open_entrances

    if backend_options is not None:
        raise UsageError(
            f"allfold takes no backend options, but got a {type(backend_options).__name__}; remove pg_options"
        )
    open_entrances()
    rank, size, store, timeout = options.group_rank, options.group_size, options.store, options.timeout
    # Programs create few worlds and many groups, and each reserves address space.
    room = _GROUP_ADDRESSES if dist.is_initialized() else _WORLD_ADDRESSES
    ranks = list(options.global_ranks_in_group) or list(range(size))
    name = f"group {options.group_id!r}" if options.global_ranks_in_group else "the default group"
    communicator = _in_this_thread(name, rank, ranks, timeout) or meet(store, rank, size, timeout, room)
    return Group(communicator, store, timeout, ranks)


def _in_this_thread(name: str, rank: int, ranks: list[int], timeout: timedelta) -> Communicator | None:
    """The group's communicator if this thread is a rank, made of the thread's own."""
    world: Communicator | None = in_this_thread.communicator
    if world is None:
        return None
    if world.rank not in ranks or ranks.index(world.rank) != rank or max(ranks) >= world.size:
        raise UsageError(
            f"init_process_group: this thread is rank {world.rank} of {world.size}, not rank {rank} of {len(ranks)}; leave "
            "out rank and world_size"
        )
    return Communicator(world.engine.part(ranks, name, timeout.total_seconds()))


def meet(store: dist.Store, rank: int, size: int, timeout: timedelta, room: int = _WORLD_ADDRESSES) -> Communicator:
    """The communicator of all ranks that meet in this store."""
    seconds, engine = timeout.total_seconds(), named(None)  # raises if there is no such engine
    if size == 1:
        return connect(0, 1, secrets.token_hex(16), seconds, room)
    board = Board(TorchStore(store), rank, size, Secret.from_environment())
    own = json.dumps([here(), engine]).encode()
    if rank == 0:
        verdict = _judge(board, own, seconds)
        board.put(_VERDICT, json.dumps(verdict).encode())
    else:
        board.put(_PLACE, own)
        # A little longer than rank 0 waits, so that rank 0 has time to report who is missing.
        found = board.find(_VERDICT, 0, seconds + 2)
        if found is None:
            raise GroupTimeout(_missing(board, seconds))
        verdict = json.loads(found)
    if "key" not in verdict:
        raise (MismatchError if verdict["differs"] else GroupTimeout)(verdict["sentence"])
    try:
        board_of_all = partial(board.some, "islands", range(size))
        ranks = Processes(rank, size, verdict["key"], board_of_all, verdict["spread"], room)
        return join(ranks, seconds, verdict["engine"])
    except CollectiveTimeout as error:
        raise GroupTimeout.of(error) from None


def _judge(board: Board, own: bytes, seconds: float) -> dict[str, Any]:
    came = board.gather(_PLACE, own, seconds)
    if None in came:
        return {"sentence": _missing(board, seconds), "differs": False}
    places, engines = zip(*(json.loads(one) for one in came if one is not None), strict=True)
    spread = any(place != places[0] for place in places)
    try:
        check_same_engine([engine or fitting_engine(spread) for engine in engines])
    except MismatchError as error:
        return {"sentence": str(error), "differs": True}
    return {"key": secrets.token_hex(16), "spread": spread, "engine": engines[0]}


def _missing(board: Board, seconds: float) -> str:
    size, there = board.size, board.present(_PLACE)
    missing = [rank for rank in range(size) if rank not in there]
    if not missing:
        return f"init: rank 0 of {size} did not answer within {seconds:g} s"
    return f"init: {name_ranks(missing)} of {size} did not arrive within {seconds:g} s"
