"""The options of `allfold list`, and its help."""

from __future__ import annotations

import argparse

from . import add_color, add_json, add_ranks, size_text

SUMMARY = """\
List the algorithms, with their steps and the bytes through their busiest port. S is the size of one whole buffer, all slices
together."""

_EPILOG = """\
example:
  $ allfold list reduce
  collective  algorithm       steps, 8 ranks  busiest port  what it does
  reduce      driver                       1           7 S  Everyone sends its buffer to the root, which adds them up.
  reduce      tree                         3           3 S  Neighbours pair up, one of each pair adds up both and …
  reduce      chain                        7           1 S  The farthest rank hands its buffer to the next, which …
  reduce      direct                       2        1.75 S  Each rank collects and adds up the chunk it owns, then …
  reduce      scatter_gather               6        1.75 S  A reduce_scatter by halving, then the root gathers the …

  $ allfold list --what-for --ranks 8 --size 64M     # from a task to a collective, its bytes and its time"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("collective", nargs="?", help="the algorithms of this collective only")
    add_ranks(parser, "count for N ranks (default: 8)", default="8")
    parser.add_argument(
        "--what-for", action="store_true", help="which collective for which task, and what it costs each process"
    )
    parser.add_argument(
        "--size", type=size_text, metavar="S", help="with --what-for: bytes of one whole buffer (default: 64M)"
    )
    parser.add_argument(
        "--topology", metavar="T", help="with --what-for: where the ranks sit (default: on this machine)"
    )
    add_json(parser)
    add_color(parser)
