"""`python without_engine.py -m MODULE … | FILE … | -c CODE`: Python as where there is no engine, and no Linux.

What macOS or Windows lack is taken away before allfold is imported: the extension, modules, functions and flags of the
system, and the folders of the Linux kernel. Of the standard library, what needs them itself is imported before.
"""

from __future__ import annotations

import builtins
import concurrent.futures
import contextlib
import http.server
import multiprocessing.popen_spawn_posix
import os
import platform
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import ModuleType

import numpy

MODULES = [
    "fcntl",
    "resource",
    "termios",
    "pwd",
    "grp",
    "tty",
    "pty",
    "syslog",
    "_posixshmem",
    "allfold._native._engine",
]
FOLDERS = ("/proc/", "/sys/", "/dev/shm")
_OF_OS = """
fork forkpty memfd_create sched_getaffinity sched_setaffinity sched_yield sched_param sched_getscheduler
sched_setscheduler geteuid getuid getgid getegid getpgid setpgid getpgrp setsid killpg register_at_fork pread pwrite
sendfile eventfd fchmod fchown mkfifo uname getloadavg sysconf posix_spawn posix_fadvise posix_fallocate pidfd_open
setpriority getpriority statvfs wait3 wait4 waitid SCHED_OTHER O_DIRECTORY O_NOFOLLOW MFD_CLOEXEC MFD_ALLOW_SEALING
"""
_OF_SIGNAL = """
SIGPIPE SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGSTOP SIGCONT SIGQUIT pthread_sigmask pthread_kill setitimer sigwait
sigtimedwait alarm SIG_BLOCK SIG_UNBLOCK
"""
LACKING: dict[ModuleType, Sequence[str]] = {
    os: _OF_OS.split(),
    signal: _OF_SIGNAL.split(),
    socket: ["AF_UNIX", "AF_NETLINK", "SCM_RIGHTS", "SO_PEERCRED", "SO_REUSEPORT"],
    select: ("poll", "epoll"),
    time: ("clock_gettime", "clock_gettime_ns", "CLOCK_MONOTONIC", "pthread_getcpuclockid"),
}
# NumPy is the build for Linux here.
BEFORE = (
    builtins,
    concurrent.futures,
    http.server,
    multiprocessing.popen_spawn_posix,
    numpy,
    random,
    subprocess,
    tempfile,
)


def take_away() -> None:
    assert "allfold" not in sys.modules
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # nobody finds it
    for module, names in LACKING.items():
        for name in names:
            with contextlib.suppress(AttributeError):
                delattr(module, name)
    platform.system = lambda: "Darwin"  # its name is in the sentences
    sys.addaudithook(_refuse_folders)


def _refuse_folders(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and arguments and str(arguments[0]).startswith(FOLDERS):
        raise FileNotFoundError(f"there is no {arguments[0]} on other systems")


if __name__ == "__main__":
    take_away()
    how, *rest = sys.argv[1:]
    sys.path[0] = os.getcwd() if how in ("-m", "-c") else os.path.dirname(os.path.abspath(how))
    if how == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif how == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [how, *rest]
        runpy.run_path(how, run_name="__main__")
