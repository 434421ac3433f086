"""What a call said, and how long it took; for ranks of the tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import allfold as af

AT_ONCE = 20.0
"""Seconds that an error takes at most if nobody waits for a timeout (which is longer), on however busy a machine."""


def said_by(call: Callable[[], Any]) -> tuple[str, str, float]:
    """The kind and the text of the error that a call raised, empty if none, and its seconds."""
    began = time.monotonic()
    try:
        call()
    except af.AllfoldError as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "", "", time.monotonic() - began
