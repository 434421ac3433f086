"""The options of `allfold run`, and its help."""

from __future__ import annotations

import argparse

from . import add_program

SUMMARY = """\
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

  $ allfold run -n 4 --check train.py    # torch.distributed on any backend: differing calls are errors, not hangs
  $ allfold run -n 4 --threads sum.py    # on every system, without allfold's engine
  $ allfold run -n 2 -m package.module --its-own --options
  $ allfold run -n 2 -- ./executable --its-own --options

exit status: 0 if every rank succeeded (with --survive, if at least one did); otherwise the status of the rank that failed
  first, or 128 + N if signal N killed it; 124 after --timeout; 130 after Ctrl-C; 2 for wrong usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.usage = (
        "allfold run -n RANKS [--hosts HOSTS] [--prefix] [--timeout SECONDS] [--survive] [--pdb RANK] [--engine NAME] "
        "[--check] [--threads] (SCRIPT | -m MODULE | -- COMMAND) [argument ...]"
    )
    parser.add_argument("-n", "--ranks", type=int, metavar="RANKS", help="how many processes to start")
    parser.add_argument(
        "--hosts",
        metavar="HOSTS",
        help="simulate this many hosts on this machine, or hosts with this many ranks each (--hosts 1,3): ranks share memory "
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
        "--pdb",
        type=int,
        metavar="RANK",
        help="breakpoint() works in this rank, which has the terminal; the other ranks skip theirs and wait",
    )
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help="the engine that runs the calls: shared_memory, or islands, which uses the fabric between hosts; by default "
        "allfold chooses it",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare every call of torch.distributed, on any backend, before it is made: ranks that differ get an error that "
        "says who called what instead of what, and where (docs/check.md). The same as ALLFOLD_CHECK=1",
    )
    parser.add_argument(
        "--threads",
        action="store_true",
        help="ranks are threads of one process, on an engine in Python (docs/testing.md): debuggers, profilers and coverage "
        "see all of them. RANK and the other variables are not set",
    )
    add_program(parser)
