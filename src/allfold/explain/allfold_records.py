"""Reads allfold's own flight records. They have the reduction and the root, but the line only of a failed call."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..collectives import COLLECTIVES
from ..engines.shared_memory.flight import read
from ..export.flight import numbers_of_processes
from .calls import CallFacts, CodeLine, GroupFacts, RankFacts, RunFacts, Tensor
from .torch_dumps import user_frames

_LOST = re.compile(
    r"^RankLost: .*?rank (\d+)[^:;]*? (was killed[^;:,.]*|was ended[^;:,.]*|exited[^;:,.]*|has ended[^;:,.]*|died[^;:,.]*)"
)
_LATE = re.compile(r"did not arrive within (\d{1,9}(?:\.\d{1,9})?) s \(call (\d{1,18}) of")


def read_records(paths: list[Path]) -> RunFacts:
    """The run that these files describe: those of ALLFOLD_FLIGHT_DIR, or of `allfold doctor --dump`."""
    groups = read(paths)
    number = numbers_of_processes(groups)
    run = RunFacts({}, {}, groups[0]["size"] if groups else None)
    for position, group in enumerate(groups):
        key = f"allfold {position}"
        label = group["label"]
        members = {member["rank"]: number[member["process"]] for member in group["members"]}
        everybody = sorted(
            {members.get(rank, rank) for rank in range(group["size"])} if position == 0 else members.values()
        )
        run.groups[key] = GroupFacts(key, label, tuple(everybody), position == 0, group["size"])
        for member in group["members"]:
            rank = run.ranks.setdefault(number[member["process"]], RankFacts(number[member["process"]]))
            stack = _stack(group["stacks"].get(member["rank"]))
            _add(rank, key, member, stack)
        for rank, said in group["errors"].items():
            if rank in members:
                run.ranks[members[rank]].said.append(said)
                if late := _LATE.search(said):
                    _set_timeout(run.ranks[members[rank]], key, int(late[2]), float(late[1]))
            for lost in _LOST.finditer(said):
                if int(lost[1]) in members:
                    run.ranks[members[int(lost[1])]].ended = lost[2]
    for rank in run.ranks.values():
        rank.calls.sort(key=lambda call: (call.begun or 0.0, call.number))
        rank.calls = [replace(call, order=order) for order, call in enumerate(rank.calls)]
    return run


def _set_timeout(rank: RankFacts, group: str, number: int, seconds: float) -> None:
    rank.calls = [
        replace(call, timeout=seconds) if (call.group, call.number) == (group, number) else call for call in rank.calls
    ]


def _stack(lines: Any) -> tuple[CodeLine, ...]:
    return user_frames([CodeLine(*line) for line in lines or ()])


def _add(rank: RankFacts, key: str, member: dict[str, Any], stack: tuple[CodeLine, ...]) -> None:
    calls = member["calls"]
    rank.starts[key] = calls[0]["call"] if calls else member["last_call"] + 1
    for call in calls:
        promise = COLLECTIVES.get(call["collective"])
        is_last = call["call"] == member["last_call"]
        rank.calls.append(
            CallFacts(
                group=key,
                number=call["call"],
                operation=call["collective"],
                order=0,
                tensors=_tensors(call) if promise is None or promise.carries_data else (),
                reduction=call["op"] or None if promise is None or promise.takes_op else None,
                root=call["root"] if promise is not None and promise.rooted else None,
                stack=stack if is_last else (),
                begun=call["begun"],
                ended=call["ended"],
                done=call["call"] <= member["last_done"],
                details=f"by {call['algorithm']}" if call["algorithm"] else "",
            )
        )


def _tensors(call: dict[str, Any]) -> tuple[Tensor, ...]:
    return (Tensor(call["dtype"], (call["elements"],)),)
