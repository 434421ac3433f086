"""The calls of MPI that the extension makes without Python: see native/bindings/mpi/words.hpp.

Methods keep their Python functions for what the extension passes on. `_tables` is all that it knows of MPI's types and
operations.
"""

from __future__ import annotations

import array
from typing import Any

import numpy as np

from ... import _native
from ...dtypes import DTYPES
from ...launch.environment import in_this_thread
from .. import constants as c
from ..failures import Exception as MPIException
from ..records import CommunicatorState
from ..requests import Arrived, Request, Status
from .datatypes import Datatype
from .memory import IN_PLACE
from .ops import OPS, SUM, Op
from .pickling import loaded
from .predefined import BYTE, TYPES, TYPES_BY_CODE, of_dtype


def use(cls: type, *names: str) -> None:
    """Replace these methods of a class, where the extension has them."""
    if _native.MISSING is not None:
        return
    if not _learned:
        _native.learn_mpi(_tables())
        _learned.append(True)
    for name in names:
        method = vars(cls)[name]
        function = method.__func__ if isinstance(method, classmethod) else method
        setattr(cls, name, _native.compiled_method(cls, name, function))


_learned: list[bool] = []


def know(worlds: dict[Any, CommunicatorState]) -> None:
    """The communicators of this process, by the function that finds each in a thread."""
    if _native.MISSING is None:
        _native.learn_mpi_worlds({find: state.calls for find, state in worlds.items()})


def _tables() -> dict[str, Any]:
    return {
        "state": CommunicatorState,
        "request": Request,
        "status": Status,
        "arrived": Arrived,
        "loaded": loaded,
        "memory": [np.ndarray, array.array],
        "bytes": [bytes, bytearray],
        "byte": BYTE,
        "types": [(one, name) for one in TYPES.values() if (name := _engines_type(one)) is not None],
        "types_by_code": TYPES_BY_CODE,
        "ops": [(one, _engines_numbers(one)) for one in OPS.values() if one],
        "sum": SUM,
        "in_place": IN_PLACE,
        "in_thread": in_this_thread,
        "any_source": c.ANY_SOURCE,
        "any_tag": c.ANY_TAG,
        "highest_tag": c.TAG_UB_VALUE,
    }


def _engines_type(datatype: Datatype) -> str | None:
    """The engine's name of a datatype whose elements it knows."""
    if not datatype or datatype._need().value_index is not None:
        return None
    primitive = datatype.layout.primitive
    return primitive.name if primitive is not None and primitive == datatype.layout.native else None


def _engines_numbers(op: Op) -> dict[str, int]:
    """The engine's numbers of an operation, by the names of the types for which it is defined."""
    found = {}
    for name, dtype in DTYPES.items():
        datatype = of_dtype(dtype.carrier)
        if datatype is None or dtype.carrier.name != name:
            continue
        try:
            engines = op._need().for_engine(datatype)
        except MPIException:
            continue
        if isinstance(engines, str):
            found[name] = _native.OPS.index(engines)
    return found
