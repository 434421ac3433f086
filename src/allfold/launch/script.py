"""A script or a module whose ranks are threads of this process: `allfold run --threads`."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from allfold.communicator.communicator import Communicator
from allfold.launch.outcome import also, in_order, late, say, unended
from allfold.launch.spawn import TIMED_OUT, check_ranks
from allfold.launch.threads import ENGINE, ThreadRun


def launch_threads(
    command: Sequence[str],
    ranks: int,
    *,
    is_module: bool = False,
    timeout: float | None = None,
    survive: bool = False,
    engine: str | None = None,
) -> int:
    """Run a script, or a module, in one thread per rank; the exit status of the run, as that of `launch`.

    All ranks share `sys.argv` and `sys.modules`; each has variables of its own in the script itself. `init` and `start`
    give each its communicator.
    """
    check_ranks(ranks)
    name = command[0]
    sys.argv = [*command]
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(name)))
    run = ThreadRun(
        _run_module if is_module else _run_script, ranks, args=(name,), survive=survive, engine=engine or ENGINE
    )
    try:
        run.watch(timeout)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    failures = [one for one in in_order(run.failed) if not one.was_ended_by_us]
    rest = f"; {unended(run)}" if run.still_running else ""
    if failures:
        first, *others = failures
        if first.report["type"] != "SystemExit":
            sys.stderr.write(first.report["traceback"])
        say(f"{first.child} {first.end}{also([(one.child.rank, one.end) for one in others])}{rest}")
        return 0 if survive and len(failures) < ranks and not run.late else first.child.shell_status
    if run.late:
        say(f"{late(run)} after {timeout:g} s{rest or '; all ranks were ended'}")
        return TIMED_OUT
    return 0


def _run_script(_: Communicator, file: str) -> None:
    __tracebackhide__ = True
    code = compile(Path(file).read_bytes(), file, "exec")
    _until_exit(partial(exec, code, {"__name__": "__main__", "__file__": file}))


def _run_module(_: Communicator, name: str) -> None:
    __tracebackhide__ = True
    _until_exit(partial(runpy.run_module, name, run_name="__main__"))


def _until_exit(run: Callable[[], object]) -> None:
    """`sys.exit` ends a rank as it ends a process: with a status of 0 it is no failure, and a text is printed."""
    __tracebackhide__ = True
    try:
        run()
    except SystemExit as error:
        if error.code is None or error.code == 0:
            return
        if not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
        raise
