"""What `allfold tune` says at the end: the choices beside the built-in ones, the figures of the model, the notes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...engines.shared_memory.choice import ALWAYS, Way, choices, ways
from ...errors import UsageError
from ...price.cost.plan import duration
from ...tune.caches import PLACES
from ...tune.file import TunedRun, default_path
from ...tune.fit import AS_GOOD, JUDGED_FROM
from ...tune.hosts import HostsRun
from ...tune.model import ACCESSES, amounts, paths
from ...tune.ordinary import describe, gains
from ...wording import format_size
from ..plan.hosts_table import HOSTS_HEAD, hosts_rows
from ..terminal import width, write_lines, write_table

_RESTLESS = 0.15


def report(found: TunedRun, seconds: float | None, color: bool | None) -> None:
    setting = found.model.setting
    write_lines(
        [
            f"{found.ranks} ranks on {found.machine['processor']}, {setting.cores} cores: "
            f"{len(found.items) + len(found.moved)} timings, {found.date if seconds is None else f'{seconds:.0f} s'}",
            "",
        ],
        color,
    )
    rows = [[name, _row(row), _row(choices(name, found.ranks))] for name, row in found.choices.items()]
    write_table(("collective", "chosen here", "built-in rule"), rows, color, left=3)
    if found.ways:
        rows = [
            [name, _ways(row, name), _ways(ways(name, found.ranks), name), _gain(found, name)]
            for name, row in found.ways.items()
        ]
        write_lines([""], color)
        write_table(("ordinary arrays", "moved here", "built-in rule", "time ÷ rule's"), rows, color, left=3)
    elif found.moved:
        write_lines(["", "ordinary arrays: no way of moving them was faster than the built-in ones"], color)
    write_lines(["", *_figures(found), ""], color)


def write_notes(found: TunedRun, path: Path, color: bool | None) -> None:
    notes = []
    if found.unrest > _RESTLESS:
        notes.append(
            f"The machine was busy: the rounds of a timing differ by {found.unrest:.0%} on average. Do not trust what is "
            "above; tune again when nothing else runs."
        )
    notes += [
        f"“reaching”: arrays in shared memory are read where they lie. Error: the geometric mean of predicted ÷ measured, or "
        f"its reverse, from {JUDGED_FROM // 1024} KiB on; a winner is right if it took at most {AS_GOOD - 1:.0%} more than "
        "the fastest. Ordinary arrays: “pull”, readers read a result out of the work area of the rank that made it; “push”, "
        "it writes into theirs; “fetch”, the kernel copies from one process to the other; “in 256K”, the length of a segment.",
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


def _ways(rows: Sequence[Way], collective: str) -> str:
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


def _figures(found: TunedRun) -> Iterator[str]:
    """α, β and γ in words, and how good the model is."""
    terms, setting = found.model.named(), found.model.setting
    used = amounts(found.items, paths(found.items, setting, found.model.terms), setting).sum(axis=0) > 0
    known = {name for name, is_used in zip(terms, used, strict=True) if is_used}
    starts = [
        ("call", "a call"),
        ("instruction", "an instruction"),
        ("news", "news of a peer"),
        ("look", "a look at one"),
    ]
    starts += [("switch", "a change of ranks on a core"), ("fetch", "a fetch by the kernel")]
    yield "α   " + ", ".join(f"{words} {duration(terms[name])}" for name, words in starts if name in known)
    for what in ACCESSES:
        speeds = [f"{_speed(terms[name])} in {place}" for place in PLACES if (name := f"{what}, {place}") in known]
        if speeds:
            yield f"β   {what}, GB/s: " + ", ".join(speeds)
    besides = [
        ("first byte", "on the first page in a peer's cache"),
        ("contended byte", "for every other rank that reads there too"),
        ("fetched byte", "fetched by the kernel"),
        ("crowded byte", "for every other rank that fetches there too"),
    ]
    speeds = [f"{_speed(terms[name])} {words}" for name, words in besides if name in known]
    if speeds:
        yield "β   besides, GB/s: " + ", ".join(speeds)
    if "fold" in known:
        yield f"γ   a further operand of a fold, GB/s: {_speed(terms['fold'])}"
    for what, figures in (("all of it", found.judgement), ("held out", found.held_out)):
        if figures.cases:
            contests = f", winner right in {figures.right} of {figures.contests}" if figures.contests else ""
            yield f"model, {what}: error {figures.error:.1%} over {figures.cases} cases{contests}"


def _speed(seconds: float) -> str:
    return f"{1e-9 / seconds:.3g}" if seconds else "∞"


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
    across = f", across by {crossing.across}" if crossing.across else ""
    notes = [
        f"α   {duration(wire.latency)} for a small call that crosses once, of which {duration(wire.overhead)} to begin a send",
        f"β   {min(one.all_ranks for one in found.network.wires) / 1e9:.3g} GB/s between two hosts, each way at once",
        f"One leader per host crosses up to {_round(crossing.leaders_up_to)}; beyond, every rank, in segments of "
        f"{_round(crossing.segment)}{across}.",
        f"Written to {path}. `allfold plan --measured{'' if path == _default() else f' {path}'} --hosts` shows it again.",
    ]
    write_lines([""], color)
    for note in notes:
        write_lines(textwrap.wrap(note, min(width(), 110), break_long_words=False, break_on_hyphens=False), color)
