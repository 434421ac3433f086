"""`allfold list`: which algorithms there are."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from ...collectives import COLLECTIVES, find_collective
from ...errors import UsageError
from ...price.cost.closed_form import Form, closed_form
from ...registry import algorithms, find_algorithm, schedule
from ...wording import one_rank_count
from ..terminal import progress, times, write_json, write_table
from .what_for import run as what_for

_MOST_COUNTED = 128  # ranks; schedules for 2,000 take a minute and gigabytes


def run(arguments: argparse.Namespace) -> int:
    if arguments.what_for:
        if arguments.collective is not None:
            raise UsageError("--what-for lists all collectives; leave out the name")
        return what_for(arguments)
    if arguments.size is not None or arguments.topology is not None:
        raise UsageError("--size and --topology are for estimates; add --what-for")
    ranks = one_rank_count(arguments.ranks)
    wanted = COLLECTIVES if arguments.collective is None else [find_collective(arguments.collective).name]
    with progress("counting"):
        found = [(find_algorithm(one, name), _count(one, name, ranks)) for one in wanted for name in algorithms(one)]
    if arguments.json:
        write_json(
            [
                {
                    "collective": algorithm.collective,
                    "algorithm": algorithm.name,
                    "summary": algorithm.summary,
                    "ranks": ranks,
                    **counts,
                }
                for algorithm, counts in found
            ]
        )
        return 0
    rows: list[list[str] | None] = []
    for algorithm, counts in found:
        is_first = algorithm.name == algorithms(algorithm.collective)[0]
        rows += [None] if is_first and rows else []
        bytes, steps = counts["busiest_port_bytes"], counts["steps"]
        port = "—" if bytes is None else f"{times(Fraction(bytes).limit_denominator(10**9))} S"
        rows.append(
            [algorithm.collective, algorithm.name, "—" if steps is None else str(steps), port, algorithm.summary]
        )
    head = ("collective", "algorithm", f"steps, {ranks} ranks", "busiest port", "what it does")
    write_table(head, rows, arguments.color, left=2)
    return 0


def _count(collective: str, name: str, ranks: int) -> dict[str, Any]:
    """The counts as `Counts.to_json` gives them; for many ranks those that the algorithm declares, and None for the rest."""
    if ranks <= _MOST_COUNTED:
        return schedule(collective, name, ranks).counts.to_json()
    declared = asdict(closed_form(collective, name, ranks) or Form())
    return {key: float(value) if value and "bytes" in key else value for key, value in declared.items()}
