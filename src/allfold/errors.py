"""Everything that allfold raises on purpose: one hierarchy, so that `except allfold.AllfoldError` catches it all."""

from __future__ import annotations


class AllfoldError(Exception):
    """The root of the hierarchy."""


class UsageError(AllfoldError, ValueError):
    """What the caller gave cannot be used; the sentence says what was expected and what came."""


class ScheduleError(AllfoldError):
    """A schedule is wrong. `rank`, `chunk`, `step` and `site` name the place where they are known."""

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        chunk: int | None = None,
        step: int | None = None,
        site: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.chunk = chunk
        self.step = step
        self.site = site


class MismatchError(AllfoldError, RuntimeError):
    """Ranks came to the same call with different collectives, counts, types, operations or roots."""


class RankLost(AllfoldError, RuntimeError):
    """A rank of the communicator is gone."""


class CollectiveTimeout(AllfoldError, TimeoutError):
    """A call did not finish within its time; the sentence names the ranks that did not come."""


class RankFailed(AllfoldError, RuntimeError):
    """A rank that the launcher started raised or died; `traceback` is that rank's own."""

    def __init__(self, message: str, *, rank: int, traceback: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback
        self.exit_code = exit_code


class SharedMemoryError(AllfoldError, MemoryError):
    """The machine has no room for shared memory, or does not allow it; the sentence says what to set."""
