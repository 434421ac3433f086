"""The options of `allfold show`, and its help."""

from __future__ import annotations

import argparse

from ...view import TOPOLOGY
from . import add_case, add_color, add_hosts, add_json, output_file, size_text

SUMMARY = """\
Show an algorithm step by step: the moves of every step, then who holds what after it. The move +3:0→1 adds chunk 3 of rank 0
to chunk 3 of rank 1; without the plus it replaces it; 3:0→1@5 goes into chunk 5. --svg writes a figure, --html an
interactive page. For a wrong algorithm, both also show what is wrong, and where."""

_EPILOG = """\
example:
  $ allfold show ring --ranks 3
  all_reduce by ring: 3 ranks, 3 chunks, 4 steps, 12 messages
    ·1· rank 1 has contributed   [ ] changed in this step   ✓ as all_reduce promises

  at the start
    chunk     0      1      2
    rank 0  0··    0··    0··
    rank 1  ·1·    ·1·    ·1·
    rank 2  ··2    ··2    ··2

  step 1  +2:0→1  +0:1→2  +1:2→0
    chunk     0      1      2
    rank 0  0··   [0·2]   0··
    rank 1  ·1·    ·1·   [01·]
    rank 2 [·12]   ··2    ··2
  …

  $ allfold show ring --values "1 2 3; 4 5 6; 7 8 9"         # the same with numbers: what moves, which sums it makes
  $ allfold show ring --ranks 4 --values random --op max
  $ allfold show ring --animate                              # plays it in the terminal
  $ allfold show naive driver ring --ranks 4 --svg three.svg # figures for a paper
  $ allfold show ring --ranks 8 --html ring.html             # an interactive page; opens from disk, loads nothing
  $ allfold show ring tree --compare --html two.html         # two beside each other: which is faster, and why
  $ allfold show ring -n 4 --recording run.json --compare --html run.html  # the simulation beside a run (comm.trace())
  $ allfold show hierarchical --ranks 5 --with groups=[[0,1,2],[3,4]] --with across=tree
  $ allfold show hierarchical --hosts 3,2 --messages         # what the ranks of two hosts run
  $ allfold show my_ring.py:ring --collective all_reduce --ranks 6

exit status: 0 shown, 1 the schedule is wrong (--svg and --html show where), 2 wrong usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("names", nargs="+", metavar="NAME", help="algorithms, FILE.py:function, FILE.json or FILE.xml")
    add_case(parser)
    add_hosts(parser, "with --messages: the programs that such ranks run")
    parser.add_argument(
        "--values",
        metavar="V",
        help='show numbers, here or with --html: "1 2 3; 4 5 6; 7 8 9", one row per rank, or random',
    )
    parser.add_argument("--op", default="sum", metavar="OP", help="with --values: sum, max, min, avg, … (default: sum)")
    parser.add_argument("--moves-only", action="store_true", help="show only the moves")
    parser.add_argument(
        "--programs", action="store_true", help="the program that each rank runs, compiled from the moves"
    )
    parser.add_argument(
        "--messages", action="store_true", help="the program that each rank runs where ranks share no memory"
    )
    parser.add_argument("--full", action="store_true", help="show everything, however long it is")
    parser.add_argument("--animate", action="store_true", help="play it in the terminal")
    parser.add_argument(
        "--speed", type=float, default=1.0, metavar="X", help="with --animate: steps per second (default: 1)"
    )
    parser.add_argument("--svg", type=output_file, metavar="FILE", help="write the figure of all steps")
    parser.add_argument("--columns", type=int, metavar="N", help="with --svg: grids per row (default: as many as fit)")
    parser.add_argument(
        "--html", type=output_file, metavar="FILE", help="write the interactive page; it opens with the first NAME"
    )
    parser.add_argument(
        "--topology",
        default=TOPOLOGY,
        metavar="T",
        help=f"with --html: where the ranks sit, as for allfold plan, or none (default: {TOPOLOGY})",
    )
    parser.add_argument(
        "--size", type=size_text, default="1M", metavar="S", help="with --html: bytes of the buffer (default: 1M)"
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="with --html: two NAMEs beside each other in every view, or one NAME and its recording",
    )
    parser.add_argument("--measure", action="store_true", help="with --html: run it here and include the recording")
    parser.add_argument(
        "--recording",
        metavar="FILE",
        help="with --html: include a real run, recorded by comm.trace() and written by trace.save(FILE)",
    )
    add_json(parser)
    add_color(parser)
