"""Calls with known results, on arrays that are watched: they may change only inside the calls they are given to.

The expected results share nothing with allfold: they are folds of small integers in plain NumPy, exact in every type,
so that any order of folding gives the same bits.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from fault_plans import OWN, OWN_FIRST, PARTED, REDUCING, ROOTED, Call, schedule_of
from numpy.typing import NDArray

import allfold
from allfold.collectives import COLLECTIVES as TABLE
from allfold.communicator.communicator import Communicator
from allfold.registry import Algorithm

Array = NDArray[Any]

PERIOD = 1009  # elements; a prime, so that it meets no border of chunks
PADDING = 16  # elements on both sides of an array that is a slice of a longer one
STREAM_SECONDS = 20.0


class WrongResult(Exception):
    pass


# Data and what becomes of it ------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _numbers(salt: int, rank: int, shift: int) -> Array:
    return np.random.default_rng([salt, rank, shift]).integers(0, 6, PERIOD)


def _contribution(call: Call, size: int, rank: int, shift: int) -> Array:
    """Small integers: what a rank contributes to one part of the data, as far as it does not repeat."""
    numbers = _numbers(call.salt, rank, shift)
    if call.kind in REDUCING and call.op == "product":
        return numbers % 2 + 1
    return numbers * size if call.kind in REDUCING and call.op == "avg" else numbers


_FOLDS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "avg": np.add,
    OWN: np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    OWN_FIRST: lambda left, right: left,
}
_TRUTHS = {"sum": "bor", "max": "bor", OWN: "bor", "product": "band", "min": "band"}  # of booleans


def _folded(call: Call, size: int, ranks: range, shift: int) -> Array:
    """The combination of what these ranks contribute, of all."""
    contributions = [_contribution(call, size, rank, shift) for rank in ranks]
    if call.dtype == "bool":
        truths = [numbers % 2 for numbers in contributions]
        return reduce(_FOLDS[_TRUTHS.get(call.op, call.op)], truths)
    if call.dtype == "complex64" and call.op == "product":
        return reduce(np.multiply, contributions) * (1 + 2j) ** len(ranks)
    total = reduce(_FOLDS[call.op], contributions)
    return total // size if call.op == "avg" else total


def _typed(numbers: Array, dtype: str, elements: int) -> Array:
    """As many elements as wanted, of the type that carries the data."""
    if dtype == "bfloat16":
        period = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif dtype == "bool":
        period = numbers % 2 == 1
    elif dtype == "complex64" and numbers.dtype.kind != "c":
        period = (numbers * (1 + 2j)).astype(np.complex64)
    else:
        period = numbers.astype(dtype)
    return np.resize(period, elements)


def _own_sum(left: Array, right: Array) -> Array:
    hook("operation")
    return left + right


def _own_sum_of_another_kind(left: Array, right: Array) -> Array:
    hook("operation")
    return right + left


def _own_first(left: Array, right: Array) -> Array:
    hook("operation")
    return left


hook: Callable[[str], None] = lambda where: None  # noqa: E731 - a rank that fails inside a function of its own sets it


def _op(call: Call) -> Any:
    if call.op == OWN:
        return allfold.op((_own_sum, _own_sum_of_another_kind)[call.code], commutative=True, name="mine")
    return allfold.op(_own_first, commutative=False) if call.op == OWN_FIRST else call.op


def _algorithm(call: Call, size: int) -> Any:
    made = schedule_of(call, size)
    if made is None:
        return call.algorithm

    def mine(*_: int) -> Any:
        hook("generator")
        yield from made.generate()

    if call.algorithm.startswith("function"):  # type: ignore[union-attr]
        named = max([1, *(1 + max(move[1], move[4]) for step in made.steps for move in step)])
        if made.chunks == (size if call.kind in PARTED else named):
            return mine
    return Algorithm(call.kind, "mine", mine, made.chunks)


# Watched arrays -------------------------------------------------------------------------------------------------------


class Watched:
    """Memory that must not change while nobody calls: an array, or the longer one that it is a part of."""

    def __init__(self, label: str, whole: Array, stays: bool = True) -> None:
        self.label, self.whole = label, whole
        self.stays = stays  # when the communicator is closed
        self.look()

    def look(self) -> None:
        """Take what it holds now for what it must hold."""
        self._kept = self.whole.tobytes()

    def is_intact(self) -> bool:
        return self.whole.tobytes() == self._kept

    def complaint(self) -> str | None:
        if self.is_intact():
            return None
        before, now = np.frombuffer(self._kept, np.uint8), np.frombuffer(self.whole.tobytes(), np.uint8)
        changed = np.flatnonzero(before != now)
        what = f"{len(changed)} of {len(now)} bytes, from byte {changed[0]} on: {before[changed[:4]]} became {now[changed[:4]]}"
        return f"{self.label}: {what}"


class Memory:
    """Makes arrays of the planned kind for one rank."""

    def __init__(self, device: Any = None) -> None:
        self.device = device
        self.stream = 0 if device is None else device.new_stream()
        self.releases: dict[int, Callable[[], None]] = {}  # by address: lets memory go that all ranks reach

    def make(self, comm: Communicator, kind: str, elements: int, dtype: str) -> tuple[Any, Array, Array]:
        """An argument for a call, the NumPy array that it shows, and the memory around it."""
        carrier = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        if kind == "reached":
            return self._reached(comm, elements, carrier)
        around = PADDING if kind == "slice" else 0
        step = 2 if kind == "strided" else 1
        length = elements * step + 2 * around
        whole = comm.empty(length, carrier) if kind in ("shared", "slice") else np.empty(length, carrier)
        whole.view(np.uint8)[:] = 0xA5
        array = whole[around : around + elements * step : step]
        if kind == "device":
            return _on(self.device, array, self.stream), array, whole
        return array, array, whole

    def _reached(self, comm: Communicator, elements: int, carrier: Any) -> tuple[Any, Array, Array]:
        """Device memory that all ranks reach; all of them ask for it together, after a first call."""
        import ctypes

        from numpy_device import ways_of

        made = ways_of(comm)
        length = max(1, elements) * carrier.itemsize
        found = made.empty(length)
        if found is None:
            return self.make(comm, "device", elements, carrier)
        whole = np.frombuffer((ctypes.c_char * length).from_address(found[0]), carrier)
        self.releases[found[0]] = found[1]
        whole.view(np.uint8)[:] = 0xA5
        return _on(self.device, whole[:elements], self.stream), whole[:elements], whole

    def settle(self) -> None:
        """Arrays on a device belong to the caller in the order of its stream: wait for what the stream holds."""
        if self.device is None:
            return
        came = threading.Event()
        self.device.later(self.stream, came.set)
        if not came.wait(STREAM_SECONDS):
            raise WrongResult(f"the stream does not come to an end within {STREAM_SECONDS:g} s")


def _on(device: Any, array: Array, stream: int) -> Any:
    from numpy_device import DeviceArray

    return DeviceArray(array, stream)


# One call -------------------------------------------------------------------------------------------------------------


class Made:
    """One call of this rank: its arrays, the way to make it, and what must become of them."""

    def __init__(self, comm: Communicator, call: Call, memory: Memory, label: str) -> None:
        self.comm, self.call, self.memory, self.label = comm, call, memory, label
        self.size, self.me = comm.size, comm.rank
        self.watched: list[Watched] = []
        self.inputs: list[Watched] = []
        self.handle: Any = None
        self._result: Array | None = None
        self._wanted: Callable[[], Array] | None = None
        self._make = self._prepared()

    @property
    def is_in_a_stream(self) -> bool:
        return self.call.memory(self.me) in ("device", "reached")

    # What the caller does ---------------------------------------------------------------------------------------------

    def begin(self, timeout: float) -> None:
        self.untouched("before its call")
        self.handle = self._make(timeout)

    def finish(self) -> None:
        if self.handle is not None:
            self.handle.wait()

    def check(self) -> None:
        """Compare the result, right after the call has returned; from now on nothing may change it."""
        changed = [one.complaint() for one in self.inputs if not one.is_intact()]
        wanted = None if self._result is None or self._wanted is None else self._wanted()
        for one in self.watched:
            one.look()
        if changed:
            raise WrongResult(f"the call wrote into its input: {changed[0]}")
        if wanted is None or self._result is None or self._result.tobytes() == wanted.tobytes():
            return
        first = int(np.argmax(self._result != wanted))
        some = slice(first, first + 6)
        raise WrongResult(
            f"rank {self.me} of {self.size}: {self.call} gave {self._result[some]} from element {first} on, "
            f"expected {wanted[some]}"
        )

    def react(self, how: str) -> list[Watched]:
        """After an error the arrays are the caller's again, who does with them as it likes; what is to be watched then."""
        if self.is_in_a_stream:
            self.memory.settle()
        if how == "drop":
            sizes = [one.whole.nbytes for one in self.watched]
            shared = self.call.memory(self.me) in ("shared", "slice")
            lets_go = [self.memory.releases.pop(one.whole.ctypes.data, None) for one in self.watched]
            self.watched, self.inputs, self._result, self._wanted = [], [], None, None
            self._make = lambda timeout: None
            self.handle = None
            gc.collect()
            for release in filter(None, lets_go):
                release()
            for size in sizes:
                fresh = self.comm.empty(size, np.uint8) if shared else np.empty(size, np.uint8)
                fresh[:] = 0xC3
                self.watched.append(Watched(f"a new array in place of one of {self.label}", fresh))
            return self.watched
        for one in self.watched:
            if how == "rewrite":
                one.whole.view(np.uint8)[:] = 0x3C
                one.label += ", rewritten after the error"
            one.look()
        return self.watched

    def untouched(self, when: str) -> None:
        for one in self.watched:
            if (complaint := one.complaint()) is not None:
                raise WrongResult(f"an array was written {when}: {complaint}")

    # The calls --------------------------------------------------------------------------------------------------------

    def _part(self, rank: int, shift: int = 0) -> Array:
        return _typed(_contribution(self.call, self.size, rank, shift), self.call.dtype, self.call.elements)

    def _parts(self, rank: int) -> Array:
        return np.concatenate([self._part(rank, shift) for shift in range(self.size)])

    def _folded(self, shift: int = 0) -> Array:
        # An exscan leaves rank 0 what it has.
        ranks = {"scan": range(self.me + 1), "exscan": range(self.me or 1)}.get(self.call.kind, range(self.size))
        return _typed(_folded(self.call, self.size, ranks, shift), self.call.dtype, self.call.elements)

    def _all(self, shift: int = 0) -> Array:
        return np.concatenate([self._part(rank, shift) for rank in range(self.size)])

    def _array(self, content: Array | int, is_input: bool = False) -> tuple[Any, Array]:
        elements = content if isinstance(content, int) else len(content)
        argument, array, whole = self.memory.make(self.comm, self.call.memory(self.me), elements, self.call.dtype)
        if not isinstance(content, int):
            array[:] = content
        label = f"{'the input' if is_input else 'the array'} of {self.label}"
        watched = Watched(label, whole, self.call.memory(self.me) != "reached")
        self.watched.append(watched)
        if is_input:
            self.inputs.append(watched)
        return argument, array

    def _expect(self, array: Array | None, wanted: Callable[[], Array]) -> None:
        self._result, self._wanted = array, wanted

    def _prepared(self) -> Callable[[float], Any]:
        call, comm, size, me = self.call, self.comm, self.size, self.me
        rest: dict[str, Any] = {"algorithm": _algorithm(call, size), "async_op": call.background}
        if call.kind in ROOTED:
            rest["root"] = call.root
        if call.kind in REDUCING:
            rest["op"] = _op(call)
        if call.dtype == "bfloat16" and call.kind != "barrier":
            rest["dtype"] = "bfloat16"
        is_root = me == call.root
        work = getattr(comm, call.kind, None)
        if call.kind == "barrier":
            return lambda timeout: work(timeout=timeout, **rest)
        if call.kind in TABLE and TABLE[call.kind].in_place:
            given, array = self._array(self._part(me))
            if call.kind == "broadcast":
                self._expect(array, lambda: self._part(call.root))
            elif call.kind != "reduce" or is_root:
                self._expect(array, self._folded)
            return lambda timeout: work(given, timeout=timeout, **rest)
        if call.kind in PARTED:
            return self._parted(work, rest, is_root)
        return self._messages()

    def _parted(self, work: Any, rest: dict[str, Any], is_root: bool) -> Callable[[float], Any]:
        call, me = self.call, self.me
        source = target = array = None
        if call.kind in ("gather", "all_gather"):
            source, _ = self._array(self._part(me), is_input=True)
        elif call.kind != "scatter" or is_root:
            source, _ = self._array(self._parts(me), is_input=True)
        if call.kind in ("scatter", "reduce_scatter"):
            target, array = self._array(call.elements)
        elif call.kind != "gather" or is_root:
            target, array = self._array(call.elements * self.size)
        wanted: dict[str, Callable[[], Array]] = {
            "gather": self._all,
            "all_gather": self._all,
            "scatter": lambda: self._part(call.root, me),
            "reduce_scatter": lambda: self._folded(me),
            "all_to_all": lambda: self._all(me),
        }
        self._expect(array, wanted[call.kind])
        return lambda timeout: work(array=source, output=target, timeout=timeout, **rest)

    def _messages(self) -> Callable[[float], Any]:
        call, comm, size, me = self.call, self.comm, self.size, self.me
        if call.kind == "shift":
            step = 1 + call.root % max(1, size - 1)
            given, _ = self._array(self._part(me), is_input=True)
            taken, array = self._array(call.elements)
            self._expect(array, lambda: self._part((me - step) % size))

            def shift(timeout: float) -> None:
                sending = comm.isend(given, (me + step) % size, tag=call.salt, timeout=timeout)
                try:
                    comm.recv(taken, (me - step) % size, tag=call.salt, timeout=timeout)
                except BaseException:
                    with contextlib.suppress(allfold.AllfoldError):
                        sending.wait()  # until then the array is not the caller's
                    raise
                sending.wait()

            return shift
        assert call.kind == "collect"
        if me != call.root:
            given, _ = self._array(self._part(me), is_input=True)
            return lambda timeout: comm.send(given, call.root, tag=call.salt, timeout=timeout)
        buffers = [self._array(call.elements) for _ in range(size - 1)]

        def collect(timeout: float) -> None:
            came = [comm.recv(given, None, tag=call.salt, timeout=timeout).source for given, _ in buffers]
            if sorted(came) != [rank for rank in range(size) if rank != me]:
                raise WrongResult(f"rank {me} of {size}: {call} brought messages from {came}")
            for rank, (_, array) in zip(came, buffers, strict=True):
                if array.tobytes() != self._part(rank).tobytes():
                    raise WrongResult(f"rank {me} of {size}: {call} brought {array[:6]} from rank {rank}")

        return collect
