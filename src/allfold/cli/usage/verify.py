"""The options of `allfold verify`, and its help."""

from __future__ import annotations

import argparse

from ...wording import rank_counts
from . import add_collective, add_color, add_hosts, add_json, add_ranks, add_with

SUMMARY = """\
Prove algorithms: every contribution arrives exactly once, every rank ends with what the collective promises, and the compiled
programs have no deadlock and no unordered access to the same memory. Up to 12 ranks, the programs of messages that run
across hosts are proved too. For rooted collectives every root is proved. A single case is explained in full; several cases
give one line per algorithm."""

_EPILOG = """\
example:
  $ allfold verify ring --ranks 6
  all_reduce ring(ranks=6) is right: every contribution arrives exactly once, wherever it must.
    same bits on all ranks   yes
    rank order kept          no
    same for any length      no
    no deadlock, no unordered access in the compiled programs
    no deadlock, every message received in the programs across hosts
    steps                    10
    rounds (1 message/port)  10  (at least 3)
    messages in all          60  (at least 10)
    bytes in all             10 S  (at least 10 S)
    bytes, busiest port      1.6667 S  (at least 1.6667 S)

  $ allfold verify --all --collective reduce --ranks 1-6
  collective  algorithm       ranks  cases  same bits  rank order                   any length  result
  reduce      driver          1–6       21  yes        yes                          yes         proved
  reduce      tree            1–6       21  yes        root 0, and 4 of 14 others   yes         proved
  reduce      chain           1–6       21  yes        first and last root only     yes         proved
  reduce      bine            1–6       21  yes        8 of 18 cases                yes         proved
  reduce      direct          1–6       21  yes        yes                          yes         proved
  reduce      hierarchical    1–6       21  yes        root 0, and 11 of 14 others  yes         proved
  reduce      scatter_gather  1–6       21  yes        yes                          yes         proved

  $ allfold verify hierarchical --hosts 4,4      # and the programs that the ranks of two hosts run
  $ allfold verify my_ring.py:ring --collective all_reduce --ranks 2-9

exit status: 0 all proved, 1 something is wrong (the sentence says where), 2 wrong usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="algorithms, FILE.py:function, or a schedule: FILE.xml, FILE.json"
    )
    parser.add_argument(
        "--all", action="store_true", help="every built-in algorithm (of the collective, if one is given)"
    )
    add_collective(parser)
    said = "numbers of ranks (default: 1-16, or those of the file)"
    add_ranks(parser, said, metavar="N|A-B|A,B,C", parse=rank_counts)
    parser.add_argument("--roots", default="all", metavar="all|R,…", help="roots of a rooted collective (default: all)")
    parser.add_argument(
        "--uneven", action="store_true", help="for slices with lengths of their own too (counts=…), whatever these are"
    )
    add_with(parser)
    add_hosts(parser, "the programs that such ranks run are proved too")
    parser.add_argument("--jobs", type=int, metavar="J", help="processes to use (default: the number of cores)")
    add_json(parser)
    add_color(parser)
