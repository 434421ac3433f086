"""Trace events: the extension's record of an instruction, together with the instruction itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...proved import programs_of
from ...registry import AnyAlgorithm
from ..engine import Event


def readable(raw: tuple[Any, ...], rank: int, size: int, algorithm_named: Callable[[str, str], AnyAlgorithm]) -> Event:
    call, name, segment, instruction, start, ready, end, bytes = raw
    collective, algorithm, root, memory = name.split("/")
    chosen = algorithm_named(collective, algorithm)
    programs = programs_of(collective, chosen, size, None if root == "None" else int(root), memory)
    row = int(programs.starts[rank]) + instruction
    sources = programs.sources.of(row)
    verb = "copy" if len(sources) == 1 else f"reduce {len(sources)}"
    return Event(
        rank=rank,
        call=call,
        collective=collective,
        algorithm=algorithm,
        memory=memory,
        step=int(programs.step[row]),
        segment=segment,
        instruction=instruction,
        what=f"{verb}, chunk {int(programs.length_of[row]) % programs.schedule.chunks}",
        peers=sorted({peer for peer, _ in sources + programs.destinations.of(row)} - {rank}),
        bytes=bytes,
        start=start,
        waited=ready - start,
        worked=end - ready,
    )
