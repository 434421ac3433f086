"""Faults of single calls on a GPU, each in ranks of its own: who differs, comes late, dies, drops its tensors.

    python tests/gpu/cases.py [--mps] [CASE ...]

Every case prints a line that begins with PASS or FAIL. Exit status 1 if one failed, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from mps import mps

import allfold as af

_LIMIT_SECONDS = 60.0
LENGTH = 2 << 20  # of float32: more than is staged where processes take turns
_SECOND = 2_000_000_000  # cycles of the GPU's clock, about


def said_by(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def tensor(comm: Any, length: int = LENGTH) -> Any:
    import torch

    torch.cuda.set_device(0)
    return torch.full((length,), comm.rank + 1.0, device="cuda")


def busy(seconds: float) -> None:
    """Keep the current stream busy."""
    import torch

    torch.cuda._sleep(int(seconds * _SECOND))


class Gate:
    """The current stream goes on when it is opened; until then the GPU runs nothing for it."""

    def __init__(self) -> None:
        import torch

        self._word = torch.zeros(1, dtype=torch.int32).pin_memory()
        word, stream = ctypes.c_uint64(self._word.data_ptr()), torch.cuda.current_stream().cuda_stream
        wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
        status = wait(ctypes.c_void_p(stream), word, ctypes.c_uint32(1), ctypes.c_uint(0))
        assert status == 0, status

    def open(self) -> None:
        self._word.fill_(1)


def joined(comm: Any, folder: str, seconds: float = 100.0) -> Any:
    """torch's process group on these ranks."""
    import torch.distributed as dist

    import allfold.torch  # noqa: F401 - makes the backend known where allfold is not installed

    dist.init_process_group(
        "allfold",
        init_method=f"file://{folder}/store",
        rank=comm.rank,
        world_size=comm.size,
        timeout=timedelta(seconds=seconds),
    )
    return dist


# Cases: each returns what was wrong ----------------------------------------------------------------------------------


def differ(comm: Any, folder: str) -> str:
    x, wrong = tensor(comm), ""
    for names in (("naive", "direct"), ("direct", "naive"), ("ring", "direct"), ("naive", "ring")):
        group = comm.group(range(comm.size))
        group.all_reduce(x)
        name = names[min(comm.rank, 1)]
        said = said_by(lambda group=group, name=name: group.all_reduce(x, algorithm=name, timeout=20.0))
        if not said.startswith("MismatchError: ") or not all(f"by {one}" in said for one in names):
            wrong += f"{names}: {said or 'returned'}; "
        group.abort()
    return wrong


def late(comm: Any, folder: str) -> str:
    """Rank 0 times out; rank 1 then makes the call, or has made it, and its stream then comes to it."""
    x, wrong = tensor(comm), ""
    for algorithm in ("direct", "naive", "tree", None):
        for has_called in (False, True):
            group, kind = comm.group(range(comm.size)), f"{algorithm}, {'called' if has_called else 'not called'}"
            group.all_reduce(x, algorithm=algorithm)
            x.fill_(comm.rank + 1.0)
            comm.barrier()
            if comm.rank == 0:
                said = said_by(lambda g=group, a=algorithm: g.all_reduce(x, algorithm=a, timeout=1.0))  # type: ignore[misc]
                x.fill_(100.0)
                comm.barrier()
            else:
                handle, gate = None, None
                if has_called:
                    gate = Gate()
                    handle = group.all_reduce(x, algorithm=algorithm, async_op=True)
                comm.barrier()
                if gate:
                    gate.open()
                said = said_by(
                    handle.wait if handle else lambda g=group, a=algorithm: g.all_reduce(x, algorithm=a)  # type: ignore[misc]
                )
            if not said.startswith("CollectiveTimeout: "):
                wrong += f"{kind}: {said or f'returned {x.unique().tolist()}'}; "
            comm.barrier()
            group.abort()
    return wrong


def late_in_torch(comm: Any, folder: str) -> str:
    """The same through torch.distributed, with ordinary tensors and with those that all ranks reach."""
    import torch

    import allfold.torch

    tensor(comm, 1)
    dist, wrong = joined(comm, folder), ""
    dist.all_reduce(torch.ones(LENGTH, device="cuda"))  # the kernels are compiled here, without hurry
    torch.cuda.synchronize()
    for kind in ("ordinary", "allfold.torch.empty"):
        group = dist.new_group(range(comm.size), timeout=timedelta(seconds=2))
        x = torch.empty(LENGTH, device="cuda")
        if kind != "ordinary":
            x = allfold.torch.empty(LENGTH, device="cuda", group=group)
        x.fill_(1.0)
        dist.all_reduce(x, group=group)
        x.fill_(comm.rank + 1.0)
        torch.cuda.synchronize()
        comm.barrier()
        if comm.rank == 0:
            dist.all_reduce(x, group=group)
            torch.cuda.synchronize()
            said = said_by(lambda group=group, x=x: dist.all_reduce(x, group=group))
            comm.barrier()
        else:
            comm.barrier()
            if not (x == 2).all():
                wrong += f"{kind}: written before the call: {x.unique().tolist()}; "
            said = said_by(lambda group=group, x=x: dist.all_reduce(x, group=group))
        if "Timeout: " not in said:
            wrong += f"{kind}: {said or f'returned {x.unique().tolist()}'}; "
        comm.barrier()
    return wrong


def killed(comm: Any, folder: str) -> str:
    """The host of the last rank has made the call, its stream has not come to it, and it is killed."""
    return _killed(comm, folder, Gate)


def killed_in_kernel(comm: Any, folder: str) -> str:
    """The same while the GPU runs a kernel of the rank. Under MPS the driver then ends the work of all processes."""
    return _killed(comm, folder, lambda: busy(3.0))


def _killed(comm: Any, folder: str, hold_up: Callable[[], object]) -> str:
    x, wrong, last = tensor(comm), "", comm.size - 1
    group = comm.group(range(comm.size))
    group.all_reduce(x, algorithm="tree")
    x.fill_(comm.rank + 1.0)
    comm.barrier()
    if comm.rank == last:
        held = hold_up()  # noqa: F841 - its memory is needed
        group.all_reduce(x, algorithm="tree", async_op=True)
        Path(folder, "called").touch()
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 1:  # after rank 0 gave up
        deadline = time.monotonic() + 20
        while not Path(folder, "gave up").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    said = said_by(lambda: group.all_reduce(x, algorithm="tree"))
    Path(folder, "gave up").touch()
    if not said.startswith("RankLost: ") or f"rank {last}" not in said:
        wrong = said or f"returned {x.unique().tolist()}"
    return wrong


def kept(comm: Any, folder: str) -> str:
    """Tensors of asynchronous calls are dropped at once, and their memory is asked for again."""
    import torch

    tensor(comm, 1)
    dist, size, wrong = joined(comm, folder), comm.size, []
    total = size * (size + 1) / 2
    for turn in range(30):
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_gather"):
            busy(0.002)
            if name == "reduce_scatter_tensor":
                given, out = torch.full((size * LENGTH,), comm.rank + 1.0, device="cuda"), torch.empty(LENGTH).cuda()
                work = dist.reduce_scatter_tensor(out, given, async_op=True)
            else:
                given, out = torch.full((LENGTH,), comm.rank + 1.0, device="cuda"), torch.empty(size * LENGTH).cuda()
                if name == "all_gather":
                    work = dist.all_gather(list(out.chunk(size)), given, async_op=True)
                else:
                    work = dist.all_gather_into_tensor(out, given, async_op=True)
            count = given.numel()
            del given
            junk = [torch.full((count,), -1.0, device="cuda") for _ in range(3)]
            work.wait()
            expected = [total] if name == "reduce_scatter_tensor" else [one + 1.0 for one in range(size)]
            if out.unique().tolist() != expected:
                wrong.append(f"{name}, turn {turn}: {out.unique().tolist()}")
            del junk
    return "; ".join(wrong)


def hang(comm: Any, folder: str) -> str:
    """A staged call (complex numbers always are), and one on the GPU behind it, that the other rank never makes."""
    import torch

    long, short = tensor(comm), torch.ones(100, dtype=torch.complex64, device="cuda")
    group = comm.group(range(comm.size))
    group.all_reduce(short)
    group.all_reduce(long)
    wrong = ""
    if comm.rank == 0:
        began = time.monotonic()
        handles = [group.all_reduce(x, async_op=True, timeout=1.0) for x in (short, long)]
        for name, handle in zip(("staged", "on the GPU"), handles, strict=True):
            said = said_by(lambda handle=handle: handle.wait(20.0))
            if not said.startswith("CollectiveTimeout: ") or "continues" in said:
                wrong += f"{name}: {said or 'returned'}; "
        if time.monotonic() - began > 5.0:
            wrong += f"after {time.monotonic() - began:.1f} s"
    comm.barrier()
    return wrong


def capture(comm: Any, folder: str) -> str:
    """A graph is captured, in the global mode, while a call is watched."""
    import torch

    x, y = tensor(comm), torch.ones(1000, device="cuda")
    comm.all_reduce(x)
    torch.cuda.synchronize()
    comm.barrier()
    wrong = ""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # the driver may not make streams while one waits
    with torch.cuda.stream(stream):
        y.mul_(2)  # its kernel is loaded here
    torch.cuda.synchronize()
    if comm.rank == 0:
        handle = comm.all_reduce(x, async_op=True)  # the other rank comes later

        def captured() -> None:
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="global")
                y.mul_(2)
                time.sleep(0.3)  # the watcher looks every 2 ms
                graph.capture_end()

        wrong = said_by(captured)
        comm.barrier()
        handle.wait()
    else:
        comm.barrier()
        comm.all_reduce(x)
    return wrong


def dropped(comm: Any, folder: str) -> str:
    """Groups that are dropped without close give their memory back."""
    import gc

    import torch

    x, least = tensor(comm), 0
    for number in range(10):
        group = comm.group(range(comm.size))
        group.all_reduce(x)
        del group
        gc.collect()
        comm.barrier()
        if number == 2:
            least = torch.cuda.mem_get_info()[0]
    deadline = time.monotonic() + 10
    while (held := least - torch.cuda.mem_get_info()[0]) > 64 << 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    comm.barrier()
    return f"{held >> 20} MiB are not back" if held > 64 << 20 else ""


CASES: dict[str, tuple[Callable[..., str], int]] = {
    "differ": (differ, 3),
    "late": (late, 2),
    "late_in_torch": (late_in_torch, 2),
    "killed": (killed, 3),
    "killed_in_kernel": (killed_in_kernel, 3),
    "kept": (kept, 2),
    "hang": (hang, 2),
    "capture": (capture, 2),
    "dropped": (dropped, 2),
}


def carried_out(comm: Any, name: str, folder: str, variables: dict[str, str]) -> str:
    os.environ.update(variables)
    faulthandler.dump_traceback_later(_LIMIT_SECONDS / 2)  # a rank that hangs says where
    return CASES[name][0](comm, folder)


def verdict(name: str, variables: dict[str, str]) -> bool:
    """Run one case; print its verdict, and return it."""
    _, ranks = CASES[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            said = af.spawn(carried_out, ranks, args=(name, folder, variables), survive=True, timeout=_LIMIT_SECONDS)
        except Exception as error:
            said = [f"{type(error).__name__}: {error}"]
    expected = [None if name.startswith("killed") and rank == ranks - 1 else "" for rank in range(ranks)]
    is_well = said == expected
    details = "" if is_well else f": {' | '.join(f'rank {rank}: {one!r}' for rank, one in enumerate(said))}"
    print(f"{'PASS' if is_well else 'FAIL'} {name} ({time.monotonic() - began:.0f} s){details}", flush=True)
    return is_well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--mps", action="store_true", help="run NVIDIA's Multi-Process Service meanwhile")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.cases if name not in CASES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    import torch

    if not torch.cuda.is_available():
        sys.stderr.write("cases.py needs a GPU, and there is none\n")
        return 2
    well = []
    for name in arguments.cases or CASES:
        with mps(arguments.mps) as variables:  # a server that has seen a fault takes no new processes for a while
            well.append(verdict(name, variables))
    print(
        f"{'PASS' if all(well) else 'FAIL'}: {sum(well)} of {len(well)} cases, {'with' if arguments.mps else 'without'} MPS"
    )
    return int(not all(well))


if __name__ == "__main__":
    sys.exit(main())
