"""Shrinking: the surviving ranks agree on who they are.

Every rank that wants to go on writes its view (the ranks that it believes are left) into its post, and reads the views
of the others. A view only ever loses ranks: those whose process is gone, those that have left, and those that another
rank has dropped. When every rank in a rank's view has written exactly that view, the rank decides on it and writes the
decision down too. A rank that sees a decision adopts it, even if a rank in it has died since (the next call will say
so). So no two ranks decide differently: to decide on fewer ranks, a rank must have seen another dead after that one's
last write, and then it has seen that write as well.

A rank whose time is up may come again, and goes on with the view that it has written: others may have decided on it
meanwhile, and then it adopts that decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ... import _native
from ...errors import CollectiveTimeout
from ...wording import name_ranks

# The words of a post: where the rank's part of the new communicator lies, then two sets of ranks, one bit per rank.
_POST, _WORK, _INBOX, _STATE = range(4)
_SETS = 4
_WORDS_A_SET = 16
_BITS = 64
_WANTS, _DECIDED = 1, 2
_PAUSE = 0.001


def agree_on_survivors(
    members: list[Any], rank: int, allocate: Callable[[], tuple[int, int, int]], timeout: float
) -> list[int]:
    """The surviving ranks, in order; each of them gets the same list. `allocate` returns the places of its new parts."""
    posts = _Posts(members)
    deadline = time.monotonic() + timeout
    if posts.state(rank) == 0:
        for word, offset in enumerate(allocate()):
            posts.store(rank, word, offset)
        posts.write_set(rank, 0, frozenset(range(len(members))))
        posts.store(rank, _STATE, _WANTS)
    view = posts.view(rank)
    while True:
        decision = posts.decision()
        if decision is None:
            gone = {peer for peer in view if peer != rank and posts.state(peer) == 0 and not posts.is_there(peer)}
            gone |= {peer for peer in view - {rank} if posts.state(peer) and not posts.is_alive(peer)}
            views = {peer: posts.view(peer) for peer in view - {rank} if posts.state(peer)}
            smaller = (view - gone).intersection(*views.values()) | {rank}
            if smaller != view:
                # Look again, now that a rank is known to be gone: it may have decided before.
                decision = posts.decision()
                if decision is None:
                    view = frozenset(smaller)
                    posts.write_set(rank, 0, view)
                    continue
            elif len(views) == len(view) - 1 and all(other == view for other in views.values()):
                decision = view
        if decision is not None:
            posts.write_set(rank, 1, decision)
            posts.store(rank, _STATE, _DECIDED)
            return sorted(decision)
        if time.monotonic() > deadline:
            late = sorted(peer for peer in view - {rank} if not posts.state(peer))
            who = name_ranks(late) if late else "the others"
            raise CollectiveTimeout(f"shrink: {who} did not arrive within {timeout:g} s, and {_are(late)} not gone")
        time.sleep(_PAUSE)


def offsets_of(members: list[Any], rank: int) -> tuple[int, int, int]:
    """The places of a survivor's post, work area and inbox of the new communicator in its arena."""
    posts = _Posts(members)
    return posts.load(rank, _POST), posts.load(rank, _WORK), posts.load(rank, _INBOX)


def was_shrunk(members: list[Any], rank: int) -> bool:
    return _Posts(members).state(rank) == _DECIDED


class _Posts:
    def __init__(self, members: list[Any]) -> None:
        self._places = [(arena, post) for arena, post, *_ in members]

    def load(self, rank: int, word: int) -> int:
        return _native.load_word(*self._places[rank], word)

    def store(self, rank: int, word: int, value: int) -> None:
        _native.store_word(*self._places[rank], word, value)

    def state(self, rank: int) -> int:
        return self.load(rank, _STATE)

    def is_alive(self, rank: int) -> bool:
        return _native.is_alive(self._places[rank][0])

    def is_there(self, rank: int) -> bool:
        """True if a rank may still take part: it is alive, and has not closed the communicator."""
        return self.is_alive(rank) and _native.flight(*self._places[rank])["standing"] != "left"

    def write_set(self, rank: int, number: int, ranks: frozenset[int]) -> None:
        for word in range(_WORDS_A_SET):
            bits = sum(1 << bit for bit in range(_BITS) if word * _BITS + bit in ranks)
            self.store(rank, _SETS + number * _WORDS_A_SET + word, bits)

    def view(self, rank: int) -> frozenset[int]:
        return self._read_set(rank, 0)

    def decision(self) -> frozenset[int] | None:
        """The decision of any rank, dead or alive."""
        for rank in range(len(self._places)):
            if self.state(rank) == _DECIDED:
                return self._read_set(rank, 1)
        return None

    def _read_set(self, rank: int, number: int) -> frozenset[int]:
        words = [self.load(rank, _SETS + number * _WORDS_A_SET + word) for word in range(_WORDS_A_SET)]
        return frozenset(
            word * _BITS + bit for word, bits in enumerate(words) for bit in range(_BITS) if bits >> bit & 1
        )


def _are(ranks: list[int]) -> str:
    return "are" if len(ranks) != 1 else "is"
