"""Every collective call of a process, seen before it is made."""

from __future__ import annotations

import os
from collections.abc import Mapping

CHECK = "ALLFOLD_CHECK"
RECORD = "ALLFOLD_RECORD"
REPLAY = "ALLFOLD_REPLAY"


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """True if a variable asks for it."""
    return environ.get(CHECK, "") not in ("", "0") or bool(environ.get(RECORD))
