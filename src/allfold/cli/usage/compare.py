"""The options of `allfold compare`, and its help."""

from __future__ import annotations

import argparse

from ...wording import rank_counts
from . import add_algorithms, add_color, add_json, add_ranks

SUMMARY = """\
Steps, messages and bytes of algorithms side by side, counted from their schedules, not from formulas. Bytes are given as
multiples of S, the size of one whole buffer, all slices together; a port is one rank's sending or receiving side."""

_EPILOG = """\
example:
  $ allfold compare --ranks 8 --algorithms naive,driver,ring
  ranks  all_reduce  steps  messages in all  bytes in all  messages, busiest port  bytes, busiest port
  8      naive           1               56          56 S                       7                  7 S
  8      driver          2               14          14 S                       7                  7 S
  8      ring           14              112          14 S                      14               1.75 S
  8      at least                        14          14 S                3 rounds               1.75 S
  …"""

RANKS = "2,4,8,16,32"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="these algorithms only (default: all); as --algorithms"
    )
    add_ranks(parser, f"rank counts (default: {RANKS}, or those of the files)", metavar="A,B,C", parse=rank_counts)
    parser.add_argument(
        "--collective", metavar="C", help="of this collective (default: all_reduce, or that of the files)"
    )
    add_algorithms(parser)
    add_json(parser)
    add_color(parser)
