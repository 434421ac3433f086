"""Lets the members of a Ray group meet: in the key-value store of Ray's head node, where Ray's own groups meet too.

A name may have been used before, by a group that was destroyed or by actors that died while they made one, so entries
of earlier attempts may still be there. Rank 0 therefore writes an unguessable number for its attempt. Every other rank
answers with a number of its own. Rank 0's verdict repeats those numbers, so a rank knows that the verdict is about this
attempt; a missing number shows which rank is missing. Then the ranks find each other's hosts on a board in the same store
(`engines/islands/meeting.py`).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import ray
from ray.experimental import internal_kv

from ..communicator.communicator import Communicator, join
from ..engines.choose import named
from ..engines.engine import Processes
from ..errors import CollectiveTimeout, MismatchError
from ..fabrics.board import Board
from ..fabrics.secret import Secret
from ..fabrics.stores import Store, polled
from ..wording import name_ranks

_NAMESPACE = "allfold"  # of our keys among those of Ray
_ADDRESSES = 2**40  # of the 2**47 that a process has: a program may make many groups
_TURN_SECONDS = 0.2  # after which a rank checks again whether rank 0 has begun another attempt
_LONGER_SECONDS = 2.0  # that other ranks wait in addition, so that rank 0 has time to name the missing ranks


class KeyValues(Store):
    """Ray's key-value store, below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def put(self, name: str, value: bytes) -> None:
        internal_kv._internal_kv_put(self._prefix + name, value, namespace=_NAMESPACE)

    def find(self, names: Sequence[str], timeout: float) -> list[bytes | None]:
        return polled(self._get, names, timeout)

    def decide(self, name: str, proposal: bytes) -> bytes:
        internal_kv._internal_kv_put(self._prefix + name, proposal, overwrite=False, namespace=_NAMESPACE)
        decided = self._get(name)
        assert decided is not None
        return decided

    def clear(self) -> None:
        internal_kv._internal_kv_del(self._prefix, del_by_prefix=True, namespace=_NAMESPACE)

    def _get(self, name: str) -> bytes | None:
        found: bytes | None = internal_kv._internal_kv_get(self._prefix + name, namespace=_NAMESPACE)
        return found


def prefix_of(group: str) -> str:
    """The store prefix of a group: the same for all actors in a namespace of Ray, and not a prefix of another one."""
    place = json.dumps([ray.get_runtime_context().namespace, group])
    return sha256(place.encode()).hexdigest() + "/"


def meet(group: str, rank: int, size: int, timeout: float) -> Communicator:
    """The communicator of all members of a group."""
    store = KeyValues(prefix_of(group))
    run, secret = _open(store, size, timeout) if rank == 0 else _answer(store, rank, size, timeout)
    key = Secret.from_environment() or Secret(bytes.fromhex(secret))

    def board() -> Board:
        return Board(store, rank, size, key, f"{run}/board/")

    # Also needed on one host: the ranks learn from the board that they share it.
    communicator = join(Processes(rank, size, "", board, is_spread=True, room=_ADDRESSES), timeout, named(None))
    communicator.barrier()
    if rank == 0:
        store.clear()  # every rank has read all it needs
    return communicator


def _open(store: KeyValues, size: int, timeout: float) -> tuple[str, str]:
    """Begin an attempt as rank 0: its number, and a secret for the group."""
    store.clear()
    run, secret = secrets.token_hex(16), secrets.token_hex(32)
    store.put("run", run.encode())
    names, deadline = [_ready(run, peer) for peer in range(1, size)], time.monotonic() + timeout
    while True:
        remaining = deadline - time.monotonic()
        found = store.find(names, max(0.0, min(remaining, _TURN_SECONDS)))
        answers: list[Any] = [["", size], *(answer and json.loads(answer) for answer in found)]
        if remaining <= 0 or None not in answers or any(one is not None and one[1] != size for one in answers):
            break
    store.put(_verdict(run), json.dumps([answers, secret]).encode())
    _check(answers, timeout)
    return run, secret


def _answer(store: KeyValues, rank: int, size: int, timeout: float) -> tuple[str, str]:
    """The same for another rank, which answers the attempt that rank 0 began last."""
    own, run, refused = secrets.token_hex(16), "", False
    deadline = time.monotonic() + timeout + _LONGER_SECONDS
    while (remaining := deadline - time.monotonic()) > 0:
        now, *verdict = store.find(["run", _verdict(run)] if run else ["run"], min(remaining, _TURN_SECONDS))
        if now is not None and now.decode() != run:
            run = now.decode()
            store.put(_ready(run, rank), json.dumps([own, size]).encode())
        elif verdict and verdict[0] is not None:
            answers, secret = json.loads(verdict[0])
            if rank < len(answers) and answers[rank] is not None and answers[rank][0] == own:
                _check(answers, timeout)
                return run, secret
            refused = True  # this may be the verdict of an earlier attempt, while rank 0 has not arrived yet
            time.sleep(min(remaining, _TURN_SECONDS))
    hint = f", or another actor has joined as rank {rank}" if refused else ""
    raise CollectiveTimeout(f"init_collective_group: rank 0 of {size} did not arrive within {timeout:g} s{hint}")


def _ready(run: str, rank: int) -> str:
    return f"{run}/ready/{rank}"


def _verdict(run: str) -> str:
    return f"{run}/verdict"


def _check(answers: Sequence[Any], timeout: float) -> None:
    """Raise if ranks are missing, or disagree on the number of ranks."""
    size = answers[0][1]
    for rank, one in enumerate(answers):
        if one is not None and one[1] != size:
            raise MismatchError(
                f"init_collective_group: rank 0 gives a world size of {size}, rank {rank} one of {one[1]}"
            )
    if missing := [rank for rank, one in enumerate(answers) if one is None]:
        raise CollectiveTimeout(
            f"init_collective_group: {name_ranks(missing)} of {size} did not arrive within {timeout:g} s"
        )
