"""How things are counted, and ranks listed, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def counted(number: int, word: str) -> str:
    """`1 rank`, `8 ranks`."""
    return f"{number} {word}" + ("" if number == 1 else "s")


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1 and 2`, `ranks 0, 1, 2 and 40 more`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 8:
        return f"ranks {', '.join(map(str, ranks[:6]))} and {len(ranks) - 6} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def ranges(numbers: Iterable[int]) -> str:
    """`1–33`, `2, 4, 8`, `1–4, 64`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
