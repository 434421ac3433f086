"""How the ranks of a torch group meet: through torch's store, then through the engine's own rendezvous.

Every rank writes into the store where it runs. Rank 0 reads all of that and writes a verdict: a key that nobody can
guess, with which ranks in one place meet; that they are in several; or the error message that says who is missing.
"""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from ..communicator.communicator import Communicator, connect, join
from ..engines.choose import named
from ..engines.engine import Processes
from ..engines.islands.meeting import here
from ..errors import CollectiveTimeout, UsageError
from ..fabrics.gloo import StoreBoard, board_in
from ..fabrics.secret import Secret
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
            f"allfold takes no backend options, and a {type(backend_options).__name__} was given; leave pg_options away"
        )
    open_entrances()
    rank, size, store, timeout = options.group_rank, options.group_size, options.store, options.timeout
    # Programs make few worlds and many groups, and each takes address space.
    room = _GROUP_ADDRESSES if dist.is_initialized() else _WORLD_ADDRESSES
    communicator = meet(store, rank, size, timeout, room)
    ranks = list(options.global_ranks_in_group) or list(range(size))
    return Group(communicator, store, timeout, ranks)


def meet(store: dist.Store, rank: int, size: int, timeout: timedelta, room: int = _WORLD_ADDRESSES) -> Communicator:
    """The communicator of all ranks that meet in this store."""
    seconds, engine = timeout.total_seconds(), named(None)
    if size == 1:
        return connect(0, 1, secrets.token_hex(16), seconds, room)
    board = board_in(store, rank, size, Secret.from_environment())
    board.put(_PLACE, json.dumps(here()).encode())
    if rank == 0:
        verdict = _judge(board, timeout) | {"engine": engine}
        board.put(_VERDICT, json.dumps(verdict).encode())
    else:
        # A little longer than rank 0 waits, so that rank 0 has time to say who is missing.
        if not _came(board.store, [f"{_VERDICT}/0"], timeout + timedelta(seconds=2)):
            raise GroupTimeout(_missing(board, timeout))
        verdict = json.loads(board.read(_VERDICT, 0))
    if "key" not in verdict:
        raise GroupTimeout(verdict["sentence"])
    try:
        board_of_all = partial(board.some, "islands", range(size))
        ranks = Processes(rank, size, verdict["key"], board_of_all, verdict["spread"], room)
        return join(ranks, seconds, verdict["engine"])
    except CollectiveTimeout as error:
        raise GroupTimeout.of(error) from None


def _judge(board: StoreBoard, timeout: timedelta) -> dict[str, Any]:
    if not _came(board.store, [f"{_PLACE}/{rank}" for rank in range(board.size)], timeout):
        return {"sentence": _missing(board, timeout)}
    places = [json.loads(board.read(_PLACE, rank)) for rank in range(board.size)]
    return {"key": secrets.token_hex(16), "spread": any(place != places[0] for place in places)}


def _missing(board: StoreBoard, timeout: timedelta) -> str:
    size, there = board.size, board.present(_PLACE)
    missing = [rank for rank in range(size) if rank not in there]
    if not missing:
        return f"init: rank 0 of {size} did not answer within {timeout.total_seconds():g} s"
    return f"init: {name_ranks(missing)} of {size} did not come within {timeout.total_seconds():g} s"


def _came(store: dist.Store, keys: list[str], timeout: timedelta) -> bool:
    try:
        store.wait(keys, timeout)
    except RuntimeError:  # what every kind of store raises when the time is up
        return False
    return True
