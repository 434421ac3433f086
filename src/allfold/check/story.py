"""Turns the board into `RunFacts` for `allfold explain`, which finds what is wrong in it and words the error."""

from __future__ import annotations

import json
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
    waits = {rank: (group, call) for rank, _, group, call in board.waits()}
    run = RunFacts({rank: _rank(board, rank, rank in waits) for rank in ranks}, {})
    for number in board.groups():
        lanes = board.look(number)
        if lanes is None:
            continue
        key, members = str(number), lanes.ranks()
        run.groups[key] = GroupFacts(key, lanes.name().decode(), tuple(members))
        for member, rank in enumerate(members):
            if rank not in run.ranks:
                continue
            calls = [read_call(text, key, call, since) for call, _, since, text in lanes.calls(member)]
            if calls and calls[0].number > 1:
                run.ranks[rank].starts[key] = calls[0].number
            run.ranks[rank].calls += calls
    for one in run.ranks.values():
        one.calls.sort(key=lambda call: call.order)
    return run


def _rank(board: Any, rank: int, waits: bool) -> RankFacts:
    ended = ""
    if board.standing(rank) == "ended":
        words = board.last_words(rank).decode()
        ended = f"ended after {words}" if words else "ended"
    elif (fate := board.fate(rank)) is not None:
        ended = fate
    at = () if waits else frames(json.loads(board.answer_of(rank) or b"[]"))
    return RankFacts(rank, ended=ended, at=at, in_call=waits)
