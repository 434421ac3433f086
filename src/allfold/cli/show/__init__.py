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
from ...ops import find_op
from ...programs.check_messages import check_messages
from ...programs.compile import compile
from ...programs.messages import MessagePrograms, lower
from ...programs.two_level import Islands
from ...proof import verify
from ...schedules import Schedule
from ...view.entry import schedule_up_to_error
from ...view.numbers import draw_numbers, read_values, rows_in
from ...view.page import page_of
from ...view.text import draw, draw_moves, title
from ...view.tokens import TERMINAL
from ...wording import parse_size
from ..choose import Choice, choose, function_of, is_file, is_schedule, ranks_of, take_hosts
from ..terminal import progress, width, write_json, write_lines
from .film import play


@dataclass(frozen=True)
class _Shown:
    """One algorithm of the command line, built as far as possible."""

    choice: Choice
    schedule: Schedule
    error: ScheduleError | None
    function: Any
    """The function that made it; None for an algorithm known by name and for a schedule read from a file."""

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(loads(self.choice.parameters))


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    islands = take_hosts(arguments)
    choices = [choose(name, arguments.collective, arguments.parameters).on(islands) for name in arguments.names]
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
        _show(one, islands, arguments)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if not 0.01 <= arguments.speed <= 1000:
        raise UsageError(f"--speed {arguments.speed:g}: expected steps a second, between 0.01 and 1000")
    if (arguments.measure or arguments.recording is not None) and arguments.html is None:
        option = "--measure" if arguments.measure else "--recording"
        raise UsageError(f"{option} puts a recording into the page; add --html FILE")
    if arguments.measure and arguments.recording is not None:
        raise UsageError("--measure records a run, --recording reads one; leave out either")
    _check_comparison(arguments)
    if arguments.columns is not None and arguments.svg is None:
        raise UsageError("--columns is for the figure; add --svg FILE")
    if arguments.op != "sum" and arguments.values is None:
        raise UsageError("--op combines numbers; add --values")
    if arguments.values is not None and (arguments.svg or arguments.json or arguments.programs):
        raise UsageError("--values shows numbers in the terminal or on the page; leave out the other option")
    if arguments.json and len(arguments.names) > 1:
        raise UsageError("--json writes one schedule; name one algorithm")


def _check_comparison(arguments: argparse.Namespace) -> None:
    if not arguments.compare:
        return
    if arguments.html is None:
        raise UsageError("--compare opens the page with two schedules beside each other; add --html FILE")
    recorded = (
        " with --measure" if arguments.measure else " with --recording" if arguments.recording is not None else ""
    )
    if len(arguments.names) != (1 if recorded else 2):
        raise UsageError(
            "--compare takes two algorithms, or one with --measure or --recording FILE; "
            f"got {len(arguments.names)}{recorded}"
        )


def _make(choice: Choice, ranks: int, arguments: argparse.Namespace) -> _Shown:
    if is_schedule(choice.name):
        return _Shown(choice, choice.schedule(ranks, arguments.root), None, None)
    function: Any = function_of(choice.name) if is_file(choice.name) else choice.name
    schedule, error = schedule_up_to_error(
        choice.collective, function, ranks, arguments.root, **loads(choice.parameters)
    )
    return _Shown(choice, schedule, error, None if isinstance(function, str) else function)


def _show(shown: _Shown, islands: Islands, arguments: argparse.Namespace) -> None:
    schedule = shown.schedule
    if arguments.json:
        write_json(schedule.to_json())
    elif arguments.programs or arguments.messages:
        made = shown.choice.two_level(schedule.root, islands) if islands and arguments.messages else None
        _write_bit_by_bit(_programs(schedule, arguments.messages, made), arguments.color)
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


def _programs(schedule: Schedule, messages: bool, made: MessagePrograms | None) -> Iterator[Text]:
    verify(schedule)  # only a correct schedule has programs
    programs = made or (lower(schedule) if messages else compile(schedule))
    if isinstance(programs, MessagePrograms) and made is None:
        check_messages(programs)
    yield Text(title(schedule), style=TERMINAL["title"])
    for rank in range(schedule.ranks):
        yield Text()
        yield Text(f"rank {rank}", style=TERMINAL["label"])
        yield from (Text(f"  {line}") for line in programs.describe(rank).splitlines() or ["nothing to do"])


def _page(shown: list[_Shown], arguments: argparse.Namespace) -> str:
    from ...view.html import page_as_html

    first, size = shown[0], parse_size(arguments.size)
    recording = None
    if arguments.measure:
        from ...studio.measure import record

        recording = record(first.schedule, size, first.function or first.choice.name)
    elif arguments.recording is not None:
        from ...studio.recording import read_recording

        recording = read_recording(arguments.recording, first.schedule, size)
    against = None
    if arguments.compare:
        against = "measured" if recording is not None else shown[1].schedule.algorithm
        if against == first.schedule.algorithm:
            raise UsageError(f"{arguments.names[0]} and {arguments.names[1]} are both called {against}; rename one")
        if len({(one.schedule.collective, one.schedule.ranks) for one in shown}) > 1:
            titles = " and ".join(one.schedule.title for one in shown)
            raise UsageError(f"{titles} cannot be compared: expected one collective and one number of ranks")
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
        values=None if arguments.values is None else read_values(arguments.values, first.schedule),
        op=find_op(arguments.op).name,
        against=against,
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
