"""Intercepts every collective call of a process before it is made."""

from __future__ import annotations

import os
from collections.abc import Mapping

CHECK = "ALLFOLD_CHECK"
RECORD = "ALLFOLD_RECORD"
REPLAY = "ALLFOLD_REPLAY"


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """True if ALLFOLD_CHECK or ALLFOLD_RECORD is set."""
    return environ.get(CHECK, "") not in ("", "0") or bool(environ.get(RECORD))
