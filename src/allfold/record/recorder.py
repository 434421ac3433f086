"""The watcher that writes every call to this rank's file: its inputs when it is made, its outputs when it ends."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..intercept.done_work import NO_TIMEOUT
from ..intercept.lines import lines_of, place
from ..intercept.operations import POINT_TO_POINT, REDUCTIONS, Go, Made, seconds_of, tensors_of, work_of
from .digests import digest_of, in_order, spans
from .format import CALL, DONE, ENDS, FAIL, FORM, GROUP, HEAD, SEED, STORE, WORLD, Writer, as_json, call_json, done_json
from .keep import Keep
from .seeds import Seed
from .stages import zero_placeholders

_LAST_SECONDS = 0.2
_internal: Any = torch._C._distributed_c10d


class CallRecorder:
    """Records the calls of this process. One per process; it continues if the script creates its groups again."""

    def __init__(self, path: str, head: dict[str, Any], keep: Keep) -> None:
        self._file: Writer | None = Writer(path)
        self._keep, self._rank, self._since = keep, head["rank"], head["time"]
        self._process = os.getpid()
        self._main = threading.main_thread().ident
        self._lock = threading.RLock()
        self._calls = 0
        self._worlds = 0
        self._forms: dict[Any, int] = {}
        self._groups: dict[str, _Counted] = {}
        self._kept: deque[tuple[int, int]] = deque()
        self._open = 0  # background calls whose results are still to be written
        self._here = threading.local()
        self._write(HEAD, head)

    def begin_world(self, world: dict[str, Any]) -> None:
        """A default group has been created. The names of groups start over."""
        self._worlds += 1
        self._groups.clear()
        self._forms.clear()
        self._write(WORLD, world)

    def note_store(self, answer: list[Any]) -> None:
        self._write(STORE, answer)

    def note_seed(self, seed: Seed) -> None:
        self._write(SEED, seed)

    def __call__(self, made: Made, go: Go) -> Any:
        if self._file is None or self._process != os.getpid():
            return go()
        sources, targets = made.read, tensors_of(made.target)
        shapes = _shapes(targets)
        inputs = shapes if made.source is made.target and sources else _shapes(sources)
        is_beside = threading.get_ident() != self._main
        form = made.operation, made.group.group_name, inputs, shapes, *made[4:9], is_beside, place(3)
        digests = [digest_of(one) for one in sources]
        with self._lock:  # threads number their calls one after the other
            number = self._begin(form, made, digests)
        try:
            return self._follow(made, go(), number, targets)
        except BaseException as error:
            self._fail(number, error)
            raise

    def _follow(self, made: Made, result: Any, number: int, targets: list[torch.Tensor]) -> Any:
        """Write the results when the call has ended, before the program sees its end."""
        work = work_of(result)
        if work is None or not made.background:
            if work is not None:
                work.wait()
            self.done(number, targets)
            return result
        if made.operation not in POINT_TO_POINT:
            try:
                future = work.get_future()
            except RuntimeError:  # a backend without futures
                pass
            else:
                self._open += 1
                return made.answer(
                    _internal._create_work_from_future(future.then(partial(self._ended, number, targets)))
                )
        # Kept until the caller has it: C++ keeps only its own half, which waits forever without the other.
        self._here.message = RecordedMessage(work, partial(self.done, number, targets), partial(self._fail, number))
        return made.answer(self._here.message)

    def _ended(self, number: int, targets: list[torch.Tensor], future: Any) -> Any:
        self._open -= 1
        try:
            value = future.value()
        except BaseException as error:
            self._fail(number, error)
            raise
        self.done(number, targets)
        return value

    # What is written -------------------------------------------------------------------------------------------------

    def _begin(self, form: tuple[Any, ...], made: Made, digests: list[int | None]) -> int:
        known = self._forms.get(form)
        group = self._groups.get(form[1]) or self._new_group(made.group)
        if known is None:
            known = self._new_form(form, group)
        self._calls += 1
        if made.operation in POINT_TO_POINT:
            group.messages += 1
        else:
            group.calls += 1
        place_in_group = group.messages if made.operation in POINT_TO_POINT else group.calls
        now = int((time.time() - self._since) * 1e6)
        self._write_json(CALL, call_json(self._calls, known, place_in_group, digests, now))
        return self._calls

    def _new_group(self, group: dist.ProcessGroup) -> _Counted:
        try:
            ranks = c10d.get_process_group_ranks(group)
        except (KeyError, ValueError, RuntimeError):  # while it is being created
            ranks = list(range(group.size()))
        made = self._groups[group.group_name] = _Counted(len(self._groups))
        words = {"group": made.index, "name": group.group_name, "ranks": ranks, "description": group.group_desc}
        self._write(GROUP, words | {"timeout": seconds_of(group)})
        return made

    def _new_form(self, form: tuple[Any, ...], group: _Counted) -> int:
        zero_placeholders()  # here, since a script may import them at any time, and exchanges shapes before it uses them
        operation, _, sources, targets, reduction, root, peer, splits, background, is_beside, where = form
        number = self._forms[form] = len(self._forms)
        words: dict[str, Any] = {
            "form": number,
            "operation": operation,
            "group": group.index,
            "inputs": [(str(dtype).removeprefix("torch."), list(shape)) for shape, dtype, _ in sources],
            "outputs": [(str(dtype).removeprefix("torch."), list(shape)) for shape, dtype, _ in targets],
            "stack": lines_of(where),
        }
        if reduction is not None:
            words["reduction"] = REDUCTIONS[reduction] if reduction < len(REDUCTIONS) else f"reduction {reduction}"
        for name, value in (
            ("root", root),
            ("peer", peer),
            ("splits", splits or None),
            ("background", background or None),
            ("thread", is_beside or None),
        ):
            if value is not None:
                words[name] = value
        if devices := {device for _, _, device in (*sources, *targets)} - {"cpu"}:
            words["devices"] = sorted(devices)
        self._write(FORM, words)
        return number

    def done(self, number: int, targets: list[torch.Tensor], source: int | None = None) -> None:
        """A call has ended, and these are its results."""
        digests = [digest_of(one) for one in targets]
        with self._lock:
            kept = None
            if self._file is not None and self._keep.outputs and targets and None not in digests:
                kept = self._keep_outputs([in_order(one) for one in targets])
            if self._file is not None:  # the disk may have been full
                self._write_json(DONE, done_json(number, digests, kept, source))

    def _keep_outputs(self, targets: Sequence[torch.Tensor]) -> int | None:
        assert self._file is not None
        try:
            found = self._file.write_data(spans(targets))
        except OSError as error:
            self._stop(error)
            return None
        if self._keep.window:
            self._kept.append((found, sum(one.nbytes for one in targets)))
            if len(self._kept) > self._keep.window and not self._file.drop(*self._kept.popleft()):
                self._say("this file system cannot free parts of a file, so all outputs are kept")
                self._keep = Keep(outputs=True)
        return found

    def _fail(self, number: int, error: BaseException) -> None:
        self._write(FAIL, [number, type(error).__name__, " ".join(str(error).split())[:2000]])

    def _write(self, kind: bytes, document: Any) -> None:
        with self._lock:
            self._write_json(kind, as_json(document))

    def _write_json(self, kind: bytes, contents: bytes) -> None:
        """With the lock held."""
        if self._file is None or self._process != os.getpid():
            return
        try:
            self._file.write_json(kind, contents)
        except OSError as error:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        """Stop recording, so that the run can go on."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # there may be room for this where there was none for more
                file.cut()
                file.write(ENDS, {"words": "", "stopped": error.strerror or str(error)})
            file.close()
        self._say(f"stopped recording after call {self._calls}: {error.strerror}")

    def _say(self, words: str) -> None:
        sys.stderr.write(f"allfold record: rank {self._rank}: {words}\n")
        sys.stderr.flush()

    def end(self, words: str) -> None:
        """Finish the file as the process ends. Background calls that are about to end are still written."""
        if self._file is None or self._process != os.getpid():
            return
        until = time.monotonic() + _LAST_SECONDS
        while self._open > 0 and time.monotonic() < until:
            time.sleep(0.001)
        self._write(ENDS, {"words": words})
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


class _Counted:
    def __init__(self, index: int) -> None:
        self.index = index
        self.calls = self.messages = 0


def _shapes(tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    return tuple([(one.shape, one.dtype, "cpu" if one.is_cpu else one.device.type) for one in tensors])


class RecordedMessage(dist._Work):  # type: ignore[misc]
    """A message on its way, whose arrival is written before the program sees it."""

    def __init__(self, work: dist.Work, done: Callable[..., None], fail: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._work: Any = work
        self._done, self._fail = done, fail
        self._is_written = False
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        try:
            ended = bool(self._work.wait(timeout) if timeout > NO_TIMEOUT else self._work.wait())
        except BaseException as error:
            self._fail(error)
            raise
        self._arrived()
        return ended

    def _arrived(self) -> None:
        with self._lock:
            if not self._is_written:
                self._is_written = True
                self._done(source=_source_of(self._work))

    def is_completed(self) -> bool:
        completed = bool(self._work.is_completed())
        if completed and self._work.is_success():
            self._arrived()
        return completed

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        return self._work.result()

    def source_rank(self) -> int:
        return int(self._work._source_rank())

    _source_rank = source_rank

    def get_future(self) -> Any:
        reference = weakref.ref(self)

        def arrived(future: Any) -> Any:
            if (message := reference()) is not None:
                message._arrived()
            return future.value()

        return self._work.get_future().then(arrived)


def _source_of(work: Any) -> int | None:
    try:
        source = int(work._source_rank())
    except RuntimeError:  # of a message that was sent
        return None
    return source if source >= 0 else None
