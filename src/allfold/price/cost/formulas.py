"""Closed forms: what the regular families send, as formulas in the number of ranks P. Bytes are multiples of S.

Tests hold every formula equal to what is counted from the schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import NamedTuple

from ...errors import UsageError

Number = int | Fraction


class Phase(NamedTuple):
    """`steps` equal steps. Of one step: the busiest port's messages and bytes, the bytes of all messages together, what
    arrives at one rank to be combined, and what one rank does within its own memory meanwhile."""

    steps: int
    messages: int
    bytes: Number
    total: Number
    combined: Number
    local: Number = 0


@dataclass(frozen=True)
class Form:
    """One algorithm for one number of ranks."""

    phases: tuple[Phase, ...]
    messages: int
    busiest_port_bytes: Number
    busiest_port_messages: int
    combined: Number
    """By one rank in all steps together, with what it does within its own memory."""

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def rounds(self) -> int:
        return sum(phase.steps * phase.messages for phase in self.phases)

    @property
    def bytes(self) -> Fraction:
        return Fraction(sum(phase.steps * phase.total for phase in self.phases))


def closed_form(collective: str, algorithm: str, ranks: int) -> Form | None:
    """The closed form of a shipped algorithm (of its root 0, and of its own groups), or None where it has none."""
    if ranks < 1:
        raise UsageError(f"{ranks} ranks: expected at least 1")
    formula = _FORMULAS.get((collective, algorithm))
    if formula is None:
        return None
    return Form((), 0, 0, 0, 0) if ranks == 1 else formula(ranks)


def _log_up(ranks: int) -> int:
    return (ranks - 1).bit_length()


def _doublings(ranks: int) -> list[int]:
    return [1 << bit for bit in range(_log_up(ranks))]


def _slices(ranks: int, times: int = 1) -> Fraction:
    return Fraction(times * (ranks - 1), ranks)


def _edges(ranks: int, distance: int) -> int:
    """Pairs of parent and child that are `distance` apart in a binomial tree."""
    return -(-(ranks - distance) // (2 * distance)) if distance < ranks else 0


def _with_bit(ranks: int, bit: int) -> int:
    """How many of the numbers below `ranks` have that bit: the slices that travel so far."""
    return ranks // (2 * bit) * bit + max(0, ranks % (2 * bit) - bit)


def _is_power(ranks: int) -> bool:
    return ranks & (ranks - 1) == 0


def _driver(p: int, share: Number, in_and_out: int = 1, reduces: bool = True) -> Form:
    inwards = Phase(1, p - 1, (p - 1) * share, (p - 1) * share, (p - 1) * share if reduces else 0)
    outwards = inwards._replace(combined=0)
    phases = (inwards, outwards)[:in_and_out]
    return Form(phases, in_and_out * (p - 1), (p - 1) * share, p - 1, inwards.combined)


def _rotate(p: int) -> Form:
    first, last = Phase(1, 1, 1, p, 0), Phase(1, 0, 0, 0, 0, 1)
    return Form((first, Phase(p - 2, 1, 1, p, 0, 1), last), p * (p - 1), p - 1, p - 1, p - 1)


def _ring(p: int, scatter: bool, gather: bool) -> Form:
    one = Fraction(1, p)
    phases = [Phase(p - 1, 1, one, 1, one)] * scatter + [Phase(p - 1, 1, one, 1, 0)] * gather
    many = len(phases)
    return Form(tuple(phases), many * p * (p - 1), _slices(p, many), many * (p - 1), scatter * _slices(p))


def _everybody(p: int, share: Number, scatter: bool, gather: bool) -> Form:
    through, total = (p - 1) * share, p * (p - 1) * share
    phases = [Phase(1, p - 1, through, total, through)] * scatter + [Phase(1, p - 1, through, total, 0)] * gather
    many = len(phases)
    return Form(tuple(phases), many * p * (p - 1), many * through, many * (p - 1), scatter * through)


def _chain(p: int, reduces: bool) -> Form:
    return Form((Phase(p - 1, 1, 1, 1, int(reduces)),), p - 1, 1, 1, int(reduces))


def _tree(p: int, up: bool, down: bool, size: int = 1) -> Form:
    upwards = [Phase(1, 1, size, size * _edges(p, d), size) for d in _doublings(p)]
    phases = upwards * up + [phase._replace(combined=0) for phase in reversed(upwards)] * down
    log = _log_up(p)
    return Form(tuple(phases), (up + down) * (p - 1), log * size, log, log * size * up)


def _tree_of_slices(p: int) -> Form:
    phases = (Phase(1, 1, Fraction(min(d, p - d), p), Fraction(_with_bit(p, d), p), 0) for d in _doublings(p))
    return Form(tuple(phases), p - 1, _slices(p), _log_up(p), 0)


def _then(first: Form, second: Form) -> Form:
    """One after the other, where the same port is the busiest of both."""
    return Form(
        first.phases + second.phases,
        first.messages + second.messages,
        first.busiest_port_bytes + second.busiest_port_bytes,
        first.busiest_port_messages + second.busiest_port_messages,
        first.combined + second.combined,
    )


def _guests(p: int, middle: Form) -> Form:
    """Surplus ranks hand their buffer in before, and get it back afterwards."""
    guests = p - (1 << (p.bit_length() - 1))
    if not guests:
        return middle
    before, after = Phase(1, 1, 1, guests, 1), Phase(1, 1, 1, guests, 0)
    return Form(
        (before, *middle.phases, after),
        middle.messages + 2 * guests,
        middle.busiest_port_bytes + 1,
        middle.busiest_port_messages + 1,
        middle.combined + 1,
    )


def _recursive_doubling(p: int) -> Form:
    log = p.bit_length() - 1
    players = 1 << log
    return _guests(p, Form((Phase(log, 1, 1, players, 1),), log * players, log, log, log))


def _exchanges(players: int, scatter: bool, gather: bool) -> Form:
    halving = [
        Phase(1, 1, Fraction(1, 2 * d), Fraction(players, 2 * d), Fraction(1, 2 * d)) for d in _doublings(players)
    ]
    phases = halving * scatter + [phase._replace(combined=0) for phase in reversed(halving)] * gather
    both, log = scatter + gather, _log_up(players)
    return Form(tuple(phases), both * log * players, _slices(players, both), both * log, scatter * _slices(players))


def _hierarchical(p: int) -> Form:
    size = isqrt(p - 1) + 1
    groups = -(-p // size)
    last = p - (groups - 1) * size
    log, log_last, full = _log_up(size), _log_up(last), groups - 1
    up = [Phase(1, 1, 1, full * _edges(size, d) + _edges(last, d), 1) for d in _doublings(size)]
    down = [
        Phase(
            1,
            1,
            1,
            full * _edges(size, 1 << log - 1 - j) + (_edges(last, 1 << log_last - 1 - j) if j < log_last else 0),
            0,
        )
        for j in range(log)
    ]
    one = Fraction(1, groups)
    across = [Phase(full, 1, one, 1, one), Phase(full, 1, one, 1, 0)] if full else []
    return Form(
        (*up, *across, *down),
        2 * (p - groups) + 2 * groups * full,
        log + _slices(groups, 2),
        log + 2 * full,
        log + _slices(groups),
    )


def _two_level(p: int) -> Form | None:
    size = isqrt(p - 1) + 1
    groups = p // size
    if p % size:
        return None
    one, all_of_them = Fraction(1, size), Fraction(1, p)
    phases = (
        Phase(size - 1, 1, one, groups, one),
        Phase(groups - 1, 1, all_of_them, 1, all_of_them),
        Phase(groups - 1, 1, all_of_them, 1, 0),
        Phase(size - 1, 1, one, groups, 0),
    )
    steps = 2 * (size - 1) + 2 * (groups - 1)
    return Form(tuple(phase for phase in phases if phase.steps), p * steps, _slices(p, 2), steps, _slices(p))


def _bruck_gather(p: int) -> Form:
    phases = (Phase(1, 1, Fraction(min(d, p - d), p), min(d, p - d), 0) for d in _doublings(p))
    return Form(tuple(phases), p * _log_up(p), _slices(p), _log_up(p), 0)


def _neighbors(p: int) -> Form | None:
    if p % 2:
        return None
    phases = (Phase(1, 1, Fraction(1, p), 1, 0), Phase(p // 2 - 1, 1, Fraction(2, p), 2, 0))
    return Form(phases[: 1 + (p > 2)], p * p // 2, _slices(p), p // 2, 0)


def _bruck_all_to_all(p: int) -> Form:
    phases = [Phase(1, 1, Fraction(_with_bit(p, d), p), _with_bit(p, d), 0) for d in _doublings(p)]
    through = sum(phase.bytes for phase in phases)
    sorting = Fraction(p - 1 - (p % 2 == 0), p)
    phases += [Phase(1, 0, 0, 0, 0, sorting)] if sorting else []
    return Form(tuple(phases), p * _log_up(p), through, _log_up(p), sorting)


def _pairwise(p: int) -> Form:
    even = p % 2 == 0
    phase = Phase(p - 1 if even else p, 1, Fraction(1, p), 1 if even else _slices(p), 0)
    return Form((phase,), p * (p - 1), _slices(p), p - 1, 0)


def _dissemination(p: int) -> Form:
    return Form((Phase(_log_up(p), 1, 0, 0, 0),), p * _log_up(p), 0, _log_up(p), 0)


def _of_power(formula: Callable[[int], Form]) -> Callable[[int], Form | None]:
    return lambda p: formula(p) if _is_power(p) else None


_FORMULAS: dict[tuple[str, str], Callable[[int], Form | None]] = {
    ("all_reduce", "naive"): lambda p: _everybody(p, 1, True, False),
    ("all_reduce", "driver"): lambda p: _driver(p, 1, in_and_out=2),
    ("all_reduce", "rotate"): _rotate,
    ("all_reduce", "ring"): lambda p: _ring(p, True, True),
    ("all_reduce", "tree"): lambda p: _tree(p, True, True),
    ("all_reduce", "recursive_doubling"): _recursive_doubling,
    ("all_reduce", "halving_doubling"): lambda p: _guests(p, _exchanges(1 << p.bit_length() - 1, True, True)),
    ("all_reduce", "swing"): _of_power(lambda p: _exchanges(p, True, True)),
    ("all_reduce", "direct"): lambda p: _everybody(p, Fraction(1, p), True, True),
    ("all_reduce", "hierarchical"): _hierarchical,
    ("all_reduce", "two_level"): _two_level,
    ("reduce", "driver"): lambda p: _driver(p, 1),
    ("reduce", "tree"): lambda p: _tree(p, True, False),
    ("reduce", "chain"): lambda p: _chain(p, True),
    ("reduce", "direct"): lambda p: _then(
        _everybody(p, Fraction(1, p), True, False), _driver(p, Fraction(1, p), reduces=False)
    ),
    ("reduce", "scatter_gather"): _of_power(lambda p: _then(_exchanges(p, True, False), _tree_of_slices(p))),
    ("broadcast", "driver"): lambda p: _driver(p, 1, reduces=False),
    ("broadcast", "tree"): lambda p: _tree(p, False, True),
    ("broadcast", "chain"): lambda p: _chain(p, False),
    ("broadcast", "scatter_all_gather"): lambda p: _then(_tree_of_slices(p), _ring(p, False, True)),
    ("gather", "driver"): lambda p: _driver(p, Fraction(1, p), reduces=False),
    ("gather", "tree"): _tree_of_slices,
    ("scatter", "driver"): lambda p: _driver(p, Fraction(1, p), reduces=False),
    ("scatter", "tree"): _tree_of_slices,
    ("all_gather", "ring"): lambda p: _ring(p, False, True),
    ("all_gather", "bruck"): _bruck_gather,
    ("all_gather", "direct"): lambda p: _everybody(p, Fraction(1, p), False, True),
    ("all_gather", "neighbor_exchange"): _neighbors,
    ("all_gather", "recursive_doubling"): _of_power(lambda p: _exchanges(p, False, True)),
    ("reduce_scatter", "ring"): lambda p: _ring(p, True, False),
    ("reduce_scatter", "direct"): lambda p: _everybody(p, Fraction(1, p), True, False),
    ("reduce_scatter", "halving"): _of_power(lambda p: _exchanges(p, True, False)),
    ("all_to_all", "direct"): lambda p: _everybody(p, Fraction(1, p), False, True),
    ("all_to_all", "pairwise"): _pairwise,
    ("all_to_all", "bruck"): _bruck_all_to_all,
    ("barrier", "dissemination"): _dissemination,
    ("barrier", "direct"): lambda p: _everybody(p, 0, True, False),
    ("barrier", "tree"): lambda p: _tree(p, True, True, size=0),
}
