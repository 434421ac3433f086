"""Collectives on Python objects: anything that can be pickled, of any size, which may differ from rank to rank.

Built on collectives of bytes, so they work wherever those do. Lengths are exchanged first, together with the objects if
all are small. If one rank's object cannot be pickled, all ranks raise `UsageError`, and nobody waits. Objects are unpickled
as they come, from ranks of this run only. Arrays travel faster by the collectives for arrays.
"""

from __future__ import annotations

import json
import operator
import pickle
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from struct import Struct
from typing import Any

import numpy as np

from ..errors import UsageError, raised_by_handler
from ..wording import name_ranks, suggest

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Content = bytes | bytearray | memoryview

_FOLDS: dict[str, Callable[[Any, Any], Any]] = {"sum": operator.add, "product": operator.mul, "min": min, "max": max}
_UNPICKLABLE = -1  # in place of a length
_MOST_PADDING = 1 << 20  # bytes
_BLOCK = 512  # bytes of the first exchange: a length, and the bytes of an object if they fit
_LENGTH = Struct("q")
_ROOM = _BLOCK - _LENGTH.size


class Objects:
    """The part of a communicator that moves Python objects."""

    rank: int
    size: int
    all_gather: Callable[..., Any]
    broadcast: Callable[..., Any]
    gather: Callable[..., Any]
    scatter: Callable[..., Any]

    def all_gather_object(self, value: Any, timeout: float | None = None) -> list[Any]:
        """The objects of all ranks, by rank.

        >>> comm.all_gather_object({"rank": comm.rank, "name": "r" * comm.rank})
        [{'rank': 0, 'name': ''}, {'rank': 1, 'name': 'r'}]
        """
        return _loaded("all_gather_object", self._all_gather_bytes("all_gather_object", *_packed(value), timeout))

    def gather_object(self, value: Any, root: int = 0, timeout: float | None = None) -> list[Any] | None:
        """The objects of all ranks, by rank, on the root; None elsewhere.

        >>> comm.gather_object(f"from rank {comm.rank}")
        ['from rank 0', 'from rank 1']
        """
        own, lengths, blocks = self._exchange("gather_object", *_packed(value), timeout)
        longest = max(lengths)
        if longest <= _ROOM:
            return _loaded("gather_object", _contents(blocks, lengths)) if self.rank == root else None
        everyone = np.empty((self.size, longest), np.uint8) if self.rank == root else None
        self.gather(_padded(own, longest), everyone, root=root, timeout=timeout)
        if everyone is None:
            return None
        return _loaded("gather_object", (everyone[rank, :end] for rank, end in enumerate(lengths)))

    def broadcast_object(self, value: Any = None, root: int = 0, timeout: float | None = None) -> Any:
        """The root's object, on every rank; the others' arguments are ignored.

        >>> comm.broadcast_object(["any", {"object": 1}] if comm.rank == 0 else None)
        ['any', {'object': 1}]
        """
        packed, error = _packed(value) if self.rank == root else (None, None)
        content = self._broadcast_bytes("broadcast_object", packed, error, root, timeout)
        return value if self.rank == root else _loaded("broadcast_object", [content])[0]

    def scatter_object(self, values: Sequence[Any] | None = None, root: int = 0, timeout: float | None = None) -> Any:
        """The root's object for this rank: the root gives one for every rank, by rank; others give none.

        >>> comm.scatter_object(["for rank 0", "for rank 1"] if comm.rank == 0 else None)
        'for rank 0'
        """
        packed: list[Content | None] = [None] * self.size
        error: Exception | None = None
        if self.rank == root:
            given = list(values) if isinstance(values, Iterable) and not isinstance(values, (str, bytes)) else []
            if len(given) == self.size:
                made = [_packed(one) for one in given]
                packed = [one for one, _ in made]
                error = next((why for _, why in made if why is not None), None)
            else:
                error = UsageError(f"expected {self.size} objects, one for every rank, not {values!r:.60}")
        lengths = np.array([_length(one) for one in packed], np.int64)
        self.broadcast(lengths, root=root, timeout=timeout)
        if lengths.min() == _UNPICKLABLE:
            if error is not None:
                raise UsageError(f"scatter_object: {error}")
            raise UsageError(f"scatter_object: rank {root} must pass {self.size} objects that can be pickled")
        longest = int(lengths.max())
        content = np.empty(longest, np.uint8)
        whole = np.stack([_padded(one, longest) for one in packed if one is not None]) if self.rank == root else None
        self.scatter(array=whole, output=content, root=root, timeout=timeout)
        return _loaded("scatter_object", [content[: lengths[self.rank]]])[0]

    def reduce_object(
        self,
        value: Any,
        root: int = 0,
        op: str | Callable[[Any, Any], Any] = "sum",
        timeout: float | None = None,
    ) -> Any:
        """The objects of all ranks, reduced by `op` in rank order, on the root; None elsewhere.

        `op` is a function of two objects, or "sum" (`+`), "product" (`*`), "min" or "max".

        >>> comm.reduce_object([comm.rank], op="sum")
        [0, 1]
        """
        fold = _fold("reduce_object", op)
        found = self.gather_object(value, root, timeout)
        return None if found is None else reduce(fold, found)

    def all_reduce_object(
        self, value: Any, op: str | Callable[[Any, Any], Any] = "sum", timeout: float | None = None
    ) -> Any:
        """The objects of all ranks, reduced by `op` in rank order, on every rank. `op`: see `reduce_object`.

        >>> comm.all_reduce_object({"ranks": {comm.rank}}, op=lambda a, b: {"ranks": a["ranks"] | b["ranks"]})
        {'ranks': {0, 1}}
        """
        fold = _fold("all_reduce_object", op)
        return reduce(fold, self.all_gather_object(value, timeout))

    # On bytes, for what needs no pickle --------------------------------------------------------------------------------

    def _all_gather_bytes(
        self, call: str, own: Content | None, error: Exception | None, timeout: float | None
    ) -> list[memoryview]:
        """The bytes of all ranks, by rank, of any length; None, with the error, if this rank has none."""
        own, lengths, blocks = self._exchange(call, own, error, timeout)
        longest, total = max(lengths), sum(lengths)
        if longest <= _ROOM:
            return _contents(blocks, lengths)
        if self.size * longest <= 2 * total + _MOST_PADDING:
            everyone = np.empty((self.size, longest), np.uint8)
            self.all_gather(_padded(own, longest), everyone, timeout=timeout)
            return [everyone[rank, :end].data for rank, end in enumerate(lengths)]
        # One is far longer than the others: padded to its length, they would take much memory.
        parts = [bytearray(own) if rank == self.rank else bytearray(end) for rank, end in enumerate(lengths)]
        for rank, part in enumerate(parts):
            self.broadcast(part, root=rank, timeout=timeout)
        return [memoryview(part) for part in parts]

    def _broadcast_bytes(
        self, call: str, own: Content | None, error: Exception | None, root: int, timeout: float | None
    ) -> memoryview:
        """The root's bytes."""
        block = _block(own) if self.rank == root else bytearray(_BLOCK)
        self.broadcast(block, root=root, timeout=timeout)
        (length,) = _LENGTH.unpack_from(block)
        if length == _UNPICKLABLE:
            raise _refusal(call, [root], error)
        if length <= _ROOM:
            return memoryview(block)[_LENGTH.size : _LENGTH.size + length]
        content = bytearray(length if own is None else own)
        self.broadcast(content, root=root, timeout=timeout)
        return memoryview(content)

    def _exchange(
        self, call: str, own: Content | None, error: Exception | None, timeout: float | None
    ) -> tuple[Content, list[int], bytearray]:
        """This rank's bytes, the lengths of all ranks' bytes, and all ranks' blocks, which hold those that fit."""
        blocks = bytearray(_BLOCK * self.size)
        self.all_gather(_block(own), blocks, timeout=timeout)
        lengths: list[int] = [_LENGTH.unpack_from(blocks, start)[0] for start in range(0, len(blocks), _BLOCK)]
        if own is None or min(lengths) == _UNPICKLABLE:
            raise _refusal(call, [rank for rank, length in enumerate(lengths) if length == _UNPICKLABLE], error)
        return own, lengths, blocks

    def _all_gather_json(self, call: str, value: Any) -> list[Any]:
        own = json.dumps(value).encode()
        return [json.loads(part.tobytes()) for part in self._all_gather_bytes(call, own, None, None)]

    def _broadcast_json(self, call: str, value: Any, root: int, timeout: float | None) -> Any:
        own = json.dumps(value).encode() if self.rank == root else None
        return json.loads(self._broadcast_bytes(call, own, None, root, timeout).tobytes())


def _packed(value: Any) -> tuple[bytes | None, Exception | None]:
    """An object as bytes, or why it cannot be pickled."""
    try:
        try:
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL), None
        except Exception as error:  # functions without a name, and classes made inside functions
            if raised_by_handler(error):
                raise
            import cloudpickle  # type: ignore[import-untyped]

            return cloudpickle.dumps(value), None
    except Exception as error:
        if raised_by_handler(error):
            raise
        return None, error


def _block(content: Content | None) -> bytearray:
    block = bytearray(_BLOCK)
    length = _length(content)
    _LENGTH.pack_into(block, 0, length)
    if content is not None and length <= _ROOM:
        block[_LENGTH.size : _LENGTH.size + length] = content
    return block


def _contents(blocks: bytearray, lengths: Sequence[int]) -> list[memoryview]:
    """The bytes that blocks hold."""
    whole, starts = memoryview(blocks), range(_LENGTH.size, len(blocks), _BLOCK)
    return [whole[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def _length(packed: Content | None) -> int:
    return _UNPICKLABLE if packed is None else len(packed)


def _refusal(call: str, ranks: Sequence[int], error: Exception | None) -> UsageError:
    which = "objects" if len(ranks) > 1 else "object"
    return UsageError(f"{call}: the {which} of {name_ranks(ranks)} cannot be pickled" + (f": {error}" if error else ""))


def _padded(content: Content, length: int) -> Bytes:
    padded = np.zeros(length, np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    return padded


def _loaded(call: str, contents: Iterable[Any]) -> list[Any]:
    found = []
    for content in contents:
        try:
            found.append(pickle.loads(content))
        except Exception as error:
            if raised_by_handler(error):
                raise
            raise UsageError(f"{call}: an object cannot be unpickled here: {type(error).__name__}: {error}") from error
    return found


def _fold(call: str, op: str | Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    if callable(op):
        return op
    if op in _FOLDS:
        return _FOLDS[op]
    raise UsageError(f"{call}: op is a function of two objects or a name, not {op!r:.40}; {suggest(op, _FOLDS)}")
