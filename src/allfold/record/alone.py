"""Runs one rank alone: torch's groups and stores connect nothing, and all that they receive comes from the record."""

from __future__ import annotations

import atexit
import multiprocessing.process
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..errors import UsageError
from ..intercept import REPLAY
from ..intercept.dispatch import watch
from ..intercept.install import on_world
from . import FACTS
from .pickled import make_steady
from .player import Player, ReplayEnded, say
from .program import facts, restore
from .read import RankRecord, read_rank, why_no_replay
from .seeds import replay_seeds
from .stores import ANSWERING
from .wait import wait

_BACKEND = "allfold_replay"
_player: Player | None = None


def install() -> None:
    """Replay the rank whose file the variable names. `allfold_autoload` calls it while torch is imported."""
    if _player is None and multiprocessing.process.parent_process() is None:
        replay(read_rank(Path(os.environ[REPLAY])))


def replay(record: RankRecord) -> Player:
    """Answer all calls of this process from a record."""
    global _player
    if (reason := why_no_replay(record)) is not None:
        raise UsageError(reason)
    _player = player = Player(record)
    _warn_of_differences(record)
    _replace_groups(player)
    _open_monitored_barrier()
    _replace_stores(player)
    _refuse_rpc(player)
    make_steady()
    dist.Work.wait = wait
    replay_seeds(record.seeds)
    _replace_processes(record.head["program"].get("child"))
    on_world(lambda *_: None, lambda: None)
    watch("replay", player)
    if record.head["random"]:
        restore(record.head["random"])
    _report_at_end(player)
    return player


def _warn_of_differences(record: RankRecord) -> None:
    now = facts()
    for key, name in FACTS.items():
        then = record.head["facts"].get(key)
        if then != now[key]:
            words = f"note: {name} is not the same ({then} then, {now[key]} now): results may differ in their last bits"
            say(record.rank, words)
    if record.note:
        say(record.rank, f"note: {record.path.name} {record.note}")


def _replace_groups(player: Player) -> None:
    """Have torch make its groups as usual, but with its fake backend, which does not communicate."""

    def create(options: Any, _: Any) -> Any:
        fake: Any = torch._C._distributed_c10d.FakeProcessGroup
        return fake._create_internal(options.group_rank, options.group_size)

    dist.Backend.register_backend(_BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
    original = c10d._new_process_group_helper

    def new_group(size: int, rank: int, ranks: list[int], backend: Any, store: Any, *rest: Any, **given: Any) -> Any:
        if not ranks:
            world = player.begin_world()
            if (rank, size) != (world["rank"], world["size"]):
                raise player.refuse(
                    f"the program creates a group as rank {rank} of {size}, and was recorded as rank {world['rank']} of "
                    f"{world['size']}; that"
                )
            restore(world["state"])
        devices = c10d.BackendConfig(dist.Backend(backend)).get_device_backend_map()
        stand_in = dist.Backend(",".join(f"{device}:{_BACKEND}" for device in devices))
        given.pop("backend_options", None)
        given.pop("device_id", None)
        made, prefix = original(size, rank, ranks, stand_in, store, *rest, **given)
        if made in c10d._world.pg_map:
            made._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
            c10d._world.pg_map[made] = (dist.Backend(backend), prefix)
            c10d._world.pg_backend_config[made] = str(c10d.BackendConfig(dist.Backend(backend)))
        return made, prefix

    c10d._new_process_group_helper = new_group


def _open_monitored_barrier() -> None:
    """torch's function refuses every backend but gloo, by its name, which is that of the recorded run."""

    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        if not c10d._rank_not_in_group(group):
            asked = c10d._get_default_group() if group is None else group
            asked.monitored_barrier(timeout or c10d.default_pg_timeout, wait_all_ranks=wait_all_ranks)

    for module in (c10d, dist):
        module.monitored_barrier = monitored_barrier


def _replace_stores(player: Player) -> None:
    class Store(dist.HashStore):  # type: ignore[misc]
        """Stands in for a store that connects. It holds nothing: answers come from the record."""

        def __init__(self, *arguments: Any, **given: Any) -> None:
            super().__init__()
            self.host = given.get("host_name", arguments[0] if arguments else "")
            self.port = given.get("port", arguments[1] if len(arguments) > 1 else 0)

    modules = dist, c10d, sys.modules["torch.distributed.rendezvous"], torch._C._distributed_c10d
    for module in modules:
        for name in ("TCPStore", "FileStore"):
            if hasattr(module, name):
                setattr(module, name, Store)
    for name in ANSWERING:
        if hasattr(dist.Store, name):

            def method(_: Any, *arguments: Any, _name: str = name, **given: Any) -> Any:
                return player.answer_of_store(_name, arguments, given)

            method.__name__ = name
            setattr(dist.Store, name, method)
    for name in ("set", "multi_set", "append", "queue_push"):
        setattr(dist.Store, name, lambda *_, **__: None)


def _refuse_rpc(player: Player) -> None:
    def init_rpc(*_: Any, **__: Any) -> None:
        raise player.refuse("torch.distributed.rpc")

    if dist.rpc.is_available():
        dist.rpc.init_rpc = init_rpc


def _replace_processes(child: list[int] | None) -> None:
    """If the rank was a child of multiprocessing, run its function here, and start none of the other ranks."""
    if child is None:
        return
    process: Any = multiprocessing.process.BaseProcess
    original = process.start

    def start(self: Any) -> None:
        if (getattr(self._target, "__module__", "") or "").startswith("multiprocessing.managers"):
            original(self)
            return
        if list(self._identity) != child:
            return
        process.start = original
        target, arguments = self._target, self._args
        if (target.__module__, target.__name__) == ("torch.multiprocessing.spawn", "_wrap"):  # it hides exceptions
            target, number, rest, _ = arguments
            arguments = (number, *rest)
        target(*arguments, **self._kwargs)
        sys.exit(0)

    process.start = start


def _report_at_end(player: Player) -> None:
    hook = sys.excepthook

    def failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # DDP turns errors in C++ into others.
        if player.ended is None and not isinstance(error, ReplayEnded):
            hook(kind, error, trace)

    sys.excepthook = failed
    atexit.register(lambda: say(player.record.rank, player.outcome()))
