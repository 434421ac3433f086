"""The setting for the outputs of calls that a record keeps."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import UsageError

VARIABLE = "ALLFOLD_RECORD_KEEP"


class Keep(NamedTuple):
    """All outputs, those of the last calls (`window` of them), or only the digests."""

    outputs: bool = False
    window: int = 0

    @classmethod
    def of(cls, text: str) -> Keep:
        """Parse `digests`, `window=1000` or `all`."""
        if text == "all":
            return cls(outputs=True)
        if text in ("", "digests"):
            return cls()
        name, _, count = text.partition("=")
        if name != "window" or not count.isdecimal() or not 0 < int(count) < 2**31:
            raise UsageError(f"{text!r}: expected digests, window=CALLS (such as window=1000) or all")
        return cls(outputs=True, window=int(count))

    def __str__(self) -> str:
        if not self.outputs:
            return "digests"
        return f"window={self.window}" if self.window else "all"
