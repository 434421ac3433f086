"""Turns the board into `RunFacts` for `allfold explain`, which finds what is wrong in it and words the error."""

from __future__ import annotations

import json
import time
from typing import Any

from ..explain.calls import CallFacts, CodeLine, GroupFacts, RankFacts, RunFacts, Tensor
from ..intercept.lines import Line
from ..intercept.operations import REDUCTIONS


def describe(key: tuple[Any, ...], lines: list[Line], background: bool) -> bytes:
    """A call, as text for the board. `key` is `Made.key`."""
    operation, tensors, reduction, root, peer = key
    words: dict[str, Any] = {"operation": operation, "stack": lines}
    if tensors:
        words["tensors"] = [(str(dtype).removeprefix("torch."), tuple(shape)) for shape, dtype in tensors]
    if reduction is not None:
        words["reduction"] = REDUCTIONS[reduction] if reduction < len(REDUCTIONS) else f"reduction {reduction}"
    for name, value in (("root", root), ("peer", peer)):
        if value is not None:
            words[name] = value
    if background:
        words["background"] = True
    return json.dumps(words).encode()


def read_call(text: bytes, group: str, number: int, since: int) -> CallFacts:
    """The call that `describe` wrote; without its details if these are gone from the board."""
    words: dict[str, Any] = json.loads(text) if text else {"operation": "a call"}
    tensors = words.get("tensors")
    return CallFacts(
        group,
        number,
        words["operation"],
        since,
        None if tensors is None else tuple(Tensor(dtype, tuple(shape)) for dtype, shape in tensors),
        words.get("reduction"),
        words.get("root"),
        words.get("peer"),
        frames(words.get("stack", ())),
        since / 1e9,
    )


def frames(lines: Any) -> tuple[CodeLine, ...]:
    return tuple(CodeLine(*line) for line in lines)


def run_of(board: Any, ranks: list[int]) -> RunFacts:
    """Everything on the board about these ranks, which are those of its host."""
    return run_from([facts_of(board, ranks)])


def facts_of(board: Any, ranks: list[int], most: int = 128) -> dict[str, Any]:
    """The facts on the board about these ranks, as JSON: the last calls of each rank in each group. Times count from 1970."""
    offset = time.time_ns() - time.monotonic_ns()
    waits = {rank: (str(group), call) for rank, _, group, call in board.waits()}
    found: dict[str, Any] = {"ranks": {}, "groups": {}}
    for rank in ranks:
        at = [] if rank in waits else json.loads(board.answer_of(rank) or b"[]")
        found["ranks"][str(rank)] = {"ended": _end(board, rank), "at": at, "waits": waits.get(rank), "calls": []}
    for number in board.groups():
        lanes = board.look(number)
        if lanes is None:
            continue
        members = lanes.ranks()
        found["groups"][str(number)] = [lanes.name().decode(), members]
        for member, rank in enumerate(members):
            if str(rank) in found["ranks"]:
                for call, _, since, text in lanes.calls(member)[-most:]:
                    found["ranks"][str(rank)]["calls"].append([str(number), call, since + offset, text.decode()])
    return found


def run_from(hosts: list[dict[str, Any]]) -> RunFacts:
    """The run, from the facts of its hosts."""
    run = RunFacts({}, {})
    for host in hosts:
        for key, (label, members) in host["groups"].items():
            known = run.groups.setdefault(key, GroupFacts(key, label, ()))
            known.ranks = tuple(sorted({*known.ranks, *members}))
        for name, facts in host["ranks"].items():
            waits = facts["waits"] is not None
            rank = RankFacts(int(name), ended=facts["ended"], at=frames(facts["at"]), in_call=waits)
            for key, number, since, text in facts["calls"]:
                if key not in rank.starts and number > 1:
                    rank.starts[key] = number
                rank.starts.setdefault(key, 1)
                rank.calls.append(read_call(text.encode(), key, number, since))
            rank.starts = {key: number for key, number in rank.starts.items() if number > 1}
            rank.calls.sort(key=lambda call: call.order)
            run.ranks[int(name)] = rank
    return run


def _end(board: Any, rank: int) -> str:
    if board.standing(rank) == "ended":
        words = board.last_words(rank).decode(errors="replace")
        return f"ended after {words}" if words else "ended"
    return board.fate(rank) or ""
