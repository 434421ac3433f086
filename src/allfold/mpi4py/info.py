"""Info: hints, as pairs of text. allfold keeps them and follows none."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from . import constants as c
from .failures import error
from .handles import MPIHandle


class _Hints(dict[str, str]):
    __hash__ = object.__hash__  # type: ignore[assignment]


class Info(MPIHandle):
    """Pairs of text, in order."""

    _null_error = "ERR_INFO"

    @property
    def _pairs(self) -> dict[str, str]:
        pairs: dict[str, str] = self._need()
        return pairs

    @classmethod
    def Create(cls, items: Info | Mapping[str, str] | Iterable[tuple[str, str]] | None = None) -> Self:
        made = cls._of(_Hints())
        if items is not None:
            made.update(items)
        return made

    @classmethod
    def Create_env(cls, args: Sequence[str] | None = None) -> Self:
        given = list(sys.argv if args is None else args)
        items = {"command": given[0], "argv": " ".join(given[1:])} if given else {}
        return cls.Create({**items, "thread_level": "MPI_THREAD_MULTIPLE"})

    def Dup(self) -> Self:
        return type(self).Create(self._pairs.items())

    def Get(self, key: str) -> str | None:
        return self._pairs.get(_text(key, "key"))

    def Set(self, key: str, value: str) -> None:
        pairs = self._pairs
        pairs[_text(key, "key")] = _text(value, "value")

    def Delete(self, key: str) -> None:
        if key not in self._pairs:
            raise error("ERR_INFO_NOKEY", f"there is no {key!r}")
        del self._pairs[key]

    def Get_nkeys(self) -> int:
        return len(self._pairs)

    def Get_nthkey(self, n: int) -> str:
        keys = list(self._pairs)
        if not 0 <= n < len(keys):
            raise error("ERR_ARG", f"there are {len(keys)} keys, and no key {n}")
        return keys[n]

    # As a mapping ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return 0 if self._ob is None else len(self._pairs)

    def __bool__(self) -> bool:
        return self._ob is not None

    def __contains__(self, key: str) -> bool:
        return self._ob is not None and key in self._pairs

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, key: str) -> str:
        if self._ob is None:
            raise KeyError(key)
        return self._pairs[key]

    def __setitem__(self, key: str, value: str) -> None:
        if self._ob is None:
            raise KeyError(key)
        self.Set(key, value)

    def __delitem__(self, key: str) -> None:
        if self._ob is None:
            raise KeyError(key)
        del self._pairs[key]

    def get(self, key: str, default: str | None = None) -> str | None:
        return default if self._ob is None else self._pairs.get(key, default)

    def keys(self) -> list[str]:
        return [] if self._ob is None else list(self._pairs)

    def values(self) -> list[str]:
        return [] if self._ob is None else list(self._pairs.values())

    def items(self) -> list[tuple[str, str]]:
        return [] if self._ob is None else list(self._pairs.items())

    def update(self, items: Any = (), **more: str) -> None:
        if self._ob is None:
            raise KeyError
        given = dict(items.items() if hasattr(items, "items") else items)
        for key, value in {**given, **more}.items():
            self.Set(key, value)

    def pop(self, key: str, *default: str) -> str:
        if self._ob is None:
            return {}.pop(key, *default)  # type: ignore[call-overload,no-any-return]
        return self._pairs.pop(key, *default)

    def popitem(self) -> tuple[str, str]:
        return {}.popitem() if self._ob is None else self._pairs.popitem()

    def copy(self) -> Self:
        return type(self)._of(None) if self._ob is None else self.Dup()

    def clear(self) -> None:
        if self._ob is not None:
            self._pairs.clear()

    def __reduce__(self) -> Any:
        if self._predefined or self._ob is None:
            return super().__reduce__()
        return type(self).Create, (self.items(),)


def _text(value: str, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"an info {what} must be text, not {type(value).__name__}")
    limit = c.MAX_INFO_KEY if what == "key" else c.MAX_INFO_VAL
    if not 0 < len(value) <= limit and not (what == "value" and not value):
        raise error(f"ERR_INFO_{what.upper()}", f"a {what} must have 1 to {limit} characters, not {len(value)}")
    return value


INFO_NULL = Info._of(None)
INFO_ENV = Info.Create_env()
INFO_NULL._predefined = INFO_ENV._predefined = True
