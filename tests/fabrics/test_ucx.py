"""UCX as a fabric, apart from its messages: where it is missing, where ranks differ, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

from ucx_here import need_ucx

from allfold.errors import UsageError
from allfold.fabrics.board import Board
from allfold.fabrics.stores import FolderStore
from allfold.fabrics.ucx import has_rdma_device, settings
from allfold.launch.environment import Place
from allfold.launch.spawn import run_everywhere


def run(script: str, **environ: str) -> str:
    came = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=os.environ | environ
    )
    assert came.returncode == 0, came.stdout + came.stderr
    return came.stdout


ALL_RANKS = """
from concurrent.futures import ThreadPoolExecutor
from allfold.errors import UsageError
from allfold.fabrics.board import Board
from allfold.fabrics.stores import MemoryStore

store = MemoryStore()

def connect(rank):
    try:
        Board(store, rank, 2).connect("", 30.0)
    except UsageError as error:
        return str(error)

with ThreadPoolExecutor(2) as threads:
    print(*threads.map(connect, range(2)), sep="\\n")
"""


def test_without_the_library_all_ranks_say_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "libucp.so.0").write_text("this is no library")
    said = run(ALL_RANKS, ALLFOLD_FABRIC="ucx", LD_LIBRARY_PATH=str(tmp_path)).splitlines()
    assert len(said) == 2 and said[0] == said[1]
    assert said[0].startswith(
        "ALLFOLD_FABRIC=ucx cannot be used by rank 0 and rank 1: ucx: libucp.so.0 cannot be loaded ("
    )
    assert "apt-get install libucx0" in said[0]


def test_all_ranks_say_that_there_is_no_such_fabric() -> None:
    """Also where a launcher's or torch's store brings the ranks together, so that nothing has read the variable before."""
    said = run(ALL_RANKS, ALLFOLD_FABRIC="gloo").splitlines()
    assert said == ["ALLFOLD_FABRIC='gloo': " + said[0].partition(": ")[2]] * 2
    assert "this fabric was removed, because tcp is faster" in said[0]


def differing(place: Place, folder: Path) -> str:
    os.environ.pop("ALLFOLD_FABRIC", None)
    if place.rank == 0:
        os.environ["ALLFOLD_FABRIC"] = "ucx"
    try:
        Board(FolderStore(folder), place.rank, 2).connect("", 30.0)
    except UsageError as error:
        return str(error)
    return "connected"


def test_ranks_that_want_different_fabrics_are_told(tmp_path: Path) -> None:
    said = run_everywhere(nullcontext, differing, 2, args=(tmp_path / "store",), hosts=2, timeout=60)
    assert all("ALLFOLD_FABRIC is not the same on all ranks; rank 1 has none" in one for one in said), said


LEAVES_ALONE = """
import ctypes, os, threading
from allfold import _native
from allfold.errors import UsageError

libc = ctypes.CDLL(None)

def state():
    caught = [line for line in open("/proc/self/status") if line.startswith("SigCgt")]
    code = [ctypes.string_at(ctypes.cast(getattr(libc, name), ctypes.c_void_p), 16) for name in ("mmap", "munmap", "brk")]
    libc.getenv.restype = ctypes.c_char_p
    return caught, code, [libc.getenv(name) for name in (b"UCX_MEM_EVENTS", b"UCX_HANDLE_ERRORS", b"UCX_LOG_LEVEL")]

threading.Thread(target=int).start()  # with its first thread, libc takes a signal of its own
before = state()
context = _native.UcxContext([("TLS", "tcp,self")])
worker = _native.UcxWorker(context)
assert state() == before, (state(), before)
assert worker.address

child = os.fork()
if child == 0:
    try:
        _native.UcxContext([("TLS", "tcp,self")])
    except UsageError as error:
        os._exit(0 if "forked" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
assert _native.UcxWorker(context).address, "the parent goes on"
"""


def test_loading_it_leaves_signals_memory_and_the_environment_alone() -> None:
    need_ucx()
    run(LEAVES_ALONE)


LOSES_A_RANK = """
import os, sys
from pathlib import Path
import numpy as np
from allfold.fabrics.board import Board
from allfold.fabrics.fabric import Disconnected
from allfold.fabrics.stores import FolderStore

rank = int(sys.argv[1])
control = Board(FolderStore(Path(sys.argv[2])), rank, 3).connect("", 60.0)
fabric, bytes = control.another("data", range(3)), 64 << 20
if rank == 1:
    room = np.zeros(bytes, np.uint8)
    receiving = fabric.receive(0, room, 5)
    while not room[0]:
        pass
    os.kill(os.getpid(), 9)  # while most of the message is under way
if rank == 0:
    sending = fabric.send(1, np.ones(bytes, np.uint8), 5)
other, own, got = 2 - rank, np.full(1000, rank, np.uint8), np.empty(1000, np.uint8)
for number in range(2000):
    receive = fabric.receive(other, got, 7)
    fabric.send(other, own, 7).wait(60.0)
    assert receive.wait(60.0) == other and (got == other).all(), number
if rank == 0:
    try:
        sending.wait(60.0)
    except Disconnected as error:
        assert error.peer == 1 and 1 in fabric.lost(), (error, fabric.lost())  # rank 2 may have left
    # On a busy machine the rank may notice so late that all has arrived.
for fabric in (fabric, control):
    fabric.cut()
print("done", end="")
"""


def test_a_rank_that_dies_in_the_middle_of_a_long_message_disturbs_no_other_pair(tmp_path: Path) -> None:
    need_ucx()
    environ = os.environ | {"ALLFOLD_FABRIC": "ucx"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LOSES_A_RANK, str(rank), str(tmp_path / "store")],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    said = [one.communicate(timeout=120)[0] for one in ranks]
    assert [one.returncode for one in ranks] == [0, -9, 0], said
    assert said[0] == said[2] == "done"


def test_settings_follow_the_devices(tmp_path: Path) -> None:
    assert not has_rdma_device(str(tmp_path)) and not has_rdma_device(str(tmp_path / "none"))
    (tmp_path / "mlx5_0").mkdir()
    assert has_rdma_device(str(tmp_path))
    assert settings("127.0.0.1", True) == [("TLS", "ib,self")]
    over_tcp = dict(settings("127.0.0.1", False, {"ALLFOLD_INTERFACE": "lo", "ALLFOLD_PORTS": "5000-5100"}))
    assert (over_tcp["TLS"], over_tcp["NET_DEVICES"], over_tcp["TCP_PORT_RANGE"]) == ("tcp,self", "lo", "5000-5100")
