"""Flight records in `allfold doctor`: the last calls of all ranks side by side, and where they differ."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...files import write_whole
from ...price.cost.plan import duration
from ...wording import name_ranks, ranges
from ..terminal import write_lines, write_table


def write_calls(groups: Sequence[dict[str, Any]], last: int, color: bool | None) -> bool:
    """Print every group's last calls; true if ranks of a group differ in a call."""
    parted = False
    for position, group in enumerate(groups):
        rows, sentences = compare_calls(group, last)
        write_lines([*([""] if position else []), f"{group['label']}: {group['size']} ranks"], color)
        write_table(("call", "ranks", "what", "begun", "took"), rows, color, left=3)
        errors = [f"rank {rank} raised {said}" for rank, said in sorted(group.get("errors", {}).items())]
        write_lines([*sentences, *errors], color)
        parted |= bool(sentences)
    return parted


def compare_calls(group: dict[str, Any], last: int) -> tuple[list[list[str]], list[str]]:
    """Rows of call, ranks, what they called, when and for how long; and sentences about calls in which they differ."""
    from ..doctor import describe_call

    calls = {member["rank"]: {call["call"]: call for call in member["calls"]} for member in group["members"]}
    done = {member["rank"]: member["last_done"] for member in group["members"]}
    came = {member["rank"]: member["last_call"] for member in group["members"]}
    newest = max(came.values(), default=0)
    begin = min(
        (
            call["begun"]
            for held in calls.values()
            for number, call in held.items()
            if number > newest - last and call["begun"] is not None
        ),
        default=0.0,
    )
    rows, sentences = [], []
    held_by_some = {number for held in calls.values() for number in held if number > newest - last}
    for number in sorted(held_by_some | ({newest} if newest else set())):
        alike: dict[tuple[str, bool], list[int]] = {}
        for rank, held in calls.items():
            if number in held:
                alike.setdefault((describe_call(held[number]), number <= done[rank]), []).append(rank)
        for (what, ended), ranks in alike.items():
            begun = [calls[rank][number]["begun"] for rank in ranks]
            took = [_length(calls[rank][number]) for rank in ranks] if ended else []
            rows.append([str(number), ranges(ranks), what, _span(begun, begin), _span(took) if ended else "not ended"])
        absent = [rank for rank in calls if came[rank] < number]
        whats: dict[str, list[int]] = {}
        for (what, _), ranks in alike.items():
            whats.setdefault(what, []).extend(ranks)
        if absent:
            rows.append([str(number), ranges(absent), "did not arrive", "", ""])
        if len(whats) > 1:
            who = [f"{name_ranks(ranks)} called {what}" for what, ranks in whats.items()]
            sentences.append(f"call {number}: {', '.join(who)}")
        stuck = [rank for (_, ended), ranks in alike.items() if not ended for rank in ranks]
        if absent and stuck:
            sentences.append(f"call {number}: {name_ranks(absent)} did not arrive, {name_ranks(stuck)} waited")
        elif stuck and len(whats) == 1:
            through = sorted(set(calls) - set(stuck))
            others = f", {name_ranks(through)} did" if through else ""
            sentences.append(f"call {number}: {name_ranks(stuck)} did not come to its end{others}")
    return rows, sentences


def export_calls(groups: list[dict[str, Any]], form: str, target: Path) -> str:
    """Write the groups' calls in another format; returns a sentence that says what was written."""
    from ...export.flight import to_chrome, to_torch

    if form == "perfetto":
        write_whole(target, json.dumps(to_chrome(groups), ensure_ascii=False))
        return f"{target}: open it in ui.perfetto.dev or chrome://tracing"
    files = to_torch(groups)
    for rank, content in files.items():
        write_whole(target / f"flight_{rank}", content, folders=True)
    return f"{len(files)} files in {target}: torchfrtrace --prefix flight_ {target}{os.sep}"


def _length(call: dict[str, Any]) -> float | None:
    return None if call["begun"] is None or call["ended"] is None else float(max(0.0, call["ended"] - call["begun"]))


def _span(moments: Sequence[float | None], begin: float = 0.0) -> str:
    known = [moment - begin for moment in moments if moment is not None]
    if not known:
        return "?"
    low, high = (duration(moment) for moment in (min(known), max(known)))
    return low if low == high else f"{low} … {high}"
