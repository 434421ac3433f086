"""`allfold find`: the best schedule for a network, and how close it is to what nothing can beat."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator

from rich.text import Text

from ..collectives import find_collective
from ..errors import UsageError
from ..files import write_whole
from ..price.cost.plan import Planner, duration
from ..price.topology.parse import this_machine_unless
from ..price.topology.topology import Topology
from ..price.topology.without import without
from ..search.find import PROVING, find
from ..search.found import Found
from ..search.together import FoundTogether
from ..view.tokens import TERMINAL
from ..wording import counted, format_size, one_rank_count, parse_size, ranges
from .terminal import progress, write_json, write_lines, write_table

_MOST_PLANNED = 64  # ranks; up to here the best built-in algorithm is shown beside it


def run(arguments: argparse.Namespace) -> int:
    if arguments.save is not None and not arguments.save.endswith(".json"):
        raise UsageError(f"--save {arguments.save}: expected a file name that ends in .json")
    collective = find_collective(arguments.collective).name
    ranks = None if arguments.ranks is None else one_rank_count(arguments.ranks)
    groups = None if arguments.groups is None else [_group(text) for text in arguments.groups]
    if groups is not None and arguments.html is not None:
        raise UsageError("--html draws one schedule, and groups have several: --save them, and draw each")
    needed = ranks if groups is None else 1 + max(max(group) for group in groups)
    topology = without(this_machine_unless(arguments.topology, needed), arguments.without)
    size = parse_size(arguments.size)
    doing = ["looking at the network"]
    try:
        with progress(doing[0]) as show:

            def say(sentence: str) -> None:
                doing.append(sentence)
                show(sentence)

            how = (ranks, arguments.method, arguments.root, arguments.chunks, arguments.seconds, arguments.seed, say)
            if groups is not None:
                together = find(collective, topology, size, *how, groups=groups)
            else:
                found = find(collective, topology, size, *how)
    except KeyboardInterrupt:
        what = "what was found was proved" if doing[-1] == PROVING else "anything was found"
        sys.stderr.write(f"allfold find: ended by Ctrl-C before {what}\n")
        return 128 + signal.SIGINT
    if groups is not None:
        return _write_together(together, arguments)
    if arguments.save is not None:
        found.schedule.save(arguments.save)
    if arguments.certificate is not None:
        write_json(found.certificate.to_json(), arguments.certificate)
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
    write_lines([Text(title, style=TERMINAL["title"]), *_facts(found, topology)], arguments.color)
    _write_frontier(found, arguments.color)
    return 0


def _group(text: str) -> list[int]:
    """`0-3` or `0,2,4-6` as numbers of ranks."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and len(part) < 16):
            raise UsageError(f"--groups {text[:60]!r}: expected numbers of ranks, as in 0-3 or 0,2,4")
        if not int(first) <= int(last or first) < 2**20:
            raise UsageError(f"--groups {text[:60]!r}: {part} goes backwards, or is too large")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def _write_together(found: FoundTogether, arguments: argparse.Namespace) -> int:
    if arguments.save is not None:
        for number, schedule in enumerate(found.schedules):
            schedule.save(f"{arguments.save.removesuffix('.json')}.{number}.json")
    if arguments.certificate is not None:
        write_json(found.certificate, arguments.certificate)
    if arguments.json:
        write_json(found.to_json())
        return 0
    of_size = f" of {format_size(found.size)}" if found.schedules[0].promise.carries_data else ""
    head = f"{found.collective}{of_size} in each of {counted(len(found.groups), 'group')} on {found.topology}"
    times = "" if found.ratio is None else f": {found.ratio:.4g} times the least"
    segments = f", {found.segments:,} segments" if found.segments > 1 else ""
    ended = "" if found.complete else "; stopped early, and more time may find better ones"
    write_lines([Text(head, style=TERMINAL["title"])], arguments.color)
    rows = [
        [str(number), ranges(group), one.algorithm, f"{one.chunks:,}", str(one.steps), duration(alone)]
        for number, (group, one, alone) in enumerate(zip(found.groups, found.schedules, found.alone, strict=True))
    ]
    write_table(("group", "ranks", "found", "chunks", "steps", "alone"), rows, arguments.color, left=3)
    lines = [
        f"  together    {duration(found.time)}{times}{segments}",
        f"  one by one  {duration(found.one_by_one)}, if each is found as if it had the network alone",
        f"  least       {duration(found.bound)}: {found.why}",
        f"  search      {found.seconds:.2f} s, with the proofs{ended}",
    ]
    write_lines(lines, arguments.color)
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
    ended = "" if found.complete else "; stopped early, and more time may find a better one"
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
