"""The two levels of a call: collectives inside the island of this rank, and messages to the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ....collectives import COLLECTIVES
from ....division import Division, Lengths
from ....errors import ScheduleError
from ....fabrics.fabric import FOREVER
from ....ops import OPS
from ....programs.check_messages import check_along
from ....programs.messages import InstructionKind, IslandCall, MessagePrograms
from ....programs.versions import OUTPUT
from ....proved import TwoLevel, two_level_programs_of
from ...buffer import Flat
from ...engine import Call
from ..agreement import Agreement
from ..crossing import Crossing
from ..job import Job
from ..roster import Roster, Shared
from ..wire import Memory, PeerLinks, Run, folding

_AHEAD = 2  # segments on the wire at once
_BROADCAST_BYTES = 4 << 20  # of a segment; all of them begin at once, since nothing is computed before
_CODES = {name: code for code, name in enumerate(COLLECTIVES)}


class Levels:
    """The island of this rank, and its connections to the others."""

    def __init__(
        self, roster: Roster, shared: Shared, links: PeerLinks, agreement: Agreement, crossing: Crossing
    ) -> None:
        self.roster, self.shared, self.links, self.agreement = roster, shared, links, agreement
        self.rank, self.size = roster.rank, roster.size
        self.islands, self.mine, self.local = roster.islands, roster.mine, roster.local
        self.is_in_order = roster.is_in_order
        self._groups = tuple(map(tuple, roster.islands))
        self._memory = Memory()
        self._scratch: dict[str, Flat] = {}
        self._along: dict[str, MessagePrograms] = {}
        self._known: dict[tuple[str, int, str, str], TwoLevel] = {}
        self.cross_by(crossing)

    def cross_by(self, crossing: Crossing) -> None:
        """Every rank calls it with the same, between two calls."""
        self.crossing = crossing
        self.most_small = crossing.leaders(len(self.islands)) if len(self.islands) > 1 else -1

    # Programs ---------------------------------------------------------------------------------------------------------

    def schedule(self, job: Job) -> tuple[str, dict[str, Any]]:
        """The algorithm that a call follows if it names none, and its parameters."""
        commutative = job.call.op is None or job.call.op.commutative
        return self.crossing.schedule(job.call.collective, self.islands, job.bytes, commutative=commutative)

    def algorithm(self, job: Job) -> str:
        """The name of the algorithm that a call follows."""
        return self.schedule(job)[0] if job.named is None else job.named.algorithm

    def _programs(
        self, collective: str, root: int, name: str, parameters: dict[str, Any], ahead: int | None
    ) -> TwoLevel:
        key = collective, root, name, parameters["across"]  # the other parameters follow from these
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

    # Calls whose messages travel with what leaders tell each other anyway ----------------------------------------------

    def goes_along(self, job: Job) -> bool:
        call = job.call
        if call.algorithm is not None:
            return False
        if call.collective == "barrier":
            return True
        # Folding island by island is allowed for an operation that is not commutative only where ranks are consecutive.
        commutes = call.op is None or call.op.commutative or self.is_in_order
        return call.collective == "all_reduce" and job.bytes <= self.most_small and commutes

    def along(self, job: Job) -> None:
        """Make such a call by its program. Inside the island its own engine compares the calls.

        It has one chunk, so a place in the program is the whole array, or a whole message. The receives are posted already.
        """
        agreement, array, arrived, fronts = self.agreement, job.output, dict[int, Flat](), self.agreement.fronts
        if job.call.op is not None and job.call.op.averages:
            agreement.agree(job)  # averages are sums inside the island
        made, bytes, is_sent = self._made_along(job.call.collective), job.bytes, False
        prepared = iter(job.prepared or ())
        for one in made.programs[self.rank]:
            kind = one.kind
            if kind is InstructionKind.COLLECTIVE:
                step = next(prepared, None) or self._call_inside(job, made.collectives[one.message], None, array)
                agreement.run_first(job, step)
            elif kind is InstructionKind.SEND:
                if not is_sent:  # what the first carries is for all
                    agreement.send(job, None if array is None else array.view(np.uint8))
                is_sent = True
            elif kind is InstructionKind.FOLD:
                if array is not None:
                    sources = [array if place.space == OUTPUT else arrived[place.at] for place in one.sources]
                    folding(job.call.op, job.dtype, self.size)(sources, array, one.complete)
            elif fronts is not None and kind is InstructionKind.AWAIT:
                peer = made.messages[one.message].source
                front = agreement.receive(job, peer, bytes)
                arrived[one.message] = fronts.data(front, peer, bytes, job.left()).view(job.dtype.carrier)
            elif fronts is not None and kind is InstructionKind.SENT:
                fronts.sent(job.left())

    def _made_along(self, collective: str) -> MessagePrograms:
        made = self._along.get(collective)
        if made is None:
            made = self._smallest(collective).programs
            check_along(made, self.roster.leaders)
            self._along[collective] = made
        return made

    @cached_property
    def small_steps(self) -> list[tuple[int, bool, int]]:
        """The collectives of this rank's island in a small all_reduce: code, whether it reduces, and root."""
        made = self._made_along("all_reduce")
        calls = [
            made.collectives[one.message] for one in made.programs[self.rank] if one.kind == InstructionKind.COLLECTIVE
        ]
        # The only rank of an island makes none. They are prepared all the same: this checks the array and the operation.
        calls = calls or [IslandCall((self.rank,), name, 0) for name in ("reduce", "broadcast")]
        return [(_CODES[call.name], COLLECTIVES[call.name].reduces, call.root or 0) for call in calls]

    # Calls in general -------------------------------------------------------------------------------------------------

    def runs(self, job: Job, name: str, parameters: dict[str, Any]) -> Iterator[tuple[list[Run], int | None]]:
        """The runs of a call in two levels, segment by segment, and how many of them begin before one is ended."""
        promise, root = COLLECTIVES[job.call.collective], job.call.root
        spreads = promise.in_place and promise.starts.root_only
        ahead = None if spreads else _AHEAD
        two = self._programs(promise.name, root, name, parameters, ahead)
        if not promise.in_place:
            yield [self._run(job, two.programs, job.input, job.output, job.elements, 0)], ahead
            return
        array, chunks = job.output, two.programs.schedule.chunks if two.programs.even else 1
        assert array is not None
        whole = array.size // chunks * chunks
        segment = max(1, (_BROADCAST_BYTES if spreads else self.crossing.segment) // array.itemsize // chunks) * chunks
        if promise.round_trip and not two.programs.even:
            segment = max(1, whole)  # leaders cross with all they have: it is not much
        parts = [array[start : min(start + segment, whole)] for start in range(0, max(1, whole), segment)]
        if whole or whole == array.size:
            yield [self._segment(job, two.programs, part, number) for number, part in enumerate(parts)], ahead
        if whole < array.size:  # the few elements that the chunks leave
            rest = self._smallest(promise.name)
            if rest.expression != two.expression:
                raise ScheduleError(
                    f"{promise.name}: {name} and {rest.programs.schedule.title} do not give the same bits"
                )
            yield [self._segment(job, rest.programs, array[whole:], 0)], ahead

    def _segment(self, job: Job, made: MessagePrograms, part: Flat, number: int) -> Run:
        return self._run(job, made, None, part, part.size, number % (_AHEAD + 1))

    def _run(
        self, job: Job, made: MessagePrograms, input: Flat | None, output: Flat | None, elements: int, slot: int
    ) -> Run:
        """A run in two levels, with its work slots in shared memory."""
        bytes = made.work_slots[self.rank] * -(-elements // made.schedule.chunks) * job.dtype.itemsize
        work = self.scratch(f"work {slot}", bytes) if bytes else None
        return self.across(job, made, input, output, elements, work)

    def across(
        self,
        job: Job,
        made: MessagePrograms,
        input: Flat | None,
        output: Flat | None,
        elements: int,
        work: Flat | None = None,
        counts: Lengths | None = None,
    ) -> Run:
        """A run of the programs of all ranks."""

        def inside(call: IslandCall, input: Flat | None, output: Flat | None) -> None:
            self._inside(job, call, input, output)

        fold = folding(job.call.op, job.dtype, self.size)
        return Run(
            made,
            self.rank,
            range(self.size),
            self.links,
            self._memory,
            job.tag(),
            input,
            output,
            _division(self.size, made.schedule.chunks, elements, counts),
            job.dtype,
            fold,
            job.left,
            inside,
            work,
        )

    def alone(self, job: Job) -> None:
        """Make a call of a group whose ranks are all on one island: it is a collective of the island."""
        call = job.call._replace(timeout=FOREVER)
        if job.input is not None or job.output is not None:
            call = call._replace(input=job.input, output=job.output, dtype=job.dtype.name)
        self.agreement.run_first(job, call)

    def _inside(self, job: Job, call: IslandCall, input: Flat | None, output: Flat | None) -> None:
        """Make a collective of this island."""
        self.shared.collectives.run(self._call_inside(job, call, input, output), False)

    def _call_inside(self, job: Job, call: IslandCall, input: Flat | None, output: Flat | None) -> Call:
        """A collective of this island. An average divides later, where the last contribution comes in.

        It has no limit of its own: whoever watches over the call ends it.
        """
        op = job.call.op if COLLECTIVES[call.name].takes_op else None
        op = OPS["sum"] if op is not None and op.averages else op
        dtype = None if input is None and output is None else job.dtype.name
        return Call(call.name, input=input, output=output, op=op, root=call.root or 0, timeout=FOREVER, dtype=dtype)

    def compare(self, job: Job) -> None:
        """Let the first rank of the island compare the call with those of the others.

        In a call with a root, a rank may have nothing to wait for. It too must hear if the ranks make different calls: no
        rank of the island goes on before its first one has compared.
        """
        self.agreement.compare(job)
        if COLLECTIVES[job.call.collective].rooted and len(self.mine) > 1:
            self.shared.collectives.run(Call("barrier", timeout=FOREVER), False)

    def scratch(self, name: str, bytes: int) -> np.ndarray[Any, Any]:
        """Shared memory for a purpose, kept for the next call."""
        known = self._scratch.get(name)
        if known is None or known.size < bytes:
            known = self._scratch[name] = self.shared.messages.empty(bytes)
        return known[:bytes]


@lru_cache(maxsize=64)  # programs make calls of the same lengths again and again
def _division(ranks: int, chunks: int, elements: int, counts: Lengths | None) -> Division:
    return Division(ranks, chunks, elements, counts)
