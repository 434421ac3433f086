"""The options of `allfold diverge`, and its help."""

from __future__ import annotations

import argparse

from .. import add_color, add_json

SUMMARY = """\
Compare two recorded runs of one program: find the first call whose input differs on a rank, although everything that the rank
had received before is the same. Ranks that only received the difference are called followers. With one run, compare its ranks,
in the calls that should give all of them the same result."""

_EPILOG = """\
example:
  $ allfold record -n 4 --out first train.py
  $ allfold record -n 4 --out second train.py
  $ allfold diverge first second
  rank 1 differs first: the input of call 39, all_reduce(float32[8705], sum) at train.py:19 (call 27 of the default group)
  differs, although everything it had received before was the same
    rank 0 follows: what it received in call 39, all_reduce(float32[8705], sum) at train.py:19 (call 27 of the …) differs
  $ allfold diverge first       # do the ranks of this run agree?

exit status: 0 no difference, 1 there is a difference, 2 wrong usage or no record that can be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("first", metavar="DIR", help="a record, written by allfold record or ALLFOLD_RECORD")
    parser.add_argument("second", nargs="?", metavar="OTHER", help="a record of another run of the same program")
    add_json(parser)
    add_color(parser)
