"""Objects as bytes, and datatypes as objects."""

from __future__ import annotations

import pickle as _pickle
from collections.abc import Callable, Iterable
from typing import Any

from .memory import buffer


class Pickle:
    """Converts the objects of lower-case calls to bytes and back."""

    def __init__(
        self,
        dumps: Callable[..., bytes] | None = None,
        loads: Callable[..., Any] | None = None,
        protocol: int | None = None,
        threshold: int = 1 << 18,
    ) -> None:
        if isinstance(dumps, Pickle):
            other = dumps
            dumps, loads, protocol, threshold = other._dumps, other._loads, other.PROTOCOL, other.THRESHOLD
        self._dumps, self._loads = dumps or _pickle.dumps, loads or _pickle.loads
        default = _pickle.HIGHEST_PROTOCOL if dumps is None else None
        self.PROTOCOL = default if protocol is None else protocol if protocol >= 0 else _pickle.HIGHEST_PROTOCOL
        self.THRESHOLD = threshold

    def dumps(self, obj: Any) -> bytes:
        return self._dumps(obj) if self.PROTOCOL is None else self._dumps(obj, self.PROTOCOL)

    def loads(self, data: Any) -> Any:
        return self._loads(data)

    def dumps_oob(self, obj: Any) -> tuple[bytes, list[buffer]]:
        apart: list[buffer] = []

        def keep(one: Any) -> bool:
            memory = one.raw()
            if memory.nbytes < self.THRESHOLD:
                return True
            apart.append(buffer(memory))
            return False

        protocol = max(5, _pickle.HIGHEST_PROTOCOL if self.PROTOCOL is None else self.PROTOCOL)
        return self._dumps(obj, protocol, buffer_callback=keep), apart

    def loads_oob(self, data: Any, buffers: Iterable[Any]) -> Any:
        return self._loads(data, buffers=buffers)


pickle = Pickle()


def packed(value: Any) -> bytes:
    return pickle.dumps(value)


def loaded(data: Any) -> Any:
    """The object of a message; None if the message is empty."""
    return pickle.loads(data) if len(data) else None


def rebuilt(combiner: str, base: Any, parameters: dict[str, Any]) -> Any:
    """A datatype, from the arguments that made it."""
    from .datatypes import Datatype

    if combiner == "DUP":
        return base.Dup()
    maker = {"VALUE_INDEX": "Get_value_index"}.get(combiner, f"Create_{combiner.lower()}")
    return getattr(Datatype if base is None else base, maker)(**parameters)
