"""Calls of torch's stores from Python: their answers are part of what a rank receives.

C++ also uses stores, to connect a group; a replay connects nothing, and does not need those calls.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch.distributed as dist

ANSWERING = (
    *("get", "add", "check", "wait", "compare_set", "delete_key", "multi_get", "num_keys"),
    *("queue_pop", "queue_len", "list_keys"),
)
_MOST_EARLY = 10_000
_OURS = ("allfold.torch", "allfold.fabrics", "allfold.check")

Answer = list[Any]
"""[method, keys, succeeded, value or [type, text]]"""


class StoreAnswers:
    """Records the answers of all stores. Until there is a file, the last ones are kept in memory."""

    def __init__(self) -> None:
        self._early: deque[Answer] = deque(maxlen=_MOST_EARLY)
        self._process = os.getpid()
        self._note: Callable[[Answer], None] | None = None
        for name in ANSWERING:
            if hasattr(dist.Store, name):
                setattr(dist.Store, name, self._method(name, getattr(dist.Store, name)))

    def note_with(self, note: Callable[[Answer], None]) -> None:
        while self._early:
            note(self._early.popleft())
        self._note = note

    def _method(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(store: Any, *arguments: Any, **given: Any) -> Any:
            if is_ours(sys._getframe(1)):
                return original(store, *arguments, **given)
            try:
                value = original(store, *arguments, **given)
            except Exception as error:
                self._take([name, key_of(arguments, given), False, [type(error).__name__, str(error)[:1000]]])
                raise
            self._take([name, key_of(arguments, given), True, as_text(value)])
            return value

        method.__name__, method.__doc__ = name, original.__doc__
        return method

    def _take(self, answer: Answer) -> None:
        if os.getpid() == self._process:
            (self._note or self._early.append)(answer)


def is_ours(caller: FrameType) -> bool:
    """True if allfold's own code calls the store, in order to connect: a replay has no use for that."""
    return str(caller.f_globals.get("__name__", "")).startswith(_OURS)


def key_of(arguments: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """The key or the keys of a call, by which a replay finds its answer."""
    key = arguments[0] if arguments else given.get("key", given.get("keys"))
    if isinstance(key, list | tuple):
        return [str(one) for one in key]
    return None if key is None else str(key)


def as_text(value: Any) -> Any:
    """Bytes as text with the same codes, for JSON."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return [as_text(one) for one in value] if isinstance(value, list) else value


def as_bytes(value: Any) -> Any:
    """The opposite of `as_text`."""
    if isinstance(value, str):
        return value.encode("latin-1")
    return [as_bytes(one) for one in value] if isinstance(value, list) else value
