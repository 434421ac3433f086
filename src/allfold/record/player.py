"""The watcher of a replay: answers every call of one rank from its record, and compares what goes in.

The replay ends at the first input that differs from the record, and where the recorded run hung or died.
"""

from __future__ import annotations

import builtins
import contextlib
import mmap
import sys
import threading
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import errors
from ..explain.calls import CodeLine, Tensor
from ..intercept.done_work import NO_TIMEOUT, DoneWork
from ..intercept.lines import lines_of, place
from ..intercept.operations import POINT_TO_POINT, REDUCTIONS, Go, Made, tensors_of
from .digests import digest_of, fill
from .read import CallForm, CallKey, RankRecord, Recorded, RecordedGroup, StoreAnswer, bytes_of
from .stages import zero_placeholders
from .stores import as_bytes, key_of

_internal: Any = torch._C._distributed_c10d


class ReplayEnded(BaseException):
    """The replay cannot go on; the message says why. A program that catches exceptions does not catch it."""


class Player:
    """Answers the calls of this process. `ended` is the reason why the replay has ended, if it has."""

    def __init__(self, record: RankRecord) -> None:
        self.record = record
        self.ended: str | None = None
        self.made = 0
        self._calls = {call.key: call for call in record.calls}
        self._answers: dict[tuple[str, str], deque[StoreAnswer]] = {}
        for answer in record.answers:
            self._answers.setdefault((answer.method, repr(answer.key)), deque()).append(answer)
        with open(record.path, "rb") as file:
            # Private: the file is never changed.
            self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        self._world = 0
        self._places: dict[tuple[str, bool], int] = {}
        self._lock = threading.Lock()
        self._here = threading.local()

    def begin_world(self) -> dict[str, Any]:
        """The record of the next default group, which the script is about to create."""
        with self._lock:
            if self._world == len(self.record.worlds):
                raise self._end("the program creates another default group, which the recorded run did not")
            self._world += 1
            self._places.clear()
            return self.record.worlds[self._world - 1]

    @property
    def world(self) -> dict[str, Any]:
        return self.record.worlds[self._world - 1]

    def __call__(self, made: Made, go: Go) -> Any:
        zero_placeholders()
        targets = tensors_of(made.target)
        call = self._expected(made, targets)
        for number, (before, tensor) in enumerate(zip(call.inputs, made.read, strict=True)):
            now = digest_of(tensor)
            if before is None or now is None:
                raise self._end(
                    f"the input of {call.told} is not in main memory, or sparse, and its data is not recorded"
                )
            if now != before:
                which = (
                    f"tensor {number + 1} of {len(call.inputs)} of the input" if len(call.inputs) > 1 else "the input"
                )
                raise self._end(f"{which} of {call.told} is the first that differs from the record")
        self.made += 1
        if call.ended is None:
            return self._never(made, call)
        if call.failure is not None:
            return self._failing(made, call)
        self._fill(call, targets)
        return self._answer(made, call, targets)

    # What the record says --------------------------------------------------------------------------------------------

    def _expected(self, made: Made, targets: Sequence[torch.Tensor]) -> Recorded:
        is_message = made.operation in POINT_TO_POINT
        with self._lock:
            if self.ended is not None:
                raise ReplayEnded(self.ended)
            counted = (made.group.group_name, is_message)
            number = self._places[counted] = self._places.get(counted, 0) + 1
        call = self._calls.get(CallKey(self._world, *counted, number))
        if call is None:
            raise self._end(self._beyond(made))
        form = call.form
        same = (
            form.operation == made.operation
            and form.root == made.root
            and (form.peer is None if made.peer is None else form.peer == form.group.ranks[made.peer])
            and form.reduction == _name_of(made.reduction)
            and _is_like(form.inputs, made.read)
            and _is_like(form.outputs, targets)
        )
        if not same:
            raise self._end(f"{_told(made)} is not in the record, which has {call.told} in its place")
        return call

    def _beyond(self, made: Made) -> str:
        note = f"; {self.record.path.name} {self.record.note}" if self.record.note else ""
        count = len(self.record.calls)
        return f"the record ends before {_told(made)}: the recorded rank {self.record.end} after {count} calls{note}"

    def _never(self, made: Made, call: Recorded) -> Any:
        """A call that did not end, or that the recorded rank did not wait for: waiting for it raises an error."""
        how = self.record.end if self.record.ended is None else "went on without waiting for it, or ended"
        sentence = f"the recorded rank made {call.told} and did not get its result: it {how}"
        if not made.background:
            raise self._end(sentence)
        return made.answer(self._held(NeverEnds(self, sentence)))

    def _failing(self, made: Made, call: Recorded) -> Any:
        """A call that failed in the recorded run fails again."""
        assert call.failure is not None
        error = _error(*call.failure)
        if not made.background:
            raise error
        future: Any = torch.futures.Future()
        future.set_exception(error)
        return made.answer(_internal._create_work_from_future(future))

    def _fill(self, call: Recorded, targets: Sequence[torch.Tensor]) -> None:
        if not targets:
            return
        if call.data is None:
            raise self._end(f"the outputs of {call.told} were not kept; record with --keep all")
        at = call.data
        for tensor, form, digest in zip(targets, call.form.outputs, call.outputs, strict=True):
            count = bytes_of(form)
            fill(tensor, self._data[at : at + count])
            at += count
            if digest_of(tensor) != digest:
                raise self._end(
                    f"{self.record.path.name} is damaged: the outputs of {call.told} do not match their digests"
                )

    def _answer(self, made: Made, call: Recorded, targets: list[torch.Tensor]) -> Any:
        if made.operation in POINT_TO_POINT:
            return made.answer(self._held(ReplayedMessage(targets, call.source)))
        future: Any = torch.futures.Future()
        future.set_result(targets)
        return made.answer(_internal._create_work_from_future(future))

    def _held(self, work: Any) -> Any:
        """Keep a Work object until the caller has it: C++ keeps only its own half of it."""
        self._here.work = work
        return work

    def answer_of_store(self, method: str, arguments: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """The answer that a store gave to this question in the recorded run."""
        key = key_of(arguments, given)
        with self._lock:
            queue = self._answers.get((method, repr(key)))
            answer = queue.popleft() if queue else None
        if answer is None:
            raise self._end(f"the program asks a store for {method}({key!r}), which the recorded run did not")
        if not answer.succeeded:
            raise _error(*answer.value)
        return as_bytes(answer.value)

    def _end(self, sentence: str) -> ReplayEnded:
        with self._lock:
            if self.ended is None:
                self.ended = sentence
        return ReplayEnded(self.ended)

    def refuse(self, what: str) -> ReplayEnded:
        """The error for something that cannot be replayed."""
        return self._end(f"{what} cannot be replayed: it is not in the record")

    def outcome(self) -> str:
        """One sentence for the end of the replay."""
        if self.ended is not None:
            return self.ended
        count = len(self.record.calls)
        if self.made < count:
            return f"the program ended after {self.made} of the {count} calls of the record"
        return f"all {count} calls were made as recorded"


class ReplayedMessage(DoneWork):
    """The Work object of a recorded message."""

    def __init__(self, tensors: list[torch.Tensor], source: int | None) -> None:
        super().__init__()
        self._tensors, self._source = tensors, source

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def source_rank(self) -> int:
        if self._source is None:
            raise RuntimeError("a message that was sent has no source")
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class NeverEnds(ReplayedMessage):
    """The Work object of a call whose result the recorded rank never got."""

    def __init__(self, player: Player, sentence: str) -> None:
        super().__init__([], None)
        self._player, self._sentence = player, sentence

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        raise self._player._end(self._sentence)

    def is_completed(self) -> bool:
        return False

    def is_success(self) -> bool:
        return False

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_exception(RuntimeError(self._sentence))
        return future


def _error(kind: str, text: str) -> Exception:
    """The exception of a recorded call; a RuntimeError if its type is not one of torch, allfold or Python."""
    for home in (dist, errors, builtins):
        found = getattr(home, kind, None)
        if isinstance(found, type) and issubclass(found, Exception):
            with contextlib.suppress(TypeError):  # its constructor needs more than a text
                return found(text)
    return RuntimeError(text)


def _name_of(reduction: int | None) -> str | None:
    if reduction is None:
        return None
    return REDUCTIONS[reduction] if reduction < len(REDUCTIONS) else f"reduction {reduction}"


def _is_like(forms: Sequence[Any], tensors: Sequence[torch.Tensor]) -> bool:
    return len(forms) == len(tensors) and all(
        form.dtype == str(one.dtype).removeprefix("torch.") and form.shape == tuple(one.shape)
        for form, one in zip(forms, tensors, strict=True)
    )


def _told(made: Made) -> str:
    def of(tensors: list[torch.Tensor]) -> tuple[Tensor, ...]:
        return tuple(Tensor(str(one.dtype).removeprefix("torch."), tuple(one.shape)) for one in tensors)

    peer = made.peer if made.peer is None else dist.get_process_group_ranks(made.group)[made.peer]
    form = CallForm(
        made.operation,
        RecordedGroup(0, made.group.group_name, ()),
        of(made.read),
        of(tensors_of(made.target)),
        _name_of(made.reduction),
        made.root,
        peer,
        stack=tuple(CodeLine(*line) for line in lines_of(place(4))),
    )
    return f"{form.what}{form.where}"


def say(rank: int, words: str) -> None:
    sys.stderr.write(f"allfold replay: rank {rank}: {words}\n")
    sys.stderr.flush()
