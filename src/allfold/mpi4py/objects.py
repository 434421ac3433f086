"""Collectives on objects: the lower-case calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from .data.ops import SUM, Op, objects_of
from .data.pickling import packed, pickle
from .records import CommunicatorState

Fold = Op | Callable[[Any, Any], Any]


class ObjectCalls:
    """The part of a communicator that makes collective calls on objects."""

    _need: Callable[[], Any]
    _run: Callable[[Any], Any]
    _rooted: Callable[[int], CommunicatorState]

    def barrier(self) -> None:
        self._run(self._need().communicator.barrier)

    def bcast(self, obj: Any, root: int = 0) -> Any:
        shared = self._rooted(root)
        return self._run(lambda: shared.communicator.broadcast_object(obj, root))

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        shared = self._rooted(root)
        return self._run(lambda: shared.communicator.gather_object(sendobj, root))  # type: ignore[no-any-return]

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        shared = self._rooted(root)
        given = None
        if shared.rank == root:
            given = _items("scatter", sendobj, shared.size)
        return self._run(lambda: shared.communicator.scatter_object(given, root))

    def allgather(self, sendobj: Any) -> list[Any]:
        shared: CommunicatorState = self._need()
        return self._run(lambda: shared.communicator.all_gather_object(sendobj))  # type: ignore[no-any-return]

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        shared: CommunicatorState = self._need()
        parts = [packed(one) for one in _items("alltoall", sendobj, shared.size)]

        def call() -> list[Any]:
            own = np.array([len(one) for one in parts], np.int64)
            lengths = np.empty(shared.size, np.int64)
            shared.communicator.all_to_all(own, lengths)
            data = np.empty(int(lengths.sum()), np.uint8)
            shared.communicator.all_to_all(np.frombuffer(b"".join(parts), np.uint8), data, counts=own.tolist())
            ends = np.cumsum(lengths)
            return [pickle.loads(data[end - length : end]) for end, length in zip(ends, lengths, strict=True)]

        return self._run(call)  # type: ignore[no-any-return]

    def reduce(self, sendobj: Any, op: Fold = SUM, root: int = 0) -> Any:
        fold = objects_of(op)
        found = self.gather(sendobj, root)
        return None if found is None else reduce(fold, found)

    def allreduce(self, sendobj: Any, op: Fold = SUM) -> Any:
        fold = objects_of(op)
        return reduce(fold, self.allgather(sendobj))

    def scan(self, sendobj: Any, op: Fold = SUM) -> Any:
        fold = objects_of(op)
        return reduce(fold, self.allgather(sendobj)[: self._need().rank + 1])

    def exscan(self, sendobj: Any, op: Fold = SUM) -> Any:
        fold = objects_of(op)
        before = self.allgather(sendobj)[: self._need().rank]
        return reduce(fold, before) if before else None


def _items(name: str, given: Any, size: int) -> list[Any]:
    items = list(given)
    if len(items) != size:
        raise ValueError(f"{name}: expecting {size} items, got {len(items)}")
    return items
