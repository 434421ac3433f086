"""`allfold run`: start a script, a module or any command once per rank on this machine."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from allfold.cli.choose import parse_hosts
from allfold.errors import UsageError
from allfold.launch.spawn import check_ranks, launch

_DESCRIPTION = """\
Start a Python script once per rank and supervise the processes: when one fails, all are ended, and the last line says which
rank it was. In the script, `allfold.init()` returns the communicator. RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT are also set, so that scripts written for torch.distributed run unchanged."""

_EPILOG = """\
example:
  $ cat sum.py
  import numpy as np
  import allfold as af

  comm = af.init()
  x = np.full(4, comm.rank + 1.0)
  comm.all_reduce(x)
  print(x)
  $ allfold run -n 4 --prefix sum.py
  [0] [10. 10. 10. 10.]
  [1] [10. 10. 10. 10.]
  [2] [10. 10. 10. 10.]
  [3] [10. 10. 10. 10.]

  $ allfold run -n 2 -m package.module --its-own --options
  $ allfold run -n 2 -- ./executable --its-own --options

exit status: 0 if every rank succeeded (with --survive, if at least one did); otherwise the status of the rank that failed
  first, or 128 + N if signal N killed it; 124 after --timeout; 130 after Ctrl-C; 2 for wrong usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.usage = (
        "allfold run -n RANKS [--hosts HOSTS] [--prefix] [--timeout SECONDS] [--survive] "
        "(SCRIPT | -m MODULE | -- COMMAND) [argument ...]"
    )
    parser.add_argument("-n", "--ranks", type=int, required=True, metavar="RANKS", help="how many processes to start")
    parser.add_argument(
        "--hosts",
        metavar="HOSTS",
        help="pretend so many hosts on this machine, or hosts with so many ranks each (--hosts 1,3): ranks share memory "
        "inside a host only, and the fabric carries the rest",
    )
    parser.add_argument(
        "--prefix",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="begin every line of output with the rank it comes from",
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end all ranks after this many seconds")
    parser.add_argument(
        "--survive",
        action="store_true",
        help="a rank that fails does not end the others, which may go on without it (comm.shrink())",
    )
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module; the rest is for it"
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT",
        help="a Python script and its arguments, or -- and a command",
    )


def run(arguments: argparse.Namespace) -> int:
    try:
        check_ranks(arguments.ranks)
        command = _command(arguments.module, arguments.command)
        if arguments.timeout is not None and not 0 < arguments.timeout < float("inf"):
            raise UsageError(f"--timeout {arguments.timeout:g}: expected a number of seconds above 0")
        status = launch(
            command,
            arguments.ranks,
            prefix_output=arguments.prefix,
            timeout=arguments.timeout,
            survive=arguments.survive,
            hosts=None if arguments.hosts is None else parse_hosts(arguments.hosts),
        )
    except UsageError as error:
        sys.stderr.write(f"allfold run: {error}\n")
        return 2
    if status == 128 + signal.SIGPIPE:
        # Nobody reads our output any more; without this, the interpreter would report it again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _command(module: list[str] | None, command: list[str]) -> list[str]:
    if module is not None:
        if not module:
            raise UsageError("-m: expected the name of a module after it")
        return [sys.executable, "-m", *module]
    if command[:1] == ["--"]:
        if len(command) == 1:
            raise UsageError("expected a command after --")
        return command[1:]
    if not command:
        raise UsageError("expected a script, -m and a module, or -- and a command")
    if not Path(command[0]).is_file():
        raise UsageError(f"there is no script {command[0]!r}; to run an executable, write -- in front of it")
    return [sys.executable, *command]
