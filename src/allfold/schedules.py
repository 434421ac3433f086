"""The language: a collective algorithm as data.

An algorithm is a generator of steps. A step is a list of moves that happen at once: every move of a step reads what
its source held before the step. A move takes one chunk from one rank to another, where it replaces (`copy`) or is
combined with (`reduce`) what lies there. A `Schedule` is all the moves of an algorithm for a given number of ranks,
held in NumPy columns so that a million moves are cheap.

What a step means when several reduces arrive at one chunk: they and the chunk's own content are folded, left to right,
in the order of the lowest rank that each of them contains. That makes the order of a reduction a property of the
schedule and of nothing else, and keeps rank order wherever the schedule allows it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from hashlib import blake2b
from itertools import chain, count, islice
from math import prod
from os.path import basename
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .collectives import Collective, find_collective, plain
from .documents import DocumentError, head_of, parse, whole_at
from .errors import AllfoldError, ScheduleError, UsageError, raised_by_handler
from .files import write_whole

Column = NDArray[np.int32]

MOST_RANKS = 2**20
_MOST_STEPS = 2**20  # of an algorithm, empty ones included: one that yields more will probably never end
_MOST_MOVES = 2**27

COLUMNS = ("reduces", "chunk", "source", "destination", "into", "site")
_NO_ROWS = np.zeros((0, len(COLUMNS)), np.int64)


Numbers = int | NDArray[np.integer[Any]]


class Move(NamedTuple):
    """One chunk of `source`, copied or reduced into chunk `into` of `destination`; made by `copy` and `reduce`.

    Made from arrays, it stands for many moves until it is in a schedule.

    >>> move = af.copy(chunk=2, source=0, destination=1)
    >>> move.reduces, move.chunk, move.source, move.destination, move.into
    (False, 2, 0, 1, 2)
    """

    reduces: bool
    chunk: int
    source: int
    destination: int
    into: int
    site: int

    @property
    def where(self) -> str:
        """The source line that made this move, as `file.py:line`."""
        return _sites[self.site]

    @property
    def moves(self) -> int:
        """The number of moves it stands for: one, unless it was made from arrays."""
        try:
            return np.broadcast(*self[1:5]).size
        except ValueError:  # shapes that do not fit together: `build` refuses it
            return 1

    def __str__(self) -> str:
        if any(isinstance(value, np.ndarray) for value in self):
            return f"{'reduce' if self.reduces else 'copy'} of arrays"
        return describe(*self[:5])


def copy(chunk: Numbers, source: Numbers, destination: Numbers, into: Numbers | None = None) -> Move:
    """`destination` replaces its chunk `into` (the same chunk unless given) with `chunk` of `source`.

    Arrays of whole numbers, which NumPy must be able to broadcast together, are many moves: one for each element.

    >>> def ring(ranks):
    ...     for step in range(ranks - 1):
    ...         yield [af.copy(chunk=(r - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]
    >>> print(af.schedule("all_gather", ring, ranks=3))
    all_gather by ring: 3 ranks, 3 chunks, 2 steps, 6 messages
    step 1  0:0→1  1:1→2  2:2→0
    step 2  2:0→1  0:1→2  1:2→0
    """
    frame = _frame(1)
    site = _instructions.get(id(frame.f_code), _NOTHING).get(frame.f_lasti) or _site(frame)
    return _new_move(Move, (False, chunk, source, destination, chunk if into is None else into, site))


def reduce(chunk: Numbers, source: Numbers, destination: Numbers, into: Numbers | None = None) -> Move:
    """`destination` combines its chunk `into` (the same chunk unless given) with `chunk` of `source`; also of arrays.

    >>> def naive(ranks):
    ...     yield [af.reduce(chunk=0, source=s, destination=d) for d in range(ranks) for s in range(ranks) if s != d]
    >>> print(af.schedule("all_reduce", naive, ranks=3))
    all_reduce by naive: 3 ranks, 1 chunk, 1 step, 6 messages
    step 1  +0:1→0  +0:2→0  +0:0→1  +0:2→1  +0:0→2  +0:1→2
    """
    frame = _frame(1)
    site = _instructions.get(id(frame.f_code), _NOTHING).get(frame.f_lasti) or _site(frame)
    return _new_move(Move, (True, chunk, source, destination, chunk if into is None else into, site))


def describe(reduces: bool, chunk: int, source: int, destination: int, into: int) -> str:
    """A move in short: `0:1→2` is chunk 0 from rank 1 to rank 2, `+0:1→2` is reduced, `0:1→2@5` lands in chunk 5."""
    return f"{'+' if reduces else ''}{chunk}:{source}→{destination}{'' if into == chunk else f'@{into}'}"


# The source lines of moves, numbered as they are met: a move is made millions of times from a handful of lines, so it
# carries a number.
_sites: list[str] = ["?"]
_site_numbers: dict[tuple[str, int], int] = {}  # by file and line
# The same by instruction, which a frame knows at once; finding its line takes a search. The outer key is the identity of
# a code object: hashing its value takes as long as that search, and codes of different files can be equal. An identity
# can be used again once its object is freed, so what is known of a code object is dropped together with it.
_instructions: dict[int, dict[int, int]] = {}
_NOTHING: dict[int, int] = {}
_first_use = threading.Lock()  # ranks that are threads make moves at the same time
_new_move = tuple.__new__
_frame = sys._getframe


def _site(frame: FrameType) -> int:
    """The number of the line that a frame is at, when it is there for the first time."""
    code = frame.f_code
    with _first_use:
        number = _site_numbers.setdefault((code.co_filename, frame.f_lineno), len(_sites))
        if number == len(_sites):
            _sites.append(f"{basename(code.co_filename)}:{frame.f_lineno}")
        if id(code) not in _instructions:
            weakref.finalize(code, _instructions.pop, id(code)).atexit = False
        _instructions.setdefault(id(code), {})[frame.f_lasti] = number
    return number


def _in_order_of_use(numbers: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The different numbers in the order in which they first occur, and the place of each number in that list.

    The numbers of sites depend on what this process has made before.
    """
    first = np.full(numbers.max(initial=-1) + 1, -1, np.intp)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]  # of assignments to one place, the last one counts
    used = np.flatnonzero(first >= 0)
    used = used[np.argsort(first[used])]
    places = np.empty_like(first)
    places[used] = np.arange(len(used))
    return used, places[numbers]


def paths_of(sites: Iterable[str]) -> list[str]:
    """The files behind the sites of a schedule, as far as moves were made from them in this process."""
    found: dict[str, list[str]] = {site: [] for site in sites}
    for (path, _), number in _site_numbers.items():
        if _sites[number] in found:
            found[_sites[number]].append(path)
    return list(dict.fromkeys(path for paths in found.values() for path in paths))


@dataclass(frozen=True)
class Counts:
    """The messages and bytes of a schedule, counted from its moves. Bytes are multiples of S, the bytes of the whole buffer.

    `rounds` counts messages that must follow one another when a port carries one at a time: in every step, as many as
    the busiest port has.
    """

    steps: int
    rounds: int
    messages: int
    bytes: Fraction
    busiest_port_bytes: Fraction
    busiest_port_messages: int

    def to_json(self) -> dict[str, float]:
        return plain(vars(self))


@dataclass(frozen=True, eq=False)
class Schedule:
    """All moves of one algorithm for a given number of ranks.

    In every rank's row, `chunks` chunks hold the buffer, and `scratch` more hold whatever the algorithm puts there.
    Move i of step t is at `columns[...][starts[t] + i]`.

    >>> schedule = af.schedule("all_reduce", "ring", ranks=4)
    >>> schedule.steps, schedule.moves, schedule.counts.messages
    (6, 24, 24)
    >>> print(schedule)
    all_reduce by ring: 4 ranks, 4 chunks, 6 steps, 24 messages
    step 1  +3:0→1  +0:1→2  +1:2→3  +2:3→0
    step 2  +2:0→1  +3:1→2  +0:2→3  +1:3→0
    step 3  +1:0→1  +2:1→2  +3:2→3  +0:3→0
    step 4  0:0→1  1:1→2  2:2→3  3:3→0
    step 5  3:0→1  0:1→2  1:2→3  2:3→0
    step 6  2:0→1  3:1→2  0:2→3  1:3→0
    """

    collective: str
    algorithm: str
    ranks: int
    root: int | None
    chunks: int
    scratch: int
    starts: NDArray[np.int64]
    columns: dict[str, Column] = field(repr=False)
    sites: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        self.starts.setflags(write=False)
        for column in self.columns.values():
            column.setflags(write=False)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.starts) - 1

    @property
    def moves(self) -> int:
        """The number of moves in all steps together."""
        return int(self.starts[-1])

    @property
    def title(self) -> str:
        """`ring(ranks=4)`: how errors and tables name this schedule."""
        return f"{self.algorithm}(ranks={self.ranks}{'' if self.root is None else f', root={self.root}'})"

    @property
    def promise(self) -> Collective:
        """The promise of the collective: its pre- and postcondition."""
        return find_collective(self.collective)

    def where(self, move: int) -> str:
        return self.sites[int(self.columns["site"][move])]

    def step(self, step: int) -> list[Move]:
        """The moves of one step, as `Move`s. Their `where` is only known in the process that made them: see `where`."""
        if isinstance(step, bool) or not isinstance(step, SupportsIndex) or not 0 <= step.__index__() < self.steps:
            there = f"a step from 0 to {self.steps - 1}" if self.steps else "no step: the schedule has none"
            raise UsageError(f"step: expected {there}, not {step!r}")
        start, end = self.starts[step], self.starts[step + 1]
        rows = zip(*(self.columns[name][start:end].tolist() for name in COLUMNS[:5]), strict=True)
        return [Move(bool(reduces), chunk, source, target, into, 0) for reduces, chunk, source, target, into in rows]

    def __iter__(self) -> Iterator[list[Move]]:
        return (self.step(step) for step in range(self.steps))

    def __len__(self) -> int:
        return self.steps

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash((self.algorithm, self.digest))  # quick; lines are for `__eq__`

    @cached_property
    def _identity(self) -> tuple[Any, ...]:
        lines = np.asarray(self.sites, dtype=object)[self.columns["site"]] if self.moves else ()
        return (self.algorithm, self.digest, tuple(lines))

    @cached_property
    def digest(self) -> bytes:
        """A hash of sixteen bytes of what this schedule does: of its moves, not of its name or of source lines."""
        head = (self.collective, self.ranks, self.root, self.chunks, self.scratch)
        digest = blake2b(repr(head).encode(), digest_size=16)
        digest.update(self.starts.tobytes())
        for name in COLUMNS[:5]:
            digest.update(self.columns[name].tobytes())
        return digest.digest()

    def __str__(self) -> str:
        from .view.text import moves_as_text

        return moves_as_text(self)

    def to_html(self, **options: Any) -> str:
        """The page of this schedule as one self-contained HTML file.

        `topology` (a name or a `Topology`) and `size` say what it is priced for, `others` are schedules to race it
        against, `recording` is a `Trace` of a real run of it, `view` and `step` say where to begin, `follow` what is
        lit: "cut", the limiting cut, or k, the k-th tree.
        """
        from .view.html import page_as_html
        from .view.page import page_of

        return page_as_html(page_of(self, **options))

    def to_svg(self, columns: int | None = None) -> str:
        """The figure of all steps, `columns` of them side by side."""
        from .view.svg import figure

        return figure([self], columns=columns)

    def _repr_html_(self) -> str | None:
        """The page that a notebook shows; None, so that it shows the text, if the schedule is too large or no page is built."""
        from .view.notebook import in_a_notebook
        from .view.page import page_of

        try:
            return in_a_notebook(page_of(self)) if self.moves <= 20_000 else None
        except AllfoldError:
            return None

    @cached_property
    def counts(self) -> Counts:
        """Steps, messages and bytes, in all and through the busiest port, counted from the moves."""
        source, destination = self.columns["source"].astype(np.int64), self.columns["destination"].astype(np.int64)
        travels = source != destination
        step = step_of_moves(self)[travels]
        source, destination = source[travels], destination[travels]
        # What a rank sends to another within one step travels as one message, however many chunks it holds.
        messages = np.sort((step * self.ranks + source) * self.ranks + destination)
        messages = messages[np.append(True, messages[1:] != messages[:-1])[: len(messages)]]
        ports = tuple(port.astype(np.intp) for port in (messages // self.ranks % self.ranks, messages % self.ranks))
        step_of = messages // (self.ranks * self.ranks)
        rounds = np.zeros(self.steps, np.int64)
        for port in ports:
            through = np.bincount((step_of * self.ranks + port).astype(np.intp), minlength=self.steps * self.ranks)
            rounds = np.maximum(rounds, through.reshape(self.steps, self.ranks).max(axis=1, initial=0))
        chunks_through = [
            np.bincount(port.astype(np.intp), minlength=self.ranks).max(initial=0) for port in (source, destination)
        ]
        messages_through = [np.bincount(port, minlength=self.ranks).max(initial=0) for port in ports]
        chunk = Fraction(1, self.chunks) if self.promise.carries_data else Fraction(0)
        return Counts(
            steps=self.steps,
            rounds=int(rounds.sum()),
            messages=len(messages),
            bytes=len(source) * chunk,
            busiest_port_bytes=int(max(chunks_through)) * chunk,
            busiest_port_messages=int(max(messages_through)),
        )

    # JSON, out and in ------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The schedule in the JSON format of docs/language.md."""
        rows = np.stack([self.columns[name] for name in COLUMNS], axis=1).tolist()
        return {
            "format": "allfold-schedule",
            "version": 1,
            "collective": self.collective,
            "algorithm": self.algorithm,
            "ranks": self.ranks,
            "root": self.root,
            "chunks": self.chunks,
            "scratch": self.scratch,
            "sites": list(self.sites),
            "columns": list(COLUMNS),
            "steps": [rows[start:end] for start, end in zip(self.starts[:-1], self.starts[1:], strict=True)],
        }

    @staticmethod
    def from_json(document: str | bytes | dict[str, Any]) -> Schedule:
        """The schedule that `to_json` wrote. Anything else is refused with a `UsageError`."""
        data = parse(document) if isinstance(document, (str, bytes)) else document
        try:
            return _from_json(data)
        except (DocumentError, ScheduleError) as error:
            raise UsageError(f"this is not a schedule: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, for `load` and for every command that takes an algorithm."""
        if not isinstance(path, (str, os.PathLike)):
            raise UsageError(f"save: expected the path of a file, not {path!r:.80}")
        write_whole(path, json.dumps(self.to_json(), ensure_ascii=False))


def load(path: str | os.PathLike[str]) -> Schedule:
    """The schedule in a JSON file, as `Schedule.save`, `allfold find --save` and `allfold show --json` write it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     af.schedule("all_gather", "ring", ranks=3).save(f"{folder}/ring.json")
    ...     print(af.load(f"{folder}/ring.json"))
    all_gather by ring: 3 ranks, 3 chunks, 2 steps, 6 messages
    step 1  0:0→1  1:1→2  2:2→0
    step 2  2:0→1  0:1→2  1:2→0
    """
    try:
        return Schedule.from_json(Path(path).read_bytes())
    except TypeError:
        raise UsageError(f"load: expected the path of a file, not {path!r:.80}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def build(
    collective: str,
    algorithm: str,
    ranks: int,
    root: int | None,
    steps: Iterable[Iterable[Move]],
    chunks: int | None = None,
) -> Schedule:
    """Run a generator of steps to its end and hold the result as columns."""
    promise = find_collective(collective)
    title = f"{algorithm}(ranks={ranks}{'' if root is None else f', root={root}'})"
    flat: list[NDArray[np.int64]] = []
    starts = [0]
    iterator = _iterate(steps, title)
    for yielded in count():
        if yielded > _MOST_STEPS or starts[-1] > _MOST_MOVES:
            raise ScheduleError(
                f"{title}: yields more than {_MOST_STEPS:,} steps or {_MOST_MOVES:,} moves; does it ever end?"
            )
        try:
            rows = _rows(next(iterator), title, len(starts) - 1)  # a step may be a generator, which runs here
        except StopIteration:
            break
        except ScheduleError:
            raise
        except (Exception, SystemExit) as error:  # a generator that calls sys.exit() has not made its schedule
            if raised_by_handler(error):
                raise
            said = f"raised {type(error).__name__} at step {len(starts)}" + (f": {error}" if str(error) else "")
            message = f"{title}: {said} ({_raised_at(error)})"
            raise ScheduleError(message, step=len(starts) - 1, site=_raised_at(error)) from error
        if len(rows):
            flat.append(rows)
            starts.append(starts[-1] + len(rows))
    table = np.concatenate(flat) if flat else _NO_ROWS.copy()
    flat.clear()
    used, table[:, 5] = _in_order_of_use(table[:, 5].astype(np.intp))
    named = int(max(table[:, 1].max(), table[:, 4].max())) + 1 if len(table) else 0
    chunks = promise.chunks(ranks, named) if chunks is None else chunks
    sites = [_sites[number] for number in used]
    scratch = max(0, named - chunks)
    return of_table(collective, algorithm, ranks, root, chunks, scratch, table, np.diff(starts), sites)


def _iterate(steps: object, title: str) -> Iterator[object]:
    if not isinstance(steps, Iterable):
        raise ScheduleError(f"{title}: gave {steps!r}; an algorithm is a generator that yields lists of moves")
    return iter(steps)


def _rows(step: object, title: str, number: int) -> NDArray[np.int64]:
    """The moves of one step as rows of integers, or an error that says what was yielded instead."""
    if isinstance(step, Move):
        raise ScheduleError(f"{title}: step {number + 1} is a single move {step}; yield a list of moves", step=number)
    if not isinstance(step, Iterable) or isinstance(step, (str, bytes)):
        raise ScheduleError(f"{title}: step {number + 1} is {step!r}; expected a list of moves", step=number)
    moves = list(islice(step, _MOST_MOVES + 1))
    if not moves:
        return _NO_ROWS
    if not {*map(type, moves)} <= {Move}:
        stranger = next(move for move in moves if type(move) is not Move)
        message = f"{title}: step {number + 1} holds {stranger!r}; expected moves made by copy(...) and reduce(...)"
        raise ScheduleError(message, step=number)
    kinds = {*map(type, chain.from_iterable(moves))}
    if np.ndarray in kinds:
        if len(moves) == 1:
            return _rows_of_arrays(moves[0], title, number)
        return np.concatenate([_rows([move], title, number) for move in moves])
    if kinds <= {int, bool} or all(map(_is_integral, chain.from_iterable(moves))):
        try:
            rows = np.fromiter(chain.from_iterable(moves), dtype=np.int64, count=len(moves) * len(COLUMNS))
            return rows.reshape(len(moves), len(COLUMNS))
        except OverflowError:
            pass  # a number beyond 64 bits: the error below names it
    wrong = next(move for move in moves if not all(map(_is_integral, move)))
    chunk, source, destination, into = wrong[1:5]
    word = describe(wrong.reduces, *(repr(one) for one in (chunk, source, destination, into)))  # type: ignore[arg-type]
    message = f"{title}: step {number + 1} holds the move {word} ({wrong.where}); ranks and chunks are whole numbers of 31 bits"
    raise ScheduleError(message, step=number, site=wrong.where)


def _rows_of_arrays(move: Move, title: str, number: int) -> NDArray[np.int64]:
    """The moves that a move made of arrays stands for."""
    names, values = COLUMNS[1:5], move[1:5]

    def refuse(what: str) -> NoReturn:
        message = f"{title}: step {number + 1} holds {move} ({move.where}): {what}"
        raise ScheduleError(message, step=number, site=move.where)

    for name, value in zip(names, values, strict=True):
        if not isinstance(value, np.ndarray):
            if not _is_integral(value):
                refuse(f"{name} is {value!r}; ranks and chunks are whole numbers of 31 bits")
        elif not np.issubdtype(value.dtype, np.integer):
            refuse(f"{name} is of {value.dtype}; ranks and chunks are whole numbers")
        elif value.size and not (_is_integral(value.min()) and _is_integral(value.max())):
            refuse(f"{name} has {value.min()} to {value.max()}; ranks and chunks are whole numbers of 31 bits")
    try:
        shape = np.broadcast_shapes(*(np.shape(value) for value in values))
    except ValueError:
        shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in zip(names, values, strict=True))
        refuse(f"their shapes do not fit together: {shapes}")
    if prod(shape) > _MOST_MOVES:
        refuse(f"{prod(shape):,} moves are too many; at most {_MOST_MOVES:,} are taken")
    rows = np.empty((*shape, len(COLUMNS)), np.int64)
    for column, value in enumerate(move):
        rows[..., column] = value
    return rows.reshape(-1, len(COLUMNS))


def _is_integral(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and -(2**62) < int(value) < 2**62


def _raised_at(error: BaseException) -> str:
    """The innermost line of the traceback: where the algorithm's own code raised."""
    if isinstance(error.__cause__, StopIteration):  # Python raises a RuntimeError where it asked the generator
        error = error.__cause__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "?" if trace is None else f"{basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"


def _check_ranges(schedule: Schedule, table: NDArray[np.int64]) -> None:
    least, most = (table.min(axis=0), table.max(axis=0)) if len(table) else (np.zeros(6, np.int64),) * 2
    for column, name, limit in (
        (2, "source rank", schedule.ranks),
        (3, "destination rank", schedule.ranks),
        (1, "chunk", schedule.chunks + schedule.scratch),
        (4, "chunk", schedule.chunks + schedule.scratch),
    ):
        if least[column] < 0 or most[column] >= limit:
            values = table[:, column]
            move = int(((values < 0) | (values >= limit)).argmax())
            value = int(values[move])
            step = int(np.searchsorted(schedule.starts, move, side="right")) - 1
            word = describe(*(int(number) for number in table[move, :5]))  # type: ignore[arg-type]
            message = (
                f"{schedule.title}: step {step + 1}, move {word}: {name} {value} is out of range 0–{limit - 1} "
                f"({schedule.where(move)})"
            )
            raise ScheduleError(message, step=step, site=schedule.where(move))
    largest = np.iinfo(np.int32).max
    if schedule.ranks * (schedule.chunks + schedule.scratch) > largest:
        raise ScheduleError(f"{schedule.title}: {schedule.chunks + schedule.scratch} chunks per rank are more than fit")


def _from_json(document: object) -> Schedule:
    def need(condition: bool, what: str) -> None:
        if not condition:
            raise DocumentError(what)

    data = head_of(document, "allfold-schedule", 1)
    promise = find_collective(data.get("collective"))
    ranks, chunks, scratch = (
        whole_at(data.get(name), name, least, 2**31 - 1)
        for name, least in (("ranks", 1), ("chunks", 1), ("scratch", 0))
    )
    need(isinstance(data.get("algorithm"), str), f"algorithm is {data.get('algorithm')!r}, expected a name")
    root = data.get("root")
    if promise.rooted:
        need(type(root) is int and 0 <= root < ranks, f"root is {root!r}, expected a rank below {ranks}")
    else:
        need(root is None, f"{promise.name} has no root, got {root!r}")
    need(chunks % promise.slices(ranks) == 0, f"{chunks} chunks do not divide among {ranks} ranks")
    sites: Any = data.get("sites")
    steps: Any = data.get("steps")
    need(isinstance(sites, list) and all(isinstance(site, str) for site in sites), "sites must be a list of strings")
    need(data.get("columns") == list(COLUMNS), f"columns are {data.get('columns')!r}, expected {list(COLUMNS)}")
    need(isinstance(steps, list) and all(isinstance(step, list) and step for step in steps), "steps must be lists")
    rows = list(chain.from_iterable(steps))
    need(
        all(isinstance(row, list) and len(row) == len(COLUMNS) and all(map(_is_plain, row)) for row in rows),
        f"every move must be {len(COLUMNS)} whole numbers",
    )
    table = np.asarray(rows, dtype=np.int64).reshape(len(rows), len(COLUMNS))
    need(bool(((table[:, 0] == 0) | (table[:, 0] == 1)).all()), "reduces must be 0 or 1")
    need(bool(((table[:, 5] >= 0) & (table[:, 5] < len(sites))).all()), "a move names a site that is not listed")
    named = int(max(table[:, 1].max(), table[:, 4].max())) + 1 if len(table) else 0
    need(named <= chunks + scratch, f"chunk {named - 1} is named, but there are fewer")
    sizes = [len(step) for step in steps]
    return of_table(promise.name, data["algorithm"], ranks, root, chunks, scratch, table, sizes, sites)


def step_of_moves(schedule: Schedule) -> NDArray[np.int64]:
    """By move, in the order of the columns: its step."""
    return np.arange(schedule.steps, dtype=np.int64).repeat(np.diff(schedule.starts).astype(np.intp))


def of_table(
    collective: str,
    algorithm: str,
    ranks: int,
    root: int | None,
    chunks: int,
    scratch: int,
    table: NDArray[np.int64],
    sizes: Sequence[int] | NDArray[np.int64],
    sites: Sequence[str],
) -> Schedule:
    """The schedule of a table with one move per row; `sizes` says how many each step has."""
    schedule = Schedule(
        collective=collective,
        algorithm=algorithm,
        ranks=ranks,
        root=root,
        chunks=chunks,
        scratch=scratch,
        starts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        columns={name: np.ascontiguousarray(table[:, i], dtype=np.int32) for i, name in enumerate(COLUMNS)},
        sites=tuple(sites),
    )
    _check_ranges(schedule, table)
    return schedule


def _is_plain(value: object) -> bool:
    return type(value) in (int, bool) and -(2**62) < value < 2**62  # type: ignore[operator]
