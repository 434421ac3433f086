"""The handle that a non-blocking call returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engines.engine import Ticket
from ..errors import CollectiveTimeout
from .timeouts import check_timeout


class Handle:
    """A call that runs in the background. The arrays belong to it until it is done.

    >>> x = np.ones(3)
    >>> handle = comm.all_reduce(x, async_op=True)
    >>> handle.wait()
    >>> handle.done(), x
    (True, array([2., 2., 2.]))
    """

    def __init__(self, ticket: Ticket, arrays: tuple[Any, ...]) -> None:
        self._ticket = ticket
        self._arrays: tuple[Any, ...] | None = arrays
        self._on_done: Callable[[], None] | None = None

    def done(self) -> bool:
        """True once the call has succeeded or failed; `wait` then returns or raises at once."""
        return self._ticket.done()

    def wait(self, timeout: float | None = None) -> None:
        """Return when the call has ended, and raise what it raised, or `CollectiveTimeout` after `timeout` seconds."""
        check_timeout("wait", timeout)
        if not self._ticket.wait(timeout):
            raise CollectiveTimeout(f"wait: the call was not done within {timeout:g} s; it continues")
        if self._on_done is not None:
            self._on_done()
        self._on_done = self._arrays = None

    def afterwards(self, action: Callable[[], None]) -> None:
        self._on_done = action
