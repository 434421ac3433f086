"""`allfold show`: an algorithm step by step, as text, as a film in the terminal, as a figure, as a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from json import loads
from typing import Any

from rich.text import Text

from ...errors import ScheduleError, UsageError
from ...files import write_whole
from ...programs.compile import compile
from ...programs.messages import MessagePrograms, check_messages, lower
from ...schedule import Schedule
from ...verify import verify
from ...view.entry import schedule_up_to_error
from ...view.numbers import draw_numbers, read_values, rows_in
from ...view.page import TOPOLOGY, page_of
from ...view.text import draw, draw_moves, title
from ...wording import parse_size
from ..choose import Choice, add_with, choose, function_of, is_file, is_schedule, ranks_of
from ..terminal import add_color, add_json, progress, width, write_json, write_lines
from .film import play

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
  $ allfold show hierarchical --ranks 5 --with groups=[[0,1,2],[3,4]] --with across=tree
  $ allfold show my_ring.py:ring --collective all_reduce --ranks 6

exit status: 0 shown, 1 the schedule is wrong (--svg and --html show where), 2 wrong usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("names", nargs="+", metavar="NAME", help="algorithms, FILE.py:function, FILE.json or FILE.xml")
    parser.add_argument("--collective", metavar="C", help="of this collective (default: all_reduce where it has one)")
    parser.add_argument("--ranks", metavar="N", help="how many ranks (default: 4, or those of the file)")
    parser.add_argument("--root", type=int, metavar="R", help="the root of a rooted collective (default: 0)")
    add_with(parser)
    parser.add_argument(
        "--values",
        metavar="V",
        help='show numbers instead: "1 2 3; 4 5 6; 7 8 9", one row per rank, or random',
    )
    parser.add_argument("--op", default="sum", metavar="OP", help="with --values: sum, max, min, avg, … (default: sum)")
    parser.add_argument("--moves-only", action="store_true", help="show only the moves")
    parser.add_argument(
        "--programs", action="store_true", help="the program that each rank runs, compiled from the moves"
    )
    parser.add_argument(
        "--messages", action="store_true", help="the program that each rank runs where ranks share no memory (--hosts)"
    )
    parser.add_argument("--full", action="store_true", help="show everything, however long it is")
    parser.add_argument("--animate", action="store_true", help="play it in the terminal")
    parser.add_argument(
        "--speed", type=float, default=1.0, metavar="X", help="with --animate: steps per second (default: 1)"
    )
    parser.add_argument("--svg", metavar="FILE", help="write the figure of all steps")
    parser.add_argument("--columns", type=int, metavar="N", help="with --svg: grids per row (default: as many as fit)")
    parser.add_argument("--html", metavar="FILE", help="write the interactive page; it opens with the first NAME")
    parser.add_argument(
        "--topology",
        default=TOPOLOGY,
        metavar="T",
        help=f"with --html: where the ranks sit, as for allfold plan, or none (default: {TOPOLOGY})",
    )
    parser.add_argument("--size", default="1M", metavar="S", help="with --html: bytes of the buffer (default: 1M)")
    parser.add_argument("--measure", action="store_true", help="with --html: run it here and include the recording")
    add_json(parser)
    add_color(parser)


@dataclass(frozen=True)
class _Shown:
    """One algorithm of the command line, built as far as possible."""

    choice: Choice
    schedule: Schedule
    error: ScheduleError | None
    function: Any
    """What made it; None for a schedule that was read from a file."""

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(loads(self.choice.parameters))


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    choices = [choose(name, arguments.collective, arguments.parameters) for name in arguments.names]
    with progress("making the schedule") as say:
        given = rows_in(arguments.values or "")  # as many ranks as there are rows, unless --ranks says otherwise
        ranks = arguments.ranks if arguments.ranks is not None or given is None else str(given)
        shown = [_make(choice, ranks_of(choice, ranks), arguments) for choice in choices]
        say("drawing")
        if arguments.svg is not None:
            from ...view.svg import figure

            text = figure([one.schedule for one in shown], arguments.columns, [one.error for one in shown])
            write_whole(arguments.svg, text)
        if arguments.html is not None:
            write_whole(arguments.html, _page(shown, arguments))
    if arguments.svg is not None or arguments.html is not None:
        return _say_what_is_wrong(shown)
    for place, one in enumerate(shown):
        if one.error is not None:
            raise one.error
        if place:
            write_lines([""], arguments.color)
        _show(one.schedule, arguments)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if not 0.01 <= arguments.speed <= 1000:
        raise UsageError(f"--speed {arguments.speed:g}: expected steps a second, between 0.01 and 1000")
    if arguments.measure and arguments.html is None:
        raise UsageError("--measure puts a recording into the page; add --html FILE")
    if arguments.columns is not None and arguments.svg is None:
        raise UsageError("--columns is for the figure; add --svg FILE")
    if arguments.op != "sum" and arguments.values is None:
        raise UsageError("--op combines numbers; add --values")
    if arguments.values is not None and (arguments.svg or arguments.html or arguments.json or arguments.programs):
        raise UsageError("--values shows numbers in the terminal; leave out the other option")
    if arguments.json and len(arguments.names) > 1:
        raise UsageError("--json writes one schedule; name one algorithm")


def _make(choice: Choice, ranks: int, arguments: argparse.Namespace) -> _Shown:
    if is_schedule(choice.name):
        return _Shown(choice, choice.schedule(ranks, arguments.root), None, None)
    function: Any = function_of(choice.name) if is_file(choice.name) else choice.name
    schedule, error = schedule_up_to_error(
        choice.collective, function, ranks, arguments.root, **loads(choice.parameters)
    )
    return _Shown(choice, schedule, error, None if isinstance(function, str) else function)


def _show(schedule: Schedule, arguments: argparse.Namespace) -> None:
    if arguments.json:
        write_json(schedule.to_json())
    elif arguments.programs or arguments.messages:
        _write_bit_by_bit(_programs(schedule, arguments.messages), arguments.color)
    elif arguments.values is not None and not arguments.animate:
        lines = draw_numbers(schedule, read_values(arguments.values, schedule), arguments.op, width(), arguments.full)
        _write_bit_by_bit(lines, arguments.color)
    elif arguments.animate and sys.stdout.isatty():
        play(schedule, width(), 1 / arguments.speed, arguments.color)
    else:
        drawing = draw_moves if arguments.moves_only else draw
        _write_bit_by_bit(drawing(schedule, width(), arguments.full), arguments.color)


def _write_bit_by_bit(lines: Iterator[Text], color: bool | None) -> None:
    """Up to each empty line at once: between thousands of ranks, a step or a program takes its time."""
    more = True
    while more:
        with progress("drawing"):
            block = []
            more = False
            for line in lines:
                block.append(line)
                if not line.plain:
                    more = True
                    break
        write_lines(block, color)


def _programs(schedule: Schedule, messages: bool) -> Iterator[Text]:
    verify(schedule)  # only a correct schedule has programs
    programs = lower(schedule) if messages else compile(schedule)
    if isinstance(programs, MessagePrograms):
        check_messages(programs)
    yield Text(title(schedule), style="bold")
    for rank in range(schedule.ranks):
        yield Text()
        yield Text(f"rank {rank}", style="blue")
        yield from (Text(f"  {line}") for line in programs.describe(rank).splitlines() or ["nothing to do"])


def _page(shown: list[_Shown], arguments: argparse.Namespace) -> str:
    from ...view.html import page_as_html

    first, size = shown[0], parse_size(arguments.size)
    recording = None
    if arguments.measure:
        from ...studio.measure import record

        recording = record(first.schedule, size, first.function or first.choice.name)
    document = page_of(
        first.schedule,
        None if arguments.topology == "none" else arguments.topology,
        size,
        others=[one.schedule for one in shown[1:]] if len(shown) > 1 else None,
        recording=recording,
        function=first.function,
        parameters=first.parameters,
        error=first.error,
        # A schedule from a file was as a rule found for a network: what limits it there is what one wants to see.
        follow="cut" if is_schedule(first.choice.name) else None,
    )
    return page_as_html(document)


def _say_what_is_wrong(shown: list[_Shown]) -> int:
    status = 0
    for one in shown:
        try:
            if one.error is not None:
                raise one.error
            with progress("proving"):
                verify(one.schedule)
        except ScheduleError as error:
            sys.stderr.write(f"allfold show: {one.choice.collective} {error}\n")
            status = 1
    return status
