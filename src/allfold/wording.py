"""How things are counted, ranks listed and sizes written: in sentences, and where users write sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from .errors import UsageError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
MOST_BYTES = 2**60


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


def parse_size(text: str) -> int:
    """Bytes, with K, M and G for powers of 1024, as in nccl-tests."""
    match = re.fullmatch(r"([0-9]+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"size {text!r}: expected a number of bytes, as in 8, 64K or 128M")
    digits = match[1].lstrip("0") or "0"
    size = int(digits[:20]) * _UNITS[match[2].upper()]
    if len(digits) > 20 or size > MOST_BYTES:
        raise UsageError(f"size {text:.40}: expected at most {MOST_BYTES} bytes (1 EiB)")
    return size


def parse_sizes(text: str, factor: float = 4.0) -> list[int]:
    """`1K,1M` and `1K-1G`: each size of a list, or from one to another, `factor` times the one before."""
    begin, dash, end = text.partition("-")
    if dash:
        return size_row(parse_size(begin), parse_size(end), factor)
    return sorted({parse_size(word) for word in text.split(",")})


def format_size(size: int) -> str:
    """`64M`: what `parse_size` takes, in the shortest exact form."""
    for letter in "GMK":
        if size and size % _UNITS[letter] == 0:
            return f"{size // _UNITS[letter]}{letter}"
    return str(size)


def size_row(begin: int, end: int, factor: float = 2.0, step: int | None = None) -> list[int]:
    """Every size from begin to end, each `factor` times the one before, or `step` bytes more where a step is given.

    The end is always included, unlike in nccl-tests: 8 times a power of 8 would skip the 64M that was asked for.
    """
    if begin < 1 or end < begin:
        raise UsageError(f"sizes from {begin} to {end} bytes: expected at least 1, and an end that is not below it")
    if step is not None and step < 1:
        raise UsageError(f"a step of {step} bytes: expected at least 1")
    if step is None and not factor > 1:
        raise UsageError(f"factor {factor:g}: expected a number above 1")
    sizes = [begin]
    while True:
        # A factor close to 1 must still make progress.
        following = sizes[-1] + step if step is not None else max(sizes[-1] + 1, int(sizes[-1] * factor))
        if following >= end:
            return sizes if sizes[-1] == end else [*sizes, end]
        sizes.append(following)


def suggest(name: object, known: object) -> str:
    """`did you mean 'ring'? known: …`: the end of an error about an unknown name."""
    names = [str(one) for one in known]  # type: ignore[attr-defined]
    near = get_close_matches(str(name), names, n=1, cutoff=0.5)
    return (f"did you mean {near[0]!r}? " if near else "") + "known: " + ", ".join(names)
