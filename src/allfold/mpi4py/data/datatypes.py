"""Datatypes: the predefined ones, and those that a program derives from them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from .. import constants as c
from ..failures import error
from ..handles import MPIHandle
from .attributes import Attributes, new_keyval, remove_keyval
from .layout import Layout, bounded, joined, padded, strided, subarray

_F90 = ("F90_REAL", "F90_COMPLEX", "F90_INTEGER")


class TypeDefinition:
    """The definition of a datatype, which its handles share."""

    def __init__(
        self,
        layout: Layout,
        combiner: str,
        contents: tuple[Sequence[int], Sequence[int], Sequence[Datatype]] = ((), (), ()),
        parameters: dict[str, Any] | None = None,
        name: str = "",
        code: str | None = None,
    ) -> None:
        self.layout, self.combiner = layout, combiner
        self.contents = (*contents[:2], _kept(contents[2]))
        self.parameters = parameters or {}
        self.name, self.code = name, code
        self.attributes = Attributes()
        self.value_index: np.dtype[Any] | None = None  # of the types of MAXLOC and MINLOC


class Datatype(MPIHandle):
    """The type of the elements of a message."""

    _null_error = "ERR_TYPE"
    _ob: TypeDefinition | None

    @property
    def layout(self) -> Layout:
        kind: TypeDefinition = self._need()
        return kind.layout

    @classmethod
    def _new(cls, *args: Any, **more: Any) -> Self:
        return cls._of(TypeDefinition(*args, **more))

    # What it is ------------------------------------------------------------------------------------------------------

    def Get_size(self) -> int:
        return self.layout.size

    def Get_extent(self) -> tuple[int, int]:
        return self.layout.lower, self.layout.extent

    def Get_true_extent(self) -> tuple[int, int]:
        low, high = self.layout.true_bounds
        return low, high - low

    def Get_envelope(self) -> tuple[int, int, int, int, int]:
        kind = self._need()
        integers, addresses, types = kind.contents
        return len(integers), len(addresses), 0, len(types), c.COMBINERS[f"COMBINER_{kind.combiner}"]

    def Get_contents(self) -> tuple[list[int], list[int], list[int], list[Datatype]]:
        kind = self._need()
        if kind.combiner == "NAMED":
            raise error("ERR_TYPE", f"{kind.name} is a named type and has no contents")
        integers, addresses, types = kind.contents
        return list(integers), list(addresses), [], _kept(types)

    def decode(self) -> tuple[Datatype, str, dict[str, Any]]:
        from .predefined import DATATYPE_NULL

        kind = self._need()
        types = _kept(kind.contents[2])
        parameters = dict(kind.parameters)
        if "datatypes" in parameters:
            parameters["datatypes"] = types
        base = self if kind.combiner in ("NAMED", *_F90) else types[0] if len(types) == 1 else DATATYPE_NULL
        return base, kind.combiner, parameters

    def Get_name(self) -> str:
        return str(self._ob.name) if self._ob is not None else "MPI_DATATYPE_NULL"

    def Set_name(self, name: str) -> None:
        self._need().name = name

    size = property(lambda self: self.Get_size())
    extent = property(lambda self: self.Get_extent()[1])
    lb = property(lambda self: self.Get_extent()[0])
    ub = property(lambda self: sum(self.Get_extent()))
    true_extent = property(lambda self: self.Get_true_extent()[1])
    true_lb = property(lambda self: self.Get_true_extent()[0])
    true_ub = property(lambda self: sum(self.Get_true_extent()))
    name = property(Get_name, Set_name)
    envelope = property(Get_envelope)
    contents = property(Get_contents)
    combiner = property(lambda self: self.Get_envelope()[-1])
    is_named = property(lambda self: self._need().combiner == "NAMED")

    @property
    def is_predefined(self) -> bool:
        return self._ob is None or self._ob.combiner in ("NAMED", *_F90)

    @property
    def typechar(self) -> str:
        code = typecode(self)
        if code is None:
            return "V"
        return code if len(code) == 1 else np.dtype(code).char

    @property
    def typestr(self) -> str:
        code = typecode(self)
        if code is None:
            return f"V{self.extent}"
        return {"c": "S1", "p": "i8", "E": "c4"}.get(code) or np.dtype(code).str.lstrip("<>|=")

    def tocode(self) -> str:
        if self._ob is None:
            raise ValueError("cannot map to character code or type string: the datatype is null")
        code = typecode(self)
        if code is None:
            raise ValueError(f"cannot map to character code or type string: {self.Get_name() or 'a derived type'}")
        return code

    @classmethod
    def fromcode(cls, code: str) -> Datatype:
        from .predefined import of_code

        return of_code(code)

    # Deriving --------------------------------------------------------------------------------------------------------

    def Dup(self) -> Self:
        kind = self._need()
        made = self._new(kind.layout, "DUP", ((), (), (self,)), {}, code=None)
        made._need().value_index = kind.value_index
        kind.attributes.copy_to(made._need().attributes, self)
        return made

    Clone = Create_dup = Dup

    def Commit(self) -> Self:
        self._need()
        return self

    def Free(self) -> None:
        kind = self._need()
        if self._predefined or kind.combiner == "NAMED":
            raise error("ERR_TYPE", f"{kind.name} is predefined and cannot be freed")
        kind.attributes.delete_all(self)
        self._ob = None

    def Create_contiguous(self, count: int) -> Self:
        _non_negative(count=count)
        return self._new(joined([(0, count, self.layout)]), "CONTIGUOUS", ((count,), (), (self,)), {"count": count})

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Self:
        _non_negative(count=count, blocklength=blocklength)
        made = strided(self.layout, count, blocklength, stride * self.layout.extent)
        parameters = {"count": count, "blocklength": blocklength, "stride": stride}
        return self._new(made, "VECTOR", ((count, blocklength, stride), (), (self,)), parameters)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Self:
        _non_negative(count=count, blocklength=blocklength)
        made = strided(self.layout, count, blocklength, stride)
        parameters = {"count": count, "blocklength": blocklength, "stride": stride}
        return self._new(made, "HVECTOR", ((count, blocklength), (stride,), (self,)), parameters)

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Self:
        lengths, places = _pairs(blocklengths, displacements)
        made = self._blocks((place * self.layout.extent, length) for length, place in zip(lengths, places, strict=True))
        parameters = {"blocklengths": lengths, "displacements": places}
        return self._new(made, "INDEXED", ((len(lengths), *lengths, *places), (), (self,)), parameters)

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Self:
        lengths, places = _pairs(blocklengths, displacements)
        made = self._blocks((place, length) for length, place in zip(lengths, places, strict=True))
        parameters = {"blocklengths": lengths, "displacements": places}
        return self._new(made, "HINDEXED", ((len(lengths), *lengths), places, (self,)), parameters)

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Self:
        places = list(displacements)
        _non_negative(blocklength=blocklength)
        made = self._blocks((place * self.layout.extent, blocklength) for place in places)
        parameters = {"blocklength": blocklength, "displacements": places}
        return self._new(made, "INDEXED_BLOCK", ((len(places), blocklength, *places), (), (self,)), parameters)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Self:
        places = list(displacements)
        _non_negative(blocklength=blocklength)
        made = self._blocks((place, blocklength) for place in places)
        parameters = {"blocklength": blocklength, "displacements": places}
        return self._new(made, "HINDEXED_BLOCK", ((len(places), blocklength), places, (self,)), parameters)

    def _blocks(self, blocks: Any) -> Layout:
        return joined([(place, length, self.layout) for place, length in blocks])

    @classmethod
    def Create_struct(
        cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Self:
        lengths, places = _pairs(blocklengths, displacements)
        types = list(datatypes)
        if len(types) != len(lengths):
            raise ValueError(f"Create_struct: {len(lengths)} block lengths and {len(types)} datatypes")
        parts = [(place, length, one.layout) for place, length, one in zip(places, lengths, types, strict=True)]
        parameters = {"blocklengths": lengths, "displacements": places, "datatypes": types}
        return cls._new(padded(joined(parts)), "STRUCT", ((len(lengths), *lengths), places, types), parameters)

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = c.ORDER_C
    ) -> Self:
        whole, part, first = list(sizes), list(subsizes), list(starts)
        if not len(whole) == len(part) == len(first):
            raise ValueError("Create_subarray: sizes, subsizes and starts must be equally long")
        for size, sub, start in zip(whole, part, first, strict=True):
            if not (1 <= sub <= size and 0 <= start <= size - sub):
                raise error("ERR_ARG", f"Create_subarray: {sub} elements from {start} are not within {size}")
        chosen = [[pair] for pair in zip(first, part, strict=True)]
        made = self._subarray(whole, chosen, order)
        parameters = {"sizes": whole, "subsizes": part, "starts": first, "order": order}
        return self._new(made, "SUBARRAY", ((len(whole), *whole, *part, *first, order), (), (self,)), parameters)

    def Create_darray(
        self,
        size: int,
        rank: int,
        gsizes: Sequence[int],
        distribs: Sequence[int],
        dargs: Sequence[int],
        psizes: Sequence[int],
        order: int = c.ORDER_C,
    ) -> Self:
        lists = [list(one) for one in (gsizes, distribs, dargs, psizes)]
        if len({len(one) for one in lists}) != 1:
            raise ValueError("Create_darray: gsizes, distribs, dargs and psizes must be equally long")
        coordinates = np.unravel_index(rank, lists[3]) if lists[3] else ()
        chosen = [
            _distributed(length, how, argument, parts, int(coordinate))
            for (length, how, argument, parts), coordinate in zip(zip(*lists, strict=True), coordinates, strict=True)
        ]
        whole = lists[0]
        made = self._subarray(whole, chosen, order)
        names = ("gsizes", "distribs", "dargs", "psizes")
        parameters = {"size": size, "rank": rank, **dict(zip(names, lists, strict=True)), "order": order}
        integers = (size, rank, len(whole), *(one for row in lists for one in row), order)
        return self._new(made, "DARRAY", (integers, (), (self,)), parameters)

    def _subarray(self, sizes: list[int], chosen: list[list[tuple[int, int]]], order: int) -> Layout:
        turn = slice(None, None, 1 if order == c.ORDER_C else -1)
        return subarray(self.layout, sizes[turn], chosen[turn])

    def Create_resized(self, lb: int, extent: int) -> Self:
        parameters = {"lb": lb, "extent": extent}
        return self._new(bounded(self.layout, lb, extent), "RESIZED", ((), (lb, extent), (self,)), parameters)

    @classmethod
    def Get_value_index(cls, value: Datatype, index: Datatype) -> Datatype:
        from .predefined import value_index

        return value_index(value, index)

    @classmethod
    def Match_size(cls, typeclass: int, size: int) -> Datatype:
        from .predefined import match_size

        return match_size(typeclass, size)

    @classmethod
    def Create_f90_integer(cls, r: int) -> Datatype:
        from .predefined import f90

        return f90("INTEGER", {"r": r})

    @classmethod
    def Create_f90_real(cls, p: int, r: int) -> Datatype:
        from .predefined import f90

        return f90("REAL", {"p": p, "r": r})

    @classmethod
    def Create_f90_complex(cls, p: int, r: int) -> Datatype:
        from .predefined import f90

        return f90("COMPLEX", {"p": p, "r": r})

    # Packing ---------------------------------------------------------------------------------------------------------

    def Pack(self, inbuf: Any, outbuf: Any, position: int, comm: Any) -> int:
        from .packing import pack

        comm._need()
        return pack(self, inbuf, outbuf, position, False)

    def Unpack(self, inbuf: Any, position: int, outbuf: Any, comm: Any) -> int:
        from .packing import unpack

        comm._need()
        return unpack(self, inbuf, position, outbuf, False)

    def Pack_size(self, count: int, comm: Any) -> int:
        comm._need()
        return count * self.layout.size

    def Pack_external(self, datarep: str, inbuf: Any, outbuf: Any, position: int) -> int:
        from .packing import pack

        return pack(self, inbuf, outbuf, position, True)

    def Unpack_external(self, datarep: str, inbuf: Any, position: int, outbuf: Any) -> int:
        from .packing import unpack

        return unpack(self, inbuf, position, outbuf, True)

    def Pack_external_size(self, datarep: str, count: int) -> int:
        return count * self.layout.size

    # Attributes ------------------------------------------------------------------------------------------------------

    def Get_attr(self, keyval: int) -> Any:
        return self._need().attributes.get(keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        self._need().attributes.set(self, keyval, attrval)

    def Delete_attr(self, keyval: int) -> None:
        self._need().attributes.delete(self, keyval)

    @classmethod
    def Create_keyval(
        cls,
        copy_fn: Callable[..., Any] | None = None,
        delete_fn: Callable[..., Any] | None = None,
        nopython: bool = False,
    ) -> int:
        return new_keyval(copy_fn, delete_fn)

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        return remove_keyval(keyval)

    def __reduce__(self) -> Any:
        from ..handles import name_of
        from .pickling import rebuilt

        if self._ob is None or (self._ob.combiner == "NAMED" and name_of(self)):
            return super().__reduce__()
        return rebuilt, (self._ob.combiner, *self._recipe())

    def _recipe(self) -> tuple[Any, dict[str, Any]]:
        kind = self._need()
        base, _, parameters = self.decode()
        return (base if len(kind.contents[2]) == 1 and kind.combiner != "STRUCT" else None), parameters


def _kept(types: Sequence[Datatype]) -> list[Datatype]:
    """New handles of the same types, which stay valid when the program frees its own."""
    return [one if one._predefined else type(one)._of(one._ob) for one in types]


def typecode(datatype: Datatype) -> str | None:
    """The code that arrays have for the type, or None if they have none."""
    kind = datatype._ob
    if kind is None:
        return None
    while kind.combiner == "DUP":
        kind = kind.contents[2][0]._ob
        if kind is None:
            return None
    return kind.code


def _non_negative(**numbers: int) -> None:
    for name, number in numbers.items():
        if operator.index(number) < 0:
            raise error("ERR_ARG", f"{name} must be 0 or more, not {number}")


def _pairs(lengths: Sequence[int], places: Sequence[int]) -> tuple[list[int], list[int]]:
    made, given = [operator.index(one) for one in lengths], [operator.index(one) for one in places]
    if len(made) != len(given):
        raise ValueError(f"{len(made)} block lengths and {len(given)} displacements")
    for length in made:
        _non_negative(blocklength=length)
    return made, given


def _distributed(size: int, how: int, argument: int, parts: int, coordinate: int) -> list[tuple[int, int]]:
    """The indices of one dimension that a process holds: the start and length of each stretch."""
    if how == c.DISTRIBUTE_NONE:
        return [(0, size)]
    if how == c.DISTRIBUTE_BLOCK:
        block = -(-size // parts) if argument == c.DISTRIBUTE_DFLT_DARG else argument
        return [(coordinate * block, max(0, min(block, size - coordinate * block)))]
    block = 1 if argument == c.DISTRIBUTE_DFLT_DARG else argument
    return [(start, min(block, size - start)) for start in range(coordinate * block, size, block * parts)]
