"""Reduction operations: MPI's own, and those that a program creates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from ...ops import Op as EngineOp
from ..failures import error
from ..handles import MPIHandle
from .datatypes import Datatype
from .layout import Bytes
from .memory import buffer
from .specs import simple

Array = np.ndarray[Any, Any]
Fold = Callable[[Array, Array], Array]


def _logical(combine: Fold) -> Fold:
    def fold(left: Array, right: Array) -> Array:
        return combine(left != 0, right != 0).astype(left.dtype)

    fold.__name__ = combine.__name__
    return fold


def _located(is_better: Fold) -> Fold:
    def fold(left: Array, right: Array) -> Array:
        first, second = left["value"], right["value"]
        takes_left = is_better(first, second) | ((first == second) & (left["index"] <= right["index"]))
        return np.where(takes_left, left, right)

    return fold


def _located_objects(is_better: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def fold(left: Any, right: Any) -> Any:
        (first, place), (second, other) = left, right
        if first == second:
            return left if place <= other else right
        return left if is_better(first, second) else right

    return fold


class Operation:
    """An operation: on arrays, on objects, and by its name in the engine."""

    def __init__(
        self,
        name: str,
        *,
        fold: Fold | None = None,
        objects: Callable[[Any, Any], Any] | None = None,
        engine: str | None = None,
        kinds: str = "biuf",
        commutes: bool = True,
        function: Callable[..., Any] | None = None,
    ) -> None:
        self.name, self.fold, self.objects, self.engine, self.kinds = name, fold, objects, engine, kinds
        self.commutes, self.function = commutes, function
        self._known: dict[Any, str | EngineOp | None] = {}  # by definition of MPI's own types

    def check(self, datatype: Datatype) -> None:
        """Refuse a datatype for which the operation is not defined."""
        if self.function is not None:
            return
        kind = datatype._need()
        if self.kinds == "pairs":
            fits = _pairs_of(datatype) is not None
        else:
            primitive = kind.layout.primitive
            fits = primitive is not None and primitive.kind in self.kinds and _pairs_of(datatype) is None
        if not fits:
            raise error("ERR_OP", f"{self.name} is not defined for {datatype.Get_name() or 'this derived type'}")

    def for_engine(self, datatype: Datatype) -> str | EngineOp | None:
        """The operation as the engine takes it; None if allfold folds gathered arrays instead.

        Raises for a datatype for which the operation is not defined.
        """
        if not datatype._predefined:
            self.check(datatype)
            return self._made(datatype)
        if datatype._ob not in self._known:
            self.check(datatype)
            self._known[datatype._ob] = self._made(datatype)
        return self._known[datatype._ob]

    def _made(self, datatype: Datatype) -> str | EngineOp | None:
        primitive = datatype.layout.primitive
        if primitive is None or datatype.layout.native != primitive or _pairs_of(datatype) is not None:
            return None
        if self.engine is not None:
            return self.engine
        if self.function is None:
            assert self.fold is not None
            return EngineOp(self.name, self.commutes, self.fold)
        # The engine calls it with pieces of any length, and with halves as float32.
        if datatype._need().combiner != "NAMED" or primitive.char == "e":
            return None
        return EngineOp(self.name, self.commutes, _in_place(self.function, datatype))

    def folded(self, left: Bytes, right: Bytes, datatype: Datatype) -> Bytes:
        """Two packed arrays, combined; `left` is that of the lower ranks."""
        if self.function is not None:
            result = right.copy()
            self.function(buffer._over(left), buffer._over(result), datatype)
            return result
        assert self.fold is not None
        pairs = _pairs_of(datatype)
        if pairs is not None:
            return _fold_pairs(self.fold, left, right, datatype, pairs)
        primitive = datatype.layout.primitive
        assert primitive is not None
        with np.errstate(all="ignore"):
            made = self.fold(left.view(primitive), right.view(primitive))
        return np.ascontiguousarray(made).view(np.uint8)


def _pairs_of(datatype: Datatype) -> np.dtype[Any] | None:
    pair: np.dtype[Any] | None = datatype._need().value_index
    return pair


def _fold_pairs(fold: Fold, left: Bytes, right: Bytes, datatype: Datatype, pair: np.dtype[Any]) -> Bytes:
    packed = np.dtype([("value", pair["value"]), ("index", pair["index"])])
    made = fold(left.view(packed), right.view(packed))
    return np.ascontiguousarray(made).view(np.uint8)


def _in_place(function: Callable[..., Any], datatype: Datatype) -> Fold:
    """MPI's form of an operation, `inoutbuf = inbuf ∘ inoutbuf`, as a function of two arrays."""

    def fold(left: Array, right: Array) -> Array:
        result = right.copy()
        function(buffer._over(left.view(np.uint8)), buffer._over(result.view(np.uint8)), datatype)
        return result

    fold.__name__ = getattr(function, "__name__", "operation")
    return fold


class Op(MPIHandle):
    """A reduction operation."""

    _null_error = "ERR_OP"
    _ob: Operation | None

    @classmethod
    def Create(cls, function: Callable[[Any, Any, Datatype], None], commute: bool = False) -> Self:
        if not callable(function):
            raise TypeError(f"an operation must be a function, not {function!r}")
        name = str(getattr(function, "__name__", "operation"))
        return cls._of(Operation(name, commutes=bool(commute), function=function))

    def __call__(self, x: Any, y: Any, /) -> Any:
        if self._ob is None:
            raise ValueError("cannot call a null operation")
        operation: Operation = self._ob
        if operation.objects is not None:
            return operation.objects(x, y)
        assert operation.function is not None
        return operation.function(x, y, None)

    def Is_commutative(self) -> bool:
        return bool(self._need().commutes)

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        operation: Operation = self._need()
        first, second = simple(inbuf, False), simple(inoutbuf, True)
        if first.bytes != second.bytes:
            raise ValueError(f"Reduce_local: {first.bytes} bytes and {second.bytes} bytes")
        operation.check(second.datatype)
        second.write(operation.folded(first.read(), second.read(), second.datatype))

    def __reduce__(self) -> Any:
        if self._ob is None or self._ob.function is None:
            return super().__reduce__()
        return type(self).Create, (self._ob.function, self._ob.commutes)

    @property
    def is_commutative(self) -> bool:
        return self.Is_commutative()

    @property
    def is_predefined(self) -> bool:
        return self._ob is None or self._predefined


def _predefined() -> dict[str, Op]:
    table = {
        "MAX": Operation("MAX", fold=np.maximum, objects=lambda x, y: x if x > y else y, engine="max"),
        "MIN": Operation("MIN", fold=np.minimum, objects=lambda x, y: x if x < y else y, engine="min"),
        "SUM": Operation("SUM", fold=np.add, objects=lambda x, y: x + y, engine="sum", kinds="biufc"),
        "PROD": Operation("PROD", fold=np.multiply, objects=lambda x, y: x * y, engine="product", kinds="biufc"),
        "LAND": Operation("LAND", fold=_logical(np.logical_and), objects=lambda x, y: bool(x) & bool(y), kinds="biufc"),
        "LOR": Operation("LOR", fold=_logical(np.logical_or), objects=lambda x, y: bool(x) | bool(y), kinds="biufc"),
        "LXOR": Operation("LXOR", fold=_logical(np.logical_xor), objects=lambda x, y: bool(x) ^ bool(y), kinds="biufc"),
        "BAND": Operation("BAND", fold=np.bitwise_and, objects=lambda x, y: x & y, engine="band", kinds="biu"),
        "BOR": Operation("BOR", fold=np.bitwise_or, objects=lambda x, y: x | y, engine="bor", kinds="biu"),
        "BXOR": Operation("BXOR", fold=np.bitwise_xor, objects=lambda x, y: x ^ y, engine="bxor", kinds="biu"),
        "MAXLOC": Operation(
            "MAXLOC", fold=_located(np.greater), objects=_located_objects(lambda x, y: x > y), kinds="pairs"
        ),
        "MINLOC": Operation(
            "MINLOC", fold=_located(np.less), objects=_located_objects(lambda x, y: x < y), kinds="pairs"
        ),
        "REPLACE": Operation("REPLACE", fold=lambda x, y: x, objects=lambda x, y: y, kinds="biufcSU", commutes=False),
        "NO_OP": Operation("NO_OP", fold=lambda x, y: y, objects=lambda x, y: x, kinds="biufcSU", commutes=False),
    }
    made = {name: Op._of(one) for name, one in table.items()} | {"OP_NULL": Op._of(None)}
    for one in made.values():
        one._predefined = True
    return made


OPS = _predefined()
SUM = OPS["SUM"]


def objects_of(op: Op | Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The function of two objects that a lower-case reduction uses."""
    if isinstance(op, Op):
        op._need()
    elif not callable(op):
        raise TypeError(f"an operation must be an Op or a function of two objects, not {op!r}")
    return op
