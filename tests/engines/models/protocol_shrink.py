"""A model of how survivors agree on who they are (engines/shared_memory/shrink.py): ranks may crash at any moment.

The words of a rank are read one by one, as in `agree_on_survivors`, and anything may happen in between. Two things are
left out because they make no difference. A rank crashes only where it begins a new round of checks: until it writes
again, nobody can tell at which of its reads it crashed. And it reads the decisions of all ranks at once. Decisions are
never withdrawn. So if it finds none when it reads one by one, it would have found none at the time of the first read;
if it finds one, it would also have found it at the time of the last read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from protocol import Broken, explore


@dataclass(frozen=True)
class Rules:
    looks_first: bool = True  # for a decision of another rank
    looks_once_more: bool = True  # and again, after a rank was seen to be gone
    waits_for_equal_views: bool = True
    heeds_the_dead: bool = True  # a decision counts even if the rank that made it is dead
    keeps_its_view: bool = True  # a rank whose time was up goes on with the view that it has written


class Rank(NamedTuple):
    alive: bool = True
    # What others can read: 0 not there yet, 1 wants to shrink, 2 decided; sets of ranks as bits.
    state: int = 0
    view: int = 0
    decision: int = 0
    # What it is doing: looking for a decision, at who is gone, at views, for a decision again; at which rank; with
    # what.
    phase: str = "begin"
    at: int = 0
    gone: int = 0
    common: int = 0
    equal: bool = True
    tries: int = 1


World = tuple[Rank, ...]


def try_agreement(
    ranks: int,
    crashes: int,
    rules: Rules = Rules(),  # noqa: B008 - it is frozen
    lost: int = 0,
    tries: int = 1,
) -> int:
    """Try all orders with up to this many crashes, including the initial `lost`; returns the number of states.

    A rank whose time is up after a round of checks may try again, up to this often. Trying later is being slow, which
    is in all orders anyway; so a new try is a move only where it changes something.
    """

    settled: set[World] = set()

    def moves(world: World) -> Iterable[tuple[str, World]]:
        decided = {rank.decision for rank in world if rank.state == 2}
        if len(decided) > 1:
            raise Broken(f"ranks decide on {' and on '.join(f'{one:0{ranks}b}' for one in sorted(decided))}")
        if all(rank.phase in ("begin", "end") for rank in world):
            _come_to_an_end(world, rules, settled)
        crashed = sum(not rank.alive for rank in world)
        for number, rank in enumerate(world):
            if rank.phase == "end":
                continue
            if rank.phase == "begin" and crashed < crashes:
                dead = Rank(False, rank.state, rank.view, phase="end")
                yield f"{number} crashes", _with(world, number, dead)
            if rank.phase == "begin" and rank.state == 1 and rank.tries < tries:
                yield f"{number} tries again", _with(world, number, _again(rank, ranks, rules))
            then = _with(world, number, _next(world, number, rules))
            while crashed == crashes and then[number].phase == "gone":  # what cannot change any more is read at once
                then = _with(then, number, _next(then, number, rules))
            yield f"{number}: {rank.phase}", then
        for number, rank in enumerate(world):  # having decided, it may crash as well
            if rank.alive and rank.phase == "end" and crashed < crashes:
                yield f"{number} crashes", _with(world, number, rank._replace(alive=False))

    start = (Rank(),) * (ranks - lost) + (Rank(False, phase="end"),) * lost
    return explore(start, moves, lambda world: all(rank.phase == "end" for rank in world))


def _come_to_an_end(world: World, rules: Rules, settled: set[World]) -> None:
    """If nobody crashes any more, every live rank decides: each in turn checks the others, again and again."""
    passed = []
    for _ in range(3 * len(world)):
        if world in settled or all(rank.phase == "end" for rank in world):
            settled.update(passed)
            return
        passed.append(world)
        for number in range(len(world)):
            if world[number].phase != "end":
                world = _with(world, number, _next(world, number, rules))
            while world[number].phase not in ("begin", "end"):
                world = _with(world, number, _next(world, number, rules))
    raise Broken("nobody crashes any more, and they do not come to an end")


def _again(me: Rank, ranks: int, rules: Rules) -> Rank:
    return Rank(True, 1, me.view if rules.keeps_its_view else (1 << ranks) - 1, tries=me.tries + 1)


def _next(world: World, number: int, rules: Rules) -> Rank:
    """The state of a rank after its next read or write, following `agree_on_survivors`."""
    me = world[number]
    everybody = (1 << len(world)) - 1
    if me.state == 0:
        return me._replace(state=1, view=everybody)
    if me.phase in ("begin", "once more"):  # _Posts.decision
        looks = rules.looks_first if me.phase == "begin" else rules.looks_once_more
        for peer in world if looks else ():
            if peer.state == 2 and (peer.alive or rules.heeds_the_dead):
                return _decide(me, peer.decision)
        if me.phase == "begin":
            return me._replace(phase="gone", at=_peer_after(me, number, -1))
        smaller = me.common | 1 << number
        return Rank(True, 1, smaller, tries=me.tries)
    if me.phase == "gone":
        if me.at < len(world):
            gone = me.gone if world[me.at].alive else me.gone | 1 << me.at
            me = me._replace(gone=gone, at=_peer_after(me, number, me.at))
            if me.at < len(world):
                return me
        return me._replace(phase="views", at=_peer_after(me, number, -1), gone=0, common=me.view & ~me.gone)
    # Views: those of the ranks in its own view that have come.
    if me.at < len(world):
        peer = world[me.at]
        common = me.common & peer.view if peer.state else me.common
        equal = me.equal and peer.state != 0 and (peer.view == me.view or not rules.waits_for_equal_views)
        me = me._replace(common=common, equal=equal, at=_peer_after(me, number, me.at))
        if me.at < len(world):
            return me
    if me.common | 1 << number != me.view:
        return me._replace(phase="once more", equal=True)
    return _decide(me, me.view) if me.equal else Rank(True, 1, me.view, tries=me.tries)


def _peer_after(me: Rank, number: int, at: int) -> int:
    return next((one for one in range(at + 1, 64) if one != number and me.view >> one & 1), 64)


def _decide(me: Rank, decision: int) -> Rank:
    return Rank(True, 2, me.view, decision, "end", tries=me.tries)


def _with(world: World, number: int, rank: Rank) -> World:
    return (*world[:number], rank, *world[number + 1 :])
