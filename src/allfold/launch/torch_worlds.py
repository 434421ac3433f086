"""torch.distributed for ranks that are threads: each has a default process group, groups and meshes of its own.

torch keeps the groups of a process in one object, `distributed_c10d._world`, which it looks up for every call. While such
ranks run, a stand-in is there: it leads a thread that is a rank to a world of its own, and every other thread to the world
of the process. In C++, where functional collectives look up groups by their names, torch itself can keep them by thread
(the "thread isolation" of its own tests).

torch may be imported before the ranks start or by one of them, so both a run and torch's import come here. Nothing is
imported: an import of torch by another thread may be under way.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from .environment import in_this_thread

_PARTS = ("distributed_c10d", "rendezvous", "device_mesh")

_lock = threading.RLock()
_runs = 0
_restore: contextlib.ExitStack | None = None  # what has been replaced
_numbers = itertools.count(1)


@contextlib.contextmanager
def worlds() -> Iterator[None]:
    """A run of ranks that are threads."""
    global _runs, _restore
    with _lock:
        _runs += 1
        if all(hasattr(sys.modules.get("torch.distributed"), part) for part in _PARTS):
            torch_is_there()
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            if not _runs and _restore is not None:
                _restore.close()
                _restore = None


def torch_is_there() -> None:
    """Give ranks that are threads their worlds, if there are such ranks now."""
    global _restore
    with _lock:
        if _runs and _restore is None:
            with contextlib.ExitStack() as replaced:
                _replace(replaced)
                _restore = replaced.pop_all()


def leave_groups(patience: float) -> None:
    """Leave all groups of allfold that this thread, a rank that ends, has left. Calls in flight get these seconds."""
    world = vars(in_this_thread).pop("torch", None)
    for group in [] if world is None else reversed(list(world.pg_map)):
        if hasattr(group, "_leave"):
            group._leave(patience)


def _replace(replaced: contextlib.ExitStack) -> None:
    c10d, rendezvous, device_mesh = (_torch(f"distributed.{part}") for part in _PARTS)
    mesh, native = device_mesh.DeviceMesh, _torch("_C._distributed_c10d")
    kind, of_process, handlers = _kind_of_world(c10d), c10d._world, rendezvous._rendezvous_handlers

    def current() -> Any:
        if in_this_thread.communicator is None:
            return of_process
        if (world := getattr(in_this_thread, "torch", None)) is None:
            world = in_this_thread.torch = kind()
        return world

    for name in ("_backend", "_default_pg_init_method"):
        replaced.callback(setattr, c10d, name, getattr(c10d, name))
    replaced.callback(setattr, sys, "excepthook", sys.excepthook)  # init_process_group wraps it
    replaced.callback(native._set_global_rank, -1 if of_process.default_pg is None else of_process.default_pg.rank())
    replaced.callback(setattr, c10d, "_world", of_process)
    replaced.callback(handlers.__setitem__, "env", handlers["env"])
    replaced.callback(setattr, mesh, "__init__", mesh.__init__)
    replaced.callback(native._set_thread_isolation_mode, False)
    native._set_thread_isolation_mode(True)
    c10d._world = _StandIn(current)
    handlers["env"] = _meeting(handlers["env"], native.HashStore, native.PrefixStore)
    mesh.__init__ = _numbered(mesh.__init__)


def _torch(module: str) -> Any:
    return sys.modules[f"torch.{module}"]


def _kind_of_world(c10d: Any) -> Any:
    tables = "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag", "pg_coalesce_state"

    class WorldOfRank(c10d._World):  # type: ignore[misc]
        def __init__(self) -> None:
            self.number = next(_numbers)  # no other rank has it, nor has one of an earlier run
            self.times = 0  # that the ranks met to make a default group
            self.default_pg, self.group_count = None, 0
            self.comms = list[Any]()
            for name in tables:
                setattr(self, name, {})

    for name in (*tables, "default_pg", "group_count", "comms"):
        setattr(WorldOfRank, name, None)  # in place of torch's properties, which lead to variables of the process
    return WorldOfRank


class _StandIn:
    """In the place of torch's world: leads every thread to its own."""

    def __init__(self, current: Callable[[], Any]) -> None:
        object.__setattr__(self, "_current", current)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_current")(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_current")(), name, value)


def _meeting(theirs: Callable[..., Any], store: Any, prefix: Any) -> Callable[..., Any]:
    """The handler of `init_method="env://"`, the default. Threads share environment variables; their run has a store."""

    def meet(url: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        if (communicator := in_this_thread.communicator) is None:
            yield from theirs(url, *args, **kwargs)
            return
        shared = in_this_thread.shared.setdefault("store", store())
        world = _torch("distributed.distributed_c10d")._world
        world.times += 1
        given = dict(parse_qsl(urlsplit(url).query))
        rank, size = (
            int(given.get(name, own)) for name, own in (("rank", communicator.rank), ("world_size", communicator.size))
        )
        yield prefix(f"{world.times}", shared), rank, size

    return meet


def _numbered(theirs: Callable[..., None]) -> Callable[..., None]:
    """torch's caches must not take one rank's mesh for another's, which is equal but for the number of the thread."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        theirs(self, *args, **kwargs)
        if in_this_thread.communicator is not None:
            self._thread_id = _torch("distributed.distributed_c10d")._world.number
            self._hash = None

    return init
