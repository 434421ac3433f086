"""`allfold show`: an algorithm step by step."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from rich.text import Text

from ..run.program import compile
from ..schedule import Schedule
from ..verify import verify
from ..view.text import draw, draw_moves, title
from .choose import add_with, choose, one_rank_count
from .terminal import add_color, add_json, width, write_json, write_lines

SUMMARY = """\
An algorithm step by step: the moves of every step, then who holds what after it. A move +3:0→1 adds chunk 3 of rank 0
to that of rank 1; without the plus it replaces it; 3:0→1@5 lands in chunk 5."""

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

  step 0  +2:0→1  +0:1→2  +1:2→0
    chunk     0      1      2
    rank 0  0··   [0·2]   0··
    rank 1  ·1·    ·1·   [01·]
    rank 2 [·12]   ··2    ··2
  …

  $ allfold show hierarchical --ranks 5 --with groups=[[0,1,2],[3,4]] --with across=tree
  $ allfold show my_ring.py:ring --collective all_reduce --ranks 6"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("name", metavar="NAME", help="an algorithm, or FILE.py:function")
    parser.add_argument("--collective", metavar="C", help="of this collective (default: all_reduce where it has one)")
    parser.add_argument("--ranks", default="4", metavar="N", help="how many ranks (default: 4)")
    parser.add_argument("--root", type=int, metavar="R", help="the root of a rooted collective (default: 0)")
    add_with(parser)
    parser.add_argument("--moves-only", action="store_true", help="only the moves")
    parser.add_argument(
        "--programs", action="store_true", help="the program that each rank runs, compiled from the moves"
    )
    parser.add_argument("--full", action="store_true", help="leave nothing out, however long")
    add_json(parser)
    add_color(parser)


def run(arguments: argparse.Namespace) -> int:
    choice = choose(arguments.name, arguments.collective, arguments.parameters)
    schedule = choice.schedule(one_rank_count(arguments.ranks), arguments.root)
    if arguments.json:
        write_json(schedule.to_json())
    elif arguments.programs:
        write_lines(_programs(schedule), arguments.color)
    else:
        drawing = draw_moves if arguments.moves_only else draw
        write_lines(drawing(schedule, width(), arguments.full), arguments.color)
    return 0


def _programs(schedule: Schedule) -> Iterator[Text]:
    verify(schedule)  # only a schedule that is right has programs
    programs = compile(schedule)
    yield Text(title(schedule), style="bold")
    for rank in range(schedule.ranks):
        yield Text()
        yield Text(f"rank {rank}", style="blue")
        yield from (Text(f"  {line}") for line in programs.describe(rank).splitlines() or ["nothing to do"])
