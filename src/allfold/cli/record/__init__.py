"""`allfold record`: run a program and record the calls of its ranks."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from ... import _native
from ...errors import AllfoldError, UsageError
from ...intercept import RECORD
from ...record.keep import VARIABLE, Keep
from ...record.read import read_run
from ...wording import counted
from ..run import command_of

_DEFAULT = "record"


def run(arguments: argparse.Namespace) -> int:
    command = command_of("record", arguments.module, arguments.command)
    keep = str(Keep.of(arguments.keep))
    _native.require_engine("allfold record")
    folder = _folder(arguments.out)
    variables = {RECORD: str(folder.absolute()), VARIABLE: keep}
    # Sets and dictionaries of the program have the same order in each run.
    variables["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED", "0")
    if arguments.ranks is None:
        status = _start(command, variables)
    else:
        from ...launch.spawn import launch

        os.environ.update(variables)  # the ranks inherit them
        status = launch(command, arguments.ranks)
    _summarize(folder)
    return status


def _folder(given: str | None) -> Path:
    names = [given] if given is not None else (f"{_DEFAULT}-{number}" for number in itertools.count(1))
    for name in names:
        path = Path(name)
        try:
            path.mkdir(mode=0o700, parents=given is not None)
        except FileExistsError:
            if given is None:
                continue
            if not path.is_dir() or any(path.iterdir()):
                raise UsageError(f"--out {name}: it exists already, and is not empty; name another folder") from None
        except OSError as error:
            raise UsageError(f"--out {name}: cannot create the folder: {error.strerror}") from None
        return path
    raise AssertionError("unreachable")


def _start(command: list[str], variables: dict[str, str]) -> int:
    """Run a command that starts the ranks itself; returns its exit status, as a shell would."""
    try:
        process = subprocess.Popen(command, env=os.environ | variables)
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error.strerror}") from None

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal also sends it to the program, which decides what to do
    code = process.wait()
    return 128 - code if code < 0 else code


def _summarize(folder: Path) -> None:
    try:
        found = read_run(folder)
    except AllfoldError:
        sys.stderr.write(
            f"allfold record: {folder} is empty: no process group was created, or torch was told to load no backends "
            "(TORCH_DEVICE_BACKEND_AUTOLOAD=0)\n"
        )
        return
    calls = sum(len(one.calls) for one in found.values())
    size = sum(one.path.stat().st_size for one in found.values())
    sys.stderr.write(
        f"allfold record: {folder}: {counted(len(found), 'rank')}, {calls:,} calls, {size / 1e6:.1f} MB; "
        f"allfold diverge {folder} OTHER compares it with another run\n"
    )
