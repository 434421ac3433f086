"""The two levels of a call: collectives inside the island of this rank, and messages to the others."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from .... import _native
from ....collectives import COLLECTIVES
from ....division import Division, Lengths
from ....errors import ScheduleError
from ....fabrics.fabric import FOREVER
from ....ops import OPS
from ....programs.check_messages import goes_along
from ....programs.messages import IslandCall, MessagePrograms
from ....proved import TwoLevel, message_programs_of, two_level_programs_of
from ....registry import AnyAlgorithm
from ...buffer import Flat
from ...engine import Call
from ..agreement import Agreement
from ..crossing import ALONG_BYTES, Crossing
from ..job import Job
from ..roster import Roster, Shared
from ..wire import Memory, MessageRun, PeerLinks, folding
from .native import ANY_LENGTH, NativeRuns, Stage

_AHEAD = 2  # segments on the wire at once
_BROADCAST_BYTES = 4 << 20  # of a segment; all of them begin at once, since nothing is computed first


class Levels:
    """The island of this rank, and its connections to the others."""

    def __init__(
        self,
        roster: Roster,
        shared: Shared,
        links: PeerLinks,
        native: NativeRuns,
        agreement: Agreement,
        crossing: Crossing,
    ) -> None:
        """`native`: runs programs in the extension."""
        self.native = native
        self.roster, self.shared, self.links, self.agreement = roster, shared, links, agreement
        self.rank, self.size = roster.rank, roster.size
        self.islands, self.mine, self.local = roster.islands, roster.mine, roster.local
        self.is_in_order = roster.is_in_order
        self._groups = tuple(map(tuple, roster.islands))
        self._memory = Memory()
        self._scratch: dict[str, Flat] = {}
        self._along: dict[tuple[str, int, str, str], MessagePrograms | None] = {}
        self._known: dict[tuple[str, int, str, str], TwoLevel] = {}
        self.cross_by(crossing)

    def cross_by(self, crossing: Crossing) -> None:
        """Use other rules. Every rank calls this between two calls, with the same rules."""
        self.crossing = crossing
        self.most_small = crossing.leaders(len(self.islands)) if len(self.islands) > 1 else -1
        self.native.direct.most_bytes = max(0, self.most_small)
        self.native.direct.forget()

    # Programs ---------------------------------------------------------------------------------------------------------

    def schedule(self, job: Job) -> tuple[str, dict[str, Any]]:
        """The algorithm of a call that names none, and its parameters."""
        commutative = job.call.op is None or job.call.op.commutative
        return self.crossing.schedule(job.call.collective, self.islands, job.bytes, commutative=commutative)

    def algorithm(self, job: Job) -> str:
        """The name of the algorithm that a call follows."""
        return self.schedule(job)[0] if job.named is None else job.named.algorithm

    def _programs(
        self, collective: str, root: int, name: str, parameters: dict[str, Any], ahead: int | None
    ) -> TwoLevel:
        key = collective, root, name, parameters.get("across", "")  # the other parameters follow from these
        if key not in self._known:
            by = tuple((name, value) for name, value in parameters.items() if name != "groups")
            rooted = COLLECTIVES[collective].rooted
            self._known[key] = two_level_programs_of(
                collective, name, root if rooted else None, self._groups, by, ahead
            )
        return self._known[key]

    def _smallest(self, collective: str) -> TwoLevel:
        """The programs of the smallest calls of a collective, without a root."""
        return self._programs(collective, 0, *self.crossing.schedule(collective, self.islands, 0), _AHEAD)

    # Small calls, whose data are sent with the leaders' headers --------------------------------------------------------

    def _made_along(self, job: Job) -> MessagePrograms | None:
        """The programs of a call whose data are sent with the leaders' headers; None for other calls."""
        call, name = job.call, job.call.collective
        most = self.most_small if name == "all_reduce" else ALONG_BYTES
        if job.named is not None or call.counts is not None or (name != "barrier" and job.bytes > most):
            return None
        algorithm, parameters = self.schedule(job)
        if "groups" not in parameters:
            return None
        key = name, call.root, algorithm, parameters.get("across", "")
        if key not in self._along:
            made = self._programs(name, call.root, algorithm, parameters, _AHEAD).programs
            self._along[key] = made if goes_along(made, self.roster.leaders) else None
        return self._along[key]

    # Calls in general -------------------------------------------------------------------------------------------------

    def stages(self, job: Job) -> list[Stage]:
        """The parts of a call's array, and what is done with each."""
        call = job.call
        if job.named is not None:
            return self._between_all(job, job.named)
        if call.counts is not None:
            return self._between_all(job, "driver" if COLLECTIVES[call.collective].rooted else "direct")
        name, parameters = self.schedule(job)
        return self._in_two_levels(job, name, parameters) if "groups" in parameters else self._between_all(job, name)

    def _between_all(self, job: Job, algorithm: AnyAlgorithm) -> list[Stage]:
        """Follow the schedule of an algorithm, with messages between all ranks."""
        promise = COLLECTIVES[job.call.collective]
        made = message_programs_of(promise.name, algorithm, self.size, job.call.root if promise.rooted else None)
        return [Stage(made, 0, job.elements, job.elements, 0, starts=True)]

    def _in_two_levels(self, job: Job, name: str, parameters: dict[str, Any]) -> list[Stage]:
        promise, root = COLLECTIVES[job.call.collective], job.call.root
        spreads = promise.in_place and promise.starts.root_only
        ahead = None if spreads else _AHEAD
        two = self._programs(promise.name, root, name, parameters, ahead)
        elements = job.elements
        if not promise.in_place:
            return [Stage(two.programs, 0, elements, elements, ahead)]
        chunks = two.programs.schedule.chunks if two.programs.even else 1
        whole = elements // chunks * chunks
        bytes = _BROADCAST_BYTES if spreads else self.crossing.segment
        segment = max(1, bytes // job.dtype.itemsize // chunks) * chunks
        if promise.round_trip and not two.programs.even:
            segment = max(1, whole)  # leaders send small arrays in one piece
        stages = [Stage(two.programs, 0, whole, segment, ahead)] if whole or whole == elements else []
        if whole < elements:  # the few elements that do not fill equal chunks
            rest = self._smallest(promise.name)
            if rest.expression != two.expression:
                raise ScheduleError(
                    f"{promise.name}: {name} and {rest.programs.schedule.title} do not give the same bits"
                )
            stages.append(Stage(rest.programs, whole, elements - whole, elements - whole, ahead))
        return stages

    def plan(self, job: Job) -> _native.CallPlan:
        """The plan by which the extension makes calls like this one."""
        made = self._made_along(job)
        if made is None:
            stages = self.stages(job)
        else:
            elements = 0 if job.call.collective in ANY_LENGTH else job.elements
            stages = [Stage(made, 0, elements, max(1, elements), 0)]
        bytes = max(self._work_bytes(job, one) for one in stages)
        slots = min(_AHEAD + 1, max(len(one.parts) for one in stages)) if bytes else 0
        work = [self.scratch(f"work {slot}", bytes) for slot in range(slots)]
        # A small call compares as it goes: nobody waits for a rank that it needs nothing from.
        along = made is not None
        waits = not along and self._waits_for_leader(job, stages[0])
        return self.native.plan(job, stages, work, along=along, waits_for_leader=waits)

    def runs(self, job: Job, stage: Stage) -> list[MessageRun]:
        """The runs of a stage, segment by segment, in Python."""
        if not COLLECTIVES[job.call.collective].in_place or stage.starts:
            return [self._run(job, stage, job.input, job.output, job.elements, 0)]
        array = job.output
        assert array is not None
        return [
            self._run(job, stage, None, array[first : first + elements], elements, number % (_AHEAD + 1))
            for number, (first, elements) in enumerate(stage.parts)
        ]

    def _work_bytes(self, job: Job, stage: Stage) -> int:
        """The length of a segment's work slots, if they must be in shared memory because an island uses them."""
        slots, longest = stage.made.work_slots[self.rank], min(stage.segment, stage.elements)
        return 0 if stage.starts else slots * -(-longest // stage.made.schedule.chunks) * job.dtype.itemsize

    def _run(
        self, job: Job, stage: Stage, input: Flat | None, output: Flat | None, elements: int, slot: int
    ) -> MessageRun:
        """A run of the programs of all ranks."""
        bytes = self._work_bytes(job, stage)

        def inside(call: IslandCall, input: Flat | None, output: Flat | None) -> None:
            self._inside(job, call, input, output)

        return MessageRun(
            stage.made,
            self.rank,
            range(self.size),
            self.links,
            self._memory,
            job.tag(),
            input,
            output,
            _division(self.size, stage.made.schedule.chunks, elements, job.call.counts),
            job.dtype,
            folding(job.call.op, job.dtype, self.size),
            job.remaining,
            inside,
            self.scratch(f"work {slot}", bytes) if bytes else None,
        )

    def alone(self, job: Job) -> None:
        """Make a call of a group whose ranks are all in one island, as a collective of the island."""
        call = job.call._replace(timeout=FOREVER)
        if job.input is not None or job.output is not None:
            call = call._replace(input=job.input, output=job.output, dtype=job.dtype.name)
        self.agreement.run_first(job, call)

    def _inside(self, job: Job, call: IslandCall, input: Flat | None, output: Flat | None) -> None:
        """Make a collective of this island."""
        self.shared.collectives.run(self._call_inside(job, call, input, output), False)

    def _call_inside(self, job: Job, call: IslandCall, input: Flat | None, output: Flat | None) -> Call:
        """A collective of this island. An average is a sum here; the fold with the last contribution divides.

        It has no timeout of its own: the thread that watches over the whole call ends it.
        """
        op = job.call.op if COLLECTIVES[call.name].takes_op else None
        op = OPS["sum"] if op is not None and op.averages else op
        dtype = None if input is None and output is None else job.dtype.name
        return Call(call.name, input=input, output=output, op=op, root=call.root or 0, timeout=FOREVER, dtype=dtype)

    def compare(self, job: Job, stage: Stage) -> None:
        """Let the leader of the island compare the call with the other leaders' calls."""
        self.agreement.compare(job)
        if self._waits_for_leader(job, stage):
            self.shared.collectives.run(Call("barrier", timeout=FOREVER), False)

    def _waits_for_leader(self, job: Job, stage: Stage) -> bool:
        """True if no rank of the island may continue before its leader has compared the calls. In a call with a root, a rank
        may have nothing else to wait for, and would miss a mismatch."""
        return COLLECTIVES[job.call.collective].rooted and len(self.mine) > 1 and not stage.starts

    def scratch(self, name: str, bytes: int) -> np.ndarray[Any, Any]:
        """Shared memory for one purpose, reused by later calls."""
        known = self._scratch.get(name)
        if known is None or known.size < bytes:
            known = self._scratch[name] = self.shared.messages.empty(bytes)
            self.native.direct.forget()  # plans refer to the old memory
        return known[:bytes]


@lru_cache(maxsize=64)  # programs repeat calls of the same lengths
def _division(ranks: int, chunks: int, elements: int, counts: Lengths | None) -> Division:
    return Division(ranks, chunks, elements, counts)
