"""The signature of a call: everything in which ranks must agree, and the only thing that they compare.

Every engine makes it from the call and the digest of its schedule. Shared memory compares it in the extension, which has
the same fields, bytes, digest and words (native/collectives/signature.hpp).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..collectives import COLLECTIVES
from ..dtypes import DTYPES, Dtype
from ..errors import MismatchError
from ..ops import OPS
from ..schedules import Schedule
from ..wording import name_ranks
from .engine import Call

_COLLECTIVES, _DTYPES, _OPS = tuple(COLLECTIVES), tuple(DTYPES), tuple(OPS)
_CUSTOM = 255
_PACKED = struct.Struct("=QQQiBBBxI28s16sQ")
_DIGESTED = struct.Struct("=8Q16xQ")  # the name of a custom operation is part of that operation's own digest
_ALGORITHM_BYTES, _OP_BYTES = 27, 15  # of a name; a zero follows
_MIX, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1

PACKED_BYTES = _PACKED.size
STAGED, ON_THE_GPU = 1, 2
"""Places of arrays in a GPU's memory: a call goes through main memory, or runs on the GPU. Larger numbers are places in
memory that all ranks reach."""


class Signature(NamedTuple):
    """Everything about a call in which ranks must agree."""

    collective: str
    dtype: str = "uint8"
    elements: int = 0  # of the whole buffer
    op: str = ""
    custom: int = 0  # the digest of a user-defined operation; 0 for a built-in one
    root: int = 0
    algorithm: str = ""  # as the caller named it; "" where the engine chooses
    schedule: int = 0  # the first bytes of its digest; 0 where the engine chooses on the way
    counts: int = 0  # the digest of the lengths of slices; 0 where all are equally long
    place: int = 0  # of arrays in a GPU's memory; 0 for others

    @classmethod
    def of(cls, call: Call, dtype: Dtype, elements: int, schedule: Schedule | None, place: int = 0) -> Signature:
        """`schedule`: the one that runs, if it is known; it is if the call names an algorithm."""
        op, name = call.op, call.algorithm
        if name is not None and not isinstance(name, str):
            assert schedule is not None
            name = f"{schedule.algorithm}()"
        return cls(
            call.collective,
            dtype.name,
            elements,
            "" if op is None else op.name if op.is_builtin else _cut(op.name, _OP_BYTES),
            0 if op is None or op.is_builtin else op.digest,
            call.root if COLLECTIVES[call.collective].rooted else 0,
            _cut(name or "", _ALGORITHM_BYTES),
            0 if schedule is None else int.from_bytes(schedule.digest[:8], "little"),
            0 if call.counts is None else call.counts.digest,
            place,
        )

    def packed(self) -> bytes:
        """The bytes that ranks exchange."""
        return _PACKED.pack(
            self.elements,
            self.schedule,
            self.custom,
            self.root,
            _COLLECTIVES.index(self.collective),
            _DTYPES.index(self.dtype),
            _CUSTOM if self.custom else _OPS.index(self.op) if self.op else 0,
            self.counts,
            self.algorithm.encode(),
            self.op.encode() if self.custom else b"",
            self.place,
        )

    @classmethod
    def unpacked(cls, packed: bytes) -> Signature:
        elements, schedule, custom, root, collective, dtype, op, counts, algorithm, name, place = _PACKED.unpack(packed)
        promise = COLLECTIVES[_COLLECTIVES[collective]]
        op_name = "" if not promise.takes_op else _text(name) if custom else _OPS[op]
        known = promise.name, _DTYPES[dtype], elements, op_name, custom, root, _text(algorithm), schedule, counts, place
        return cls(*known)

    @property
    def digest(self) -> int:
        """A hash of 64 bits. Of a custom operation's name it has what is in that operation's digest."""
        value = 0
        for word in _DIGESTED.unpack(self.packed()):
            value = (value ^ word) * _MIX & _MASK
            value ^= value >> 29
        return value

    @property
    def arguments(self) -> str:
        """`float64[3] sum root 0 by ring`."""
        promise = COLLECTIVES.get(self.collective)  # a file of another version may name one that is not known here
        words = []
        if promise is None or promise.carries_data:
            words.append(f"{self.dtype}[{self.elements}]")
        if promise is not None and promise.takes_op:
            words.append(f"custom operation {self.op}" if self.custom else self.op)
        if promise is not None and promise.rooted:
            words.append(f"root {self.root}")
        if self.counts:
            words.append("in uneven parts")
        if self.algorithm:
            words.append(f"by {self.algorithm}")
        if self.place:
            words.append("through main memory" if self.place == STAGED else "on the GPU")
        if self.place > ON_THE_GPU:
            words.append(f"in memory of allfold.torch.empty (place {self.place:#x})")
        return " ".join(words)

    @property
    def words(self) -> str:
        """`all_reduce(float64[3] sum by ring)`."""
        return f"{self.collective}({self.arguments})"


def difference(calls: Mapping[int, Signature], absent: Sequence[int] = ()) -> str:
    """The sentence about ranks that differ, given their calls: `all_reduce: rank 0 called it with …, rank 1 with …`."""
    named = {one.collective for one in calls.values()}
    (name,) = named if len(named) == 1 and all(COLLECTIVES[one].carries_data for one in named) else {""}
    # Digests distinguish two schedules with the same name, and also two operations, and lengths with the same sum.
    alike: dict[str, Signature] = {}
    for one in calls.values():
        alike.setdefault(one.words, one)
    same_operations = all(one.custom == alike[one.words].custom for one in calls.values())
    same_counts = all(one.counts == alike[one.words].counts for one in calls.values())
    same_schedules = all(one.schedule == alike[one.words].schedule for one in calls.values())
    groups: dict[str, list[int]] = {}
    for rank, one in sorted(calls.items()):
        what = one.arguments if name else one.words
        what += "" if same_operations else f" (operation {one.custom & 0xFFFFFFFF:08x})"
        what += "" if same_counts else f" (counts {one.counts:08x})"
        what += "" if same_schedules else f" (schedule {one.schedule & 0xFFFFFFFF:08x})"
        groups.setdefault(what, []).append(rank)
    text = called(name, groups)
    if len(groups) < 2:
        text += ", but an earlier call differed"
    return f"{text}, {name_ranks(absent)} did not arrive" if absent else text


def called(name: str, groups: Mapping[str, Sequence[int]]) -> str:
    """`group: rank 0 called it with [0, 1], rank 1 with [1, 0]`; without a name, the groups say what was called."""
    if not name:
        return "mismatched calls: " + ", ".join(f"{name_ranks(ranks)} called {what}" for what, ranks in groups.items())
    (first, ranks), *others = groups.items()
    rest = "".join(f", {name_ranks(ranks)} with {what}" for what, ranks in others)
    return f"{name}: {name_ranks(ranks)} called it with {first}{rest}"


def check_groups(named: Sequence[Sequence[int]]) -> None:
    """Check what the ranks passed to `group`, by rank: all ranks of a group must have passed the same."""
    for rank, group in enumerate(named):
        for other in group:
            if named[other] != group:
                raise MismatchError(called("group", {str(group): [rank], str(named[other]): [other]}))


def _cut(name: str, bytes: int) -> str:
    return name[:bytes] if name.isascii() else name.encode()[:bytes].decode(errors="ignore")


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode(errors="ignore")
