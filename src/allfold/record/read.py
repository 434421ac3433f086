"""Reads records. The contents of a file are checked and never executed; neither torch nor the engine is needed."""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..errors import UsageError
from ..explain.calls import POINT_TO_POINT, CallFacts, CodeLine, Tensor
from ..explain.torch_dumps import MOST_RANKS
from . import format as blocks

_NAME = re.compile(r"rank-(\d+)(?:\.restart-(\d+))?\.allfold")
_MOST_CONTENTS = 1 << 28
_MOST_BITS = 4096


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A process group. `world` counts the default groups that the script has created."""

    world: int
    name: str
    ranks: tuple[int, ...]
    description: str = ""
    timeout: float = 0.0  # in seconds

    @property
    def label(self) -> str:
        if self.description == "default_pg":
            return "the default group"
        shown = ", ".join(map(str, self.ranks[:8])) + (" …" if len(self.ranks) > 8 else "")
        return f"group {self.name} (ranks {shown})"


@dataclass(frozen=True, slots=True)
class CallForm:
    """The facts that calls from one line have in common. `peer` is a rank of the run."""

    operation: str
    group: RecordedGroup
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    reduction: str | None = None
    root: int | None = None
    peer: int | None = None
    background: bool = True
    splits: bool = False
    devices: tuple[str, ...] = ()
    stack: tuple[CodeLine, ...] = ()
    is_beside: bool = False  # made by a thread that is not the main one

    @property
    def is_message(self) -> bool:
        return self.operation in POINT_TO_POINT

    @property
    def what(self) -> str:
        """`all_reduce(float32[4], sum)`."""
        tensors = self.inputs or self.outputs
        return CallFacts(
            "", 0, self.operation, 0, tensors, self.reduction, None if self.is_message else self.root, self.peer
        ).what

    @property
    def where(self) -> str:
        """` at train.py:31`, or nothing."""
        return f" at {self.stack[0].place}" if self.stack else ""


@dataclass(slots=True)
class Recorded:
    """One call. `number` counts the calls of the rank, `place` those of its group (separately for messages)."""

    number: int
    form: CallForm
    place: int
    inputs: list[int | None]
    begun: int  # the offsets of its blocks in the file, which show what came before what
    time: float  # in seconds since 1970
    ended: int | None = None
    outputs: list[int | None] = field(default_factory=list)
    data: int | None = None
    source: int | None = None  # of a message: the rank in the group that sent it
    failure: tuple[str, str] | None = None

    @property
    def key(self) -> CallKey:
        group = self.form.group
        return CallKey(group.world, group.name, self.form.is_message, self.place)

    @property
    def what(self) -> str:
        return f"{self.form.what}{self.form.where}"

    @property
    def told(self) -> str:
        """`call 7, all_reduce(…) at train.py:31 (call 3 of the default group)`."""
        kind = "message" if self.form.is_message else "call"
        return f"call {self.number}, {self.what} ({kind} {self.place} of {self.form.group.label})"


class StoreAnswer(NamedTuple):
    """The answer of a store. `value`: bytes as text with the same codes; for an error, [type, text]."""

    method: str
    key: Any
    succeeded: bool
    value: Any
    at: int


class CallKey(NamedTuple):
    """Identifies a call: the same collective has the same key on all ranks of a group."""

    world: int
    group: str
    is_message: bool
    place: int


@dataclass(slots=True)
class RankRecord:
    """The file of one rank. `ended` has the exception that its program ended with, "" if none; None if that is not known."""

    path: Path
    rank: int
    head: dict[str, Any]
    worlds: list[dict[str, Any]] = field(default_factory=list)
    calls: list[Recorded] = field(default_factory=list)
    answers: list[StoreAnswer] = field(default_factory=list)
    seeds: list[tuple[int, int]] = field(default_factory=list)  # that NumPy drew: the number of bits, and the seed
    ended: str | None = None
    stopped: str = ""  # why its record ends before its program, as on a full disk
    note: str = ""  # why the end of the file cannot be read

    @property
    def size(self) -> int:
        return int(self.worlds[-1]["size"]) if self.worlds else 1

    @property
    def end(self) -> str:
        """The last that is known of the rank: "was killed"."""
        if self.stopped:
            return f"stopped recording ({self.stopped})"
        return "was killed" if self.ended is None else f"ended with {self.ended}" if self.ended else "ended"

    def outputs_of(self, call: Recorded) -> list[bytes]:
        """The bytes that a call received, tensor by tensor. The record must have kept them."""
        if call.data is None:
            raise UsageError(f"{self.path}: the outputs of call {call.number} were not kept")
        with open(self.path, "rb") as file:
            file.seek(call.data)
            return [file.read(bytes_of(one)) for one in call.form.outputs]


def read_run(folder: str | os.PathLike[str]) -> dict[int, RankRecord]:
    """All ranks of a run. For a rank that was restarted, the last file."""
    place = Path(folder)
    if not place.is_dir():
        raise UsageError(f"there is no folder {folder}")
    newest: dict[int, tuple[int, Path]] = {}
    try:
        for path in sorted(place.iterdir()):
            if found := _NAME.fullmatch(path.name):
                rank, restart = int(found[1]), int(found[2] or 0)
                newest[rank] = max(newest.get(rank, (-1, path)), (restart, path))
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from None
    if not newest:
        raise UsageError(f"{folder} has no record of a run (rank-0.allfold, rank-1.allfold, …)")
    return {rank: read_rank(path) for rank, (_, path) in sorted(newest.items())}


def path_of(folder: str | os.PathLike[str], rank: int) -> Path:
    """The file of one rank."""
    files = [path for path in Path(folder).glob(f"rank-{rank}.*allfold") if _NAME.fullmatch(path.name)]
    if not files:
        known = sorted(int(found[1]) for one in Path(folder).glob("rank-*") if (found := _NAME.fullmatch(one.name)))
        there = f"it has ranks {', '.join(map(str, known))}" if known else "it has none"
        raise UsageError(f"{folder} has no record of rank {rank}; {there}")
    return max(files, key=lambda path: int(_NAME.fullmatch(path.name)[2] or 0))  # type: ignore[index]


def read_rank(path: Path) -> RankRecord:
    """The record of a rank, up to the first damage in the file."""
    try:
        # Do not block: somebody may have put a pipe there.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path} is not a regular file")
            return _read(path, file)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _read(path: Path, file: BinaryIO) -> RankRecord:
    line = file.readline(len(blocks.FIRST_LINE) + 20)
    version = line.removeprefix(blocks.MAGIC).strip()
    if not line.startswith(blocks.MAGIC) or not version.isdigit():
        raise UsageError(f"{path} is not a record of allfold")
    if int(version) != blocks.VERSION:
        raise UsageError(f"{path} has format {int(version)}; this allfold reads format {blocks.VERSION}")
    reader = _Reader(path)
    size = os.fstat(file.fileno()).st_size
    at = len(line)
    while at < size and not reader.note:
        header = file.read(blocks.BLOCK.size)
        if len(header) < blocks.BLOCK.size:
            reader.cut(at)
            break
        kind, check, length = blocks.BLOCK.unpack(header)
        if kind not in blocks.KINDS or (kind != blocks.DATA and length > _MOST_CONTENTS):
            reader.damaged(at)
        elif at + len(header) + length > size:
            reader.cut(at)
        elif kind == blocks.DATA:
            file.seek(length, os.SEEK_CUR)
            reader.data = at + len(header), length
        else:
            contents = file.read(length)
            if zlib.crc32(contents) != check:
                reader.damaged(at)
            else:
                reader.take(kind, contents, at)
        at += len(header) + length
    if reader.record is None:
        raise UsageError(f"{path} has no HEAD block: its rank was killed at the start, or the file is damaged")
    reader.record.note = reader.note
    return reader.record


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.record: RankRecord | None = None
        self.note = ""
        self.data: tuple[int, int] = (-1, 0)
        self._began = 0.0
        self._groups: dict[int, RecordedGroup] = {}
        self._forms: dict[int, CallForm] = {}
        self._takers: dict[bytes, Callable[[Any, int], None]] = {
            blocks.HEAD: self._head,
            blocks.WORLD: self._world,
            blocks.GROUP: self._group,
            blocks.FORM: self._form,
            blocks.CALL: self._call,
            blocks.DONE: self._done,
            blocks.FAIL: self._fail,
            blocks.STORE: self._store,
            blocks.SEED: self._seed,
            blocks.ENDS: self._ends,
        }

    def cut(self, at: int) -> None:
        self.note = f"ends within a block, at byte {at}"

    def damaged(self, at: int) -> None:
        self.note = f"is damaged at byte {at}; the rest was not read"

    def take(self, kind: bytes, contents: bytes, at: int) -> None:
        try:
            document = json.loads(contents)
            if (self.record is None) != (kind == blocks.HEAD):
                raise ValueError("the head comes first, and once")
            self._takers[kind](document, at)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError):
            self.damaged(at)

    @property
    def _known(self) -> RankRecord:
        assert self.record is not None
        return self.record

    def _head(self, head: dict[str, Any], _: int) -> None:
        for name in ("program", "variables", "facts", "random"):
            head[name].items()
        self._began = float(head["time"])
        self.record = RankRecord(self.path, _natural(head["rank"]), head)

    def _world(self, world: dict[str, Any], _: int) -> None:
        if not _natural(world["rank"]) < _natural(world["size"]) <= MOST_RANKS:
            raise ValueError("a rank that is not in its world")
        self._known.worlds.append({"backend": str(world["backend"]), **world})
        self._groups.clear()
        self._forms.clear()

    def _group(self, group: dict[str, Any], _: int) -> None:
        ranks = tuple(map(_natural, group["ranks"]))
        number = len(self._known.worlds)
        words = str(group["name"]), ranks, str(group["description"]), float(group["timeout"])
        self._groups[group["group"]] = RecordedGroup(number, *words)

    def _form(self, form: dict[str, Any], _: int) -> None:
        group = self._groups[form["group"]]
        peer, root = form.get("peer"), form.get("root")
        self._forms[form["form"]] = CallForm(
            str(form["operation"]),
            group,
            tuple(_tensor(*one) for one in form["inputs"]),
            tuple(_tensor(*one) for one in form["outputs"]),
            None if "reduction" not in form else str(form["reduction"]),
            None if root is None else _natural(root),
            None if peer is None else group.ranks[_natural(peer)],
            bool(form.get("background")),
            bool(form.get("splits")),
            tuple(map(str, form.get("devices", ()))),
            tuple(CodeLine(str(file), _natural(line), str(function)) for file, line, function in form["stack"]),
            bool(form.get("thread")),
        )

    def _call(self, call: list[Any], at: int) -> None:
        number, form, place, inputs, since = call
        if number != len(self._known.calls) + 1:
            raise ValueError("a call is missing")
        digests = _digests(inputs, self._forms[form].inputs)
        found = Recorded(number, self._forms[form], _natural(place), digests, at, self._began + int(since) / 1e6)
        self._known.calls.append(found)

    def _of(self, number: Any) -> Recorded:
        place = _natural(number) - 1
        if not 0 <= place < len(self._known.calls):
            raise ValueError("a call that was not made")
        return self._known.calls[place]

    def _done(self, done: list[Any], at: int) -> None:
        number, outputs, data, source = done
        call = self._of(number)
        call.outputs, call.ended = _digests(outputs, call.form.outputs), at
        if data is not None:
            if (data, sum(map(bytes_of, call.form.outputs))) != self.data:
                raise ValueError("outputs in another place")
            call.data = data
        call.source = None if source is None else _natural(source)

    def _fail(self, failure: list[Any], at: int) -> None:
        number, kind, text = failure
        call = self._of(number)
        call.failure, call.ended = (str(kind), str(text)), at

    def _store(self, answer: list[Any], at: int) -> None:
        method, key, succeeded, value = answer
        if not succeeded:
            kind, text = value
            value = [str(kind), str(text)]
        self._known.answers.append(StoreAnswer(str(method), key, bool(succeeded), value, at))

    def _seed(self, seed: list[int], _: int) -> None:
        bits, value = seed
        if not 0 < _natural(bits) <= _MOST_BITS or type(value) is not int or not 0 <= value < 1 << bits:
            raise ValueError("a seed")
        self._known.seeds.append((bits, value))

    def _ends(self, end: dict[str, Any], _: int) -> None:
        self._known.stopped = str(end.get("stopped", ""))
        if self._known.stopped:
            self.note = f"stops before its program does: {self._known.stopped}"
        else:
            self._known.ended = str(end["words"])


def why_no_replay(record: RankRecord) -> str | None:
    """The reason why a record cannot be replayed, if there is one."""
    if not record.worlds:
        return f"{record.path.name}: the recorded rank created no process group"
    for call in record.calls:
        form = call.form
        if form.devices or None in (*call.inputs, *call.outputs):
            where = f"on {form.devices[0]}" if form.devices else "sparse"
            return f"call {call.number}, {call.what}, has a tensor that is {where}: its data is not in the record"
    for call in record.calls:
        if call.form.outputs and call.ended is not None and call.failure is None and call.data is None:
            kept = record.head.get("keep")
            return (
                f"the outputs of call {call.number}, {call.what}, were not kept (--keep {kept}); record with --keep all"
            )
    if record.head.get("keep") not in ("all", "digests"):
        return (
            f"only the outputs of the last calls were kept (--keep {record.head.get('keep')}); record with --keep all"
        )
    return None


def _natural(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    raise ValueError(f"expected a natural number, got {value!r:.40}")


def _tensor(dtype: Any, shape: Any) -> Tensor:
    return Tensor(str(dtype), tuple(map(_natural, shape)))


def _digests(found: Any, tensors: tuple[Tensor, ...]) -> list[int | None]:
    if len(found) != len(tensors) or not all(one is None or (type(one) is int and 0 <= one < 2**64) for one in found):
        raise ValueError("digests")
    return [*found]


def bytes_of(tensor: Tensor) -> int:
    """The length of its data, from the name of its type: float32, bfloat16, complex64, bool, float8_e4m3fn."""
    if tensor.dtype == "bool":
        return tensor.elements
    found = re.search(r"[a-z](\d+)", tensor.dtype)
    if found is None:
        raise ValueError(f"a type of unknown size: {tensor.dtype}")
    return tensor.elements * (int(found[1]) // 8)
