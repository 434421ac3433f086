"""The options of `allfold explain`, and its help."""

from __future__ import annotations

import argparse

from . import add_color, add_json

SUMMARY = """\
Explain why a distributed run hangs: which rank made a different call, at which line, and the last call that all ranks made.
Reads flight-recorder dumps of NCCL, gloo and allfold, runs that `allfold record` has recorded, and logs. Files are only read:
nothing in them is ever executed."""

_EPILOG = """\
how to get the records:
  $ ALLFOLD_FLIGHT_DIR=flights torchrun --nproc-per-node 3 train.py
  That is enough for gloo, NCCL and allfold; train.py needs no change. A rank writes its file when it has made no new call for a
  second, fails or ends. NCCL's own dumps (TORCH_NCCL_DUMP_ON_TIMEOUT) and logs work, too.

example:
  $ allfold explain flights
  rank 1 left out broadcast(float32[4]) at train.py:9 (call 5 of the world), which ranks 0 and 2 made; it went on to
  all_reduce(float32[4]) at train.py:10; the last call that all made is call 4, all_reduce(float32[4]) at train.py:8
    rank 0: broadcast(float32[4]) at train.py:9: dist.broadcast(x, 0)
    rank 1: all_reduce(float32[4]) at train.py:10: dist.all_reduce(x)
    …
  $ allfold explain flights --html hang.html   a page with a timeline per rank
  $ allfold explain record-1                   a run that `allfold record` has recorded: also the root and the reduction
  $ allfold explain rank0.log rank1.log        logs only

exit status: 0 nothing wrong found, 1 a fault is explained, 2 wrong usage or no readable file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("paths", nargs="+", metavar="DIR|FILE", help="records or logs of the ranks, or their folders")
    parser.add_argument("--html", metavar="FILE", help="also write a page: a timeline per rank, the fault highlighted")
    add_json(parser)
    add_color(parser)
