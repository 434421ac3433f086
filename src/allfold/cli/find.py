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
from ..find.find import METHODS, PROVING, find
from ..find.found import Found
from ..price.cost.plan import Planner, duration
from ..price.topology.parse import this_machine_unless
from ..price.topology.topology import Topology
from ..price.topology.without import without
from ..wording import UNITS, counted, format_size, parse_size
from .choose import one_rank_count
from .terminal import add_color, add_json, progress, write_json, write_lines, write_table

SUMMARY = """\
Find the best schedule for a network. It is priced as allfold plan prices algorithms, proved as allfold verify proves them, and
compared with the time that nothing can beat, with the ranks and links that it comes from. The topology is a name or a JSON
file, as for allfold plan. Ctrl-C ends the search with the best so far, if there is one. docs/find.md explains the methods."""

_EPILOG = """\
methods:
  throughput  spanning trees (for scatter and gather, paths) that keep the narrowest place busy; for large buffers
  steps       the fewest steps, and what more of them buy, exactly; for small networks
  greedy      the rarest chunks first, round by round; for thousands of ranks, and for all_to_all
  channels    rings and trees once per network card of a host, each part of the buffer over other ranks, as NCCL does
  built_in    the best of the algorithms that allfold list lists
  auto        those that suit the collective and the network, one after the other, until the least is nearly met

example:
  $ allfold find --collective all_gather --topology dgx1 --size 1GiB
  all_gather of 1G between 8 ranks on dgx1
    found    greedy_dgx1: 48 chunks, 7 steps, 224 messages
    time     6.31 ms, 170.2 GB/s: 1.007 times the least
    least    6.26 ms: ranks 1–7 can send no more than 150 GB/s to the rest: 4 links (rank 1 to rank 0, rank 4 to …
    beside   direct, the best built-in algorithm here, 16.1 ms: 2.573 times the least
    search   greedy, …

  $ allfold find --collective all_gather --topology dgx1 --without "rank 1 to rank 0" --html page.html
  $ allfold find --collective all_gather --topology dgx1 --certificate bound.json
  $ allfold check-bound bound.json dgx1   # what proves the least time, checked by another program
  $ allfold find --topology dgx_h100:nodes=16 --size 64M --seconds 20 --save reduce.json
  $ allfold verify reduce.json            # likewise show, plan --algorithms, simulate, export and compare

  $ allfold find --collective all_gather --ranks 4 --size 1M --save here.json       # on the cores of this machine
  $ allfold bench --algo here.json,auto,ring --peers none                           # measured beside others
  $ torchrun --nnodes 2 … -m allfold topo --emit hosts.json                         # hosts as measured, for --topology

exit status: 0 found, also if Ctrl-C ended the search early; 2 wrong usage, or nothing was found in the time; 130 after
Ctrl-C before anything was found and proved."""

_MOST_PLANNED = 64  # ranks; up to here the best built-in algorithm is shown beside it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--collective", default="all_reduce", metavar="C", help="what to find (default: all_reduce)")
    parser.add_argument(
        "--topology",
        metavar="NAME[:k=v,…]|FILE.json",
        help="the network, as for allfold plan (default: the cores of this machine)",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="LINK",
        help="without this link, which failed; may be repeated",
    )
    parser.add_argument(
        "--ranks", metavar="N", help="the first N ranks take part, others only relay (default: all of the topology)"
    )
    parser.add_argument("--root", type=int, metavar="R", help="the root of a rooted collective (default: 0)")
    parser.add_argument("--size", default="1GiB", metavar="S", help=f"bytes of the buffer (default: 1GiB). {UNITS}")
    parser.add_argument(
        "--method", default="auto", metavar="M", help=f"auto, {', '.join(METHODS)} (default: auto; see below)"
    )
    parser.add_argument("--chunks", type=int, metavar="K", help="K chunks (or trees) per rank, not the best number")
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="T", help="give the best found after T seconds (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (default: 0)")
    parser.add_argument(
        "--save", metavar="FILE.json", help="write the schedule; commands take it wherever they take an algorithm"
    )
    parser.add_argument(
        "--certificate",
        metavar="FILE.json",
        help="write what proves the least time, in exact numbers; allfold check-bound checks it",
    )
    parser.add_argument("--html", metavar="FILE", help="write the interactive page of the schedule")
    add_json(parser)
    add_color(parser)


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
