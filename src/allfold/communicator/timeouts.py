"""How long a call may take: a number of seconds, or None for the value that was set before."""

from __future__ import annotations

from numbers import Real

from ..errors import UsageError


def check_timeout(call: str, timeout: object) -> None:
    if timeout is None:
        return
    try:
        good = isinstance(timeout, Real) and not isinstance(timeout, bool) and float(timeout) >= 0
    except OverflowError:
        raise UsageError(f"{call}: the timeout is more seconds than a floating-point number can hold") from None
    if not good:
        raise UsageError(f"{call}: the timeout is a number of seconds from 0 up, not {timeout!r:.40}")
