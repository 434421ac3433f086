"""The exception that this process ends with, for the ranks that will miss it: their errors name the cause."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from .engine import FAILURES

MOST_BYTES = 240  # of a sentence; see Post::last_words in native/shared/layout.hpp

_noted = ""
_watched = 0  # the process in which multiprocessing will call back


def last_words() -> str:
    """`ValueError: bad data`: the exception that is being handled here, or that this process ends with; or nothing."""
    return _words(sys.exc_info()[1]) or _noted


def who_left(words: Mapping[int, str], name: Callable[[list[int]], str], what: str = "", without: str = "") -> str:
    """`rank 1 has left: it is ending after ValueError: bad data`, from the last words of the ranks that have left.

    Only ranks that end after an exception of their own are named, if there are any: the others often left because of them,
    and perhaps say so. `what`: which group they have left, if not the run; `without`: added for a single rank without last
    words.
    """
    most = max(map(_weight, words.values()))
    by_words: dict[str, list[int]] = {}
    for rank in sorted(words):
        if _weight(words[rank]) == most:
            by_words.setdefault(words[rank], []).append(rank)

    def sentence(said: str, ranks: list[int]) -> str:
        have, are = ("has", "it is") if len(ranks) == 1 else ("have", "they are")
        why = f": {are} ending after {said}" if said else without if len(ranks) == 1 else ""
        return f"{name(ranks)} {have} left{what}{why}"

    return "; ".join(sentence(*one) for one in by_words.items())


def note_ending() -> None:
    """To be called when the process ends: keeps what `last_words` shall say from now on."""
    global _noted
    # The interpreter sets it for an exception that nobody caught. A session keeps it for a debugger, and goes on.
    uncaught = None if hasattr(sys, "ps1") or sys.flags.interactive else getattr(sys, "last_value", None)
    _noted = last_words() or _words(uncaught)


def watch_multiprocessing(callback: Callable[[], None]) -> None:
    """Have `callback` called when this process ends, if it is a child of multiprocessing (or torch.multiprocessing).

    multiprocessing catches exceptions itself, and where it forks it ends processes without `atexit`. What it calls at the
    end of a child is called while the exception is being handled.
    """
    global _watched
    child = sys.modules.get("multiprocessing.process")
    if child is None or child.parent_process() is None or _watched == os.getpid():
        return
    from multiprocessing.util import Finalize

    _watched = os.getpid()
    Finalize(None, callback, exitpriority=1000)  # before queues and pools are joined


def _weight(words: str) -> int:
    """How much last words explain: nothing, that others failed, or an exception of the rank's own."""
    return 0 if not words else 1 if words.startswith(tuple(f"{kind.__name__}: " for kind in FAILURES)) else 2


def _words(error: BaseException | None) -> str:
    while isinstance(error, SystemExit):  # torch.multiprocessing turns exceptions into sys.exit(1)
        error = error.__context__
    # The loss of another rank is not the cause: the errors of the engines name that rank.
    if error is None or isinstance(error, (*FAILURES, GeneratorExit, StopIteration)):
        return ""
    try:
        text = " ".join(f"{type(error).__name__}: {error}".split())
    except Exception:
        text = type(error).__name__
    return text.removesuffix(":").encode(errors="replace")[:MOST_BYTES].decode(errors="ignore")
