"""`allfold plan`: which algorithm, for this size, on this topology; how long it takes, and what limits it."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterator

from ...collectives import find_collective
from ...errors import UsageError
from ...files import write_whole
from ...price.cost.cost import Cost
from ...price.cost.plan import Plan, Planner, duration
from ...price.cost.sweep import sweep
from ...price.topology.parse import this_machine_unless
from ...registry import algorithms, find_algorithm
from ...schedules import Schedule
from ...wording import format_size, one_rank_count, parse_size, parse_sizes, rank_counts
from ..choose import choose_some, counts_of
from ..terminal import bar, wants_color, width, write_json, write_lines, write_table
from .hosts import write_hosts
from .map import map_as_svg, map_as_text
from .measured import write_measured

_SWEEP_RANKS = "2,4,8,16,32,64,128,256,512,1024"
_SWEEP_SIZES = "1K-1G"


def run(arguments: argparse.Namespace) -> int:
    if arguments.hosts and arguments.measured is None:
        return write_hosts(arguments, arguments.collective)
    words = [] if arguments.algorithms is None else arguments.algorithms.split(",")
    collective, names, made = choose_some(words, arguments.collective)
    if made and (arguments.sweep or arguments.measured is not None):
        raise UsageError(f"{made[0].title} is a schedule for these ranks only; --sweep and --measured cannot take it")
    if arguments.measured is not None:
        sizes = None if arguments.size is None else parse_sizes(arguments.size)
        return write_measured(arguments, collective, names, sizes)
    if arguments.hosts is not None:
        raise UsageError("--hosts: give the number of ranks on each host (--hosts 2,3), or add --measured")
    if arguments.sweep and arguments.counts is not None:
        raise UsageError("--counts is for one plan, not for --sweep")
    return _show_map(arguments, collective, names) if arguments.sweep else _plan(arguments, collective, names, made)


def _plan(arguments: argparse.Namespace, collective: str, names: list[str] | None, made: list[Schedule]) -> int:
    if arguments.svg is not None:
        raise UsageError("--svg draws the map of --sweep; add --sweep")
    size = parse_size("64M" if arguments.size is None else arguments.size)
    ranks = None if arguments.ranks is None else one_rank_count(arguments.ranks)
    if made and ranks is None:
        ranks = made[0].ranks
    topology = this_machine_unless(arguments.topology, ranks)
    chosen = topology.ranks if ranks is None else ranks
    with bar("pricing", len(names or algorithms(collective))) as update:
        root = made[0].root if made else None
        counts = counts_of(collective, chosen, arguments.counts)
        found = Planner(collective, topology, chosen, names, _ticks(update), root, made, counts).plan(
            size, arguments.segments
        )
    if arguments.json:
        write_json(found.to_json())
        return 0
    hosts = f", {topology.hosts} hosts" if topology.hosts > 1 else ""
    of_size = f" of {format_size(size)}" if find_collective(collective).carries_data else ""
    place = "this machine" if arguments.topology is None else topology.name
    parts = "" if counts is None else f" in parts as {arguments.counts}"
    title = f"{collective}{of_size}{parts} between {chosen:,} ranks on {place}{hosts}"
    write_lines([title], arguments.color)
    _write_plan(found, arguments.color)
    for note in (found.reason, *_notes(found)):
        write_lines(["", *textwrap.wrap(note, min(width(), 110))], arguments.color)
    return 0


def _write_plan(found: Plan, color: bool | None) -> None:
    columns: dict[str, Callable[[Cost], str]] = {
        "algorithm": lambda cost: cost.algorithm,
        "limited by": lambda cost: str(cost.limit),
        "time": lambda cost: duration(cost.time),
        "× least": lambda cost: "–" if cost.ratio is None else _short(cost.ratio),
        "bus GB/s": lambda cost: _short(cost.bus_bandwidth / 1e9),
        "uplinks": _uplinks,
        "steps": lambda cost: f"{cost.steps:,}",
        "segments": lambda cost: f"{cost.segments:,}",
        "from": lambda cost: cost.source,
    }
    if not _has_uplinks(found):
        del columns["uplinks"]
    if found.counts is not None:  # both compare with what equal parts need
        del columns["× least"], columns["bus GB/s"]
    rows = [[cell(cost) for cell in columns.values()] for cost in found.costs]
    narrow = ("from", "segments", "bus GB/s", "uplinks", "limited by")
    write_table(list(columns), rows, color, left=2, narrow={name: None for name in narrow if name in columns})


def _uplinks(cost: Cost) -> str:
    """Bytes through all uplinks, as a multiple of the buffer."""
    if cost.bytes_by_kind is None or not cost.size:
        return "–"
    return f"{_short(cost.bytes_by_kind['uplink'] / cost.size)} S"


def _has_uplinks(found: Plan) -> bool:
    return any(cost.bytes_by_kind and cost.bytes_by_kind.get("uplink") for cost in found.costs)


def _notes(found: Plan) -> Iterator[str]:
    least = found.winner.bounds
    if found.counts is None:
        yield (
            f"“× least” is the time over what no algorithm can beat here: {duration(least.latency)} for word to reach all "
            f"ranks, {duration(least.bandwidth)} for the bytes that must cross {least.cut}, {duration(least.reduction)} to "
            "combine them."
        )
    if _has_uplinks(found):
        yield (
            "“Uplinks” is what all links between leaves (up and down) or between groups carry together, in buffers of S bytes."
        )
    two_levels = [
        cost.algorithm
        for cost in found.costs
        if cost.algorithm in algorithms(found.collective)
        and find_algorithm(found.collective, cost.algorithm).takes_groups
    ]
    if two_levels and found.ranks > 1:
        words = " or ".join(f"{size:,}" for size in sorted(set(found.groups), reverse=True))
        many = "one group" if len(found.groups) == 1 else f"{len(found.groups):,} groups"
        yield f"{' and '.join(two_levels)}: {many} of {words} consecutive ranks."
    for name, reason in found.left_out.items():
        yield f"{name} is left out: {reason}."
    if any(cost.source == "at least" for cost in found.costs):
        yield "“At least”: for exchanges between this many ranks, only what crosses the narrowest place is counted."
    yield f"Figures of {found.topology.name}: {found.topology.source.rstrip('.')}."


def _show_map(arguments: argparse.Namespace, collective: str, names: list[str] | None) -> int:
    if arguments.segments is not None:
        raise UsageError("--segments is for one plan; --sweep takes the best number everywhere")
    ranks = rank_counts(arguments.ranks or _SWEEP_RANKS)
    sizes = parse_sizes(_SWEEP_SIZES if arguments.size is None else arguments.size)
    with bar("pricing", len(ranks) * len(names or algorithms(collective))) as update:
        found = sweep(
            collective, lambda many: this_machine_unless(arguments.topology, many), ranks, sizes, names, _ticks(update)
        )
    if arguments.svg is not None:
        write_whole(arguments.svg, map_as_svg(found))
    if arguments.json:
        write_json(found.to_json())
    else:
        write_lines(map_as_text(found, wants_color(arguments.color)), arguments.color)
    return 0


def _ticks(update: Callable[..., None]) -> Callable[[str], None]:
    return lambda name: update(advance=1, description=f"pricing {name}")


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"
