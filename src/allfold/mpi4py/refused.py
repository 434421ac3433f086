"""The parts of MPI that allfold does not have: each is refused with a sentence that says what to use."""

from __future__ import annotations

from typing import Any, NoReturn

from .failures import NotOffered
from .handles import MPIHandle


def refuse(what: str, instead: str) -> NotOffered:
    return NotOffered(f"allfold has no {what}; {instead}")


class _Refused(MPIHandle):
    """A class that has only a null object."""

    _what, _instead = "", ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise refuse(self._what, self._instead)


def _refusing(cls: type[_Refused], names: str) -> None:
    def call(*args: Any, **more: Any) -> NoReturn:
        raise refuse(cls._what, cls._instead)

    for name in names.split():
        setattr(cls, name, staticmethod(call))


class Win(_Refused):
    """Windows, for one-sided communication."""

    _null_error = "ERR_WIN"
    _what = "windows (one-sided communication)"
    _instead = "use messages, or arrays of allfold's comm.empty, which collectives do not copy"


class File(_Refused):
    """Files that ranks share."""

    _null_error = "ERR_FILE"
    _what = "files of MPI"
    _instead = "write a file per rank, or gather on one rank and write there"


class Session(_Refused):
    """Sessions."""

    _null_error = "ERR_SESSION"
    _what = "sessions"
    _instead = "use MPI.COMM_WORLD"


_refusing(Win, "Create Allocate Allocate_shared Create_dynamic Create_keyval Free_keyval Create_errhandler")
_refusing(File, "Open Delete Create_errhandler")
_refusing(Session, "Init Create_errhandler")

WIN_NULL, FILE_NULL, SESSION_NULL = Win._of(None), File._of(None), Session._of(None)
for _one in (WIN_NULL, FILE_NULL, SESSION_NULL):
    _one._predefined = True


def _no_ports(*args: Any, **more: Any) -> NoReturn:
    raise refuse("ports and no ranks that join later", "start all ranks together: allfold run -n RANKS")


def _no_c(obj: Any) -> NoReturn:
    kind = obj if isinstance(obj, type) else type(obj)
    if not kind.__module__.startswith(str(__package__)):
        raise TypeError(f"expected an object of MPI, not {kind.__name__}")
    raise refuse("interface for C", "use mpi4py with an MPI for programs that call MPI from C")


_sizeof = _addressof = _handleof = _no_c
Open_port = Close_port = Publish_name = Unpublish_name = Lookup_name = _no_ports


def Register_datarep(*args: Any, **more: Any) -> NoReturn:
    raise refuse(File._what, File._instead)
