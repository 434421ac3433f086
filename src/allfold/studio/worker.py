"""Edited code is run, and its schedule proved: in a process of its own, or in the reader's browser (`in_browser.py`)."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..collectives import find_collective
from ..errors import ScheduleError
from ..launch.sandbox import CodeError, run_code, serve
from ..proof import verify
from ..registry import REGISTRY, Algorithm, Steps, schedule
from ..view.entry import TooManyMoves, entry, refusal, schedule_up_to_error, within
from .answers import topology_of


def main(answers: int) -> None:
    REGISTRY.all()  # they are loaded while nobody waits for an answer
    serve(answers, answer)


def answer(question: dict[str, Any], ran: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The entry of the code's schedule; or its verdicts, if `many` names numbers of ranks to prove it for.

    `ran` is called when the code itself has run: what follows is allfold's, and ends.
    """
    collective = question["collective"]
    chosen = _choose(collective, _run(question["code"], question["file"]), question["algorithm"])
    limited = within(chosen, question["moves"])
    if question.get("many"):
        return {"verdicts": [_verdict(collective, limited, ranks) for ranks in question["many"]]}
    made, error = schedule_up_to_error(collective, limited, question["ranks"], question["root"])
    if error is not None and (isinstance(error, TooManyMoves) or not made.steps):
        raise error
    ran()
    topology = topology_of(question["topology"], made.ranks)
    return entry(
        made,
        topology,
        question["size"],
        topology_name=question["topology"],
        function=chosen.function,
        error=error,
    )


def _verdict(collective: str, algorithm: Algorithm, ranks: int) -> dict[str, Any]:
    """The proof for this many ranks and every root, or what is wrong with the first that is."""
    for root in range(ranks) if find_collective(collective).rooted else (None,):
        try:
            verify(schedule(collective, algorithm, ranks, root))
        except ScheduleError as error:
            return {"ranks": ranks, "root": root, **refusal(collective, error)}
    return {"ranks": ranks, "root": None, "ok": True, "message": "", "facts": []}


@dataclass(frozen=True)
class _Found:
    """The algorithms that the code registers, its plain generators, and the algorithms registered before it."""

    registered: list[Algorithm]
    before: list[Algorithm]
    plain: list[Callable[..., Steps]]


def _run(code: str, file: str) -> _Found:
    """Run the code as if it were one of the algorithms' files, so that it may import what they import."""
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    module = ModuleType("allfold.algorithms.edited")
    module.__package__ = "allfold.algorithms"
    before = REGISTRY.all()
    with REGISTRY.replacing() as registered:  # its own names are taken already
        run_code(code, file, module)
    plain = [
        value
        for value in vars(module).values()
        if inspect.isgeneratorfunction(value) and value.__module__ == module.__name__
    ]
    return _Found(registered, before, plain)


def _choose(collective: str, found: _Found, wanted: str | None) -> Algorithm:
    """The requested algorithm; else one that was changed; else the last one."""
    here = [one for one in found.registered if one.collective == collective]
    if here:
        known = {one.name: one for one in found.before if one.collective == collective}
        changed = [one for one in here if one.name not in known or one.source != known[one.name].source]
        return next((one for one in here if one.name == wanted), (changed or here)[-1])
    if not found.plain:
        raise CodeError(f"the code defines no generator function, and registers none for {collective}")
    named = next((one for one in found.plain if one.__name__ == wanted), found.plain[-1])
    return Algorithm(collective, named.__name__, named, None)
