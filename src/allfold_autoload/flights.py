"""Writes torch's flight recorder to the folder ALLFOLD_FLIGHT_DIR, including gloo's, which torch itself does not write.

A rank writes its file when it has made no new call for a second, when it fails, when it ends, when it receives SIGTERM
(torchrun sends that to all ranks as soon as one has failed), and when it is aborted (gloo does that if a peer sends more
bytes than a call expects). If it then makes another call, the file is removed, and the next time it waits for two seconds,
then for four, up to 30, because pauses between steps are not hangs. The file is torch's dump, plus the members of the
groups, which gloo leaves out. `torchfrtrace` reads it, too. Nothing of allfold is imported here: this runs in every
process that imports torch while the variable is set.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import importlib
import itertools
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

FOLDER = "ALLFOLD_FLIGHT_DIR"
PREFIX = "torch_flight_"
_BUFFER = "TORCH_FR_BUFFER_SIZE"
_CALLS = "2000"
_LOOK_SECONDS = 0.25
_STALL_SECONDS = 1.0
_MOST_STALL_SECONDS = 30.0
_LOCK_SECONDS = 5.0
_ABORT_SECONDS = 20
_MOST_FRAMES = 100


def install() -> None:
    """Watch every process that creates a process group, if the variable names a folder."""
    if not os.environ.get(FOLDER):
        return
    os.environ.setdefault(_BUFFER, _CALLS)  # read when the first group is made
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    made = distributed_c10d.init_process_group
    if hasattr(made, "_allfold_watches"):
        return

    @functools.wraps(made)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        made(*args, **kwargs)
        try:
            watch()
        except Exception as error:  # a run must not fail for lack of a record
            sys.stderr.write(f"allfold: no flight record will be written: {error}\n")

    init_process_group._allfold_watches = True  # type: ignore[attr-defined]
    distributed_c10d.init_process_group = init_process_group
    dist.init_process_group = init_process_group


_watcher: _Watcher | None = None


def watch() -> None:
    """Watch the default process group of this process; calling it again has no effect."""
    global _watcher
    folder = os.environ.get(FOLDER)
    if folder and (_watcher is None or _watcher.process != os.getpid()):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _watcher = _Watcher(os.path.abspath(folder))
        _watcher.start()


class _Watcher:
    def __init__(self, folder: str) -> None:
        from torch.distributed import distributed_c10d

        self.process = os.getpid()
        self._c10d = distributed_c10d
        self._rank, self._size = distributed_c10d.get_rank(), distributed_c10d.get_world_size()
        self._path = os.path.join(folder, f"{PREFIX}{self._rank}")
        self._crash_path = os.path.join(folder, f"torch_crash_{self._rank}.log")
        self._main = threading.main_thread().ident
        self._groups: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()
        self._waking, self._wake = os.pipe()
        self._run = self._agree()
        self._has_failed = False
        self._is_final = False
        self._stalled: dict[str, Any] = {}  # where the main thread was at the last stall

    def start(self) -> None:
        threading.Thread(target=self._look, name="allfold flight recorder", daemon=True).start()
        atexit.register(self._at_end)
        hook = sys.excepthook

        def failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if os.getpid() == self.process:
                self._has_failed = True
                said = str(error).partition("\n")[0][:300]
                self.write(f"raised {kind.__name__}: {said}", _lines(reversed(list(traceback.walk_tb(trace)))))
            hook(kind, error, trace)

        sys.excepthook = failed
        self._catch_end()
        self._catch_crash()
        self._catch_abort()

    def write(self, ended: str = "", at: list[dict[str, Any]] | None = None, in_call: bool | None = None) -> None:
        """Replace the file, whole or not at all."""
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            return  # another thread is writing it
        try:
            self._is_final |= bool(ended)
            document = _dump()
            document["pg_config"] = self._members()
            document["allfold"] = {
                "rank": self._rank,
                "size": self._size,
                "run": self._run,
                "written": time.time(),
                "ended": ended,
                "at": at or [],
                "in_call": in_call,
                "stalled": self._stalled,
            }
            beside = f"{self._path}.{self.process}.part"
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                pickle.dump(document, file, protocol=2)
            os.replace(beside, self._path)
        except Exception as error:
            sys.stderr.write(f"allfold: the flight record {self._path} cannot be written: {error}\n")
        finally:
            self._lock.release()

    def _look(self) -> None:
        made: Any = None
        since, is_written, patience = time.monotonic(), False, _STALL_SECONDS
        while True:
            readable, _, _ = select.select([self._waking], [], [], _LOOK_SECONDS)
            if readable:
                if os.read(self._waking, 64).find(bytes([signal.SIGTERM])) >= 0:
                    self._write_now()
                    _end_by(signal.SIGTERM)
                continue
            now = _made()
            if now != made:
                if is_written:  # not a hang: the file is out of date, and such pauses are normal here
                    self._take_back()
                    patience = min(2 * patience, _MOST_STALL_SECONDS)
                made, since, is_written = now, time.monotonic(), False
            elif not is_written and time.monotonic() - since >= patience:
                is_written = True
                self._write_now()

    def _write_now(self, ended: str = "") -> None:
        """Write the file with the current line of the main thread."""
        if self._has_failed:
            return  # the file that was written then says more
        frame = sys._current_frames().get(self._main or 0)
        lines = _lines((one, one.f_lineno) for one in _outwards(frame))
        in_call = _is_in_call(lines)
        self._stalled = {"at": lines, "in_call": in_call}
        self.write(ended, lines, in_call)

    def _take_back(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if not self._is_final:
                os.unlink(self._path)

    def _at_end(self) -> None:
        if os.getpid() != self.process:
            return
        if not self._has_failed:
            self.write("ended")
        with contextlib.suppress(OSError):
            if os.path.getsize(self._crash_path) == 0:
                os.unlink(self._crash_path)

    def _catch_end(self) -> None:
        """Have SIGTERM reach the watching thread: the main thread may be deep in a call that never returns."""
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        ):
            return
        os.set_blocking(self._wake, False)
        before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        if before != -1:  # another library's, such as asyncio
            signal.set_wakeup_fd(before)
            return
        signal.signal(signal.SIGTERM, lambda *_: None)  # the thread ends the process

    def _catch_crash(self) -> None:
        """Have Python write where it was when this process crashes: a segmentation fault, for example."""
        if not faulthandler.is_enabled():
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            self._crash = open(os.open(self._crash_path, flags, 0o600), "wb")  # noqa: SIM115, open to the end
            faulthandler.enable(self._crash, all_threads=False)

    def _catch_abort(self) -> None:
        """Write the file when C++ code aborts this process.

        The handler runs in the thread that calls abort(), which is one of gloo's own: it holds none of Python's locks. The
        alarm ends the process if this hangs anyway.
        """
        libc = ctypes.CDLL(None)

        def aborted(number: int) -> None:
            libc.alarm(_ABORT_SECONDS)
            with contextlib.suppress(Exception):
                if os.getpid() == self.process:
                    self._write_now("was aborted (SIGABRT)")
                faulthandler.dump_traceback()

        self._on_abort = ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted)  # kept, as the kernel only knows its address
        libc.signal(int(signal.SIGABRT), self._on_abort)

    def _agree(self) -> str:
        """A text that identifies this run on all its ranks: the folder may have files of earlier runs."""
        try:
            store = self._c10d._get_default_store()
            store.compare_set("allfold/flight", "", os.urandom(8).hex())
            return str(store.get("allfold/flight").decode())
        except Exception:
            return ""

    def _members(self) -> dict[str, dict[str, str]]:
        """All groups that this rank has been in; including those that were destroyed."""
        for group, ranks in list(self._c10d._world.pg_group_ranks.items()):
            name = group.group_name
            listed = str(sorted(ranks))
            self._groups[name] = {"name": name, "desc": group.group_desc, "ranks": listed}
        return dict(self._groups)


def _dump(collectives: bool = True) -> dict[str, Any]:
    from torch._C import _distributed_c10d as native

    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        if hasattr(native, name):
            with _without_inductor() if collectives else contextlib.nullcontext():
                document: dict[str, Any] = pickle.loads(getattr(native, name)(includeCollectives=collectives))
            if document.get("entries") or (not collectives and document.get("pg_status")):
                return document
    document.setdefault("entries", [])
    return document


@contextlib.contextmanager
def _without_inductor() -> Iterator[None]:
    """Let torch find the lines of its stacks without importing torch._inductor.

    It asks `torch._inductor.codecache.PyCodeCache` for the lines of compiled code. Importing that takes 5 s of processor time,
    when the process may not have that much left. If it has not been imported yet, there is no compiled code. Other threads
    get the real module.
    """
    import torch

    if "_inductor" in vars(torch) or "torch._inductor" in sys.modules:
        yield
        return
    stand = _NoInductor("torch._inductor")
    vars(torch)["_inductor"] = stand
    try:
        yield
    finally:
        if vars(torch).get("_inductor") is stand:
            del vars(torch)["_inductor"]


class _NoInductor(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._thread = threading.get_ident()

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "codecache" and threading.get_ident() == self._thread:
            return _NoCodeCache
        return getattr(importlib.import_module("torch._inductor"), attribute)


class _NoCodeCache:
    class PyCodeCache:
        @staticmethod
        def stack_frames_for_code(*_: Any) -> None:
            return None


def _made() -> Any:
    """The numbers of calls made; it takes microseconds."""
    return {name: one.get("last_enqueued_collective") for name, one in _dump(False).get("pg_status", {}).items()}


def _outwards(frame: FrameType | None) -> Any:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _lines(frames: Any) -> list[dict[str, Any]]:
    return [
        {"name": frame.f_code.co_name, "filename": frame.f_code.co_filename, "line": line}
        for frame, line in itertools.islice(frames, _MOST_FRAMES)
    ]


def _is_in_call(lines: list[dict[str, Any]]) -> bool:
    for line in lines:
        file = line["filename"].replace("\\", "/")
        if "/torch/distributed/" in file or "/allfold/" in file:
            return True
        if "/torch/" not in file and "/lib/python3" not in file:
            return False
    return False


def _end_by(number: int) -> None:
    """End this process by a signal, from any thread: only the main one may ask Python for that, and it may be stuck."""
    ctypes.pythonapi.PyOS_setsig.restype = ctypes.c_void_p
    ctypes.pythonapi.PyOS_setsig.argtypes = [ctypes.c_int, ctypes.c_void_p]
    ctypes.pythonapi.PyOS_setsig(number, None)  # SIG_DFL
    os.kill(os.getpid(), number)
