"""Signal handlers that raise: Python runs them in the middle of anything, and callers must get just what they raised."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import allfold
from allfold.communicator.communicator import Communicator, connect
from allfold.registry import Algorithm

PATIENCE = 60.0


class Trouble(Exception):
    pass


class Handler:
    """Raises an exception, once."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind, self.was_called = kind, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        assert not self.was_called
        self.was_called = True
        raise self.kind("by the handler")


@pytest.fixture(params=[Trouble, TypeError, BufferError, SystemExit])
def kind(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    before = signal.signal(signal.SIGUSR1, Handler(request.param))
    yield request.param
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def comm() -> Iterator[Communicator]:
    alone = connect(0, 1, secrets.token_hex(16), PATIENCE)
    yield alone
    alone.close()


def strike() -> None:
    signal.raise_signal(signal.SIGUSR1)


class Number:
    def __index__(self) -> int:
        strike()
        return 0


class Tensor:
    """An array that speaks DLPack, in Python, as torch's does."""

    def __init__(self) -> None:
        self.array = np.ones(3)

    def __dlpack__(self, **named: Any) -> Any:
        strike()
        return self.array.__dlpack__(**named)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Packed:
    def __reduce__(self) -> Any:
        strike()
        return int, (1,)


class Unpacked:
    def __setstate__(self, state: object) -> None:
        strike()

    def __getstate__(self) -> object:
        return 1


def stepwise(ranks: int) -> Iterator[list[allfold.Move]]:
    strike()
    yield []


def at_once(ranks: int) -> Iterator[list[allfold.Move]]:
    strike()
    return iter([[]])


def count_chunks(ranks: int) -> int:
    strike()
    return 1


IN_CHUNKS = Algorithm("all_reduce", "in chunks", lambda ranks: iter([[]]), chunks=count_chunks)

CALLS = {
    "a step of an algorithm": lambda comm: comm.all_reduce(np.ones(3), algorithm=stepwise),
    "an algorithm": lambda comm: comm.all_reduce(np.ones(3), algorithm=at_once),
    "the chunks of an algorithm": lambda comm: comm.all_reduce(np.ones(3), algorithm=IN_CHUNKS),
    "an array": lambda comm: comm.all_reduce(Tensor()),
    "an array of a message": lambda comm: comm.send(Tensor(), 0),
    "a root": lambda comm: comm.broadcast(np.ones(3), root=Number()),
    "a destination": lambda comm: comm.send(np.ones(3), Number()),
    "a tag": lambda comm: comm.irecv(np.ones(3), 0, Number()),
    "an object": lambda comm: comm.broadcast_object(Packed()),
    "an object that has come": lambda comm: comm.all_gather_object(Unpacked()),
}


@pytest.mark.parametrize("where", CALLS)
def test_what_a_handler_raises_leaves_the_call_unchanged(
    where: str, kind: type[BaseException], comm: Communicator
) -> None:
    with pytest.raises(kind) as caught:
        CALLS[where](comm)
    assert type(caught.value) is kind and caught.value.args == ("by the handler",)


def test_what_a_handler_raises_ends_the_wait_for_a_message(kind: type[BaseException], comm: Communicator) -> None:
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    with pytest.raises(kind) as caught:
        comm.recv(np.zeros(2), 0)
    assert type(caught.value) is kind and caught.value.args == ("by the handler",)
    comm.send(np.ones(2), 0)
    assert comm.recv(np.zeros(2), 0).elements == 2  # the interrupted receive has not taken it


def test_what_a_handler_raises_inside_a_torch_tensor(kind: type[BaseException], comm: Communicator) -> None:
    torch = pytest.importorskip("torch")

    class Striking(torch.Tensor):  # type: ignore[name-defined, misc]
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "dlpack" in getattr(func, "__name__", ""):
                strike()
            return super().__torch_function__(func, types, args, kwargs or {})

    tensor = torch.ones(3).as_subclass(Striking)
    with pytest.raises(kind) as caught:
        comm.all_reduce(tensor)
    assert type(caught.value) is kind and caught.value.args == ("by the handler",)


def test_conjugated_and_negated_tensors_are_taken_as_they_show() -> None:
    torch = pytest.importorskip("torch")
    with connect(0, 1, secrets.token_hex(16), PATIENCE) as comm:
        for lazy in (torch.tensor([1 + 2j]).conj(), torch._neg_view(torch.ones(3))):
            assert torch.equal(comm.all_gather(lazy), lazy)
