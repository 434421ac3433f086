from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..communicator.handle import Handle

_Ints = NDArray[np.int64]

MISSING: str | None

def require_engine(what: str) -> None: ...

ANY_TAG: int
MOST_RANKS: int
COLLECTIVES: tuple[tuple[str, bool, bool, bool], ...]
OPS: tuple[str, ...]
POST_BYTES: int
WORK_BYTES: int
LAYOUT: int
WINDOW_BYTES: int
SMALL_BYTES: int
FETCHED_BYTES: int
CACHED_BYTES: int
MOST_HANDED: int
COPIES_IN_ROWS: bool
KERNELS: tuple[str, ...]
COMPILER: str

def segment_bytes(work_slots: int, one_area: bool, /) -> int: ...

class Arena:
    def __init__(self, descriptor_or_size: int, size: int = ..., /) -> None: ...
    def allocate(self, bytes: int, /) -> int: ...
    def release(self, offset: int, /) -> None: ...
    @property
    def descriptor(self) -> int: ...
    @property
    def size(self) -> int: ...
    def view(self, offset: int, bytes: int, /) -> Any: ...
    @property
    def in_use(self) -> int: ...

class Attachment:
    def __init__(self, rank: int, posts: Sequence[tuple[Arena, int]], /) -> None: ...

def is_unused(arena: Arena, post: int, arenas: Sequence[Arena], /) -> bool: ...

class Ticket:
    def done(self) -> bool: ...
    def raise_error(self) -> None: ...

class Outcome:
    @property
    def performed(self) -> int: ...
    @property
    def failed(self) -> bool: ...
    def raise_error(self) -> None: ...

class Deferred:
    def __init__(self, function: Callable[[], object], outcome: Outcome, /) -> None: ...
    @property
    def function(self) -> int: ...
    @property
    def argument(self) -> int: ...

class Prepared: ...

class Communicator:
    def __init__(
        self,
        rank: int,
        members: Sequence[tuple[Any, ...]],
        label: str,
        compile: Callable[[int, str, int, int, int], dict[str, Any]],
        long_way: Callable[..., Any],
        failed: Callable[[BaseException], None],
        timeout: float,
        fetches: bool,
        group: int,
        first_error: FirstError,
        attachment: Attachment,
        /,
    ) -> None: ...
    def choose(
        self,
        collective: int,
        choices: Sequence[tuple[int, str, bool]],
        ways: Sequence[tuple[int, bool, int]],
        /,
    ) -> None: ...
    def forget(self, collective: int, algorithm: str, /) -> None: ...
    def run(
        self,
        collective: int,
        input: Any,
        output: Any,
        op: Any,
        root: int,
        algorithm: str | None,
        timeout: float | None,
        dtype: str | None,
        in_background: bool,
    ) -> Ticket | None: ...
    def prepared(
        self, collective: int, output: Any, op: str | None, root: int, dtype: str | None, vouched: bool
    ) -> Prepared | None: ...
    def perform(self, prepared: Prepared, /) -> None: ...
    def deferred(
        self,
        collective: int,
        input: Any,
        output: Any,
        op: Any,
        root: int,
        algorithm: str | None,
        timeout: float | None,
        dtype: str | None,
        outcome: Outcome,
    ) -> Deferred: ...
    def wait(self, ticket: Ticket, timeout: float, /) -> bool: ...
    def close(self, compares: bool, /) -> None: ...
    def end(self) -> bool: ...
    def abort(self) -> None: ...
    def in_shared_memory(self, array: Any, /) -> bool: ...
    def sleep_early(self) -> None: ...
    def calls(self) -> int: ...
    def start_trace(self) -> None: ...
    def stop_trace(self) -> list[tuple[Any, ...]]: ...

class Operation: ...

class FirstError:
    def __init__(self) -> None: ...

class Channel:
    def __init__(
        self,
        rank: int,
        members: Sequence[tuple[Any, ...]],
        label: str,
        timeout: float,
        first_error: FirstError,
        attachment: Attachment,
        /,
    ) -> None: ...
    def send(self, array: Any, destination: int, tag: int, timeout: float | None, dtype: str | None) -> None: ...
    def receive(
        self, array: Any, source: int | None, tag: int, timeout: float | None, dtype: str | None
    ) -> tuple[int, int, int]: ...
    def start(self, sends: bool, array: Any, peer: int | None, tag: int, dtype: str | None) -> Operation: ...
    def done(self, operation: Operation, /) -> bool: ...
    def probe(self, source: int | None, tag: int, /) -> bool: ...
    def wait(self, operation: Operation, timeout: float | None) -> tuple[int, int, int] | None: ...
    def close(self) -> None: ...

def inbox_bytes(ranks: int, /) -> int: ...
def fold(op: int, dtype: str, sources: Sequence[Any], destination: Any, divisor: int, /) -> None: ...
def view(array: Any, writable: bool, dtype: str | None) -> tuple[str, Any]: ...

class Batch:
    def __init__(self, rows: Any, arguments: bytes, threads: int, /) -> None: ...

class Mark:
    def is_over(self) -> bool: ...
    def hold(self, later: int, /) -> None: ...

class Lane:
    def __init__(
        self,
        functions: Any,
        context: int,
        stream: int,
        word: int,
        refused: Callable[[int, int], None],
        captured: Callable[[], None],
        /,
    ) -> None: ...
    def launch(self, batch: Batch, base: int, before: int | None, holds: bool) -> Mark: ...
    def follow(self, before: int, /) -> None: ...
    def mark(self) -> Mark: ...
    def set_turns(self, turns: bool, /) -> None: ...
    @property
    def stream(self) -> int: ...

class Ledger:
    bytes: int
    def __init__(self, rank: int, records: Sequence[Any], /) -> None: ...
    def announce(self, collective: int, elements: int, dtype: int, op: int, root: int, where: int, /) -> int: ...
    def compare(self) -> bool | None: ...
    def next(self) -> list[tuple[bool, list[int]]]: ...
    @property
    def made(self) -> int: ...
    @property
    def agreed(self) -> int: ...

def forget_programs() -> None: ...
def end_dropped() -> int: ...
def await_threads(seconds: float, /) -> None: ...
def park_other_threads() -> None: ...
def check_program(facts: dict[str, Any], /) -> None: ...
def overlap(one: Any, other: Any, /) -> bool: ...
def caller(communicator: Communicator, /) -> Callable[..., Handle | None]: ...
def caller_vouched(communicator: Communicator, /) -> Callable[..., Handle | None]: ...
def empty(arena: Arena, bytes: int, /) -> Any: ...
def inspect(descriptor: int, /) -> dict[str, Any]: ...
def ask(descriptor: int, seconds: float, /) -> bytes: ...
def flight(arena: Arena, post: int, /) -> dict[str, Any]: ...
def next_question(arena: Arena, seen: int, /) -> int: ...
def give_answer(arena: Arena, question: int, text: bytes, /) -> None: ...
def end_questions(arena: Arena, /) -> None: ...
def recorder_nanoseconds() -> float: ...
def is_alive(arena: Arena, /) -> bool: ...
def load_word(arena: Arena, post: int, word: int, /) -> int: ...
def store_word(arena: Arena, post: int, word: int, value: int, /) -> None: ...
def order(keys: _Ints, /) -> _Ints: ...
def conflicts(
    row: _Ints, place: _Ints, writes: NDArray[np.bool_], when: _Ints, starts: _Ints, /
) -> tuple[_Ints, _Ints]: ...
def folds_of(
    reduces: NDArray[np.int32],
    chunk: NDArray[np.int32],
    source: NDArray[np.int32],
    destination: NDArray[np.int32],
    into: NDArray[np.int32],
    ranks: int,
    width: int,
    chunks: int,
    part: int,
    datum: NDArray[np.int32],
    first: NDArray[np.int32],
    written: _Ints,
    number: int,
    /,
) -> tuple[int, int, bool, _Ints, _Ints, _Ints, _Ints]: ...
def versions(
    steps: _Ints,
    cell: _Ints,
    sizes: _Ints,
    operands: _Ints,
    datum: NDArray[np.int32],
    count: NDArray[np.int32],
    cells: int,
    /,
) -> tuple[_Ints, _Ints, _Ints, _Ints, _Ints]: ...
def fold_symbols(
    target: _Ints,
    starts: _Ints,
    operands: _Ints,
    datum: NDArray[np.int32],
    first: NDArray[np.int32],
    last: NDArray[np.int32],
    count: NDArray[np.int32],
    in_order: NDArray[np.bool_],
    expression: NDArray[np.uint64],
    bits: NDArray[np.uint64],
    members: NDArray[np.uint64] | None,
    twice_is_wrong: bool,
    write: bool,
    /,
) -> tuple[int, int, int]: ...
def rounds(starts: _Ints, wait_starts: _Ints, wait_rank: _Ints, wait_count: _Ints, /) -> _Ints: ...
def needed_waits(
    starts: _Ints, wait_starts: _Ints, wait_rank: _Ints, wait_count: _Ints, when: _Ints, horizon: int, /
) -> NDArray[np.bool_]: ...
def first_unordered(
    starts: _Ints,
    wait_starts: _Ints,
    wait_rank: _Ints,
    wait_count: _Ints,
    when: _Ints,
    earlier: _Ints,
    later: _Ints,
    /,
) -> int: ...
def follow(
    when: _Ints,
    source_starts: _Ints,
    source_rank: _Ints,
    source_slot: _Ints,
    destination_starts: _Ints,
    destination_rank: _Ints,
    destination_slot: _Ints,
    ranks: int,
    datum: NDArray[np.int32],
    bits: NDArray[np.uint64],
    count: NDArray[np.int32],
    /,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]: ...
def tightest_cut(
    vertices: int,
    tail: Any,
    head: Any,
    capacity: Any,
    weight: Any,
    sinks: Any,
    seconds: float,
    /,
) -> tuple[int, int, Any] | None: ...
def cuts_below(
    vertices: int,
    tail: Any,
    head: Any,
    capacity: Any,
    weight: Any,
    sinks: Any,
    wanted: int,
    seconds: float,
    /,
) -> Any | None: ...
def can_pack(vertices: int, tail: Any, head: Any, capacity: Any, wanted: Any, seconds: float, /) -> bool | None: ...
def pack_trees(
    vertices: int, tail: Any, head: Any, capacity: Any, wanted: Any, order: Any, careful: bool, seconds: float, /
) -> tuple[Any, Any, Any] | None: ...
def rounds_of(
    vertices: int,
    tree: Any,
    due: Any,
    parent: Any,
    offsets: Any,
    links: Any,
    capacity: Any,
    seconds: float,
    /,
) -> Any | None: ...
def spread(
    ranks: int,
    source: Any,
    destination: Any,
    offsets: Any,
    links: Any,
    capacity: Any,
    holder: Any,
    seed: int,
    seconds: float,
    /,
) -> tuple[Any, Any, Any, Any] | None: ...
