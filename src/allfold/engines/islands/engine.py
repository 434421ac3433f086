"""The engine of ranks on several hosts: shared memory inside an island, the fabric's messages between islands.

Calls are made one after the other: by the thread that calls, or in the background by one of the engine's own. The
thread that watches over the run ends a call whose time is up, that a signal interrupts, or that needs a rank that is
gone: it cuts the fabric and aborts the island, which ends all waits.

Before data are used, the ranks of an island compare the call that they make in shared memory, and the first rank of
every island compares it with those of the others. Data travel with tags that depend on the call, so that the data of
different calls never meet.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ... import _native
from ...collectives import COLLECTIVES
from ...errors import AllfoldError, CollectiveTimeout, MismatchError, RankLost, UsageError
from ...fabrics import tags
from ...fabrics.fabric import FOREVER, Disconnected, Fabric
from ...ops import OPS, Op
from ...wording import name_ranks
from ..arrays import Flat
from ..engine import FAILURES, Call, Engine, Entry, Event, Network, name_group
from ..last_words import note_ending
from ..shared_memory.engine import SharedMemory
from ..shared_memory.flight import keep
from ..shared_memory.members import number_of
from ..signature import PACKED_BYTES, Signature, check_groups, difference
from . import ways
from .crossing import BUILT_IN, Crossing
from .flight import Flight
from .fronts import DIGEST_BYTES, Front, Fronts
from .job import NUMBER_BYTES, Job
from .letters import Letters
from .post import Frame, News, Progress
from .probe import probe
from .recorder import Recorder, clock_shift
from .wire import Links, Memory
from .world import GRACE_SECONDS, World

_ANSWER_SECONDS = 0.5  # how long to ask the others how far they are
_CUTTING_SECONDS = 5.0  # how long an error waits until all connections are cut; a moment, unless the machine is busy
_EXPLAINING_SECONDS = 5.0  # how long ranks that differ wait for each other, to say in what

_ALL_REDUCE, _REDUCE, _BROADCAST = (list(COLLECTIVES).index(name) for name in ("all_reduce", "reduce", "broadcast"))
_QUICK_OPS = {op.name for op in OPS.values() if op.commutative and not op.averages}

_HOLDS_UP = {  # by progress of a rank: what it has not done, if others wait for it
    Progress.NOT_MADE: "did not come",
    None: "did not answer",
    Progress.IN_OPERATION: "did not return from the operation",
}

_worlds: set[World] = set()  # those that this process has not left
_processes: set[int] = set()  # this one, once it has been in a world; a forked child has another number


@atexit.register
def _end_all() -> None:
    """Say goodbye. Threads may still wait inside a fabric, which cannot be told to stop."""
    if os.getpid() in _processes:
        note_ending()
        for world in list(_worlds):
            world.end()
        _native.park_other_threads()


class Islands(Engine):
    """One rank's end of a group that spans islands."""

    def __init__(
        self,
        world: World,
        ranks: Sequence[int],
        island: SharedMemory,
        inner: SharedMemory,
        fabric: Fabric,
        timeout: float,
        label: str,
        number: int,
    ) -> None:
        """`ranks`: the group's ranks by their numbers in the world. `island` and `inner`: its ranks of this island,
        twice, so that the users' messages and those of collectives do not meet."""
        self.world, self.ranks = world, list(ranks)
        self.rank, self.size = self.ranks.index(world.rank), len(ranks)
        self.label, self.timeout, self.number = label, timeout, number
        self.island, self.fabric = inner, fabric
        self._outer = island
        inner.native.sleep_early()
        groups = [[self.ranks.index(rank) for rank in one if rank in self.ranks] for one in world.islands]
        self.islands = sorted(sorted(group) for group in groups if group)
        self.island_ranks = next(group for group in self.islands if self.rank in group)
        self.local = {rank: number for number, rank in enumerate(self.island_ranks)}
        leaders = [group[0] for group in self.islands]
        self.links = Links(fabric, inner.messages, self.local, FOREVER)
        others = [rank for rank in leaders if rank != self.rank]
        try:
            self.fronts = Fronts(self.links, others) if self.rank in leaders else None
        except Disconnected as error:
            who = "a rank" if error.peer is None else world.where([error.peer], self.ranks)
            raise world.gone(self.ranks) or RankLost(f"{who} cannot be reached any more: {error} ({label})") from None
        shape = tuple(map(len, self.islands))
        self.cross_by(
            next((one.crossing for one in world.tuned if (one.hosts, one.fabric) == (shape, fabric.name)), BUILT_IN)
        )
        self.in_rank_order = [rank for group in self.islands for rank in group] == list(range(self.size))
        self.letters = Letters(self, island.messages)
        self.messages = self.letters
        self.answers: dict[int, dict[int, Progress]] = {}  # by call that is asked about, and rank
        self.left_after: dict[int, int] = {}  # by rank of the world: how many calls it had made when it left
        self._error: AllfoldError | None = None
        self._closed = False
        self._failed = threading.Event()
        self._cut_off = threading.Event()  # after a failure: no array of a caller is used any more
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._calls, self._groups = 0, 0
        self.attempt, self._was_shrunk = 0, False  # how often this rank has tried to shrink it, and whether it has
        self._performs = 0  # the thread that makes a call
        self._performed: Job | None = None  # that call
        self._open: list[Job] = []
        self._signatures: dict[Signature, tuple[bytes, bytes]] = {}
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.memory = Memory()
        self._scratch: dict[str, Flat] = {}
        self._flight, self._flight_is_kept = Flight(), False
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name="allfold calls", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None).atexit = False
        _worlds.add(world)
        _processes.add(os.getpid())
        world.add(self)
        world.patience = timeout
        # Nobody makes calls, or leaves, while another rank still connects: it would find the connection closed.
        try:
            fabric.barrier(tags.JOIN, timeout)
        except Disconnected as error:
            raise self._explained(error) from None

    def cross_by(self, crossing: Crossing) -> None:
        """Every rank calls it with the same, between two calls."""
        self.crossing, self.most_small = crossing, crossing.leaders(len(self.islands))

    # Calls -----------------------------------------------------------------------------------------------------------

    def entry(self, run: Entry, vouched: bool = False) -> Entry:
        """A way for small all_reduces. Every line of Python counts there, since other ranks have used the caches."""
        native = self.island.native

        def enter(
            code: int,
            source: Any,
            target: Any,
            op: Any,
            root: int,
            algorithm: Any,
            async_op: bool,
            timeout: float | None,
            dtype: str | None,
        ) -> Any:
            usual = code == _ALL_REDUCE and algorithm is None and not async_op and type(op) is str and op in _QUICK_OPS
            usual = usual and (vouched or type(target) is np.ndarray)  # others may have to be copied first
            usual = usual and (timeout is None or (type(timeout) is float and timeout > 0))
            if usual and _is_within(target, self.most_small):
                reduce = native.prepared(_REDUCE, target, op, 0, dtype, vouched)
                broadcast = native.prepared(_BROADCAST, target, None, 0, dtype, vouched)
                if reduce is not None and broadcast is not None:
                    call = Call("all_reduce", output=target, op=OPS[op], timeout=timeout, dtype=dtype)
                    return self._begin(call, False, (reduce, broadcast))
            return run(code, source, target, op, root, algorithm, async_op, timeout, dtype)

        return enter

    def run(self, call: Call, async_op: bool) -> Job | None:
        return self._begin(call, async_op, None)

    def _begin(self, call: Call, async_op: bool, prepared: Sequence[_native.Prepared] | None) -> Job | None:
        job = Job(self, call, self.timeout if call.timeout is None else call.timeout, prepared)
        if prepared is None:
            job.take()
        try:
            self.check_open(call.collective, range(self.size))
        except RankLost as error:
            # A rank has left. Others may wait in this call, and must not take our own end for the cause.
            if self._error is None:
                self._give_up(error)
            raise
        with self._lock:
            self._calls += 1
            job.number = self._calls
            here = not async_op and not self._open
            self._open.append(job)
            if here:
                self._turn.acquire()  # free, or about to be: before a queued call can take it
            else:
                job.bell = threading.Event()
                self._jobs.put(job)
        if async_op:
            if self._error is not None:  # it failed meanwhile
                job.end(self._error)
                job.release()
            return job
        if here:
            self.perform(job)
        elif job.bell is not None:
            try:
                job.bell.wait()
            except BaseException as error:  # the caller has its arrays back, so nobody may use them any more
                why = f"{type(error).__name__} ({self.label})"
                self._give_up(RankLost(f"rank {self.rank} gave up {call.collective}: {why}"))
                raise
        self._raise(job.error)
        return None

    def _raise(self, error: BaseException | None) -> None:
        if isinstance(error, AllfoldError):
            error = type(error)(*error.args)
            self.failed(error)
        if error is not None:
            raise error

    def failed(self, error: BaseException) -> None:
        """Attach the last calls of this rank to the first error; the other ranks do the same with theirs."""
        if isinstance(error, FAILURES) and not self._flight_is_kept:
            self._flight_is_kept = True
            number = (self.world.identity + self.number) % 2**64
            keep(error, self.rank, self.label, number, self.size, lambda: [self._own_flight()])

    def known(self, signature: Signature) -> tuple[bytes, bytes]:
        """A signature as bytes, and its digest."""
        known = self._signatures.get(signature)
        if known is None:
            if len(self._signatures) > 1000:
                self._signatures.clear()
            digest = signature.digest.to_bytes(DIGEST_BYTES - NUMBER_BYTES, "little")
            known = self._signatures[signature] = signature.packed(), digest
        return known

    def wait(self, ticket: Job, timeout: float | None) -> bool:
        assert ticket.bell is not None
        if not ticket.bell.wait(timeout):
            return False
        self._raise(ticket.error)
        return True

    def calls(self) -> int:
        return self._calls

    def hosts(self) -> list[list[int]]:
        return self.islands

    def network(self, by_size: bool = False) -> Network:
        return probe(self, by_size)

    @property
    def address(self) -> str | None:
        return self.fabric.address

    def start_trace(self) -> None:
        self.island.native.start_trace()
        self.links.recorder = Recorder(self)

    def stop_trace(self) -> list[Event]:
        recorder, self.links.recorder = self.links.recorder, None
        inside = self.island.stop_trace()
        if recorder is None:
            return []
        self.run(Call("barrier"), False)  # nothing else is under way after it
        return recorder.events(inside, clock_shift(self))

    def look(self, now: float) -> None:
        """End calls whose time is up; called by the thread that watches."""
        for job in list(self._open):
            if now > job.deadline and not job.is_over and not job.is_late:
                job.is_late = True
                threading.Thread(target=self._time_out, args=(job,), daemon=True).start()

    def interrupt(self) -> None:
        """A signal wants to end the call that the main thread makes."""
        if self._open:
            name = self._open[0].call.collective
            self._give_up(RankLost(f"rank {self.rank} was interrupted in {name} ({self.label})"))

    def _time_out(self, job: Job) -> None:
        name, limit = job.call.collective, job.limit
        call = f"call {job.number} of {self.label}"
        far = self._ask(job.number)
        if job.is_over or self._error is not None:  # meanwhile, and then not everybody was asked to the end
            return
        by = {one: self.world.where([rank for rank in far if far[rank] is one], self.ranks) for one in far.values()}
        facts = [f"{by[one]} {words}" for one, words in _HOLDS_UP.items() if one in by]
        what = " and ".join(facts) or f"every rank has come, but these were not done: {by[Progress.MADE]}"
        self._give_up(
            RankLost(f"rank {self.rank} gave up {name} after {limit:g} s: {what} ({call})"),
            CollectiveTimeout(f"{name}: {what} within {limit:g} s ({call})"),
        )

    def _ask(self, number: int) -> dict[int, Progress | None]:
        """How far every rank is with a call; None for ranks that do not answer."""
        answers = self.answers[number] = {self.rank: self.progress(number)}
        others = [rank for rank in range(self.size) if rank != self.rank]
        self.world.post.send_all(
            (self.ranks[rank] for rank in others), Frame(News.ASKED, self.number, 0, (number, 0, 0))
        )
        deadline = time.monotonic() + _ANSWER_SECONDS
        while len(answers) < self.size and time.monotonic() < deadline and not self._failed.wait(0.01):
            pass
        del self.answers[number]
        return {rank: answers.get(rank) for rank in range(self.size)}

    def progress(self, number: int) -> Progress:
        """How far this rank is with a call."""
        if number > self._calls:
            return Progress.NOT_MADE
        job = self._performed
        if job is not None and job.number <= number and _is_in_operation(self._performs):
            return Progress.IN_OPERATION
        return Progress.MADE if any(job.number <= number for job in list(self._open)) else Progress.DONE

    # Comparing -------------------------------------------------------------------------------------------------------

    def perform(self, job: Job) -> None:
        """Make one call, when its turn has come. One that is made by the thread that calls has it already."""
        if job.bell is not None:
            self._turn.acquire()
        self._performs, self._performed = threading.get_ident(), job
        try:
            if self._error is not None:
                raise type(self._error)(*self._error.args)
            noted = self._flight.begins(job)
            if self.links.recorder is not None:
                self.links.recorder.begins(job)
            ways.perform(self, job)
            noted.ended = time.time()
            if self.fronts is not None:
                self.fronts.refill()
            job.end(None)
        except Disconnected as error:
            job.end(self._explained(error))
        except AllfoldError as error:
            better = self.better(error)
            if self._error is None:
                self._give_up(better)
            job.end(better)
        except BaseException as error:  # the user's operation raised
            what = f"{type(error).__name__}: {error} (call {job.number} of {self.label})"
            job.end(error)
            self._give_up(RankLost(f"rank {self.rank} failed in {job.call.collective}: {what}"))
        finally:
            self._performs, self._performed = 0, None
            with self._lock:
                self._open.remove(job)
            self._turn.release()
            if job.error is not None:
                self._cut_off.wait(_CUTTING_SECONDS)
            job.release()

    def inside(self, job: Job, step: Call | _native.Prepared) -> None:
        """The first collectives of a call inside the island, in which its ranks may differ."""
        try:
            if isinstance(step, Call):
                self.island.run(step, False)
            else:
                self.island.native.perform(step)
        except MismatchError as error:
            self.differ(job, error)

    def agree(self, job: Job) -> None:
        """Raise `MismatchError` unless all ranks of the island make the same call."""
        if len(self.local) == 1:
            return
        table = np.empty((len(self.local), DIGEST_BYTES), np.uint8)
        own = np.frombuffer(job.digest, np.uint8)
        self.inside(job, Call("all_gather", input=own, output=table, timeout=FOREVER))
        if any(row.tobytes() != job.digest for row in table):
            self.differ(job)

    def differ(self, job: Job, error: MismatchError | None = None) -> None:
        """The ranks of the island make different calls, and all of them know: say which."""
        job.take()
        own = np.frombuffer(job.signature.packed(), np.uint8)
        table = np.empty((len(self.local), PACKED_BYTES), np.uint8)
        try:
            # What else this engine of the island is used for are messages, and they do not mind.
            self._outer.run(Call("all_gather", input=own, output=table, timeout=_EXPLAINING_SECONDS), False)
        except AllfoldError as failure:
            raise error or failure from None
        self._disagree(
            job, {rank: Signature.unpacked(row.tobytes()) for rank, row in zip(self.island_ranks, table, strict=True)}
        )

    def compare(self, job: Job, bytes: int = 0) -> list[Front]:
        """What the leaders of the other islands say, in the order of the islands; none where this rank is no leader.

        `bytes`: of the data that they send with it.
        """
        fronts = []
        for peer in self.fronts.peers if self.fronts is not None else ():
            assert self.fronts is not None
            fronts.append(self.fronts.receive(peer, bytes, job.left()))
            if fronts[-1].digest != job.digest:
                self._disagree(job, {self.rank: job.signature, peer: fronts[-1].signature})
        return fronts

    def _disagree(self, job: Job, calls: dict[int, Signature]) -> None:
        what = difference(calls)
        if len(set(calls.values())) == 1:
            ranks = name_ranks(sorted(calls))
            what = f"mismatched calls: {ranks} have made different numbers of calls before this one"
        raise MismatchError(f"{what} (call {job.number} of {self.label})")

    # What goes wrong -------------------------------------------------------------------------------------------------

    def _is_forked(self) -> bool:
        return self.world.process != os.getpid()

    def _check_process(self, name: str) -> None:
        if self._is_forked():
            raise UsageError(f"{name}: this process was forked from a rank, whose communicators are not its own")

    def check_open(self, name: str, needed: Iterable[int]) -> None:
        self._check_process(name)
        if self._closed:
            raise UsageError(f"{name}: this communicator is closed ({self.label})")
        if self._performs == threading.get_ident():
            raise UsageError(f"{name}: called inside an operation of a call of the same communicator ({self.label})")
        if self._error is not None:
            raise type(self._error)(str(self._error))
        if self.world.lost() or self.left_after:
            # A rank that has left may have made this call before.
            ranks = [self.ranks[rank] for rank in needed]
            error = self.gone([rank for rank in ranks if self.left_after.get(rank, 0) <= self._calls])
            if error is not None:
                raise type(error)(f"{name}: {error}")

    def fail(self, error: AllfoldError) -> None:
        """End all calls of this rank with an error; the first error stays.

        Its callers go on, and may change or drop their arrays, only when no connection sends from them or receives into
        them any more.
        """
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            jobs = list(self._open)
        self._failed.set()
        self.fabric.cut()
        for engine in (self.island, self._outer):
            engine.native.abort()  # with no word of an exception that is being handled here
        self.island.messages.close()
        self._cut_off.set()
        for job in jobs:
            if job is not self._performed:  # that one ends in `perform`, whose thread may still be at its arrays
                job.end(error)
                job.release()
        self.letters.fail(error)

    def gone(self, ranks: Sequence[int]) -> AllfoldError | None:
        """The error of a call that needs these ranks of the world, if one of them is lost, or has left this group."""
        if (error := self.world.gone(ranks)) is not None:
            return error
        left = [self.ranks.index(rank) for rank in ranks if rank in self.left_after]
        which = f"{self.world.where(left, self.ranks)} {'has' if len(left) == 1 else 'have'} left"
        return RankLost(f"{which} {self.label}{self.world.why(ranks)}") if left else None

    def ended(self, source: int | None) -> AllfoldError | None:
        """The error of a receive from this rank of the group, or from any, if nothing more can come."""
        if self._error is not None or not (self.world.lost() or self.left_after):
            return self._error
        sources = [rank for rank in self.ranks if rank != self.world.rank] if source is None else [self.ranks[source]]
        return self.gone(sources) if all(self.gone([rank]) for rank in sources) else None

    def somebody_left(self, who: int) -> None:
        """A rank has left the run, or this group: calls that it has not made cannot end."""
        self.letters.fail_what_cannot_come()
        done = self.left_after.get(who, 0)
        if any(job.number > done for job in list(self._open)):
            timer = threading.Timer(GRACE_SECONDS, self._fail_after, (done, self.gone([who])))
            timer.daemon = True
            timer.start()

    def _fail_after(self, calls: int, error: AllfoldError) -> None:
        if any(job.number > calls for job in list(self._open)):
            self._give_up(error)

    def better(self, error: AllfoldError) -> AllfoldError:
        """The news that explains an error, if it comes soon; else the error."""
        # After a failure even the channels of the island are closed, and say so.
        if isinstance(error, MismatchError) or (isinstance(error, UsageError) and self._error is None):
            return error
        if self._failed.wait(GRACE_SECONDS) and self._error is not None:
            return self._error
        if (known := self.gone(self.ranks)) is not None or not isinstance(error, RankLost):
            return known or error
        # The island's engine has numbers of its own.
        others = [rank for rank in self.island_ranks if rank != self.rank]
        return RankLost(f"of {self.world.where(others, self.ranks)}, not all are there any more ({self.label})")

    def _explained(self, error: Disconnected) -> AllfoldError:
        """The news that explains why a connection has ended, if it comes soon; else, that it has."""
        if error.peer is not None:
            self.world.probe(next(island for island in self.world.islands if self.ranks[error.peer] in island))
        if not self._failed.wait(GRACE_SECONDS):
            self.world.lose_broken(0.0)  # if its process is gone, all groups hear of it
        if self._error is not None:
            return type(self._error)(*self._error.args)
        who = "a rank" if error.peer is None else self.world.where([error.peer], self.ranks)
        lost = RankLost(f"{who} cannot be reached any more: {error} ({self.label})")
        self._give_up(lost)
        return lost

    def _give_up(self, told: AllfoldError, own: AllfoldError | None = None) -> None:
        """Fail on all other ranks, and then here: the caller may end this process as soon as it has the error."""
        self.world.tell(self.ranks, self.number, told)
        self.fail(own or told)

    # Memory, groups, life --------------------------------------------------------------------------------------------

    def empty(self, bytes: int) -> np.ndarray[Any, Any]:
        return self._outer.empty(bytes)

    def scratch(self, name: str, bytes: int) -> np.ndarray[Any, Any]:
        """Shared memory for a purpose, kept for the next call."""
        known = self._scratch.get(name)
        if known is None or known.size < bytes:
            known = self._scratch[name] = self._outer.empty(bytes)
        return known[:bytes]

    def group(self, ranks: Sequence[int], timeout: float | None) -> Engine | None:
        chosen = list(ranks)
        own = np.full(self.size, -1, np.int64)
        own[: len(chosen)] = chosen
        table = np.empty((self.size, self.size), np.int64)
        self.run(Call("all_gather", input=own, output=table, timeout=timeout), False)
        self._groups += 1
        check_groups([[rank for rank in row if rank >= 0] for row in table.tolist()])
        inside = self.rank in chosen
        # The islands are divided by all of their ranks at once. Who is outside makes a group of its own, and drops it.
        here = [self.local[rank] for rank in chosen if rank in self.local] if inside else [self.local[self.rank]]
        label = name_group(self._groups, chosen, self.label)
        is_inside = len(here) == len(chosen)  # of one island: then its errors are the ones that the caller sees
        pieces = [self._outer.group(here, timeout, label if is_inside else None), self.island.group(here, timeout)]
        if not inside:
            return None
        island, inner = pieces
        assert island is not None and inner is not None
        if is_inside:
            return island
        number = number_of(self.number, self._groups, chosen)
        name = f"group {number}"
        fabric = self.fabric.another(name, chosen)
        return Islands(
            self.world, [self.ranks[rank] for rank in chosen], island, inner, fabric, self.timeout, label, number
        )

    def shrink(self, timeout: float | None) -> Engine:
        from .meeting import meet_again

        self._check_process("shrink")
        if self._closed:
            raise UsageError("shrink: this communicator is closed")
        if self._was_shrunk:
            raise UsageError("shrink: this communicator was shrunk already; shrink the one that came of it")
        cause = self._error or self.gone(self.ranks)
        self._give_up(cause or RankLost(f"rank {self.rank} shrinks {self.label}"))
        made = meet_again(self, self.timeout if timeout is None else timeout)
        self._was_shrunk = True
        return made

    def close(self, compares: bool) -> None:
        if self._closed or self._is_forked():
            return
        self._closed = True
        self._jobs.put(None)
        self._thread.join(None if self._error is None else 0.1)
        self.letters.close()
        for engine in (self.island, self._outer):
            engine.close(False)
        if self.number == 0:
            self.world.end()
            _worlds.discard(self.world)
        else:
            self.world.leave(self)

    def abort(self) -> None:
        self._check_process("abort")
        self._give_up(RankLost(f"rank {self.rank} has aborted {self.label}"))

    def flight(self) -> dict[str, Any]:
        return {**self._own_flight(), "size": self.size, "label": self.label}

    def _own_flight(self) -> dict[str, Any]:
        standing = "left" if self._closed else "open" if self._error is None else "failed"
        return self._flight.facts(self.rank, standing, self._calls)


def _is_within(array: Any, bytes: int) -> bool:
    try:
        return bool(array.nbytes <= bytes)
    except RuntimeError:  # a sparse tensor
        return False


def _is_in_operation(thread: int) -> bool:
    """Whether a thread is inside a function of the user's that folds."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not Op._call.__code__:
        frame = frame.f_back
    return frame is not None


def _work(jobs: queue.SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        if not job.is_over:
            job.engine.perform(job)
        del job
