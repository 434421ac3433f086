"""Everything that allfold raises on purpose: one hierarchy, so that `except allfold.AllfoldError` catches it all."""

from __future__ import annotations


class AllfoldError(Exception):
    """The root of the hierarchy."""


class UsageError(AllfoldError, ValueError):
    """What the caller passed cannot be used; the message says what was expected and what was passed."""


class EngineMissing(UsageError):
    """What was asked for runs between processes, and this allfold has no engine; the message says what works."""


class ScheduleError(AllfoldError):
    """A schedule is wrong. `rank`, `chunk`, `step` and `site` say where, as far as it is known."""

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
    """Ranks differ in what should be the same call: in its collective, count, type, operation or root."""


class RankLost(AllfoldError, RuntimeError):
    """A rank of the communicator is gone."""


class CollectiveTimeout(AllfoldError, TimeoutError):
    """A call did not finish within its timeout; the message names the ranks that did not arrive."""


class RankFailed(AllfoldError, RuntimeError):
    """A rank started by the launcher raised or died; `traceback` is that rank's own."""

    def __init__(self, message: str, *, rank: int, traceback: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback
        self.exit_code = exit_code


class SharedMemoryError(AllfoldError, MemoryError):
    """The machine has no room for shared memory, or does not allow it; the message says what to set."""


class DeviceError(AllfoldError, RuntimeError):
    """A GPU, or its driver, refused something; the message says what."""
