"""`allfold simulate`: who sends what when, on a given topology."""

from __future__ import annotations

import argparse
import json

from rich.text import Text

from ..division import Lengths
from ..errors import UsageError
from ..files import write_whole
from ..price.cost.closed_form import closed_form
from ..price.cost.cost import cost
from ..price.cost.plan import duration
from ..price.simulate.noise import Noise
from ..price.simulate.simulate import MOST_MESSAGES, simulate
from ..price.simulate.timeline import Timeline
from ..price.topology.parse import find_topology
from ..schedules import Schedule
from ..view.text import title
from ..view.timeline import timeline_as_svg, timeline_as_text
from ..view.tokens import TERMINAL
from ..wording import counted, parse_size
from .choose import Choice, choose, counts_of, ranks_of
from .terminal import bar, progress, width, write_json, write_lines


def run(arguments: argparse.Namespace) -> int:
    choice = choose(arguments.name, arguments.collective, arguments.parameters)
    ranks = ranks_of(choice, arguments.ranks)
    noise = Noise(arguments.noise, arguments.noise, dict(_slow(word) for word in arguments.slow), arguments.seed)
    topology = find_topology(arguments.topology, ranks)
    _require_bearable(choice, ranks)
    with progress("making the schedule"):
        schedule = choice.schedule(ranks, arguments.root)
    counts = counts_of(schedule.collective, ranks, arguments.counts)
    with bar("simulating") as update:
        timeline = simulate(
            schedule,
            topology,
            parse_size(arguments.size),
            arguments.segments,
            noise,
            lambda done, total: update(completed=done, total=total),
            counts=counts,
        )
    if arguments.svg is not None:
        write_whole(arguments.svg, timeline_as_svg(timeline))
    if arguments.trace is not None:
        write_whole(arguments.trace, json.dumps(timeline.to_chrome(), ensure_ascii=False))
    if arguments.json:
        write_json(timeline.to_json())
        return 0
    write_lines(
        [Text(title(schedule), style=TERMINAL["title"]), *_facts(schedule, timeline, counts), Text()], arguments.color
    )
    write_lines(timeline_as_text(timeline, width()), arguments.color)
    return 0


def _require_bearable(choice: Choice, ranks: int) -> None:
    """Raise for too many messages now, if known in advance, rather than after hours of building a schedule."""
    form = closed_form(choice.collective, choice.name, ranks)
    if form is not None and form.messages is not None and form.messages > MOST_MESSAGES:
        raise UsageError(
            f"{choice.name} between {ranks:,} ranks has {form.messages:,} messages; at most {MOST_MESSAGES:,} are simulated "
            "(allfold plan prices more)"
        )


def _facts(schedule: Schedule, timeline: Timeline, counts: Lengths | None) -> list[str]:
    took = timeline.duration
    priced = cost(schedule, timeline.topology, timeline.size, timeline.segments, counts)
    least = "" if counts is not None else f", at least {duration(priced.bounds.time)}"
    idle = timeline.idle()
    parts = [f"{duration(seconds)} {name}" for name, seconds in timeline.critical_parts().items() if seconds > 0]
    laziest = int(idle.argmax())
    path = [counted(len(timeline.critical), "message"), *([", ".join(parts)] if parts else [])]
    return [
        f"  time            {duration(took)}  (step by step {duration(priced.time)}{least})",
        f"  critical path   {': '.join(path)}",
        f"  idle            {idle.mean() / took if took else 0:.0%} in the mean, "
        f"rank {laziest} most with {idle[laziest] / took if took else 0:.0%}",
    ]


def _slow(word: str) -> tuple[int, float]:
    rank, _, factor = word.partition("=")
    try:
        return int(rank), float(factor)
    except ValueError:
        raise UsageError(f"--slow {word}: expected RANK=FACTOR, as in --slow 3=2.5") from None
