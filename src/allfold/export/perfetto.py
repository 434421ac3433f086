"""Chrome trace JSON, for Perfetto and chrome://tracing: who sends what to whom, step by step or on the modelled clock.

Without a timeline every step takes one millisecond, divided into rounds if a port has several messages. A track holds
what one rank sends, receives or moves locally; arrows connect the two ends of a message. A simulated timeline writes
its own trace (`price/simulate/timeline.py`), in the same form.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from itertools import pairwise
from typing import Any

from ..chrome_trace import Row, Track, trace
from ..collectives import find_collective
from ..documents import parse
from ..errors import UsageError
from ..price.simulate.timeline import Timeline
from ..proof import verify
from ..schedules import Schedule, copy, reduce
from ..schedules import build as build_schedule

STEP = 1000.0  # microseconds that a step takes

_WORD = re.compile(r"(\+?)(\d+):(\d+)→(\d+)(?:@(\d+))?")


def write(schedule: Schedule, timeline: Timeline | None = None) -> str:
    """The trace as JSON: on the clock of steps, or of a simulation."""
    verify(schedule, programs=False)
    document = timeline.to_chrome() if timeline is not None else to_chrome(schedule)
    check_trace(document)
    if timeline is None and read(document) != _without_lines(schedule):
        raise UsageError(f"{schedule.title} cannot be recovered from its trace")
    return json.dumps(document, ensure_ascii=False) + "\n"


def to_chrome(schedule: Schedule) -> dict[str, Any]:
    """The schedule on the clock of steps."""
    rows: list[Row] = [
        Track(3 * rank + place).name(f"rank {rank} {what}")
        for rank in range(schedule.ranks)
        for place, what in enumerate(("sends", "receives", "moves within"))
    ]
    flow = 0
    for step, moves in enumerate(schedule):
        messages: dict[tuple[int, int], list[str]] = defaultdict(list)
        for move in moves:
            messages[move.source, move.destination].append(str(move))
        rounds = _rounds([*messages], schedule.ranks)
        length = STEP / (max(rounds.values(), default=0) + 1)
        for (source, destination), words in sorted(messages.items()):
            local = source == destination
            start = step * STEP + rounds[source, destination] * length
            name = f"{words[0]}{f' and {len(words) - 1} more' if len(words) > 1 else ''}"
            arguments = {"step": step, "source": source, "destination": destination, "moves": words}
            for what, rank, place in (
                (("move", source, 2),) if local else (("send", source, 0), ("receive", destination, 1))
            ):
                track = Track(3 * rank + place)
                rows.append(track.slice(name, what, start, length, arguments))
                if not local:
                    leaves = what == "send"
                    at = start if leaves else start + 0.999 * length  # its very end would be in the next slice
                    rows.append(track.arrow(flow, at, leaves))
            flow += not local
    about = {name: getattr(schedule, name) for name in ("collective", "algorithm", "ranks", "root", "chunks")}
    return trace(rows, "ms", otherData=about)


def _rounds(messages: list[tuple[int, int]], ranks: int) -> dict[tuple[int, int], int]:
    """The round of each message of a step, if a port carries one at a time: the first in which both its ports are free."""
    taken: set[tuple[str, int, int]] = set()
    rounds = {}
    for source, destination in sorted(messages, key=lambda ends: ((ends[1] - ends[0]) % ranks, ends)):
        ports = [("within", source)] if source == destination else [("out", source), ("in", destination)]
        number = 0
        while any((*port, number) in taken for port in ports):
            number += 1
        taken |= {(*port, number) for port in ports}
        rounds[source, destination] = number
    return rounds


def check_trace(document: dict[str, Any]) -> None:
    """Raise `UsageError` if a viewer would show this trace wrongly: slices that overlap, or arrows without two ends."""
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    arrows: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in document["traceEvents"]:
        if row["ph"] == "X":
            slices[row["pid"], row["tid"]].append((row["ts"], row["ts"] + row["dur"]))
            if not (row["ts"] >= 0 and row["dur"] >= 0):
                raise UsageError(f"the slice {row['name']} begins at {row['ts']} and takes {row['dur']}")
        elif row["ph"] in ("s", "f"):
            if row["ph"] in arrows[row["id"]]:
                raise UsageError(f"arrow {row['id']} has two ends of one kind")
            arrows[row["id"]][row["ph"]] = row
    for track, spans in slices.items():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            if start < end - 1e-6 * max(1.0, end):
                raise UsageError(f"slices overlap on track {track} at {start}")
    for number, ends in arrows.items():
        if {*ends} != {"s", "f"} or ends["s"]["ts"] > ends["f"]["ts"]:
            raise UsageError(f"arrow {number} does not lead from a slice to a later one")


def read(document: str | dict[str, Any]) -> Schedule:
    """The schedule of a trace on the clock of steps."""
    data = parse(document) if isinstance(document, str) else document
    try:
        about = data["otherData"]
        steps: dict[int, list[Any]] = defaultdict(list)
        for row in data["traceEvents"]:
            if row["ph"] == "X" and row["cat"] in ("send", "move"):
                for word in row["args"]["moves"]:
                    match = _WORD.fullmatch(word)
                    if match is None:
                        raise ValueError(f"the move {word!r}")
                    plus, *ends, into = match.groups()
                    make = reduce if plus else copy
                    chunk, source, destination = map(int, ends)
                    move = make(chunk, source, destination, None if into is None else int(into))
                    steps[row["args"]["step"]].append(move._replace(site=0))
        listed = [sorted(steps[step], key=lambda move: move[:5]) for step in sorted(steps)]
        ranks, root = about["ranks"], about["root"]
        rooted = type(root) is int and type(ranks) is int and 0 <= root < ranks
        if rooted != find_collective(about["collective"]).rooted or (not rooted and root is not None):
            raise ValueError(f"the root {root!r}")
        head = (about["collective"], about["algorithm"], ranks, root)
        return build_schedule(*head, listed, about["chunks"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"this is not a trace of a schedule: {error!r}") from None


def _without_lines(schedule: Schedule) -> Schedule:
    """The same schedule in the form that `read` gives: moves of a step in order, no source lines."""
    listed = [sorted((move._replace(site=0) for move in step), key=lambda move: move[:5]) for step in schedule]
    head = (schedule.collective, schedule.algorithm, schedule.ranks, schedule.root)
    return build_schedule(*head, listed, schedule.chunks)
