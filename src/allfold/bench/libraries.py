"""The same collectives through each library's own fastest calls. This runs inside the ranks.

A library is asked for arrays and for a call without arguments that performs one collective on them. Whatever can be
prepared is prepared before, for all libraries alike. Other libraries are imported by name when they are needed: allfold
does not depend on them, and their environment need not have allfold.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..dtypes import Array
from ..errors import UsageError
from .case import Case

if TYPE_CHECKING:
    from ..communicator.communicator import Communicator
    from ..schedules import Schedule

Call = Callable[[], object]


class Library(Protocol):
    """One rank's end of a library."""

    rank: int
    version: str

    def empty(self, count: int, dtype: np.dtype[Any], options: Mapping[str, Any]) -> Array: ...

    def call(self, case: Case, source: Array | None, target: Array | None, options: Mapping[str, Any]) -> Call:
        """One collective, ready to be called; raises UsageError if the library does not have it."""

    def put(self, array: Array | None) -> None:
        """Bring what an array of `empty` holds to where the calls find it."""

    def fetch(self, array: Array | None) -> None:
        """Bring back what the calls have left."""

    def stopwatch(self) -> Callable[[], float]:
        """Start measuring; the function returned waits for all calls made since, and gives the seconds."""

    def take_turn(self, case: Case, options: Mapping[str, Any]) -> None:
        """Called before the calls of this case, if another case was called in between."""

    def barrier(self) -> object: ...

    def close(self) -> None: ...


class _InMainMemory:
    """A library that takes NumPy's arrays as they are."""

    def put(self, array: Array | None) -> None:
        pass

    def fetch(self, array: Array | None) -> None:
        pass

    def take_turn(self, case: Case, options: Mapping[str, Any]) -> None:
        pass

    def stopwatch(self) -> Callable[[], float]:
        begin = time.perf_counter()
        return lambda: time.perf_counter() - begin


class Allfold(_InMainMemory):
    """Ours. Its processes also time plain memory copies, the lower limit: they exist anyway, and have a barrier."""

    def __init__(self, rank: int, size: int, key: str, communicator: Communicator | None = None) -> None:
        from ..communicator.communicator import connect
        from ..version import __version__

        self.rank = rank
        self.version = f"allfold {__version__}"
        self._communicator = communicator or connect(rank, size, key)
        self._is_lent = communicator is not None
        self._schedules: dict[str, Schedule] = {}  # by file; each is proved once
        self._ways: dict[str, Any] = {}  # of moving ordinary arrays, by collective, where one was asked for

    def empty(self, count: int, dtype: np.dtype[Any], options: Mapping[str, Any]) -> Array:
        return self._communicator.empty(count, dtype) if options.get("shared") else np.empty(count, dtype)

    def call(self, case: Case, source: Array | None, target: Array | None, options: Mapping[str, Any]) -> Call:
        if options.get("memcpy"):
            return _copying(case)
        communicator = self._communicator
        named: dict[str, Any] = {"algorithm": options.get("algorithm")}
        if file := options.get("file"):
            from ..schedules import load

            if file not in self._schedules:
                self._schedules[file] = load(file)
            named["algorithm"] = self._schedules[file]
        if not case.kind.carries_data:
            return partial(communicator.barrier, **named)
        if case.dtype == "bfloat16":  # its arrays are given as uint16
            named["dtype"] = case.dtype
        if case.kind.reduces:
            named["op"] = case.op
        if case.kind.rooted:
            named["root"] = case.root
        arrays = {"array": target} if case.kind.in_place else {"array": source, "output": target}
        return partial(getattr(communicator, case.collective), **arrays, **named)

    def take_turn(self, case: Case, options: Mapping[str, Any]) -> None:
        from ..engines.shared_memory.choice import ALWAYS, Way

        way = options.get("way")  # set in every turn of this collective, or in none
        if way is not None and way != self._ways.get(case.collective):
            engine: Any = self._communicator.engine
            engine.choose_ways(case.collective, [Way(ALWAYS, *way)])
            self._ways[case.collective] = way

    def barrier(self) -> object:
        return self._communicator.barrier()

    def close(self) -> None:
        if not self._is_lent:
            self._communicator.close()


class Torch(_InMainMemory):
    """A backend of torch.distributed: gloo, or ours, which then also times memory copies."""

    def __init__(self, rank: int, size: int, port: int | None, backend: str) -> None:
        """`port`: where the ranks of this host meet; without it they meet by the variables of their launcher."""
        self._torch = import_module("torch")
        self._dist = import_module("torch.distributed")
        if backend == "allfold":
            import_module("allfold.torch")
        self.rank = rank
        self.version = f"{backend} of torch {self._torch.__version__}"
        self._backend = backend
        self._group = None  # the default one
        if self._dist.is_initialized():
            self._group = self._dist.new_group(backend=backend)
        else:
            meeting = "env://" if port is None else f"tcp://127.0.0.1:{port}"
            self._dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size)

    def empty(self, count: int, dtype: np.dtype[Any], options: Mapping[str, Any]) -> Array:
        if not options.get("shared"):
            return np.empty(count, dtype)
        array: Array = (self._group or self._dist.group.WORLD).communicator.empty(count, dtype)
        return array

    def call(self, case: Case, source: Array | None, target: Array | None, options: Mapping[str, Any]) -> Call:
        if options.get("memcpy"):
            return _copying(case)
        dist = self._dist
        if case.kind.reduces and case.op == "avg" and self._backend == "gloo":
            raise UsageError("gloo has no avg")
        op, group = getattr(dist.ReduceOp, case.op.upper()), self._group
        given, taken = (self._tensor(case, array) for array in (source, target))
        split = case.part if case.kind.sliced else 0
        calls: dict[str, Callable[[], Call]] = {
            "all_reduce": lambda: partial(dist.all_reduce, taken, op, group=group),
            "reduce": lambda: partial(dist.reduce, taken, case.root, op, group=group),
            "broadcast": lambda: partial(dist.broadcast, taken, case.root, group=group),
            "all_gather": lambda: partial(dist.all_gather_into_tensor, taken, given, group=group),
            "reduce_scatter": lambda: partial(dist.reduce_scatter_tensor, taken, given, op, group=group),
            "all_to_all": lambda: partial(dist.all_to_all_single, taken, given, group=group),
            "gather": lambda: partial(dist.gather, given, self._parts(taken, split), case.root, group=group),
            "scatter": lambda: partial(dist.scatter, taken, self._parts(given, split), case.root, group=group),
            "barrier": lambda: partial(dist.barrier, group=group),
        }
        if case.collective not in calls:
            raise UsageError(f"torch.distributed has no {case.collective}")
        return calls[case.collective]()

    def _tensor(self, case: Case, array: Array | None) -> Any:
        if array is None:
            return None
        return self._torch.from_numpy(array).view(getattr(self._torch, case.dtype))

    @staticmethod
    def _parts(tensor: Any, length: int) -> list[Any] | None:
        return None if tensor is None else list(tensor.split(length))

    def barrier(self) -> object:
        return self._dist.barrier(group=self._group)

    def close(self) -> None:
        if self._dist.is_initialized():  # the default group ends all others with it
            self._dist.destroy_process_group(self._group)


class TorchOnGpu(Torch):
    """A backend of torch.distributed on CUDA tensors: gloo, nccl or ours. Ranks have the GPUs of this host in turn."""

    def __init__(self, rank: int, size: int, port: int | None, backend: str) -> None:
        torch = import_module("torch")
        torch.cuda.set_device(rank % torch.cuda.device_count())
        self._tensors: dict[int, Any] = {}
        super().__init__(rank, size, port, backend)
        self.version += f", {torch.cuda.get_device_name()}"
        # NCCL refuses two ranks on one GPU in their first call.
        self._dist.all_reduce(torch.ones(1, device="cuda"), group=self._group)
        torch.cuda.synchronize()

    def empty(self, count: int, dtype: np.dtype[Any], options: Mapping[str, Any]) -> Array:
        array: Array = np.empty(count, dtype)
        kind = getattr(self._torch, np.dtype(dtype).name)
        if options.get("shared"):
            there = import_module("allfold.torch").empty(count, dtype=kind, device="cuda", group=self._group)
        else:
            there = self._torch.empty(count, dtype=kind, device="cuda")
        self._tensors[id(array)] = there
        weakref.finalize(array, self._tensors.pop, id(array), None)
        return array

    def put(self, array: Array | None) -> None:
        if array is not None:
            self._tensors[id(array)].copy_(self._torch.from_numpy(array))
            self._torch.cuda.synchronize()

    def fetch(self, array: Array | None) -> None:
        if array is not None:
            self._torch.from_numpy(array).copy_(self._tensors[id(array)])

    def stopwatch(self) -> Callable[[], float]:
        """By the GPU's own clock, from and to a moment when it has nothing to do."""
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()

        def seconds() -> float:
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3

        return seconds

    def call(self, case: Case, source: Array | None, target: Array | None, options: Mapping[str, Any]) -> Call:
        if not options.get("memcpy"):
            return super().call(case, source, target, options)
        one, other = (self._torch.empty(case.size, dtype=self._torch.uint8, device="cuda") for _ in range(2))
        return partial(one.copy_, other)

    def _tensor(self, case: Case, array: Array | None) -> Any:
        return None if array is None else self._tensors[id(array)].view(getattr(self._torch, case.dtype))

    def barrier(self) -> object:
        self._dist.barrier(group=self._group)
        self._torch.cuda.synchronize()
        return None


class Mpi4py(_InMainMemory):
    """Whichever MPI the mpi4py of this environment finds."""

    def __init__(self, threads: bool) -> None:
        mpi4py = import_module("mpi4py")
        mpi4py.rc.threads = threads
        self._mpi = import_module("mpi4py.MPI")
        self._world = self._mpi.COMM_WORLD
        self.rank = int(self._world.Get_rank())
        self.version = f"{mpi_version(self._mpi.Get_library_version())}, mpi4py {mpi4py.__version__}"

    def empty(self, count: int, dtype: np.dtype[Any], options: Mapping[str, Any]) -> Array:
        return np.empty(count, dtype)

    def call(self, case: Case, source: Array | None, target: Array | None, options: Mapping[str, Any]) -> Call:
        mpi, world, root = self._mpi, self._world, case.root
        if case.element.is_half:
            raise UsageError(f"MPI has no {case.dtype}")
        if case.kind.reduces and case.op == "avg":
            raise UsageError("MPI has no avg")
        op = getattr(mpi, _MPI_OPS[case.op]) if case.kind.reduces and case.kind.carries_data else None
        given, taken = (self._message(case, array) for array in (source, target))
        calls: dict[str, Callable[[], Call]] = {
            "all_reduce": lambda: partial(world.Allreduce, mpi.IN_PLACE, taken, op),
            "reduce": lambda: (
                partial(world.Reduce, mpi.IN_PLACE, taken, op, root)
                if self.rank == root
                else partial(world.Reduce, taken, None, op, root)
            ),
            "broadcast": lambda: partial(world.Bcast, taken, root),
            "all_gather": lambda: partial(world.Allgather, given, taken),
            "reduce_scatter": lambda: partial(world.Reduce_scatter_block, given, taken, op),
            "all_to_all": lambda: partial(world.Alltoall, given, taken),
            "gather": lambda: partial(world.Gather, given, taken, root),
            "scatter": lambda: partial(world.Scatter, given, taken, root),
            "scan": lambda: partial(world.Scan, mpi.IN_PLACE, taken, op),
            "exscan": lambda: partial(world.Exscan, mpi.IN_PLACE, taken, op),
            "barrier": lambda: world.Barrier,
        }
        return calls[case.collective]()

    def _message(self, case: Case, array: Array | None) -> Any:
        # With an explicit type, mpi4py need not derive it from the buffer in every call. MPI's name for booleans is not
        # the one that a NumPy array would suggest.
        return None if array is None else [array, getattr(self._mpi, _MPI_TYPES[case.dtype])]

    def barrier(self) -> object:
        return self._world.Barrier()

    def close(self) -> None:
        """mpi4py finalizes MPI by itself when the interpreter ends."""


def _copying(case: Case) -> Call:
    one, other = (np.full(case.size, filling, np.uint8) for filling in (1, 2))
    return partial(np.copyto, one, other)


def mpi_version(text: str) -> str:
    """`Open MPI 5.0.11` or `MPICH 5.0.2`, from MPI's long version string."""
    words = text.replace(",", " ").replace("Version:", " ").split()
    if text.startswith("Open MPI"):
        return f"Open MPI {words[2].removeprefix('v')}"
    return f"MPICH {words[1]}" if text.startswith("MPICH") else text.partition("\n")[0].strip()


_MPI_OPS = {
    "sum": "SUM",
    "product": "PROD",
    "min": "MIN",
    "max": "MAX",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}
_MPI_TYPES = {
    "bool": "C_BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}_T" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
}
