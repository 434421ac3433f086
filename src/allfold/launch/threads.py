"""Ranks as threads of one process: for tests, for notebooks, and for sanitizers, which see one process only.

The engine sees no difference: each rank has what it would have in a process of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..communicator.communicator import Communicator
from ..engines.engine import DEFAULT_TIMEOUT
from ..engines.table import in_threads
from ..errors import RankFailed, RankLost, UsageError

Result = TypeVar("Result")


def run_threads(
    work: Callable[..., Result],
    ranks: int,
    *,
    args: Sequence[Any] = (),
    timeout: float = DEFAULT_TIMEOUT,
    engine: str = "shared_memory",
) -> list[Result]:
    """Run `work(communicator, *args)` in one thread per rank; the results, by rank.

    `timeout` is that of the communicators' calls, in seconds. `engine` is one of `engines.table`. When a rank raises,
    the calls of the others are ended. When all have returned, RankFailed names the rank; the exception itself is its
    cause.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UsageError(f"expected a whole number of ranks, at least 1; got {ranks!r}")
    communicators = [Communicator(made) for made in in_threads(engine, ranks, timeout)]
    results: list[Result | None] = [None] * ranks
    failures: list[tuple[int, BaseException]] = []  # in the order in which they happened; appending is atomic

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
        # Errors of other ranks that only follow from a lost rank are not the first cause.
        rank, error = min(failures, key=lambda failure: isinstance(failure[1], RankLost))
        others = [one for one, _ in failures if one != rank]
        raise RankFailed(
            f"rank {rank} raised {type(error).__name__}: {error}", rank=rank, ranks=[rank, *others]
        ) from error
    return results  # type: ignore[return-value]  # every rank has put its result in its place
