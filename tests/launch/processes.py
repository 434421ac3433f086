"""Helpers of the tests of the launcher: start ranks and commands, and wait for them."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import allfold
from allfold.launch.spawn import run_everywhere

PATIENCE = 30.0  # seconds after which something that should happen at once is taken not to happen


def everywhere(work: Callable[..., Any], ranks: int, *args: object, **options: Any) -> list[Any]:
    """Like spawn, but with the bare place instead of a communicator."""
    return run_everywhere(nullcontext, work, ranks, args=args, **options)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def wait_for_end_of(processes: list[int], patience: float = PATIENCE) -> None:
    for process in processes:
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        try:
            assert select.select([descriptor], [], [], patience)[0], f"process {process} is still there"
        finally:
            os.close(descriptor)


COMMAND_LINE = "import sys; from allfold.cli import main; sys.exit(main())"


def with_allfold() -> dict[str, str]:
    source = str(Path(allfold.__file__).parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])}


def start(
    *arguments: object, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.PIPE, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", COMMAND_LINE, "run", *map(str, arguments)]
    return subprocess.Popen(command, env=with_allfold(), stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, cwd=cwd)


def allfold_run(
    *arguments: object, stdin: int = subprocess.DEVNULL, cwd: Path | None = None
) -> tuple[int, bytes, bytes]:
    with start(*arguments, stdin=stdin, cwd=cwd) as process:
        output, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, output, errors
