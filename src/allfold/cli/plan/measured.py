"""`allfold plan --measured`: what the model of this machine predicts, beside what `allfold tune` measured."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path

from ...bench.sizes import format_size
from ...errors import UsageError
from ...price.cost.plan import duration
from ...tune.measured import Comparison, measured
from ..choose import one_rank_count
from ..terminal import width, write_json, write_lines, write_table


def write_measured(
    arguments: argparse.Namespace, collective: str, names: Sequence[str] | None, sizes: Sequence[int] | None
) -> int:
    """The table for one collective; `arguments.measured` is the file, or empty for the user's own."""
    for option in ("topology", "segments", "svg"):
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option} is for a plan; --measured shows what was measured on one machine")
    if arguments.sweep:
        raise UsageError("--sweep is for a plan; --measured shows what was measured on one machine")
    path = Path(arguments.measured) if arguments.measured else None
    ranks = None if arguments.ranks is None else one_rank_count(arguments.ranks)
    found = measured(path, ranks, [collective], names, sizes)
    if arguments.json:
        write_json(found.to_json())
        return 0
    machine = found.run.machine
    title = (
        f"{collective} between {found.run.ranks} ranks, measured {found.run.date} on {machine['processor']}, "
        f"{machine['cores']} cores"
    )
    write_lines([title], arguments.color)
    write_table(_HEAD, _rows(found), arguments.color, left=4)
    for line in found.lines():
        write_lines(["", *textwrap.wrap(line, min(width(), 110))], arguments.color)
    return 0


_HEAD = ("size", "arrays", "algorithm", "fastest", "predicted", "measured", "error")


def _rows(found: Comparison) -> list[list[str] | None]:
    """By size and kind of arrays, the fastest measured first, with a gap between groups; the two winners are marked."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for i, item in enumerate(found.items):
        groups.setdefault((item.size, item.shared), []).append(i)
    rows: list[list[str] | None] = []
    errors = found.errors()
    for (size, shared), members in sorted(groups.items()):
        members.sort(key=lambda i: found.measured[i])
        foreseen = min(members, key=lambda i: found.predicted[i])
        rows += [None] if rows else []
        for i in members:
            marks = ["measured"] * (i == members[0]) + ["predicted"] * (i == foreseen)
            rows.append(
                [
                    format_size(size) if size else "–",
                    "shared" if shared else "ordinary",
                    found.items[i].algorithm,
                    ", ".join(marks),
                    duration(found.predicted[i]),
                    duration(found.measured[i]),
                    f"{errors[i]:+.0%}",
                ]
            )
    return rows
