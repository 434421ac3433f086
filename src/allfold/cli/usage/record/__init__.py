"""The options of `allfold record`, and its help."""

from __future__ import annotations

import argparse

from .. import add_program

SUMMARY = """\
Run a torch.distributed program and record every call of every rank: the operation, the line, and digests of the inputs and
outputs. The program needs no change, and may use any backend. `allfold diverge` compares such records (docs/record.md)."""

_EPILOG = """\
example:
  $ allfold record -n 4 --out first train.py
  allfold record: first: 4 ranks, 1,204 calls, 1.2 MB; allfold diverge first OTHER compares it with another run
  $ allfold record -n 4 --out second --keep all train.py
  $ allfold diverge first second

other launchers:
  $ ALLFOLD_RECORD=first torchrun --nproc-per-node 4 train.py
  $ allfold record --out first -- torchrun --nproc-per-node 4 train.py     # the same
  $ allfold record --out first spawns.py                                   # a script that starts its ranks itself

exit status: that of the program, as with allfold run; 2 for wrong usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.usage = (
        "allfold record [-n RANKS] [--out DIR] [--keep digests|window=CALLS|all] "
        "(SCRIPT | -m MODULE | -- COMMAND) [argument ...]"
    )
    parser.add_argument(
        "-n",
        "--ranks",
        type=int,
        metavar="RANKS",
        help="start the program once per rank, as allfold run does; without it, once: it then starts its ranks itself",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="the folder for the record, new or empty (default: record-1, record-2, …)"
    )
    parser.add_argument(
        "--keep",
        default="digests",
        metavar="WHAT",
        help="how much to keep of what calls received: digests (8 bytes per tensor), window=1000 (the last 1000 calls of each "
        "rank in full), or all (default: digests)",
    )
    add_program(parser)
