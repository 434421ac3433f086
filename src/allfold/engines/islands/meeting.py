"""Connects ranks on several hosts: forms the islands, and creates the fabric between them.

Every rank publishes its location on the board. Ranks with the same location try to map each other's memory. If that
works they are an island; if not, each of them is an island of its own.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ... import _native
from ...errors import AllfoldError, MismatchError, UsageError
from ...fabrics.board import Board
from ...version import __version__
from ...wording import name_ranks
from ..engine import Call, Engine, Processes, check_same_engine
from ..shared_memory.engine import SharedMemory
from ..shared_memory.engine import in_threads as shared_in_threads
from ..shared_memory.engine import meet as meet_inside
from ..shared_memory.members import number_of
from .crossing import Tuned, find_tuned
from .engine import Islands
from .parts import Parts
from .roster import Roster, Shared
from .world import World, host_name

_NAME = "islands"  # in the table of engines
_CARDS = "place"
_TRY_SECONDS = 20.0  # for ranks with the same location to map each other's memory


def here() -> dict[str, Any]:
    """The location of this rank. To share memory, ranks need the same booted system, network and user namespaces, and user."""
    facts: dict[str, Any] = {
        "machine": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        "network": os.readlink("/proc/self/ns/net"),
        "users": os.readlink("/proc/self/ns/user"),
        "user": os.geteuid(),
    }
    if name := os.environ.get("ALLFOLD_HOSTID"):
        facts["named"] = name
    return facts


def in_processes(ranks: Processes, timeout: float) -> Engine:
    """The engine of all ranks of a board: `SharedMemory` if all of them share memory and no engine is named, else `Islands`."""
    _native.require_engine("a communicator")
    assert ranks.board is not None
    return _meet(ranks.board(), timeout, ranks.room, "the world", timeout, ranks.is_named)


def compare_names(ranks: Processes, name: str, timeout: float) -> Board:
    """Publish a card that says this rank uses another engine, where ranks of this engine look for cards."""
    assert ranks.board is not None
    board = ranks.board().of_this_run(timeout)
    check_same_engine([one["engine"] for one in board.gather_all(_CARDS, {"engine": name}, timeout)])
    return board


def _meet(
    board: Board, timeout: float, room: int | None, label: str, call_timeout: float, is_named: bool = False
) -> Engine:
    board = board.of_this_run(timeout)
    card = {"engine": _NAME, "place": here(), "host": host_name(), "allfold": __version__, "layout": _native.LAYOUT}
    card |= {"bytes": sys.byteorder, "secret": board.secret is not None}
    if board.rank == 0:  # all ranks use rank 0's, so that they choose alike
        card["tuned"] = [one.to_json() for one in find_tuned()]
    cards = board.gather_all(_CARDS, card, timeout)
    check_same_engine([one["engine"] for one in cards])
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
    # The layout of shared memory differs between processors. It matters only to ranks that share memory.
    for first, *others in candidates.values():
        if (
            odd := next((rank for rank in others if cards[rank]["layout"] != cards[first]["layout"]), None)
        ) is not None:
            raise MismatchError(
                f"init: {_build(cards, first)}, {_build(cards, odd)}; all ranks of a host must run the same build"
            )
    mine = next(ranks for ranks in candidates.values() if board.rank in ranks)
    # The lowest rank of each island chooses a secret key.
    keys = board.gather_all("key", secrets.token_hex(16), timeout)
    engine = _tried(mine, board.rank, keys[mine[0]], timeout, room)
    came = board.gather_all("mapped", engine is not None, timeout)
    islands = []
    for ranks in candidates.values():
        islands += [ranks] if all(came[rank] for rank in ranks) else [[rank] for rank in ranks]
    if engine is None or ([board.rank] in islands and len(mine) > 1):
        engine = meet_inside(0, 1, keys[board.rank], timeout, room)
    if len(islands) == 1 and not is_named:
        # No rank may leave while another still reads the board, because it could be the rank that keeps the board.
        engine.run(Call("barrier", timeout=timeout), False)
        engine.label, engine.timeout = label, call_timeout
        return engine
    island = sorted(next(ranks for ranks in islands if board.rank in ranks))
    place = cards[board.rank]["place"]
    fabric = board.connect(f"{place['machine']} {place['network']}", timeout)
    members = {rank: member.arena for rank, member in zip(island, engine.members, strict=True)}
    hosts = [one["host"] for one in cards]

    def again(board: Board, timeout: float, label: str, call_timeout: float) -> Engine:
        return _meet(board, timeout, room, label, call_timeout)

    tuned = [Tuned.from_json(one) for one in cards[0]["tuned"]]
    identity = number_of(keys[0])
    world = World(board, fabric, sorted(islands), hosts, members, again, tuned, identity)
    return _of_world(world, engine, timeout, label, call_timeout)


def _build(cards: Sequence[dict[str, Any]], rank: int) -> str:
    """A description of the build that a rank runs."""
    one = cards[rank]
    return (
        f"rank {rank} on {one['host']} runs allfold {one['allfold']} (layout {one['layout']:x}, {one['bytes']}-endian)"
    )


def in_threads(ranks: int, timeout: float) -> list[Engine]:
    """Ranks as threads of one process, on two simulated hosts: the first half of them, and the second."""
    from ...fabrics.stores import MemoryStore

    store = MemoryStore()
    middle = -(-ranks // 2)
    islands = [part for part in (list(range(middle)), list(range(middle, ranks))) if part]
    hosts = [f"host{number}" for number, island in enumerate(islands) for _ in island]
    local = [engine for island in islands for engine in shared_in_threads(len(island), timeout)]

    def again(board: Board, timeout: float, label: str, call_timeout: float) -> Engine:
        raise UsageError("shrink: not supported for ranks that are threads on simulated hosts")

    def make(rank: int) -> Engine:
        engine = local[rank]
        assert isinstance(engine, SharedMemory)
        board = Board(store, rank, ranks)
        fabric = board.connect("", timeout)
        world = World(board, fabric, islands, hosts, {}, again)
        return _of_world(world, engine, timeout, "the world", timeout)

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(make, range(ranks)))


def _of_world(world: World, island: SharedMemory, within: float, label: str, timeout: float) -> Islands:
    """The engine of the whole world. `timeout`: of its calls."""
    collectives = island.group(range(island.size), within)
    assert collectives is not None
    roster = Roster.of(world.rank, world.islands, range(world.size), label, timeout, 0)
    fabric = world.fabric.another("calls", roster.ranks)
    return Islands(Parts.join(world, roster, Shared(collectives, island), fabric, within))


def _tried(ranks: Sequence[int], rank: int, key: str, timeout: float, room: int | None) -> SharedMemory | None:
    try:
        return meet_inside(list(ranks).index(rank), len(ranks), key, timeout, room, min(timeout, _TRY_SECONDS))
    except (AllfoldError, OSError):
        return None
