"""The predefined datatypes, by their names and by the codes that arrays have for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import constants as c
from ..failures import error
from .datatypes import Datatype, TypeDefinition
from .layout import Layout, joined, padded

# By name: NumPy's code for the type, and mpi4py's code. On 64-bit Linux.
_TABLE: dict[str, tuple[str, str | None]] = {
    "PACKED": ("u1", "B"),
    "BYTE": ("u1", "B"),
    "AINT": ("p", "p"),
    "OFFSET": ("q", "q"),
    "COUNT": ("q", "q"),
    "CHAR": ("S1", "c"),
    "WCHAR": ("U1", "U"),
    "SIGNED_CHAR": ("b", "b"),
    "SHORT": ("h", "h"),
    "INT": ("i", "i"),
    "LONG": ("l", "l"),
    "LONG_LONG": ("q", "q"),
    "UNSIGNED_CHAR": ("B", "B"),
    "UNSIGNED_SHORT": ("H", "H"),
    "UNSIGNED": ("I", "I"),
    "UNSIGNED_LONG": ("L", "L"),
    "UNSIGNED_LONG_LONG": ("Q", "Q"),
    "FLOAT": ("f", "f"),
    "DOUBLE": ("d", "d"),
    "LONG_DOUBLE": ("g", "g"),
    "C_BOOL": ("?", "?"),
    "INT8_T": ("i1", "i1"),
    "INT16_T": ("i2", "i2"),
    "INT32_T": ("i4", "i4"),
    "INT64_T": ("i8", "i8"),
    "UINT8_T": ("u1", "u1"),
    "UINT16_T": ("u2", "u2"),
    "UINT32_T": ("u4", "u4"),
    "UINT64_T": ("u8", "u8"),
    "FLOAT16_T": ("f2", "f2"),
    "FLOAT32_T": ("f4", "f4"),
    "FLOAT64_T": ("f8", "f8"),
    "C_COMPLEX": ("F", "F"),
    "C_FLOAT_COMPLEX": ("F", "F"),
    "C_DOUBLE_COMPLEX": ("D", "D"),
    "C_LONG_DOUBLE_COMPLEX": ("G", "G"),
    "CXX_BOOL": ("?", "?"),
    "CXX_FLOAT_COMPLEX": ("F", "F"),
    "CXX_DOUBLE_COMPLEX": ("D", "D"),
    "CXX_LONG_DOUBLE_COMPLEX": ("G", "G"),
    "CHARACTER": ("S1", "c"),
    "LOGICAL": ("i", "i"),
    "INTEGER": ("i", "i"),
    "REAL": ("f", "f"),
    "DOUBLE_PRECISION": ("d", "d"),
    "COMPLEX": ("F", "F"),
    "DOUBLE_COMPLEX": ("D", "D"),
    "LOGICAL1": ("i1", "?"),
    "LOGICAL2": ("i2", "i2"),
    "LOGICAL4": ("i4", "i4"),
    "LOGICAL8": ("i8", "i8"),
    "INTEGER1": ("i1", "i1"),
    "INTEGER2": ("i2", "i2"),
    "INTEGER4": ("i4", "i4"),
    "INTEGER8": ("i8", "i8"),
    "REAL2": ("f2", "f2"),
    "REAL4": ("f4", "f4"),
    "REAL8": ("f8", "f8"),
    "REAL16": ("g", "f16"),
    "COMPLEX8": ("F", "c8"),
    "COMPLEX16": ("D", "c16"),
    "COMPLEX32": ("G", "c32"),
}
_MISSING = ("LOGICAL16", "INTEGER16", "COMPLEX4", "BFLOAT16_T")
_ALIASES = {
    "UNSIGNED_INT": "UNSIGNED",
    "SIGNED_SHORT": "SHORT",
    "SIGNED_INT": "INT",
    "SIGNED_LONG": "LONG",
    "SIGNED_LONG_LONG": "LONG_LONG",
    "BOOL": "C_BOOL",
    "SINT8_T": "INT8_T",
    "SINT16_T": "INT16_T",
    "SINT32_T": "INT32_T",
    "SINT64_T": "INT64_T",
    "F_BOOL": "LOGICAL",
    "F_INT": "INTEGER",
    "F_FLOAT": "REAL",
    "F_DOUBLE": "DOUBLE_PRECISION",
    "F_COMPLEX": "COMPLEX",
    "F_FLOAT_COMPLEX": "COMPLEX",
    "F_DOUBLE_COMPLEX": "DOUBLE_COMPLEX",
}
_LOCATED = {  # a value and where it was found: MAXLOC and MINLOC
    "SHORT_INT": "h",
    "INT_INT": "i",
    "LONG_INT": "l",
    "FLOAT_INT": "f",
    "DOUBLE_INT": "d",
    "LONG_DOUBLE_INT": "g",
}


def _named(name: str, layout: Layout, code: str | None) -> Datatype:
    mpi_name = {"INT_INT": "2INT"}.get(name, name)
    made = Datatype._of(TypeDefinition(layout, "NAMED", name=f"MPI_{mpi_name}", code=code))
    made._predefined = True
    return made


def _pair(value: Any, index: Any) -> tuple[Layout, np.dtype[Any]]:
    layout = padded(joined([(0, 1, Layout.of(value)), (_after(value, index), 1, Layout.of(index))]))
    fields = {"names": ["value", "index"], "formats": [value, index], "offsets": [0, _after(value, index)]}
    return layout, np.dtype({**fields, "itemsize": layout.extent})  # type: ignore[call-overload]


def _after(value: Any, index: Any) -> int:
    return int(-(-value.itemsize // index.alignment) * index.alignment)


def _made() -> dict[str, Datatype]:
    types = {name: _named(name, Layout.of(np.dtype(numpy)), code) for name, (numpy, code) in _TABLE.items()}
    for name, value in _LOCATED.items():
        layout, pair = _pair(np.dtype(value), np.dtype("i"))
        types[name] = _named(name, layout, None)
        types[name]._need().value_index = pair
    types["TWOINT"] = types["INT_INT"]
    null = Datatype._of(None)
    null._predefined = True
    types |= {"DATATYPE_NULL": null, **dict.fromkeys(_MISSING, null)}
    types |= {alias: types[name] for alias, name in _ALIASES.items()}
    return types


TYPES = _made()
DATATYPE_NULL, BYTE = TYPES["DATATYPE_NULL"], TYPES["BYTE"]

_BY_CODE = {
    "?": "C_BOOL", "b": "SIGNED_CHAR", "h": "SHORT", "i": "INT", "l": "LONG", "q": "LONG_LONG", "p": "AINT",
    "B": "UNSIGNED_CHAR", "H": "UNSIGNED_SHORT", "I": "UNSIGNED", "L": "UNSIGNED_LONG", "Q": "UNSIGNED_LONG_LONG",
    "n": "LONG", "N": "UNSIGNED_LONG", "P": "UNSIGNED_LONG",
    "f": "FLOAT", "d": "DOUBLE", "g": "LONG_DOUBLE", "e": "FLOAT16_T",
    "F": "C_FLOAT_COMPLEX", "D": "C_DOUBLE_COMPLEX", "G": "C_LONG_DOUBLE_COMPLEX",
    "Zf": "C_FLOAT_COMPLEX", "Zd": "C_DOUBLE_COMPLEX", "Zg": "C_LONG_DOUBLE_COMPLEX",
    "c": "CHAR", "S": "CHAR", "S1": "CHAR", "s": "CHAR", "1s": "CHAR", "U": "WCHAR", "U1": "WCHAR", "w": "WCHAR",
    "1w": "WCHAR", "u": "UINT16_T", "b1": "C_BOOL",
    **{f"i{n}": f"INT{8 * n}_T" for n in (1, 2, 4, 8)},
    **{f"u{n}": f"UINT{8 * n}_T" for n in (1, 2, 4, 8)},
    "f2": "FLOAT16_T", "f4": "FLOAT", "f8": "DOUBLE", "f16": "LONG_DOUBLE",
    "c8": "C_FLOAT_COMPLEX", "c16": "C_DOUBLE_COMPLEX", "c32": "C_LONG_DOUBLE_COMPLEX",
}  # fmt: skip


TYPES_BY_CODE = {code: TYPES[name] for code, name in _BY_CODE.items()}


def of_code(code: str) -> Datatype:
    """The datatype of a code of the buffer protocol or of NumPy."""
    plain = code.removeprefix("@").removeprefix("=").removeprefix("<" if np.little_endian else ">").removeprefix("|")
    if plain not in _BY_CODE:
        raise ValueError(f"cannot map character code or type string {code!r} to a datatype")
    return TYPES[_BY_CODE[plain]]


def of_dtype(dtype: np.dtype[Any]) -> Datatype | None:
    """The datatype of the elements of a NumPy array."""
    return TYPES.get(_BY_CODE.get(dtype.char, "")) if dtype.isnative else None


_REALS = [np.dtype(code) for code in "efdg"]


def value_index(value: Datatype, index: Datatype) -> Datatype:
    """The type of pairs of these two, for MAXLOC and MINLOC; null if there is none."""
    primitives = [one.layout.primitive for one in (value, index)]
    if any(one is None or one.kind not in "iuf" for one in primitives):
        return DATATYPE_NULL
    if index.layout.primitive in _REALS or not (value.layout.is_plain and index.layout.is_plain):
        return DATATYPE_NULL
    if index == TYPES["INT"]:
        for name, code in _LOCATED.items():
            if value.layout.primitive == np.dtype(code) and value == of_code(code):
                return TYPES[name]
    layout, pair = _pair(*primitives)
    made = Datatype._new(layout, "VALUE_INDEX", ((), (), (value, index)), {"value": value, "index": index})
    made._need().value_index = pair
    return made


def match_size(typeclass: int, size: int) -> Datatype:
    kinds = {
        c.TYPECLASS_INTEGER: "INTEGER",
        c.TYPECLASS_REAL: "REAL",
        c.TYPECLASS_COMPLEX: "COMPLEX",
        c.TYPECLASS_LOGICAL: "LOGICAL",
    }
    found = TYPES.get(f"{kinds.get(typeclass)}{size}", DATATYPE_NULL)
    if found == DATATYPE_NULL:
        raise error("ERR_ARG", f"Match_size: there is no type of class {typeclass} with {size} bytes")
    return found


_f90: dict[tuple[str, tuple[tuple[str, int], ...]], Datatype] = {}


def f90(what: str, parameters: dict[str, int]) -> Datatype:
    """The smallest type of Fortran with this many digits and this exponent."""
    key = what, tuple(parameters.items())
    if key not in _f90:
        p, r = (parameters.get(name, c.UNDEFINED) for name in ("p", "r"))
        p, r = (0 if one == c.UNDEFINED else one for one in (p, r))
        if what == "INTEGER":
            sizes = [(2, "i1"), (4, "i2"), (9, "i4"), (18, "i8")]
            code = next((code for digits, code in sizes if r <= digits), None)
        else:
            names = "fdg" if what == "REAL" else "FDG"
            reals = [(6, 37), (15, 307), (18, 4931)]
            code = next(
                (name for name, (digits, most) in zip(names, reals, strict=True) if p <= digits and r <= most), None
            )
        if code is None:
            raise error("ERR_ARG", f"there is no {what.lower()} with {parameters}")
        integers = tuple(parameters.values())
        made = Datatype._new(
            Layout.of(np.dtype(code)), f"F90_{what}", (integers, (), ()), dict(parameters), code=np.dtype(code).char
        )
        made._predefined = True
        _f90[key] = made
    return _f90[key]
