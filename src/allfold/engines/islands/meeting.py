"""How ranks on several hosts find their islands, and the fabric between them.

Every rank puts up on the board where it runs. Ranks that say the same may share memory; that they can is tried, by
mapping each other's memory. Where it fails, each of them is an island of its own.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ... import _native
from ...errors import AllfoldError, CollectiveTimeout, MismatchError, RankLost, UsageError
from ...fabrics.fabric import Board
from ...version import __version__
from ...wording import name_ranks
from ..engine import Call, Engine
from ..shared_memory.engine import SharedMemory
from ..shared_memory.engine import in_threads as shared_in_threads
from ..shared_memory.engine import meet as meet_inside
from ..shared_memory.members import number_of
from .crossing import Tuned, find_tuned
from .engine import Islands
from .world import World, host_name

_TRY_SECONDS = 20.0  # for ranks that say they are on one host to map each other's memory


def here() -> dict[str, Any]:
    """What ranks must have in common to share memory: a running system, network and user namespaces, and a user."""
    facts: dict[str, Any] = {
        "machine": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        "network": os.readlink("/proc/self/ns/net"),
        "users": os.readlink("/proc/self/ns/user"),
        "user": os.geteuid(),
    }
    if name := os.environ.get("ALLFOLD_HOSTID"):
        facts["named"] = name
    return facts


def meet(board: Board, timeout: float, room: int | None = None) -> Engine:
    """The engine of all ranks of a board: in shared memory if all of them can share it, else of islands."""
    board = board.of_this_run(timeout)
    card = {"place": here(), "host": host_name(), "allfold": __version__, "layout": _native.LAYOUT}
    card |= {"bytes": sys.byteorder, "secret": board.has_secret}
    if board.rank == 0:  # all ranks choose alike, whatever files they would find
        card["tuned"] = [one.to_json() for one in find_tuned()]
    cards = board.gather_all("place", card, timeout)
    if len({one["secret"] for one in cards}) > 1:
        without = [rank for rank, one in enumerate(cards) if not one["secret"]]
        raise MismatchError(f"init: {name_ranks(without)} did not give the secret that others have (ALLFOLD_SECRET)")
    for rank, one in enumerate(cards):
        if (one["allfold"], one["bytes"]) != (cards[0]["allfold"], cards[0]["bytes"]):
            raise MismatchError(
                f"init: {_build(cards, 0)}, {_build(cards, rank)}; all ranks must run the same version, in the same byte order"
            )
    candidates: dict[str, list[int]] = {}
    for rank, one in enumerate(cards):
        candidates.setdefault(json.dumps(one["place"], sort_keys=True), []).append(rank)
    # The layout of shared memory differs between processors, and matters only to those who share it.
    for first, *others in candidates.values():
        if (
            odd := next((rank for rank in others if cards[rank]["layout"] != cards[first]["layout"]), None)
        ) is not None:
            raise MismatchError(
                f"init: {_build(cards, first)}, {_build(cards, odd)}; all ranks of a host must run the same build"
            )
    mine = next(ranks for ranks in candidates.values() if board.rank in ranks)
    # The lowest rank of each island names a key that nobody can guess.
    keys = board.gather_all("key", secrets.token_hex(16), timeout)
    engine = _tried(mine, board.rank, keys[mine[0]], timeout, room)
    came = board.gather_all("mapped", engine is not None, timeout)
    islands = []
    for ranks in candidates.values():
        islands += [ranks] if all(came[rank] for rank in ranks) else [[rank] for rank in ranks]
    if engine is None or ([board.rank] in islands and len(mine) > 1):
        engine = meet_inside(0, 1, keys[board.rank], timeout, room)
    if len(islands) == 1:
        # Nobody leaves while another rank still looks at the board: whoever keeps it may end first.
        engine.run(Call("barrier", timeout=timeout), False)
        return engine
    island = sorted(next(ranks for ranks in islands if board.rank in ranks))
    place = cards[board.rank]["place"]
    fabric = board.connect(f"{place['machine']} {place['network']}", timeout)
    members = {rank: member.arena for rank, member in zip(island, engine.members, strict=True)}
    hosts = [one["host"] for one in cards]

    def again(board: Board, timeout: float) -> Engine:
        return meet(board, timeout, room)

    tuned = [Tuned.from_json(one) for one in cards[0]["tuned"]]
    identity = number_of(keys[0])
    world = World(
        board, fabric, sorted(islands), hosts, lambda rank: _native.is_alive(members[rank]), again, tuned, identity
    )
    return _of_world(world, engine, timeout)


def _build(cards: Sequence[dict[str, Any]], rank: int) -> str:
    """Words for what a rank runs."""
    one = cards[rank]
    return (
        f"rank {rank} on {one['host']} runs allfold {one['allfold']} (layout {one['layout']:x}, {one['bytes']}-endian)"
    )


def in_threads(ranks: int, timeout: float) -> list[Engine]:
    """Ranks as threads of one process, on two hosts that are pretended: the first half of them, and the second."""
    from torch.distributed import HashStore

    from ...fabrics.gloo import StoreBoard

    store = HashStore()
    middle = -(-ranks // 2)
    islands = [part for part in (list(range(middle)), list(range(middle, ranks))) if part]
    hosts = [f"host{number}" for number, island in enumerate(islands) for _ in island]
    local = [engine for island in islands for engine in shared_in_threads(len(island), timeout)]

    def again(board: Board, timeout: float) -> Engine:
        raise UsageError("shrink: ranks that are threads cannot do that across hosts")

    def make(rank: int) -> Engine:
        engine = local[rank]
        assert isinstance(engine, SharedMemory)
        board = StoreBoard(store, rank, ranks)
        fabric = board.connect("", timeout)
        world = World(board, fabric, islands, hosts, lambda rank: True, again)
        return _of_world(world, engine, timeout)

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(make, range(ranks)))


def _of_world(world: World, island: SharedMemory, timeout: float) -> Islands:
    inner = island.group(range(island.size), timeout)
    assert inner is not None
    ranks = list(range(world.size))
    return Islands(world, ranks, island, inner, world.fabric.another("calls", ranks), timeout, "the world", 0)


def meet_again(engine: Islands, timeout: float) -> Engine:
    """After an error: the engine of the ranks that are left. Every one of them calls it, again after a timeout.

    The ranks make attempts, which have numbers. How an attempt ends is decided once, by the first who can tell: with the
    ranks that are left, or, by one whose time is up, not at all. After that everybody goes on to the next one, so what
    ranks put up in an attempt never meets what they put up in another.
    """
    world, ranks = engine.world, engine.ranks
    board = world.board.some(f"shrink {engine.number}", ranks)
    deadline, left = time.monotonic() + timeout, None
    while left is None:
        engine.attempt += 1
        left = _who_is_left(engine, board, deadline, timeout)
    if engine.rank not in left:
        raise RankLost(f"shrink: the others went on without rank {engine.rank} ({engine.label})")
    smaller = board.some(f"left {engine.attempt}", left)
    made = world.again(smaller, max(1.0, deadline - time.monotonic()))
    made.label = f"what is left of {engine.label}: {name_ranks(left)}"
    made.timeout = engine.timeout
    return made


def _who_is_left(engine: Islands, board: Board, deadline: float, timeout: float) -> list[int] | None:
    """How this attempt ends: with the ranks that are left, or None if others have given it up."""
    here, after = (f"here {number}" for number in (engine.attempt, engine.attempt + 1))
    board.put(here, b"1")
    while True:
        lost = [engine.ranks.index(rank) for rank in engine.world.lost() if rank in engine.ranks]
        come = [rank for rank in board.present(here) if rank not in lost]
        missing = [rank for rank in range(engine.size) if rank not in come and rank not in lost]
        if not missing:
            return _decided(board, engine.attempt, come)
        if board.present(after):
            return None
        if time.monotonic() > deadline:
            left = _decided(board, engine.attempt, None)
            if left is None:
                what = f"{name_ranks(missing)} did not come within {timeout:g} s"
                raise CollectiveTimeout(f"shrink: {what} ({engine.label})")
            return left
        time.sleep(0.02)


def _decided(board: Board, attempt: int, proposal: list[int] | None) -> list[int] | None:
    left: list[int] | None = json.loads(board.decide(f"left {attempt}", json.dumps(proposal).encode()))
    return left


def _tried(ranks: Sequence[int], rank: int, key: str, timeout: float, room: int | None) -> SharedMemory | None:
    try:
        return meet_inside(list(ranks).index(rank), len(ranks), key, timeout, room, min(timeout, _TRY_SECONDS))
    except (AllfoldError, OSError):
        return None
