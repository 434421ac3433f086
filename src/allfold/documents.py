"""Reading JSON that others wrote: nothing in it is taken for granted."""

from __future__ import annotations

import json


def is_exactly(value: object, expected: object) -> bool:
    """Whether a value out of a document is the expected one; to Python true and 1.0 are equal to 1, to JSON they are not."""
    return json.dumps(value, sort_keys=True) == json.dumps(expected, sort_keys=True)
