"""`allfold list --what-for`: from a task to a collective, and what that costs each process."""

from __future__ import annotations

import argparse
from fractions import Fraction
from typing import Any

from ...collectives import find_collective
from ...price.cost.plan import duration, plan
from ...price.topology.parse import this_machine_unless
from ...wording import format_size, one_rank_count, parse_size
from ..terminal import progress, times, write_json, write_lines, write_table

TASKS = (
    ("average gradients, sum anything", "all_reduce"),
    ("shard gradients (ZeRO, FSDP)", "reduce_scatter"),
    ("unshard weights (FSDP)", "all_gather"),
    ("share every rank's result", "all_gather"),
    ("tokens to experts, transpose", "all_to_all"),
    ("same weights, settings, seed", "broadcast"),
    ("deal out one rank's data", "scatter"),
    ("results to one rank, to save", "gather"),
    ("sum on one rank, to log", "reduce"),
    ("running totals over ranks", "scan"),
    ("where each rank's part begins", "exscan"),
    ("wait for everybody", "barrier"),
)
SIZE = "64M"


def run(arguments: argparse.Namespace) -> int:
    ranks, size = one_rank_count(arguments.ranks), parse_size(arguments.size or SIZE)
    with progress("estimating"):
        topology = this_machine_unless(arguments.topology, ranks)
        rows = [_row(task, name, ranks, size, topology) for task, name in TASKS]
    if arguments.json:
        write_json(rows)
        return 0
    head = ("what for", "collective", "a rank brings", "sends or receives", "time", "by")
    write_table(head, [_words(row, size) for row in rows], arguments.color, left=2)
    place = "this machine" if arguments.topology is None else topology.name
    notes = [
        "",
        f"{ranks} ranks on {place}. S is {format_size(size)} bytes: one whole buffer, all slices together.",
        "“Sends or receives” is the least that any algorithm needs, at the rank that has most to do.",
        "The time is what allfold plan estimates for the fastest. --ranks, --size, --topology: your case.",
    ]
    write_lines(notes, arguments.color)
    return 0


def _row(task: str, name: str, ranks: int, size: int, topology: Any) -> dict[str, Any]:
    collective = find_collective(name)
    port = collective.bounds(ranks).busiest_port_bytes
    carried = size if collective.carries_data else 0
    best = plan(name, topology, ranks=ranks, size=carried).winner
    brings = Fraction(1, ranks) if collective.starts.sliced else Fraction(int(collective.carries_data))
    return {
        "task": task,
        "collective": name,
        "ranks": ranks,
        "size": size,
        "brings": float(brings),
        "busiest_port": float(port),
        "busiest_port_bytes": float(port * carried),
        "algorithm": best.algorithm,
        "seconds": best.time,
    }


def _words(row: dict[str, Any], size: int) -> list[str]:
    port, brings = Fraction(row["busiest_port"]), row["brings"]
    only_root = find_collective(row["collective"]).starts.root_only
    brought = "nothing" if not brings else "S" if brings == 1 else f"S/{row['ranks']}"
    moved = f"{times(port.limit_denominator(10**6))} S = {row['busiest_port_bytes'] / 1e6:,.1f} MB" if brings else "0"
    return [
        row["task"],
        row["collective"],
        f"{brought}, the root" if only_root else brought,
        moved,
        duration(row["seconds"]),
        row["algorithm"],
    ]
