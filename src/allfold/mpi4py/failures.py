"""MPI's errors: the exception, its classes and strings, error handlers, and how allfold's errors become MPI's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import (
    AllfoldError,
    CollectiveTimeout,
    MismatchError,
    RankLost,
    SharedMemoryError,
    UsageError,
)
from .constants import ERR_LASTCODE, ERROR_CLASSES
from .handles import MPIHandle

_NAMES = {number: name for name, number in ERROR_CLASSES.items()}
_added: dict[int, tuple[int, str]] = {}  # classes and codes of the program: their class, and their text


class Exception(RuntimeError):
    """An error of MPI. `str` is a sentence with the facts, `Get_error_class()` the kind.

    >>> from allfold.mpi4py import MPI
    >>> try:
    ...     MPI.COMM_SELF.Send(np.ones(3), dest=5)
    ... except MPI.Exception as error:
    ...     print(error.Get_error_class() == MPI.ERR_RANK, error)
    True MPI_ERR_RANK: Send: dest must be a rank from 0 to 0, not 5
    """

    def __init__(self, ierr: int = 0, /, why: str = "") -> None:
        self._code = int(ierr) if int(ierr) >= 0 else ERROR_CLASSES["ERR_UNKNOWN"]
        super().__init__(self._code)
        self._why = why

    def __str__(self) -> str:
        return f"{Get_error_string(self._code)}: {self._why}" if self._why else Get_error_string(self._code)

    def __repr__(self) -> str:
        return f"MPI.Exception({self._code})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._code,), {"_why": self._why}

    def __int__(self) -> int:
        return self._code

    def __bool__(self) -> bool:
        return self._code != 0

    def __hash__(self) -> int:
        return hash(self._code)

    def __eq__(self, other: object) -> bool:
        return self._code == int(other) if isinstance(other, (int, Exception)) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return self._code != int(other) if isinstance(other, (int, Exception)) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return self._code < int(other)

    def __le__(self, other: Any) -> bool:
        return self._code <= int(other)

    def __gt__(self, other: Any) -> bool:
        return self._code > int(other)

    def __ge__(self, other: Any) -> bool:
        return self._code >= int(other)

    def Get_error_code(self) -> int:
        return self._code

    def Get_error_class(self) -> int:
        return Get_error_class(self._code)

    def Get_error_string(self) -> str:
        return Get_error_string(self._code)

    error_code = property(Get_error_code)
    error_class = property(Get_error_class)
    error_string = property(Get_error_string)


def error(name: str, why: str = "") -> Exception:
    """An error of the class `ERR_…`."""
    return Exception(ERROR_CLASSES[name], why)


class NotOffered(NotImplementedError):
    """A part of MPI that allfold does not have; the sentence says what to use."""


def Get_error_class(errorcode: int) -> int:
    if errorcode in _added:
        return _added[errorcode][0]
    return errorcode if errorcode in _NAMES or errorcode == 0 else ERROR_CLASSES["ERR_UNKNOWN"]


def Get_error_string(errorcode: int) -> str:
    if errorcode in _added:
        return _added[errorcode][1]
    if errorcode == 0:
        return "MPI_SUCCESS"
    return f"MPI_{_NAMES[errorcode]}" if errorcode in _NAMES else f"unknown error {errorcode}"


def last_code() -> int:
    return max([ERR_LASTCODE, *_added])


def _add(error_class: int | None) -> int:
    number = last_code() + 1
    _added[number] = (number if error_class is None else error_class, "")
    return number


def Add_error_class() -> int:
    return _add(None)


def Add_error_code(errorclass: int) -> int:
    return _add(Get_error_class(errorclass))


def Add_error_string(errorcode: int, string: str) -> None:
    if errorcode not in _added:
        raise error("ERR_ARG", f"{errorcode} is not an error code that was added")
    _added[errorcode] = (_added[errorcode][0], string)


def _remove(errorcode: int, is_class: bool) -> None:
    if errorcode not in _added or (_added[errorcode][0] == errorcode) != is_class:
        raise error("ERR_ARG", f"{errorcode} is not an error {'class' if is_class else 'code'} that was added")
    if is_class and any(one == errorcode and code != errorcode for code, (one, _) in _added.items()):
        raise error("ERR_OTHER", f"the error class {errorcode} still has codes")
    if _added[errorcode][1]:
        raise error("ERR_OTHER", f"the error {'class' if is_class else 'code'} {errorcode} still has a string")
    del _added[errorcode]


def Remove_error_class(errorclass: int) -> None:
    _remove(errorclass, True)


def Remove_error_code(errorcode: int) -> None:
    _remove(errorcode, False)


def Remove_error_string(errorcode: int) -> None:
    if errorcode not in _added:
        raise error("ERR_ARG", f"{errorcode} is not an error code that was added")
    _added[errorcode] = (_added[errorcode][0], "")


class Errhandler(MPIHandle):
    """The function that a communicator calls with an error, before it is raised."""

    _null_error = "ERR_ERRHANDLER"

    def Free(self) -> None:
        self._release(None)


class _Handler:
    def __init__(self, name: str, function: Callable[..., Any] | None = None) -> None:
        self.name, self.function = name, function


ERRHANDLER_NULL = Errhandler._of(None)
ERRORS_RETURN = Errhandler._of(_Handler("ERRORS_RETURN"))
ERRORS_ABORT = Errhandler._of(_Handler("ERRORS_ABORT"))
ERRORS_ARE_FATAL = Errhandler._of(_Handler("ERRORS_ARE_FATAL"))
for _one in (ERRHANDLER_NULL, ERRORS_RETURN, ERRORS_ABORT, ERRORS_ARE_FATAL):
    _one._predefined = True


def handler_of(function: Callable[..., Any]) -> Errhandler:
    if not callable(function):
        raise TypeError(f"an error handler must be a function, not {function!r}")
    return Errhandler._of(_Handler("", function))


_KINDS: tuple[tuple[type[AllfoldError], str], ...] = (
    (RankLost, "ERR_PROC_FAILED"),
    (CollectiveTimeout, "ERR_PENDING"),
    (MismatchError, "ERR_OTHER"),
    (SharedMemoryError, "ERR_NO_MEM"),
    (UsageError, "ERR_ARG"),
)


def translated(failure: AllfoldError, kind: str | None = None) -> Exception:
    """The same error as MPI's exception, with the same message."""
    kind = kind or next((name for one, name in _KINDS if isinstance(failure, one)), "ERR_OTHER")
    made = error(kind, str(failure))
    made.__cause__ = failure
    return made


def is_of_mpi(problem: BaseException) -> bool:
    """True for an error that MPI would raise; False for arguments that mpi4py itself refuses, with Python's own errors."""
    is_broken = isinstance(problem, UsageError) and "is broken by an earlier error" in str(problem)
    return isinstance(problem, RuntimeError) or is_broken


def fatal(failure: BaseException) -> NoReturn:
    """End the run because of an error on a communicator whose handler is ERRORS_ARE_FATAL or ERRORS_ABORT."""
    sys.stderr.write(f"{failure}\n")
    from .environment import abort

    abort(failure.Get_error_code() if isinstance(failure, Exception) else 1)
