"""Recursive halving and doubling: pairs of ranks exchange, then pairs of pairs, and so on: log₂P steps.

That works for powers of two. Otherwise the surplus ranks are *guests*: each hands what it has to a neighbouring *host*
before the exchanges (fold in) and gets its result from it afterwards (fold out). Hosts and the ranks without a guest
are the *players*, 2^k of them. A guest sits at rank host+1, so that what a player holds is an interval of ranks, and
pairs exchange with their nearest neighbours first: both together keep rank order in every reduction here. Where there
are no guests, folding in and out have no moves, and a step without moves does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

import numpy as np

from ..patterns import Messages, Pattern, Seats, copies, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, copy, reduce
from .tree import doublings, log_down


def has_guests(ranks: int) -> bool:
    return ranks > 1 << log_down(ranks)


FOLD_IN = Phase("fold in", "The guests, ranks beyond a power of two, hand what they have to a neighbour.", has_guests)
FOLD_OUT = Phase("fold out", "The guests get their result from that neighbour.", has_guests)
HALVE = Phase("halve", "Partners split what they work on: each sends one half, and adds to the other half.", log_down)
DOUBLE = Phase("double", "Partners exchange all they have, so that it doubles.", log_down)


def seats(ranks: int) -> tuple[list[int], list[tuple[int, int]]]:
    """The players' ranks, and the pairs (host, guest)."""
    surplus = ranks - (1 << log_down(ranks))
    hosts = [2 * i for i in range(surplus)]
    return hosts + list(range(2 * surplus, ranks)), [(host, host + 1) for host in hosts]


def slices(players: list[int], guests: list[tuple[int, int]]) -> list[list[int]]:
    """The slices that each player is responsible for: its own, and its guest's if it has one."""
    guest_of = dict(guests)
    return [[player, guest_of[player]] if player in guest_of else [player] for player in players]


def halve(players: list[int], owned: list[list[int]]) -> Iterator[list[Move]]:
    """Reduce, so that each player ends with the chunks it owns: every exchange halves what a player still works on.

    Before the exchange at distance d, player i works on the chunks of all players equal to i modulo d; afterwards on
    those equal modulo 2d, and its partner i^d has taken the rest.
    """
    distance = 1
    while distance < len(players):
        yield [
            reduce(chunk=chunk, source=rank, destination=players[i ^ distance])
            for i, rank in enumerate(players)
            for other in range((i ^ distance) % (2 * distance), len(players), 2 * distance)
            for chunk in owned[other]
        ]
        distance *= 2


def double(players: list[int], owned: list[list[int]]) -> Iterator[list[Move]]:
    """The same exchanges run backwards: each player starts with the chunks it owns, and what it has doubles."""
    distance = len(players) // 2
    while distance:
        yield [
            copy(chunk=chunk, source=rank, destination=players[i ^ distance])
            for i, rank in enumerate(players)
            for other in range(i % (2 * distance), len(players), 2 * distance)
            for chunk in owned[other]
        ]
        distance //= 2


def exchanges(players: list[int], owned: list[list[int]], chunks: int, messages: Messages) -> Iterator[Pattern]:
    """The patterns of `halve` or `double`, by whether messages are reductions or copies."""
    ranks, number, halving = np.array(players), np.arange(len(players)), messages is reductions
    weight = np.array([len(own) for own in owned]) / chunks
    for distance in sorted(doublings(len(players)), reverse=not halving):
        # Of the chunks of all players equal modulo 2d: its partner's when it halves, its own when it doubles.
        cared = np.bincount(number % (2 * distance), weights=weight)
        partner = number ^ distance
        yield messages(ranks, ranks[partner], cared[(partner if halving else number) % (2 * distance)])


def fold_in(guests: list[tuple[int, int]], messages: Messages, share: float) -> Iterator[Pattern]:
    if guests:
        host, guest = np.array(guests).T
        yield messages(guest, host, share)


def fold_out(guests: list[tuple[int, int]], share: float) -> Iterator[Pattern]:
    if guests:
        host, guest = np.array(guests).T
        yield copies(host, guest, share)


Partners = Callable[[int], Iterable[Seats]]
"""For a number of players: everybody's partner, exchange after exchange."""


def nearest_first(players: int) -> list[Seats]:
    return [np.arange(players) ^ distance for distance in doublings(players)]


def exchange_patterns(ranks: int, partners: Partners) -> Iterator[Pattern]:
    players, guests = seats(ranks)
    everyone = np.array(players)
    yield from fold_in(guests, reductions, 1.0)
    for partner in partners(len(players)):
        yield reductions(everyone, everyone[partner], 1.0)
    yield from fold_out(guests, 1.0)


def exchange(ranks: int, partners: Partners) -> Iterator[list[Move]]:
    """Partners exchange whole buffers, and both add; guests fold in before and fold out after."""
    players, guests = seats(ranks)
    everyone = np.array(players)
    yield [reduce(chunk=0, source=guest, destination=host) for host, guest in guests]
    for partner in partners(len(players)):
        yield [reduce(chunk=0, source=everyone, destination=everyone[partner])]
    yield [copy(chunk=0, source=host, destination=guest) for host, guest in guests]


@algorithm(
    "all_reduce",
    steps=lambda p: log_down(p) + 2 * has_guests(p),
    port=lambda p: log_down(p) + has_guests(p),
    patterns=lambda p: exchange_patterns(p, nearest_first),
    phases=[FOLD_IN, Phase("exchange", steps=log_down), FOLD_OUT],
)
def recursive_doubling(ranks: int) -> Iterator[list[Move]]:
    """Pairs exchange whole buffers and both add up; then pairs of pairs, until everyone has everything.

    log₂P steps and log₂P·S through the busiest port; with guests ⌊log₂P⌋+2 steps and (⌊log₂P⌋+1)·S.
    """
    yield from exchange(ranks, nearest_first)


def halving_patterns(ranks: int) -> Iterator[Pattern]:
    players, guests = seats(ranks)
    yield from fold_in(guests, reductions, 1.0)
    yield from exchanges(players, slices(players, guests), ranks, reductions)
    yield from fold_out(guests, 1 / ranks)


@algorithm(
    "reduce_scatter",
    steps=lambda p: log_down(p) + 2 * has_guests(p),
    port=lambda p: None if has_guests(p) else Fraction(p - 1, p),
    patterns=halving_patterns,
    phases=[FOLD_IN, HALVE, FOLD_OUT],
)
def halving(ranks: int) -> Iterator[list[Move]]:
    """Partners split the buffer: each sends the half that the other goes on with, and adds up its own half.

    log₂P steps and (P−1)/P·S through the busiest port; with guests ⌊log₂P⌋+2 steps and less than 2¼·S.
    """
    players, guests = seats(ranks)
    owned = slices(players, guests)
    yield [reduce(chunk=c, source=guest, destination=host) for host, guest in guests for c in range(ranks)]
    yield from halve(players, owned)
    yield [copy(chunk=guest, source=host, destination=guest) for host, guest in guests]


def doubling_all_gather_patterns(ranks: int) -> Iterator[Pattern]:
    players, guests = seats(ranks)
    yield from fold_in(guests, copies, 1 / ranks)
    yield from exchanges(players, slices(players, guests), ranks, copies)
    yield from fold_out(guests, (ranks - 1) / ranks)


@algorithm(
    "all_gather",
    "recursive_doubling",
    steps=lambda p: log_down(p) + 2 * has_guests(p),
    port=lambda p: None if has_guests(p) else Fraction(p - 1, p),
    patterns=doubling_all_gather_patterns,
    phases=[FOLD_IN, DOUBLE, FOLD_OUT],
)
def doubling_all_gather(ranks: int) -> Iterator[list[Move]]:
    """Pairs exchange all they have, with nearer and nearer partners; each exchange doubles what everyone has.

    log₂P steps and (P−1)/P·S through the busiest port; with guests ⌊log₂P⌋+2 steps and less than 2¼·S.
    """
    players, guests = seats(ranks)
    owned = slices(players, guests)
    yield [copy(chunk=guest, source=guest, destination=host) for host, guest in guests]
    yield from double(players, owned)
    yield [copy(chunk=c, source=host, destination=guest) for host, guest in guests for c in range(ranks) if c != guest]


def halving_doubling_patterns(ranks: int) -> Iterator[Pattern]:
    players, guests = seats(ranks)
    owned = [[chunk] for chunk in range(len(players))]
    yield from fold_in(guests, reductions, 1.0)
    yield from exchanges(players, owned, len(players), reductions)
    yield from exchanges(players, owned, len(players), copies)
    yield from fold_out(guests, 1.0)


@algorithm(
    "all_reduce",
    steps=lambda p: 2 * log_down(p) + 2 * has_guests(p),
    port=lambda p: 2 - Fraction(2, 1 << log_down(p)) + has_guests(p),
    patterns=halving_doubling_patterns,
    phases=[FOLD_IN, HALVE, DOUBLE, FOLD_OUT],
)
def halving_doubling(ranks: int) -> Iterator[list[Move]]:
    """Rabenseifner's: a reduce_scatter by halving, then an all_gather by doubling, along the same exchanges.

    2·log₂P steps and 2(P−1)/P·S through the busiest port; with guests 2⌊log₂P⌋+2 steps and less than 3·S.
    """
    players, guests = seats(ranks)
    chunks = range(len(players))
    owned = [[chunk] for chunk in chunks]
    yield [reduce(chunk=c, source=guest, destination=host) for host, guest in guests for c in chunks]
    yield from halve(players, owned)
    yield from double(players, owned)
    yield [copy(chunk=c, source=host, destination=guest) for host, guest in guests for c in chunks]
