"""Attributes: values that a program attaches to communicators and datatypes, under keys that it creates."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from ..failures import error

_keys = itertools.count(0x100)


class _Keyval(NamedTuple):
    copy: Callable[..., Any] | bool | None
    delete: Callable[..., Any] | None


_keyvals: dict[int, _Keyval] = {}


def new_keyval(copy: Callable[..., Any] | None, delete: Callable[..., Any] | None) -> int:
    key = next(_keys)
    _keyvals[key] = _Keyval(copy, delete)
    return key


def remove_keyval(key: int) -> int:
    """Check the key, and return the invalid one; values under the key stay until their objects are freed."""
    if key not in _keyvals:
        raise error("ERR_KEYVAL", f"{key} is not a key that Create_keyval returned")
    return 0


class Attributes:
    """The values of one object."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}

    def get(self, key: int) -> Any:
        _check(key)
        return self.values.get(key)

    def set(self, owner: Any, key: int, value: Any) -> None:
        _check(key)
        if key in self.values:
            self.delete(owner, key)
        self.values[key] = value

    def delete(self, owner: Any, key: int) -> None:
        _check(key)
        if key not in self.values:
            raise error("ERR_OTHER", f"there is no attribute under {key}")
        value = self.values.pop(key)
        delete = _keyvals[key].delete
        if delete is not None:
            _called(delete, owner, key, value)

    def delete_all(self, owner: Any) -> None:
        for key in reversed(list(self.values)):
            self.delete(owner, key)

    def copy_to(self, other: Attributes, owner: Any) -> None:
        for key, value in self.values.items():
            copy = _keyvals[key].copy
            if copy is None or (isinstance(copy, bool) and not copy):
                continue
            made = value if isinstance(copy, bool) else _called(copy, owner, key, value)
            if made is not NotImplemented:
                other.values[key] = made


def _called(function: Callable[..., Any], owner: Any, key: int, value: Any) -> Any:
    try:
        return function(owner, key, value)
    except Exception as problem:
        traceback.print_exc()
        raise error("ERR_OTHER", f"the function of an attribute raised {type(problem).__name__}") from None


def _check(key: int) -> None:
    if key not in _keyvals:
        raise error("ERR_KEYVAL", f"{key} is not a key of an attribute")
