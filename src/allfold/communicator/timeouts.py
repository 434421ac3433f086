"""Timeouts: a number of seconds, or None for the value that was set before."""

from __future__ import annotations

from numbers import Real

from ..errors import UsageError


def check_timeout(call: str, timeout: object) -> None:
    __tracebackhide__ = True
    if timeout is None:
        return
    try:
        good = isinstance(timeout, Real) and not isinstance(timeout, bool) and float(timeout) >= 0
    except OverflowError:
        raise UsageError(f"{call}: timeout is too large for a floating-point number") from None
    if not good:
        raise UsageError(f"{call}: timeout must be a non-negative number of seconds, not {timeout!r:.40}")
