"""`allfold find`: the best schedule for a network, and how close it is to what nothing can beat."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator

from rich.text import Text

from ..collectives import find_collective
from ..errors import UsageError
from ..files import write_whole
from ..find.find import PROVING, find
from ..find.found import Found
from ..price.cost.plan import Planner, duration
from ..price.topology.parse import this_machine_unless
from ..price.topology.topology import Topology
from ..price.topology.without import without
from ..wording import counted, format_size, parse_size
from .choose import one_rank_count
from .terminal import progress, write_json, write_lines, write_table

_MOST_PLANNED = 64  # ranks; up to here the best built-in algorithm is shown beside it


def run(arguments: argparse.Namespace) -> int:
    if arguments.save is not None and not arguments.save.endswith(".json"):
        raise UsageError(f"--save {arguments.save}: expected a name that ends in .json, by which schedules are known")
    collective = find_collective(arguments.collective).name
    ranks = None if arguments.ranks is None else one_rank_count(arguments.ranks)
    topology = without(this_machine_unless(arguments.topology, ranks), arguments.without)
    size = parse_size(arguments.size)
    doing = ["looking at the network"]
    try:
        with progress(doing[0]) as show:

            def say(sentence: str) -> None:
                doing.append(sentence)
                show(sentence)

            found = find(
                collective,
                topology,
                size,
                ranks,
                arguments.method,
                arguments.root,
                arguments.chunks,
                arguments.seconds,
                arguments.seed,
                say,
            )
    except KeyboardInterrupt:
        what = "what was found was proved" if doing[-1] == PROVING else "anything was found"
        sys.stderr.write(f"allfold find: ended by Ctrl-C before {what}\n")
        return 128 + signal.SIGINT
    if arguments.save is not None:
        found.schedule.save(arguments.save)
    if arguments.certificate is not None:
        document = json.dumps(found.certificate.to_json(), indent=1, ensure_ascii=False)
        write_whole(arguments.certificate, document + "\n")
    if arguments.html is not None:
        from ..view.html import page_as_html
        from ..view.page import page_of

        write_whole(arguments.html, page_as_html(page_of(found.schedule, topology, size, view="bytes", follow="cut")))
    if arguments.json:
        write_json(found.to_json())
        return 0
    hosts = f", {topology.hosts} hosts" if topology.hosts > 1 else ""
    of_size = f" of {format_size(size)}" if found.schedule.promise.carries_data else ""
    title = f"{collective}{of_size} between {found.schedule.ranks:,} ranks on {topology.name}{hosts}"
    write_lines([Text(title, style="bold"), *_facts(found, topology)], arguments.color)
    _write_frontier(found, arguments.color)
    return 0


def _facts(found: Found, topology: Topology) -> Iterator[str]:
    schedule, cost = found.schedule, found.cost
    segments = f", {cost.segments:,} segments" if cost.segments > 1 else ""
    yield (
        f"  found    {schedule.algorithm}: {schedule.chunks:,} chunks, {counted(schedule.steps, 'step')}, "
        f"{schedule.counts.messages:,} messages{segments}"
    )
    has_rate = found.time and schedule.promise.carries_data
    rate = f", {cost.size / found.time / 1e9:,.4g} GB/s" if has_rate else ""
    times = "" if found.ratio is None else f": {found.ratio:.4g} times the least"
    yield f"  time     {duration(found.time)}{rate}{times}"
    yield f"  least    {duration(found.bound)}: {found.why}"
    stock = _stock(found, topology)
    if stock:
        yield f"  beside   {stock}"
    ended = "" if found.complete else "; it was ended early, and more time may find a better one"
    yield f"  search   {found.method}, {found.seconds:.2f} s; proved in {found.proving:.2f} s{ended}"


def _stock(found: Found, topology: Topology) -> str | None:
    """The best built-in algorithm at this size."""
    if not 1 < found.schedule.ranks <= _MOST_PLANNED or not found.time or found.method == "built_in":
        return None
    best = Planner(found.schedule.collective, topology, found.schedule.ranks).plan(found.cost.size).winner
    times = f": {best.time / found.bound:.4g} times the least" if found.bound else ""
    return f"{best.algorithm}, the best built-in algorithm here, {duration(best.time)}{times}"


def _write_frontier(found: Found, color: bool | None) -> None:
    rows = found.notes.get("frontier")
    if not rows:
        return
    words = {True: "exists", False: "does not exist", None: "not known"}
    write_lines(["", "By synchronous steps, in rounds of one chunk per unit of bandwidth:"], color)
    write_table(
        ("chunks per rank", "steps", "rounds", "result"),
        [[str(row["chunks"]), str(row["steps"]), str(row["rounds"]), words[row["exists"]]] for row in rows],
        color,
        left=0,
    )
