"""`allfold simulate`: who sends what when, on a given topology."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from ..errors import UsageError
from ..files import write_whole
from ..price.cost.closed_form import closed_form
from ..price.cost.cost import cost
from ..price.cost.plan import duration
from ..price.simulate.noise import Noise
from ..price.simulate.simulate import MOST_MESSAGES, simulate
from ..price.simulate.timeline import Timeline
from ..price.topology.parse import find_topology
from ..schedule import Schedule
from ..view.text import title
from ..view.timeline import timeline_as_svg, timeline_as_text
from ..wording import UNITS, counted, parse_size
from .choose import Choice, add_with, choose, ranks_of
from .terminal import add_color, add_json, progress, width, write_json, write_lines

SUMMARY = """\
Simulate an algorithm on a topology, message by message: a message leaves as soon as its data is ready and its port is free,
links are shared fairly, reductions take time. The result shows which ranks were busy when, and the critical path."""

_EPILOG = """\
example:
  $ allfold simulate ring --ranks 4 --size 64K --topology laptop
  all_reduce by ring: 4 ranks, 4 chunks, 6 steps, 24 messages
    time            11.5 µs  (step by step 11.5 µs, at least 7.86 µs)
    critical path   6 messages: 1.80 µs startup, 7.86 µs transfer, 0.60 µs latency, 1.23 µs combining
    idle            16% in the mean, rank 0 most with 16%

          0                                                                                    11.5 µs
  rank 0  ··▀██████████▄+++··▀██████████▄+++··▀██████████▄+++··▀██████████▄··▀██████████···▀█████████▄
  …

  $ allfold simulate tree --ranks 16 --size 16M --topology hosts:ranks_per_host=4 --segments 16 --svg tree.svg
  $ allfold simulate double_tree --ranks 64 --size 1M --topology fat_tree --noise 0.2 --slow 3=2 --seed 7 --trace t.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("name", metavar="NAME", help="an algorithm, FILE.py:function, FILE.xml (MSCCL) or FILE.json")
    parser.add_argument("--collective", metavar="C", help="of this collective (default: all_reduce where it has one)")
    parser.add_argument("--ranks", metavar="N", help="how many ranks (default: 4, or those of the file)")
    parser.add_argument("--root", type=int, metavar="R", help="the root of a rooted collective (default: 0)")
    add_with(parser)
    parser.add_argument("--size", default="1M", metavar="S", help=f"bytes of the buffer (default: 1M). {UNITS}")
    parser.add_argument(
        "--topology",
        default="one_host",
        metavar="NAME[:k=v,…]|FILE.json",
        help="where the ranks sit (default: one_host)",
    )
    parser.add_argument("--segments", type=int, default=1, metavar="M", help="cut chunks into M segments (default: 1)")
    parser.add_argument(
        "--noise",
        type=float,
        default=0.0,
        metavar="X",
        help="random delay of the latency and the transfer of every message, on average by a factor of 1 + X (0.1: 10 %%)",
    )
    parser.add_argument(
        "--slow", action="append", default=[], metavar="RANK=F", help="this rank takes F times as long; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the noise (default: 0)")
    parser.add_argument("--svg", metavar="FILE", help="draw the space-time diagram")
    parser.add_argument("--trace", metavar="FILE", help="write the trace for Perfetto and chrome://tracing")
    add_json(parser)
    add_color(parser)


def run(arguments: argparse.Namespace) -> int:
    choice = choose(arguments.name, arguments.collective, arguments.parameters)
    ranks = ranks_of(choice, arguments.ranks)
    noise = Noise(arguments.noise, arguments.noise, dict(_slow(word) for word in arguments.slow), arguments.seed)
    topology = find_topology(arguments.topology, ranks)
    _require_bearable(choice, ranks)
    with progress("making the schedule"):
        schedule = choice.schedule(ranks, arguments.root)
    bar = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with bar:
        task = bar.add_task("simulating", total=None)
        timeline = simulate(
            schedule,
            topology,
            parse_size(arguments.size),
            arguments.segments,
            noise,
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    if arguments.svg is not None:
        write_whole(arguments.svg, timeline_as_svg(timeline))
    if arguments.trace is not None:
        write_whole(arguments.trace, json.dumps(timeline.to_chrome(), ensure_ascii=False))
    if arguments.json:
        write_json(timeline.to_json())
        return 0
    write_lines([Text(title(schedule), style="bold"), *_facts(schedule, timeline), Text()], arguments.color)
    write_lines(timeline_as_text(timeline, width()), arguments.color)
    return 0


def _require_bearable(choice: Choice, ranks: int) -> None:
    """Refuse too many messages now, if known in advance, rather than after hours of building a schedule."""
    form = closed_form(choice.collective, choice.name, ranks)
    if form is not None and form.messages is not None and form.messages > MOST_MESSAGES:
        raise UsageError(
            f"{choice.name} between {ranks:,} ranks has {form.messages:,} messages; at most {MOST_MESSAGES:,} are simulated "
            "(allfold plan prices more)"
        )


def _facts(schedule: Schedule, timeline: Timeline) -> list[str]:
    took = timeline.duration
    priced = cost(schedule, timeline.topology, timeline.size, timeline.segments)
    idle = timeline.idle()
    parts = [f"{duration(seconds)} {name}" for name, seconds in timeline.critical_parts().items() if seconds > 0]
    laziest = int(idle.argmax())
    path = [counted(len(timeline.critical), "message"), *([", ".join(parts)] if parts else [])]
    return [
        f"  time            {duration(took)}  (step by step {duration(priced.time)}, at least {duration(priced.bounds.time)})",
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
