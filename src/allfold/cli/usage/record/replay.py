"""The options of `allfold replay`, and its help."""

from __future__ import annotations

import argparse

SUMMARY = """\
Run the program of one recorded rank alone: one process, without the other ranks and the network. What its calls receive comes
from the record, which must have been made with --keep all. The results are the same to the last bit. It stops at the first
input that differs from the record, and where the recorded run hung or died. print, pdb and profilers work as in any program."""

_EPILOG = """\
example:
  $ allfold record -n 4 --out run --keep all train.py
  $ allfold replay run --rank 3
  …
  allfold replay: rank 3: all 301 calls were made as recorded
  $ allfold replay run --rank 3 --pdb                     # from the first line, in the debugger
  $ allfold replay run --rank 3 -- changed.py --lr 0.1    # another program: where does its first input differ?

exit status: that of the program; 1 if the replay stopped, 2 for wrong usage or a record that cannot be replayed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.usage = "allfold replay DIR --rank RANK [--pdb] [-- (SCRIPT | -m MODULE) [argument ...]]"
    parser.add_argument("folder", metavar="DIR", help="a record, written by allfold record --keep all")
    parser.add_argument("--rank", type=int, required=True, metavar="RANK", help="the rank to replay")
    parser.add_argument("--pdb", action="store_true", help="run it in Python's debugger, which stops at the first line")
