"""`allfold replay`: runs the program of one recorded rank, alone."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from ... import _native
from ...errors import UsageError
from ...intercept import CHECK, RECORD, REPLAY
from ...record import VARIABLES
from ...record.read import RankRecord, path_of, read_rank, why_no_replay

# With these, the replay would be checked or recorded itself, or wait for other ranks.
_OTHERS = (CHECK, RECORD, "ALLFOLD_FLIGHT_DIR", "TORCH_DISTRIBUTED_DEBUG")


def run(arguments: argparse.Namespace) -> int:
    _native.require_engine("allfold replay")
    folder = Path(arguments.folder)
    if not folder.is_dir():
        raise UsageError(f"there is no folder {arguments.folder}")
    record = read_rank(path_of(folder, arguments.rank))
    if (reason := why_no_replay(record)) is not None:
        raise UsageError(reason)
    command = _command(record, list(arguments.program))
    variables = {name: value for name, value in os.environ.items() if name not in (*VARIABLES, *_OTHERS)}
    variables |= {name: str(value) for name, value in record.head["variables"].items() if name in VARIABLES}
    variables[REPLAY] = str(record.path.absolute())
    if not arguments.program:
        try:
            os.chdir(str(record.head["folder"]))
        except OSError as error:
            raise UsageError(
                f"cannot change to the folder of the run, {record.head['folder']}: {error.strerror}"
            ) from None
    debugger = ["-m", "pdb"] if arguments.pdb else []
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *debugger, *command], variables)


def _command(record: RankRecord, given: list[str]) -> list[str]:
    if given:
        words = given[1:]
        if not words or (words[0] == "-m" and len(words) == 1):
            raise UsageError("expected a script, or -m and a module, after --")
        if words[0] != "-m" and not Path(words[0]).is_file():
            raise UsageError(f"there is no script {words[0]!r}")
        return words
    program: dict[str, Any] = record.head["program"]
    rest = [str(word) for word in program.get("arguments", [])]
    if program.get("module"):
        return ["-m", str(program["module"]), *rest]
    file = program.get("file")
    if not file or not Path(str(file)).is_file():
        what = f"its script, {file}, does not exist" if file else "it was started without a script"
        raise UsageError(f"rank {record.rank} cannot be started again: {what}; name a script: -- SCRIPT [argument ...]")
    return [str(file), *rest]
