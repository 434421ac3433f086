"""MPI's objects are handles: two are equal if they stand for the same thing, and a freed one is null."""

from __future__ import annotations

import itertools
import weakref
from functools import lru_cache
from typing import Any, ClassVar, Self

_numbers = itertools.count(0x1000)
_kinds: dict[type, type] = {}
_number_of: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_by_number: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class MPIHandle:
    """An object of MPI: `_ob` is what it stands for, or None if it is null."""

    _predefined = False
    _ob: Any
    _null_error: ClassVar[str] = "ERR_ARG"

    def __new__(cls, other: Any = None) -> Self:
        return cls._made(other)

    @classmethod
    def _made(cls, other: Any) -> Self:
        self = object.__new__(cls)
        self._ob = None
        if other is not None:
            if not isinstance(other, MPIHandle) or not self._kin(other) or not self._fits(other._ob):
                raise TypeError(f"expected {cls.__name__}, not {type(other).__name__}")
            self._ob, self._predefined = other._ob, other._predefined
        return self

    @classmethod
    def _fits(cls, what: Any) -> bool:
        """True if a handle of this class may stand for it."""
        return True

    @classmethod
    def _of(cls, what: Any) -> Self:
        self = object.__new__(cls)
        self._ob = what
        return self

    def _need(self) -> Any:
        """The object that the handle stands for; raises if it is null."""
        if self._ob is None:
            from .failures import error

            raise error(self._null_error, f"this {type(self).__name__} is null or was freed")
        return self._ob

    def _release(self, instead: Any) -> None:
        self._need()
        if self._predefined:
            from .failures import error

            raise error(self._null_error, f"a predefined {type(self).__name__} cannot be freed")
        self._ob = instead

    def __eq__(self, other: object) -> bool:
        return self._ob is other._ob if isinstance(other, MPIHandle) and self._kin(other) else NotImplemented

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def _kin(self, other: MPIHandle) -> bool:
        """True if both are of one kind: two communicators, two groups."""
        return type(self) is type(other) or self._kind() is other._kind()

    @classmethod
    def _kind(cls) -> type:
        found = _kinds.get(cls)
        if found is None:
            found = _kinds[cls] = next(one for one in cls.__mro__ if "_null_error" in vars(one))
        return found

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return self._ob is not None

    def __repr__(self) -> str:
        return f"<mpi4py.MPI.{type(self).__name__} object at {id(self):#x}>"

    def __reduce__(self) -> Any:
        name = name_of(self)
        if name is not None:
            from . import MPI

            return predefined, (name, None if getattr(MPI, name) is self else type(self))
        raise ValueError(f"cannot pickle {type(self).__name__}: it has a meaning in this process only")

    def free(self) -> None:
        """Free it, unless it is null or one of MPI's own objects; a copy of such an object becomes null."""
        if self._ob is not None and self._predefined:
            from . import MPI

            name = name_of(self)
            if name is None or getattr(MPI, name) is not self:
                self._ob = None
        elif self._ob is not None:
            self.Free()

    def Free(self) -> None:
        self._release(None)

    def toint(self) -> int:
        if self._ob is None:
            return 0
        if self._ob not in _number_of:
            number = _number_of[self._ob] = next(_numbers)
            _by_number[number] = self._ob
        return _number_of[self._ob]

    @classmethod
    def fromint(cls, arg: int, /) -> Self:
        found = _by_number[arg] if arg else None
        return cls._class_for(found)._of(found)

    @classmethod
    def _class_for(cls, what: Any) -> type[Self]:
        """The class whose handles stand for it."""
        return cls

    @property
    def handle(self) -> int:
        return self.toint()

    fromhandle = fromint
    py2f = toint
    f2py = fromint


def name_of(handle: MPIHandle) -> str | None:
    """The name under which MPI has a predefined object."""
    if not handle._predefined and handle._ob is not None:
        return None
    return next((name for name, one in _named(handle._kind()) if one._ob is handle._ob), None)


@lru_cache(maxsize=32)
def _named(kind: type) -> list[tuple[str, MPIHandle]]:
    """MPI's own objects of this kind, with their names."""
    from . import MPI

    handles = [(name, one) for name, one in vars(MPI).items() if name.isupper() and isinstance(one, MPIHandle)]
    return [(name, one) for name, one in handles if one._kind() is kind]


def predefined(name: str, copied: type[MPIHandle] | None) -> MPIHandle:
    """MPI's object of this name, or a copy of this class."""
    from . import MPI

    found: MPIHandle = getattr(MPI, name)
    return found if copied is None else copied(found)
