"""The two ways of a call on arrays in a GPU's memory: on the GPU (runner.py), or through main memory (staging.py).

On the GPU it needs ranks that share memory and one GPU. Without MPS the driver gives the GPU to one process after the
other, some hundred microseconds each. Kernels wait for that, and copies do not: so short arrays are staged there. With
MPS, or with a GPU for itself, everything goes on the GPU. Measured on an H200 with 4 ranks (docs/gpu.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from ... import _native
from ...collectives import COLLECTIVES, WHOLE, Collective
from ...errors import DeviceError, RankLost
from ...ops import OPS
from ...proved import check_uneven, schedule_of
from ...registry import AnyAlgorithm, find_algorithm
from ...schedules import Schedule
from ..buffer import Buffer
from ..engine import Call, Engine
from ..shared_memory.choice import choices
from ..shared_memory.engine import SharedMemory
from ..taken import elements_of
from .batch import Batch
from .driver import GpuDriver
from .runner import Again, Runner
from .staging import Staging

STAGED_UP_TO = 1 << 20
"""Bytes of the whole array, where processes take turns on the GPU."""
ONE_ROUND_UP_TO = 4 << 20
"""Bytes up to which every rank folds the whole array (one wait), where they do not; beyond, each rank its share."""
_TURN_SECONDS, _TRIAL_SECONDS = 50e-6, 0.02
_MOST_REMEMBERED = 1024
_MOST_SCHEDULES = 256
_LOOK_AGAIN_SECONDS = 0.002

log = logging.getLogger(__name__)


class Ways:
    """The calls of one communicator on arrays of one GPU. The engines are its own: staged calls wait in the stream."""

    def __init__(self, engine: Engine, device: GpuDriver, context: int, timeout: float | None = None) -> None:
        """All ranks meet, each wait no longer than the timeout; without one, than the engine's."""
        self.lane = device.lane(context)
        self.staging = Staging(engine, device, context)
        self.runner: Runner | None = None
        self.takes_turns = True
        self._lock = threading.Lock()
        self._schedules: OrderedDict[tuple[str, int, int | None], tuple[object, Schedule]] = OrderedDict()
        self.remembered: dict[Any, Again] = {}
        """Calls that were made before, by the facts that distinguish them."""
        if isinstance(engine, SharedMemory) and engine.size > 1:
            try:
                # In a thread of its own, where no signal handler raises.
                with ThreadPoolExecutor(1) as pool:
                    meeting = pool.submit(self._meet, engine, device, context, timeout)
                    try:
                        meeting.result()
                    except BaseException:
                        engine.abort()  # an interrupt: the thread comes back from its wait
                        raise
            except BaseException:
                self.abort()  # the calls too, if it had made them; or the next call would try it again
                raise

    def _meet(self, engine: SharedMemory, device: GpuDriver, context: int, timeout: float | None) -> None:
        """Prepare calls on the GPU, if all ranks can."""
        try:
            self.runner = Runner(engine.inner(timeout), device, context, self.staging, timeout)
        except DeviceError as error:
            log.info("calls on the GPU are staged through main memory: %s", error)
            return
        self.takes_turns = _takes_turns(self.runner, device, context, timeout)
        self.lane.set_turns(self.takes_turns)

    def prepare(self, call: Call, source: Buffer | None, target: Buffer | None) -> Again:
        """A call for the stream."""
        with self._lock:  # it may replace the memory that other threads' calls go through
            return self._prepared(call, source, target)

    def _prepared(self, call: Call, source: Buffer | None, target: Buffer | None) -> Again:
        runner, array = self.runner, source or target
        named = None if call.algorithm is None else self._built(call, call.algorithm)
        if named is not None and not isinstance(call.algorithm, str):
            call = call._replace(algorithm=named)
        if call.counts is not None and named is not None:
            check_uneven(call.collective, named, self.staging.engine.size, named.root)
        if runner is None or array is None:
            return self.staging.prepare(call, source, target)
        # Of the whole buffer: a root may have more of it than the others, and all must go the same way.
        engine = runner.engine
        bytes = elements_of(call, source, target, engine.rank, engine.size) * array.dtype.itemsize
        if bytes > (STAGED_UP_TO if self.takes_turns else 0):
            # With lengths of their own, arrays of one rank may lie in a block and those of another not.
            alike = has_alike(COLLECTIVES[call.collective]) and call.counts is None
            reached = runner.blocks.find(source, target) if alike else None
            built = named or self._built(call, self._choice(call, bytes, reached is not None))
            if runner.can_run(call, array.dtype.name, built, reached):
                return runner.prepare(call, source, target, built, reached)
        return runner.accompany(call, source, target, named, self.staging.prepare(call, source, target))

    def _built(self, call: Call, algorithm: AnyAlgorithm) -> Schedule:
        """The schedule of an algorithm: compared and run by every call, however often a generator could be run."""
        root = call.root if COLLECTIVES[call.collective].rooted else None
        # Of a name: the algorithm that it means now. What is in the table is kept, so that its number stays its own.
        meant = find_algorithm(call.collective, algorithm) if isinstance(algorithm, str) else algorithm
        key = (call.collective, id(meant), root)
        if key not in self._schedules:
            if len(self._schedules) >= _MOST_SCHEDULES:
                self._schedules.popitem(last=False)
            self._schedules[key] = meant, schedule_of(call.collective, meant, self.staging.engine.size, root)
        self._schedules.move_to_end(key)
        return self._schedules[key][1]

    def empty(self, bytes: int) -> tuple[int, Callable[[], None]] | None:
        """Memory on the GPU that all ranks reach, and what lets it go; None where there is none. Made by all together."""
        if self.runner is None:
            return None
        with self._lock:
            self.remembered.clear()  # what was made for an address may not hold for what is there now
            number, pointer = self.runner.blocks.new(bytes)
        return pointer, partial(self.runner.blocks.let_go, number)

    def remember(self, key: Any, again: Again) -> Again:
        """Cache a call for the next time; its algorithm must not be one whose meaning may change."""
        if len(self.remembered) >= _MOST_REMEMBERED:
            self.remembered.clear()
        self.remembered[key] = again
        return again

    def launch(self, again: Again, before: int | None, holds: bool) -> _native.Mark:
        """Put a call into a stream (see `Again`). An error of an earlier call is raised here."""
        if self.staging.outcome.failed and (error := self.error()) is not None:
            raise error
        with self._lock:  # several threads may make calls, the autograd engine's among them
            try:
                return again.launch(before, holds)
            except DeviceError as error:
                raise self.lost(error) from error

    def lost(self, error: DeviceError) -> BaseException:
        """The error to raise after a driver error; it names a rank that caused it."""
        return error if self.runner is None else self.runner.lost(error)

    def _choice(self, call: Call, bytes: int, is_reached: bool) -> str:
        if (
            COLLECTIVES[call.collective].round_trip
            and not is_reached
            and (self.takes_turns or bytes <= ONE_ROUND_UP_TO)
        ):
            return "naive"
        return choices(call.collective, self.staging.engine.size)[-1][1]

    def error(self) -> BaseException | None:
        """The first error of a call in the stream, if one is known."""
        staged = self.staging.error()
        if self.runner is None:
            return staged
        if staged is not None and self.runner.failure is None:
            self.runner.look()
        return self.runner.error() or staged

    def is_compared(self) -> bool:
        """True if all ranks are known to have made the same calls, or something is known to have gone wrong."""
        if self.runner is None or self.error() is not None:
            return True
        self.runner.look()
        return self.runner.is_compared()

    def finish(self) -> None:
        """Return when the GPU has done all calls, and it is known how they went."""
        try:
            self.staging.drain()
        except DeviceError as error:
            raise self.lost(error) from error
        while self.runner is not None and self.runner.failure is None and self.runner.look():
            time.sleep(_LOOK_AGAIN_SECONDS)

    def abort(self) -> None:
        if self.runner is not None:
            self.runner.fail(RankLost(f"{self.runner.engine.label} was aborted here"))
        self.staging.engine.abort()

    def close(self, seconds: float) -> None:
        if self.runner is not None:
            self.runner.leave(seconds)
        self.staging.close(seconds)
        if self.runner is not None:
            self.runner.close(seconds)
        self.remembered.clear()


def has_alike(promise: Collective) -> bool:
    """True if every rank has the same arrays, and gets a result."""
    return not promise.rooted or promise.ends == WHOLE


def _takes_turns(runner: Runner, device: GpuDriver, context: int, timeout: float | None) -> bool:
    """True if the processes have the GPU one after the other: then even the shortest kernel takes long."""
    engine, word, batch = runner.engine, runner.memory.arena, Batch()
    batch.fold("sum", "int32", [word, word], [word], 1, 1)
    with device.within(context):
        stream, lane, made = device.new_stream(), device.lane(context), batch.made(device)
        lane.launch(made, 0, stream, True)
        device.synchronize(stream)
        engine.run(Call("barrier", timeout=timeout), False)
        # Long enough that all ranks do it at the same time.
        began, many = time.monotonic(), 0
        while time.monotonic() < began + _TRIAL_SECONDS:
            lane.launch(made, 0, stream, True)
            device.synchronize(stream)
            many += 1
        seconds = np.array([_TRIAL_SECONDS / many])
    # The slowest rank decides for all.
    engine.run(Call("all_reduce", output=seconds, op=OPS["max"], timeout=timeout), False)
    return bool(seconds[0] > _TURN_SECONDS)
