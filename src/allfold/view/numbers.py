"""A schedule on numbers: what every rank has at the start, then for every step the numbers that move and what they make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.text import Text

from ..engines.reference.replay import Replay
from ..errors import UsageError
from ..ops import Op, find_op
from ..schedules import Schedule
from ..symbolic import Folds
from . import WIDTH
from .text import title
from .tokens import TERMINAL

_MOST_LINES, _MOST_STEPS = 40, 40  # of numbers that move, of steps; beyond, the rest is counted
_SIGNS = {"sum": " + ", "avg": " + ", "product": " × ", "band": " & ", "bor": " | ", "bxor": " ^ "}

Rows = list[list[float]]


def read_values(text: str, schedule: Schedule) -> Rows:
    """`1 2 3; 4 5 6; 7 8 9`, one row per rank, or `random`. Where only the root brings something, one row is enough."""
    promise, ranks = schedule.promise, schedule.ranks
    if not promise.carries_data:
        raise UsageError(f"--values: {_an(promise.name)} carries no data")
    if text.strip() == "random":
        length = schedule.chunks // ranks if promise.starts.sliced else schedule.chunks
        return [[float(one) for one in row] for row in np.random.default_rng().integers(0, 10, (ranks, length))]
    try:
        rows = [[float(word) for word in row.replace(",", " ").split()] for row in text.split(";")]
    except ValueError as error:
        raise UsageError(f'--values: {error}; expected numbers, as in "1 2 3; 4 5 6; 7 8 9", or random') from None
    if len(rows) == 1 and promise.starts.root_only:
        rows = rows * ranks
    if len(rows) != ranks or len({len(row) for row in rows}) > 1 or not rows[0]:
        lengths = ", ".join(str(len(row)) for row in rows[:8])
        raise UsageError(
            f"--values: expected {ranks} rows of equally many numbers, one row per rank, divided by ';'; got rows of {lengths}"
        )
    return rows


def rows_in(text: str) -> int | None:
    """The number of ranks that the values are for, if they say it."""
    return text.count(";") + 1 if ";" in text else None


def draw_numbers(
    schedule: Schedule, values: Rows, op: str = "sum", width: int = WIDTH, full: bool = False
) -> Iterator[Text]:
    """The title, what every rank has, then every step with its sums, and what every rank has after it."""
    operation = find_op(op)
    whole = op != "avg" and all(number.is_integer() for row in values for number in row)
    replay = Replay(schedule, [np.array(row, np.int64 if whole else np.float64) for row in values], operation)
    yield Text(title(schedule), style=TERMINAL["title"])
    yield Text(
        f"  numbers, combined by {operation.name}" if schedule.promise.reduces else "  numbers", style=TERMINAL["quiet"]
    )
    yield Text()
    yield Text("at the start", style=TERMINAL["label"])
    yield from _grid(replay, frozenset())
    while not replay.done:
        if not full and replay.step >= _MOST_STEPS:
            yield Text()
            yield Text(f"…  {schedule.steps - replay.step} more steps (--full shows them)", style=TERMINAL["quiet"])
            return
        yield Text()
        yield Text(f"step {replay.step + 1}", style=TERMINAL["label"])
        before = [replay.row(rank) for rank in range(schedule.ranks)]
        folds = replay.advance()
        yield from _sums(replay, before, folds, operation, full)
        yield from _grid(replay, frozenset(folds.target.tolist()))


def _sums(replay: Replay, before: list[list[Any]], folds: Folds, op: Op, full: bool) -> Iterator[Text]:
    """One line per place that changes: `rank 1, chunk 2:  6 + 3 from rank 0 = 9`."""
    width = len(before[0])
    many = len(folds.target)
    for i in range(many if full else min(many, _MOST_LINES)):
        rank, chunk = divmod(int(folds.target[i]), width)
        terms = []
        for operand in folds.operands[folds.starts[i] : folds.starts[i + 1]].tolist():
            source, what = divmod(operand, width)
            number = numbers(before[source][what])
            terms.append((number if source == rank else f"{number} from rank {source}", source == rank))
        terms.sort(key=lambda term: not term[1])  # its own first: that is how one reads it
        words = [word for word, _ in terms]
        result = numbers(replay.cell(rank, chunk))
        where = f"  rank {rank}, chunk {chunk}:  " if replay.schedule.chunks > 1 else f"  rank {rank}:  "
        if len(words) == 1:
            line = words[0] if before[rank][chunk] is None else f"{words[0]} in place of {numbers(before[rank][chunk])}"
        elif op.name in _SIGNS:
            averaged = f", divided by {replay.schedule.ranks}" if op.name == "avg" else ""
            line = f"{_SIGNS[op.name].join(words)}{averaged if _is_last(replay, rank, chunk) else ''} = {result}"
        else:
            line = f"{op.name} of {', '.join(words)} = {result}"
        yield Text.assemble((where, "blue"), line)
    if not full and many > _MOST_LINES:
        yield Text(f"  …  {many - _MOST_LINES} more (--full shows them)", style=TERMINAL["quiet"])


def _is_last(replay: Replay, rank: int, chunk: int) -> bool:
    return len(replay.contributors(rank, chunk)) == replay.schedule.ranks


def _grid(replay: Replay, changed: frozenset[int]) -> Iterator[Text]:
    schedule = replay.schedule
    width = schedule.chunks + schedule.scratch
    cells = [[numbers(replay.cell(rank, chunk)) for chunk in range(width)] for rank in range(schedule.ranks)]
    wide = [max(len(str(chunk)), *(len(row[chunk]) for row in cells)) for chunk in range(width)]
    if width > 1:
        heads = "".join(
            f"{'  ' if chunk == schedule.chunks else ''}  {chunk:>{wide[chunk]}} " for chunk in range(width)
        )
        yield Text(f"  {'chunk':<8}{heads.rstrip()}", style=TERMINAL["label"])
    for rank, row in enumerate(cells):
        line = Text.assemble((f"  {f'rank {rank}':<8}", "blue"))
        for chunk, content in enumerate(row):
            new = rank * width + chunk in changed
            line.append(" │" if chunk == schedule.chunks else "", style=TERMINAL["quiet"])
            line.append(
                f" {'[' if new else ' '}{content:>{wide[chunk]}}{']' if new else ' '}",
                style=TERMINAL["new"] if new else "",
            )
        line.rstrip()
        yield line


def numbers(array: Any) -> str:
    """`3 4`; a dot for a place that holds nothing, a dash for a chunk without elements."""
    if array is None:
        return "·"
    return " ".join(f"{number:g}" if isinstance(number, float) else str(number) for number in array.tolist()) or "–"


def _an(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
