"""Flight-recorder dumps of torch.distributed (NCCL, gloo and others) as ranks of the model.

The dumps of gloo (torch 2.13) say less than they seem to: `state` is always "scheduled", `retired` is always true, no
time except that of creation is set, `pg_config` is empty, and the "last completed" collective is the last one that was
enqueued, even if it timed out. So the states of gloo are not used, and the members of its groups are the ranks that made
calls in them. Neither library records the root or the reduction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..documents import DocumentError, list_at, object_at, parse, text_at, whole_at
from .calls import POINT_TO_POINT, CallFacts, CodeLine, GroupFacts, RankFacts, Tensor

MOST_ENTRIES = 500_000
MOST_RANKS = 2**20
_MOST_FRAMES = 256
_MOST_TENSORS = 4096
_MOST_TEXT = 1000
_DTYPES = {
    "Bool": "bool",
    "Char": "int8",
    "Byte": "uint8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Float": "float32",
    "Double": "float64",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
# Names that mean the same collective; torch has renamed some of them.
_SAME = {
    "_all_gather_base": "all_gather_single",
    "all_gather_into_tensor": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_reduce_barrier": "barrier",
}
# The ranks of these may pass arrays of different sizes, at least in one of the two directions.
_UNEVEN = ("all_to_all", "all_to_allv", "all_to_all_single", "all_to_all_v_single", "all_gather_v", "reduce_scatter_v")
_PEERS = re.compile(r"(\w+) (\d+)(->|<-)(\d+)")
_LIBRARY = re.compile(
    r"/(site|dist)-packages/|/torch/distributed/|/lib/python3[^/]*/|^<frozen|/allfold/(torch|communicator|engines)/"
)


def is_dump(value: Any) -> bool:
    return isinstance(value, dict) and "entries" in value and "version" in value


def read_dump(value: Any, number: int | None) -> tuple[RankFacts, dict[str, GroupFacts], int | None]:
    """The rank, its groups, and the size of the run if the dump says so. `number`: the rank in the file's name."""
    document = object_at(value, "the dump")
    ours = document.get("allfold")
    size = None
    if isinstance(ours, dict):  # written by `allfold_autoload.flights`
        number = whole_at(ours.get("rank"), "allfold.rank", 0, MOST_RANKS)
        size = whole_at(ours.get("size"), "allfold.size", 1, MOST_RANKS)
    if number is None:
        raise DocumentError(
            "a dump does not say which rank wrote it; its name must end in the rank, as in nccl_trace_rank_3"
        )
    reader = _Reader(number, _groups(document.get("pg_config")))
    rank = reader.rank
    if isinstance(ours, dict):
        rank.at = user_frames(reader.frames(ours.get("at", [])))
        rank.in_call = ours.get("in_call") if isinstance(ours.get("in_call"), bool) else None
        rank.ended = text_at(ours.get("ended", ""), "allfold.ended", _MOST_TEXT)
        rank.run = text_at(ours.get("run", ""), "allfold.run", _MOST_TEXT)
        stalled = ours.get("stalled")
        if isinstance(stalled, dict) and stalled.get("in_call") is False:
            rank.stalled = user_frames(reader.frames(stalled.get("at")))
        written = ours.get("written")
        rank.written = float(written) if isinstance(written, (int, float)) and abs(written) < 1e12 else None
    entries = list_at(document["entries"], "entries")
    if len(entries) > MOST_ENTRIES:
        raise DocumentError(f"it has {len(entries):,} entries; expected at most {MOST_ENTRIES:,}")
    for place, entry in enumerate(entries):
        reader.add(entry, f"entries[{place}]")
    reader.end()
    return rank, reader.groups, size


def user_frames(frames: Sequence[CodeLine]) -> tuple[CodeLine, ...]:
    """The frames outside torch and other libraries, or all if there are none."""
    own = tuple(frame for frame in frames if not _LIBRARY.search(frame.file.replace("\\", "/")))
    return own or tuple(frames)


def _groups(config: Any) -> dict[str, GroupFacts]:
    groups = {}
    for key, one in (config if isinstance(config, dict) else {}).items():
        if not isinstance(one, dict) or not isinstance(key, str) or len(key) > _MOST_TEXT:
            raise DocumentError("pg_config is not an object of objects")
        ranks = one.get("ranks")
        listed = parse(ranks) if isinstance(ranks, str) else ranks
        members = sorted(
            {whole_at(rank, "pg_config ranks", 0, MOST_RANKS) for rank in list_at(listed, "pg_config ranks")}
        )
        if members:
            key = text_at(one.get("name", key), "pg_config name", _MOST_TEXT)
            groups[key] = GroupFacts(key, _label(key, text_at(one.get("desc", ""), "desc", _MOST_TEXT)), tuple(members))
    return groups


def _label(name: str, description: str) -> str:
    if description == "default_pg":
        return "the world"
    return f"group {name}" if description in ("", "undefined") else f"group {name} ({description})"


class _Reader:
    """Turns the entries of one rank into its calls."""

    def __init__(self, number: int, groups: dict[str, GroupFacts]) -> None:
        self.rank = RankFacts(number)
        self.groups = groups
        # By identity: a small file may refer to the same list a million times.
        self._frames: dict[int, tuple[CodeLine, ...]] = {}
        self._shapes: dict[int, list[tuple[int, ...]]] = {}
        self._parts: dict[tuple[str, int], list[int]] = {}  # the places of the calls that were coalesced into one
        self._order = 0
        self._is_cut = False  # earlier calls were overwritten in the buffer

    def add(self, value: Any, where: str) -> None:
        entry = object_at(value, where)
        name, description = self._group_of(entry, where)
        if name not in self.groups:
            self.groups[name] = GroupFacts(name, _label(name, description), (self.rank.number,), complete=False)
        group = self.groups[name]
        library, _, profiled = text_at(entry.get("profiling_name"), f"{where}.profiling_name", _MOST_TEXT).partition(
            ":"
        )
        operation = _SAME.get(profiled.partition(" ")[0], profiled.partition(" ")[0])
        inputs = self._tensors(entry.get("input_sizes"), entry.get("input_dtypes"), where)
        outputs = self._tensors(entry.get("output_sizes"), entry.get("output_dtypes"), where)
        trusted = library != "gloo"
        state = entry.get("state")
        begun, ended = (_seconds(entry.get(key)) for key in ("time_created_ns", "time_discovered_completed_ns"))
        is_single = operation in POINT_TO_POINT
        number = whole_at(entry.get("p2p_seq_id" if is_single else "collective_seq_id", 0), where, 0, 2**63)
        record = whole_at(entry.get("record_id", self._order), f"{where}.record_id", 0, 2**63)
        if not self._order:
            self._is_cut = record > 0
        if entry.get("is_p2p") is True and not is_single and operation != "coalesced":
            is_single = True
        timeout = entry.get("timeout_ms")
        call = CallFacts(
            group=name,
            number=number,
            operation=operation,
            order=self._order,
            tensors=_agreeing(operation, inputs, outputs),
            root=_root(operation, inputs, outputs, group, self.rank.number),
            peer=self._peer(profiled, group) if is_single else None,
            stack=user_frames(self.frames(entry.get("frames", []))),
            begun=begun,
            ended=ended if trusted else None,
            done=(state == "completed" or ended is not None) if trusted else None,
            timeout=timeout / 1000 if isinstance(timeout, int) and 0 < timeout < 2**53 else None,
        )
        self._order += 1
        if not group.complete and (shown := _size(operation, inputs, outputs)):
            group.size = max(shown, group.size or 0)
        if not is_single and not (operation == "coalesced" and entry.get("is_p2p") is True):
            self._parts.setdefault((name, number), []).append(len(self.rank.calls))
            self.rank.calls.append(call)
        elif is_single:
            self.rank.calls.append(call)

    def end(self) -> None:
        """Merge calls that were coalesced into one, and note where the record begins."""
        dropped = set()
        for places in self._parts.values():
            if len(places) > 1:
                parts = [self.rank.calls[place] for place in places]
                self.rank.calls[places[0]] = _together(parts)
                dropped.update(places[1:])
        if dropped:
            self.rank.calls = [call for place, call in enumerate(self.rank.calls) if place not in dropped]
        first: dict[str, int] = {}
        for call in self.rank.calls:
            if not call.is_point_to_point:
                first.setdefault(call.group, call.number)
        self.rank.starts = {name: number if self._is_cut else 1 for name, number in first.items()}
        if self._is_cut:
            self.rank.starts[""] = 2**63  # of groups without any call in the record, nothing is known

    def frames(self, value: Any) -> tuple[CodeLine, ...]:
        known = self._frames.get(id(value))
        if known is None:
            found = []
            for one in value[:_MOST_FRAMES] if isinstance(value, list) else ():
                if isinstance(one, dict):
                    file, line = one.get("filename"), one.get("line")
                    name = one.get("name", "")
                    if isinstance(file, str) and type(line) is int and isinstance(name, str):
                        found.append(CodeLine(_printable(file), line, _printable(name)))
            known = self._frames[id(value)] = tuple(found)
        return known

    def _group_of(self, entry: dict[str, Any], where: str) -> tuple[str, str]:
        pair = entry.get("process_group")
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise DocumentError(f"{where}.process_group is not a pair of texts")
        name, description = (text_at(text, f"{where}.process_group", _MOST_TEXT) for text in pair)
        return name, description

    def _tensors(self, sizes: Any, dtypes: Any, where: str) -> tuple[Tensor, ...]:
        known = self._shapes.get(id(sizes))
        if known is None:
            known = []
            for shape in list_at(sizes if sizes is not None else [], f"{where} sizes", most=_MOST_TENSORS):
                if isinstance(shape, str):  # in JSON
                    shape = parse(shape)
                numbers = list_at(shape, f"{where} sizes", most=64)
                known.append(tuple(whole_at(number, f"{where} sizes", 0, 2**63) for number in numbers))
            self._shapes[id(sizes)] = known
        named = dtypes if isinstance(dtypes, list) else []
        types = [text if isinstance(text, str) and len(text) < 40 else "" for text in named[: len(known)]]
        types += [""] * (len(known) - len(types))
        return tuple(
            Tensor(_DTYPES.get(text, _printable(text)), shape) for text, shape in zip(types, known, strict=True)
        )

    def _peer(self, profiled: str, group: GroupFacts) -> int | None:
        match = _PEERS.fullmatch(profiled)
        if match is None or len(match[4]) > 9:
            return None
        peer = int(match[4])  # in the group
        return group.ranks[peer] if group.complete and peer < len(group.ranks) else peer


def _agreeing(operation: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """The arrays on which all ranks must agree."""
    if operation in _UNEVEN or operation == "coalesced":
        return None
    if operation in ("scatter", "recv", "broadcast", "reduce_scatter", "reduce_scatter_single"):
        return outputs or inputs
    return inputs or outputs


def _root(
    operation: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], group: GroupFacts, rank: int
) -> int | None:
    """The root, if the arrays show it: only the root of a gather has outputs, and only that of a scatter has inputs."""
    is_root = (operation == "gather" and outputs) or (operation == "scatter" and inputs)
    return rank if is_root else None


def _size(operation: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> int | None:
    """The number of ranks of the group, where arrays show it: [3, 4] is gathered from [4] of three ranks each."""
    one, all_of_them = (outputs, inputs) if operation == "scatter" else (inputs, outputs)
    if operation in ("all_gather", "gather", "scatter") and len(one) == len(all_of_them) == 1:
        part, whole = one[0].shape, all_of_them[0].shape
        if len(whole) == len(part) + 1 and whole[1:] == part and whole[0] <= MOST_RANKS:
            return whole[0]
    return None


def _together(parts: list[CallFacts]) -> CallFacts:
    last = parts[-1]
    arrays: list[Tensor] = []
    for part in parts:
        arrays += part.tensors or ()
    kinds = sorted({part.operation for part in parts} - {"coalesced"})
    return CallFacts(
        group=last.group,
        number=last.number,
        operation=f"coalesced {' and '.join(kinds)}".strip(),
        order=parts[0].order,
        tensors=tuple(arrays),
        stack=last.stack,
        begun=parts[0].begun,
        ended=last.ended,
        done=last.done,
        timeout=last.timeout,
    )


def _seconds(value: Any) -> float | None:
    return value / 1e9 if type(value) is int and 0 < value < 2**63 else None


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text[:_MOST_TEXT])
