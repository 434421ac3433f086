"""`allfold plan --hosts`: which schedule a call follows between hosts when it names no algorithm."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...collectives import COLLECTIVES, find_collective
from ...engines.islands.crossing import BUILT_IN, Crossing, find_tuned
from ...registry import schedule
from ...schedules import step_of_moves
from ...wording import format_size, parse_sizes
from ..choose import ranks_on_hosts, refuse_plan_options
from ..terminal import write_json, write_lines, write_table

_SIZES = "64K,64M"
_HEAD = ("size", "collective", "follows", "with", "steps", "messages between hosts", "bytes out of the busiest host")


def write_hosts(arguments: argparse.Namespace, collective: str | None) -> int:
    refuse_plan_options(arguments, "--hosts says what a call without an algorithm does", "algorithms")
    islands = ranks_on_hosts(arguments.hosts, arguments.ranks)
    counts = [len(island) for island in islands]
    tuned = next((one.crossing for one in find_tuned() if one.hosts == tuple(counts)), None)
    found = [
        _what_follows(name, islands, size, tuned or BUILT_IN)
        for size in parse_sizes(_SIZES if arguments.size is None else arguments.size)
        for name in (COLLECTIVES if collective is None else [find_collective(collective).name])
    ]
    if arguments.json:
        write_json(found)
        return 0
    told = "as tuned for these hosts" if tuned else "built in"
    write_lines([f"Calls without an algorithm between {' + '.join(map(str, counts))} ranks, {told}"], arguments.color)
    rows: list[list[str] | None] = []
    for one in found:
        rows += [None] if rows and rows[-1] and rows[-1][0] != format_size(one["size"]) else []
        rows.append(_row(one))
    write_table(_HEAD, rows, arguments.color, left=4)
    if len(found) == 1:
        words = _words(found[0])
        write_lines(["", f"allfold show {words} --messages", f"allfold verify {words}"], arguments.color)
    return 0


def _what_follows(collective: str, islands: Sequence[Sequence[int]], size: int, crossing: Crossing) -> dict[str, Any]:
    name, parameters = crossing.schedule(collective, islands, size)
    ranks = sum(map(len, islands))
    made = schedule(collective, name, ranks, 0 if COLLECTIVES[collective].rooted else None, **parameters)
    host = np.repeat(np.arange(len(islands)), [len(island) for island in islands])
    source, destination = made.columns["source"], made.columns["destination"]
    step = step_of_moves(made)
    crosses = host[source] != host[destination]
    messages = np.unique(np.stack([step, source, destination])[:, crosses], axis=1)
    out = float(np.bincount(host[source[crosses]], minlength=len(islands)).max()) / made.chunks
    return {
        "collective": collective,
        "size": size,
        "ranks": ranks,
        "algorithm": name,
        "parameters": parameters,
        "steps": made.steps,
        "messages_between_hosts": messages.shape[1],
        "bytes_out_of_the_busiest_host": out if made.promise.carries_data else 0.0,
    }


def _row(one: dict[str, Any]) -> list[str]:
    parts = " ".join(f"{key}={value}" for key, value in one["parameters"].items() if key != "groups")
    return [
        format_size(one["size"]),
        one["collective"],
        one["algorithm"],
        parts,
        str(one["steps"]),
        str(one["messages_between_hosts"]),
        f"{one['bytes_out_of_the_busiest_host']:.4g} S",
    ]


def _words(one: dict[str, Any]) -> str:
    given = dict(one["parameters"])
    groups = given.pop("groups", None)
    ranks = f"--ranks {one['ranks']}" if groups is None else f"--hosts {','.join(str(len(group)) for group in groups)}"
    words = [one["algorithm"], "--collective", one["collective"], ranks]
    return " ".join([*words, *(f"--with {key}={value}" for key, value in given.items())])
