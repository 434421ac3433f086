"""The options of `allfold list`, and its help."""

from __future__ import annotations

import argparse

from . import add_color, add_json

SUMMARY = "List the algorithms, with their steps and the bytes through their busiest port for buffers of S bytes."

_EPILOG = """\
example:
  $ allfold list reduce
  collective  algorithm       steps, 8 ranks  busiest port  what it does
  reduce      driver                       1           7 S  Everyone sends its buffer to the root, which adds them up.
  reduce      tree                         3           3 S  Neighbours pair up, one of each pair adds up both and …
  reduce      chain                        7           1 S  The farthest rank hands its buffer to the next, which …
  reduce      direct                       2        1.75 S  Each rank collects and adds up the chunk it owns, then …
  reduce      scatter_gather               6        1.75 S  A reduce_scatter by halving, then the root gathers the …"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("collective", nargs="?", help="the algorithms of this collective only")
    parser.add_argument("--ranks", default="8", metavar="N", help="count for N ranks (default: 8)")
    add_json(parser)
    add_color(parser)
