"""Words for numbers, lists of ranks and sizes: in sentences, and where users write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fractions import Fraction

from .errors import UsageError

UNITS = "K, M, G and T are powers of 1024, as are KiB to TiB; KB, MB, GB and TB are powers of 1000"
"""The rule for units of bytes, wherever users write them. Rates are always powers of 1000: 25GB/s, 400Gb/s."""

_LETTERS = ("", "K", "M", "G", "T")
_BYTES = {letter: 2 ** (10 * power) for power, letter in enumerate(_LETTERS)}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e\+?([0-9]{1,2}))? ?([KMGT]?)(B|(?<=[KMGT])iB)?", re.IGNORECASE)
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
    """Bytes: `64K` is 64 · 1024, as in nccl-tests, and so is `64KiB`; `64KB` is 64,000. `1.5M` and `1e9` are sizes, too."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"size {text[:40]!r}: expected a number of bytes, as in 8, 64K or 128M (powers of 1024), 1.5GiB, 1GB (10⁹) or 1e9"
        )
    letter, decimal = match[3].upper(), (match[4] or "").upper() == "B" and match[3]
    unit = 1000 ** _LETTERS.index(letter) if decimal else _BYTES[letter]
    size = Fraction(match[1][:60]) * 10 ** int(match[2] or 0) * unit
    if size > MOST_BYTES or len(match[1]) > 60:
        raise UsageError(f"size {text:.40}: expected at most {MOST_BYTES} bytes (1 EiB)")
    if size.denominator != 1:
        raise UsageError(f"size {text:.40} is {float(size):.12g} bytes; expected a whole number of them")
    return int(size)


def parse_sizes(text: str, factor: float = 4.0) -> list[int]:
    """`1K,1M` and `1K-1G`: each size of a list, or from one to another, `factor` times the one before."""
    begin, dash, end = text.partition("-")
    if dash:
        return size_row(parse_size(begin), parse_size(end), factor)
    return sorted({parse_size(word) for word in text.split(",")})


MOST_RANKS = 2**24  # the most that a topology can have
_MOST_DIGITS, _MOST_COUNTS = 20, 65_536


def rank_counts(text: str) -> list[int]:
    """`4`, `1-33`, `2,4,8` and combinations: the numbers in order, each once."""
    counts: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"ranks {text!r}: expected a number (4), a range (1-33) or a list (2,4,8)")
        low, high = (int(word[:_MOST_DIGITS]) for word in (first, last if dash else first))
        if low < 1:
            raise UsageError(f"ranks {text!r}: {part.strip()} is not a number of ranks; the least is 1")
        if high < low:
            raise UsageError(f"ranks {text!r}: {part.strip()} goes backwards; write the smaller number first")
        if high > MOST_RANKS:
            raise UsageError(f"ranks {text:.40}: the most is {MOST_RANKS:,}")
        if len(counts) + high - low >= _MOST_COUNTS:
            raise UsageError(f"ranks {text:.40}: these are more than {_MOST_COUNTS:,} numbers")
        counts.update(range(low, high + 1))
    return sorted(counts)


def one_rank_count(text: str) -> int:
    counts = rank_counts(text)
    if len(counts) != 1:
        raise UsageError(f"ranks {text!r}: expected one number")
    return counts[0]


def format_size(size: int) -> str:
    """`64M`: what `parse_size` takes, in the shortest exact form."""
    for letter in "TGMK":
        if size and size % _BYTES[letter] == 0:
            return f"{size // _BYTES[letter]}{letter}"
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
