"""The report of `allfold tune`: the choices beside the built-in ones, and notes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from ...engines.shared_memory.choice import ALWAYS, Way, choices, ways
from ...errors import UsageError
from ...price.cost.plan import duration
from ...tune.file import TunedRun, default_path
from ...tune.hosts import HostsRun
from ...tune.ordinary import describe, gains
from ...wording import format_size
from ..plan.hosts_table import HOSTS_HEAD, hosts_rows
from ..terminal import width, write_lines, write_table

_RESTLESS = 0.15


def report(found: TunedRun, seconds: float | None, color: bool | None) -> None:
    write_lines(
        [
            f"{found.ranks} ranks on {found.machine['processor']}, {found.machine['cores']} cores: "
            f"{len(found.measured) + len(found.moved)} timings, {found.date if seconds is None else f'{seconds:.0f} s'}",
            "",
        ],
        color,
    )
    rows = [[name, _row(row), _row(choices(name, found.ranks))] for name, row in found.choices.items()]
    write_table(("collective", "chosen here", "built-in rule"), rows, color, left=3)
    if found.ways:
        rows = [
            [name, _describe_ways(row, name), _describe_ways(ways(name, found.ranks), name), _gain(found, name)]
            for name, row in found.ways.items()
        ]
        write_lines([""], color)
        write_table(("ordinary arrays", "moved here", "built-in rule", "time ÷ rule's"), rows, color, left=3)
    elif found.moved:
        write_lines(["", "ordinary arrays: no way of moving them was faster than the built-in ones"], color)
    write_lines([""], color)


def write_notes(found: TunedRun, path: Path, color: bool | None) -> None:
    notes = []
    if found.unrest > _RESTLESS:
        notes.append(
            f"The machine was busy: the rounds of a timing differ by {found.unrest:.0%} on average. Do not trust what is "
            "above; tune again when nothing else runs."
        )
    notes += [
        "“reaching”: arrays in shared memory are read where they lie. Ordinary arrays: “pull”, readers read a result out of "
        "the work area of the rank that made it; “push”, it writes into theirs; “fetch”, the kernel copies from one process "
        "to the other; “in 256K”, the length of a segment.",
        f"Written to {path}. `allfold plan --measured{'' if path == _default() else f' {path}'} --ranks {found.ranks}` "
        "shows every row.",
    ]
    for note in notes:
        write_lines(textwrap.wrap(note, min(width(), 110), break_long_words=False, break_on_hyphens=False), color)


def _row(row: Sequence[tuple[int, str, bool]]) -> str:
    """`naive to 32K, direct reaching`."""
    return ", ".join(
        f"{name}{' reaching' if reach else ''}{'' if limit >= ALWAYS else f' to {_round(limit)}'}"
        for limit, name, reach in row
    )


def _describe_ways(rows: Sequence[Way], collective: str) -> str:
    """`pull to 128K, fetch`."""
    return ", ".join(
        f"{describe(way, collective)}{'' if way.limit >= ALWAYS else f' to {_round(way.limit)}'}" for way in rows
    )


def _gain(found: TunedRun, collective: str) -> str:
    """`0.83 to 0.91`: over the sizes where something changes."""
    ratios = gains(found.ranks, collective, found.ways[collective], found.moved).values()
    if not ratios:
        return "–"
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return low if low == high else f"{low} to {high}"


def _round(size: int) -> str:
    """Three digits: a crossing is not known to the byte."""
    if size < 1024:
        return format_size(size)
    unit, letter = (2**10, "K") if size < 2**20 else (2**20, "M")
    value = size / unit
    return (f"{value:.3g}" if value < 999.5 else f"{value:.0f}") + letter


def _default() -> Path | None:
    try:
        return default_path()
    except UsageError:
        return None


def report_hosts(found: HostsRun, path: Path, seconds: float, color: bool | None) -> None:
    tuned, crossing = found.tuned, found.tuned.crossing
    hosts = " + ".join(map(str, tuned.hosts))
    write_lines([f"{hosts} ranks on {len(tuned.hosts)} hosts over {tuned.fabric}: {seconds:.0f} s", ""], color)
    write_table(HOSTS_HEAD, hosts_rows(found), color, left=2)
    wire = max(found.network.wires, key=lambda wire: wire.latency)
    alpha = wire.sizes[0][1] if wire.sizes else wire.latency  # fitted, or in an older file
    across = f", across by {crossing.across}" if crossing.across else ""
    notes = [
        f"α   {duration(alpha)} for a small call that crosses once, of which {duration(wire.overhead)} to begin a send",
        f"β   {min(one.all_ranks for one in found.network.wires) / 1e9:.3g} GB/s between two hosts, each way at once",
        f"One leader per host crosses up to {_round(crossing.leaders_up_to)}; beyond, every rank, in segments of "
        f"{_round(crossing.segment)}{across}.",
        f"Written to {path}. `allfold plan --measured{'' if path == _default() else f' {path}'} --hosts` shows it again.",
    ]
    write_lines([""], color)
    for note in notes:
        write_lines(textwrap.wrap(note, min(width(), 110), break_long_words=False, break_on_hyphens=False), color)
