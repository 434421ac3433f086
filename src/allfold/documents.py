"""Reading files that others wrote, JSON above all: nothing in them is trusted, and errors name what was refused.

`where` names a field in error messages: `topology t: link 'bus': latency`.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .errors import UsageError

LARGEST = sys.float_info.max


class DocumentError(UsageError):
    """A document is malformed. `where` and `expected` are for callers that word the error differently."""

    def __init__(self, sentence: str, where: str = "", expected: str = "") -> None:
        super().__init__(sentence)
        self.where = where
        self.expected = expected


def read_plain(
    path: str | os.PathLike[str], most: int, check_facts: Callable[[os.stat_result], None] = lambda facts: None
) -> bytes:
    """The content of a regular file of at most `most` bytes. `check_facts` may reject it before it is read."""
    try:
        # Do not block: somebody may have put a pipe there.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:
        raise DocumentError(f"it cannot be opened: {error}") from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise DocumentError("it is not a regular file")
        check_facts(facts)
        if facts.st_size > most:
            raise DocumentError(f"it has {facts.st_size} bytes; expected at most {most}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def parse(content: str | bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"this is not JSON: {error}") from None


def is_exactly(value: object, expected: object) -> bool:
    """True if a value is exactly the expected one. In Python True and 1.0 are equal to 1, in JSON they are not."""
    return json.dumps(value, sort_keys=True) == json.dumps(expected, sort_keys=True)


def head_of(value: object, form: str, version: int) -> dict[str, Any]:
    """The document, if it is one of ours: an object that states this format and version."""
    if not isinstance(value, dict):
        raise DocumentError(f"expected an object, got {type(value).__name__}")
    if value.get("format") != form:
        raise DocumentError(f"format is {value.get('format')!r:.60}, expected {form!r}")
    if not is_exactly(value.get("version"), version):
        raise DocumentError(f"version is {value.get('version')!r:.60}, expected {version}")
    return value


def object_at(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise _refusal(value, where, "an object")
    return value


def list_at(value: object, where: str, least: int = 0, most: int | None = None) -> list[Any]:
    if not isinstance(value, list):
        raise _refusal(value, where, "a list")
    if len(value) < least or (most is not None and len(value) > most):
        raise DocumentError(f"{where} has {len(value)} entries; expected {least} to {most}")
    return value


def whole_at(value: object, where: str, least: int, most: int) -> int:
    if type(value) is not int:
        raise _refusal(value, where, f"a whole number from {least} to {most}")
    if not least <= value <= most:
        raise _refusal(value, where, f"a number from {least} to {most}")
    return value


def finite_at(value: object, where: str, least: float = 0.0, most: float = LARGEST) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        raise _refusal(value, where, f"a number from {least:g} to {most:g}")
    return float(value)


def text_at(value: object, where: str, most: int) -> str:
    """A text that is safe to show on a terminal: characters that cannot be printed are replaced."""
    if not isinstance(value, str) or len(value) > most:
        raise _refusal(value, where, f"a text of at most {most} characters")
    return "".join(character if character.isprintable() else "?" for character in value)


def check_keys(document: dict[str, Any], known: Iterable[str], where: str) -> None:
    strange = [key for key in document if key not in known]
    if strange:
        raise DocumentError(f"{where} has the unknown key {strange[0]!r}; known: {', '.join(known)}")


def _refusal(value: object, where: str, expected: str) -> DocumentError:
    return DocumentError(f"{where} is {value!r:.60}; expected {expected}", where, expected)
