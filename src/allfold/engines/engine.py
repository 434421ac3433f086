"""The engine interface: one rank's end of a group of ranks, which runs collectives between them.

Memory: the arrays of a call belong to the caller, who keeps them alive and does not touch them until the call is done;
the engine reads the input, writes the output, and keeps neither. What `empty` returns stays valid while it is held.

Blocking: `run` of a call that is not async, a ticket's `wait`, `group`, `shrink` and `close` may block, each no longer
than its timeout and without holding the GIL. Nothing else does. `run` may be called from any thread; the calls of a rank
happen in the order in which `run` was entered, and every rank of the group makes the same ones.

Errors: a wrong argument raises `UsageError` before anything is sent, and leaves the engine usable. `MismatchError`
means that ranks made different calls, `RankLost` that a rank is gone, `CollectiveTimeout` that time is up. These name
the ranks, and after one of them the engine can only be used for `shrink` and `close`. `failed` is told of each before
it leaves a call. `UnfitArray` means that an array cannot be taken as it lies: the communicator calls again with a copy.

What an engine may leave out is at the end of the class, with what happens then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from .. import _native
from ..collectives import COLLECTIVES
from ..division import Lengths
from ..errors import CollectiveTimeout, MismatchError, RankLost, UsageError
from ..ops import Op
from ..registry import AnyAlgorithm
from ..wording import name_ranks

if TYPE_CHECKING:
    from .._native import Outcome
    from ..fabrics.board import Board

if _native.MISSING is None:  # before anything uses the extension: it has no table of collectives of its own
    _native.define_collectives([one.facts() for one in COLLECTIVES.values()])

Array = Any

DEFAULT_TIMEOUT = 300.0
FAILURES = (MismatchError, RankLost, CollectiveTimeout)
ANY_TAG = -1
ACKNOWLEDGEMENTS = 255  # the context of messages that say that another one was received
MEETINGS = 254  # the context of messages by which engines make groups
MAIN, CUDA = "cpu", "cuda"  # kinds of memory, as torch names their devices


class Call(NamedTuple):
    """One collective, its arguments checked. In-place collectives have their array as the output, and no input."""

    collective: str
    input: Array | None = None
    output: Array | None = None
    op: Op | None = None
    root: int = 0
    algorithm: AnyAlgorithm | None = None  # None: the engine's choice, the same on every rank
    timeout: float | None = None  # None: the engine's
    dtype: str | None = None  # of the elements, where the arrays do not say it (bfloat16 in uint16)
    counts: Lengths | None = None  # of the slices, where they differ


class Entry(Protocol):
    """A call as a communicator makes it, its arguments not checked yet; `collective` is its number in `COLLECTIVES`."""

    def __call__(
        self,
        collective: int,
        input: Array | None,
        output: Array | None,
        op: str | Op | None,
        root: int,
        algorithm: AnyAlgorithm | None,
        async_op: bool,
        timeout: float | None,
        dtype: str | None,
        counts: Lengths | None = None,
        /,
    ) -> Any: ...


class UnfitArray(Exception):
    """An array is not contiguous, or the input and the output overlap."""


class Ticket(Protocol):
    """A call that runs in the background."""

    def done(self) -> bool:
        """True once it has ended, in success or failure."""
        ...

    def wait(self, timeout: float | None) -> bool:
        """Wait for its end, without limit if there is no timeout; True if it has ended. Raises what the call raised."""
        ...


class Background(NamedTuple):
    """A call that runs in the background, as a `Ticket` made of two functions."""

    done: Callable[[], bool]
    wait: Callable[[float | None], bool]


class Deferred(Protocol):
    """A prepared call that can be made any number of times: a C function and its argument, as addresses."""

    @property
    def function(self) -> int: ...
    @property
    def argument(self) -> int: ...


class Messages(Protocol):
    """Messages between the ranks of a group. Wrong arguments and arrays that do not fit raise what they raise in `run`."""

    def send(self, array: Array, destination: int, tag: int, timeout: float | None, dtype: str | None) -> None: ...
    def receive(
        self, array: Array, source: int | None, tag: int, timeout: float | None, dtype: str | None
    ) -> tuple[int, int, int]:
        """Source, tag and number of elements of what arrived."""
        ...

    def start(
        self,
        sends: bool,
        array: Array,
        peer: int | None,
        tag: int,
        dtype: str | None,
        context: int = 0,
        asks: bool = False,
    ) -> Any:
        """Begin a send or a receive in the background; what is returned goes to `done`, `wait` and `withdraw`.

        Only a receive of the same context takes a message. A send may ask for an acknowledgement: when a receive has
        taken the message, an empty one with the same tag arrives from its rank, in the context ACKNOWLEDGEMENTS.
        """
        ...

    def take(
        self, source: int | None, tag: int, timeout: float | None, context: int = 0
    ) -> tuple[int, int, int, np.ndarray[Any, Any]]:
        """Receive a message of any type and length: its source, tag, number of elements, and bytes."""
        ...

    def start_taking(self, source: int | None, tag: int, context: int = 0) -> Any:
        """The same in the background; `wait` returns what `take` returns, once."""
        ...

    def probe(self, source: int | None, tag: int, context: int = 0) -> tuple[int, int, int] | None:
        """Source, tag and number of elements of the message that a receive would take, if it has arrived."""
        ...

    def await_message(
        self, source: int | None, tag: int, timeout: float | None, context: int = 0
    ) -> tuple[int, int, int]:
        """The same, when it has arrived; the message stays there."""
        ...

    def withdraw(self, operation: Any, /) -> bool:
        """End an operation of which nothing was sent or received; False if it is too late. `wait` then returns None."""
        ...

    def done(self, operation: Any, /) -> bool: ...
    def wait(self, operation: Any, timeout: float | None) -> Any: ...


@dataclass(frozen=True)
class Event:
    """One instruction on one rank. Times are nanoseconds of the machine's monotonic clock, the same for all ranks."""

    rank: int
    call: int
    collective: str
    algorithm: str
    memory: str
    step: int
    segment: int
    instruction: int
    what: str
    peers: list[int]
    bytes: int
    start: int
    waited: int
    worked: int


@dataclass(frozen=True)
class Wire:
    """The measured connection between two hosts."""

    hosts: tuple[list[int], list[int]]  # the ranks of each
    latency: float  # seconds, for a small message between two ranks
    overhead: float  # of those, seconds in which the sender is busy
    bandwidth: float  # bytes per second, between two ranks
    all_ranks: float  # bytes per second each way, both ways at once, if as many ranks as possible exchange in pairs
    sizes: list[tuple[int, float]] = field(default_factory=list)  # bytes of such a message, and seconds; rising


@dataclass(frozen=True)
class MeasuredNetwork:
    """Measurements between hosts and inside them."""

    wires: list[Wire]  # of every two hosts
    bus: float  # bytes per second that the ranks of a host move together, while those of all hosts do
    reduction: float  # bytes per second that a rank adds, besides moving them

    def to_json(self) -> dict[str, Any]:
        """JSON has no infinity: None where nothing was moved inside a host, or adding took no time of its own."""
        facts = asdict(self)
        return facts | {name: None for name in ("bus", "reduction") if facts[name] == inf}


class Processes(NamedTuple):
    """Ranks that are processes: the place of this one among them, and how they find each other."""

    rank: int
    size: int
    key: str = ""  # for ranks of one machine: equal for all of them, and for no others
    board: Callable[[], Board] | None = None  # for ranks that may be on several hosts: where they meet
    is_spread: bool = False  # they may be
    room: int | None = None  # how much of this process's address space the engine may take
    is_named: bool = False  # the engine was named: it serves these ranks even where another one would, too


class Engine(ABC):
    """The interface that the docstring of this module describes."""

    rank: int
    size: int
    label: str  # how errors name the group: "the world"
    timeout: float  # of calls that are given none
    messages: Messages
    memory = MAIN  # the kind of memory whose arrays it takes

    @abstractmethod
    def run(self, call: Call, async_op: bool) -> Ticket | None:
        """Run a call to its end; or, if async, begin it and return its ticket."""

    @abstractmethod
    def group(self, ranks: Sequence[int], timeout: float | None) -> Engine | None:
        """An engine for some of the ranks, in this order; None on others. Every rank calls it with ranks that exist."""

    def group_of(self, ranks: Sequence[int], tag: int, timeout: float | None) -> Engine:
        """An engine for some of the ranks, this one among them, in this order. Only these ranks call it, with one tag."""
        raise self._without("making a group that only its members know of")

    @abstractmethod
    def close(self, compares: bool) -> None:
        """Leave; `compares`: raise `MismatchError` if another rank's last call was a different one."""

    @abstractmethod
    def abort(self) -> None:
        """End all calls, here and on the other ranks, from any thread; they raise `RankLost`."""

    @abstractmethod
    def calls(self) -> int:
        """The number of calls that were started."""

    def hosts(self) -> list[list[int]]:
        """The ranks, divided into those that share memory."""
        return [list(range(self.size))]

    def network(self, by_size: bool = False) -> MeasuredNetwork:
        """Measure the speed of the connections between every two hosts, and of their memory. Every rank calls it."""
        raise self._without("measuring what is between hosts")

    @property
    def address(self) -> str | None:
        """The address of this host at which the connections to others end, if there are any."""
        return None

    def inner(self, timeout: float | None) -> Engine:
        """A group of all ranks for calls that must not meet those of this engine. Every rank calls it.

        It is a part of this engine: where that is possible, its waits end when a rank has given up here.
        """
        made = self.group(range(self.size), timeout)
        assert made is not None
        return made

    # What an engine may leave out ------------------------------------------------------------------------------------

    def deferred(self, call: Call, outcome: Outcome) -> Deferred:
        """A call that is made whenever somebody calls the function in it, on any thread; `outcome` says how it went.

        Meanwhile nobody makes another call. The caller keeps the engine, and what is returned, alive.
        """
        from .. import _native

        return _native.Deferred(lambda: self.run(call, False), outcome)

    def entry(self, run: Entry, vouched: bool = False) -> Entry:
        """A faster way to run calls, which passes those that it cannot run itself to `run`, a method; else `run`.

        `vouched`: the caller has checked that tensors are not to be conjugated or negated first.
        """
        return run

    def empty(self, bytes: int) -> np.ndarray[Any, Any]:
        """Memory that calls need not copy from and to; ordinary memory if the engine has no such memory."""
        return np.empty(bytes, np.uint8)

    def failed(self, error: BaseException) -> None:  # noqa: B027 - nothing is the default
        """Called before a call raises an error: the engine may add what it knows."""

    def flight(self) -> dict[str, Any]:
        """The last calls of this rank, and its standing."""
        raise self._without("flight")

    def start_trace(self) -> None:
        raise self._without("trace")

    def stop_trace(self) -> list[Event]:
        """The events of this rank since `start_trace`."""
        raise self._without("trace")

    def shrink(self, timeout: float | None) -> Engine:
        """After an error: an engine of the surviving ranks. Every one of them calls it."""
        raise self._without("shrink")

    def part(self, ranks: Sequence[int], name: str, timeout: float) -> Engine:
        """For ranks that are threads: a group of some of them, made without waiting. Only those ranks call it.

        They give it the same name. A name may be used again, as often on each of them.
        """
        raise UsageError(
            f"init_process_group: the engine of {self.label} ({type(self).__name__}) cannot make torch's groups in threads; "
            "leave out its name"
        )

    def thread_ended(self) -> None:
        """For ranks that are threads: the thread of this rank has ended, or must end; may be called from any thread.

        Calls that need the rank fail, here and in groups made of this one. By default, all calls of all ranks do, here only.
        """
        self.abort()

    def _without(self, what: str) -> UsageError:
        return UsageError(f"{what}: the engine of {self.label} ({type(self).__name__}) cannot do that")


def check_same_engine(names: Sequence[str]) -> None:
    """Raise if ranks want different engines; `names`: what each of them wants, by rank."""
    for rank, name in enumerate(names):
        if name != names[0]:
            raise MismatchError(
                f"init: rank 0 uses the engine {names[0]!r} and rank {rank} {name!r}; name the same one on every rank "
                "(engine=…, or ALLFOLD_ENGINE)"
            )


def name_group(number: int, ranks: Sequence[int], label: str) -> str:
    return f"group {number} of {label}: {name_ranks(ranks)}"
