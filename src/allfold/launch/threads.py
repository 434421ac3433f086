"""Ranks as threads of one process: for tests, for notebooks, and for sanitizers, which see one process only.

The engine does not know the difference. Each rank has an arena, a post and a work area as it would have in a process of
its own; but every arena is mapped once, so that all ranks touch it at the same addresses, which is what a tool that
watches memory accesses needs.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .. import _native
from ..communicator.communicator import _ADDRESS_SPACE, DEFAULT_TIMEOUT, Communicator, _arena_bytes
from ..errors import RankFailed, RankLost, UsageError

Result = TypeVar("Result")


def run_threads(
    work: Callable[..., Result], ranks: int, *, args: Sequence[Any] = (), timeout: float = DEFAULT_TIMEOUT
) -> list[Result]:
    """Run `work(communicator, *args)` in as many threads as there are ranks; the results, by rank.

    `timeout` is that of the communicators' calls, in seconds. When a rank raises, the calls of the others are ended, and
    when all have returned, RankFailed names the rank; the exception itself is its cause.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UsageError(f"expected a whole number of ranks, at least 1; got {ranks!r}")
    members = [_member(ranks) for _ in range(ranks)]
    number = secrets.randbits(64)
    communicators = [Communicator(rank, members, timeout, "the world", number) for rank in range(ranks)]
    results: list[Result | None] = [None] * ranks
    failures: list[tuple[int, BaseException]] = []  # in the order of their coming; appending is atomic

    def run(rank: int) -> None:
        try:
            results[rank] = work(communicators[rank], *args)
            communicators[rank].close()
        except BaseException as error:  # whatever it is, it is handed to the caller
            failures.append((rank, error))
            communicators[rank].abort()

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(ranks)]
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        for thread in threads:
            thread.join()
    except BaseException:  # an interrupt, or no room for another thread
        for communicator in communicators:
            communicator.abort()
        for thread in started:
            thread.join()
        raise
    if failures:
        # What others suffered because a rank gave up is no first cause.
        rank, error = min(failures, key=lambda failure: isinstance(failure[1], RankLost))
        raise RankFailed(f"rank {rank} raised {type(error).__name__}: {error}", rank=rank) from error
    return results  # type: ignore[return-value]  # every rank has put its result in its place


def _member(ranks: int) -> tuple[Any, int, int, int]:
    arena = _native.Arena(_arena_bytes(_ADDRESS_SPACE // ranks))
    post, work = arena.allocate(_native.POST_BYTES), arena.allocate(_native.WORK_BYTES)
    return arena, post, work, arena.allocate(_native.inbox_bytes(ranks))
