"""What the two levels of a call are made of: a collective inside the island, and messages of some ranks across."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....division import Division, Lengths
from ....fabrics.fabric import FOREVER
from ....ops import OPS, Op
from ....programs.messages import MessagePrograms
from ...buffer import Flat
from ...engine import Call
from ..agreement import Agreement
from ..crossing import Crossing
from ..job import Job
from ..roster import Roster, Shared
from ..wire import Folding, Memory, PeerLinks, Run, folding


class Levels:
    """The island of this rank, and its connections to the others."""

    def __init__(
        self, roster: Roster, shared: Shared, links: PeerLinks, agreement: Agreement, crossing: Crossing
    ) -> None:
        self.roster, self.shared, self.links, self.agreement = roster, shared, links, agreement
        self.rank, self.size = roster.rank, roster.size
        self.islands, self.mine, self.local = roster.islands, roster.mine, roster.local
        self.is_in_order = roster.is_in_order
        self._memory = Memory()
        self._scratch: dict[str, Flat] = {}
        self.cross_by(crossing)

    def cross_by(self, crossing: Crossing) -> None:
        """Every rank calls it with the same, between two calls."""
        self.crossing, self.most_small = crossing, crossing.leaders(len(self.islands))

    def schedule(self, job: Job) -> tuple[str, dict[str, Any]]:
        """The algorithm that a call follows if it names none, and its parameters."""
        commutative = job.call.op is None or job.call.op.commutative
        return self.crossing.schedule(job.call.collective, self.islands, job.bytes, commutative=commutative)

    def algorithm(self, job: Job) -> str:
        """The name of the algorithm that a call follows."""
        return self.schedule(job)[0] if job.named is None else job.named.algorithm

    def inside(
        self,
        job: Job,
        collective: str,
        input: Flat | None,
        output: Flat | None,
        op: Op | None = None,
        root: int = 0,
    ) -> None:
        """A collective of this island. An average divides later, where the last contribution comes in.

        It has no limit of its own: whoever watches over the call ends it.
        """
        if len(self.mine) == 1:
            if input is not None and output is not None:
                output[...] = input
            return
        op = OPS["sum"] if op is not None and op.averages else op
        dtype = None if input is None and output is None else job.dtype.name
        self.shared.collectives.run(
            Call(collective, input=input, output=output, op=op, root=root, timeout=FOREVER, dtype=dtype), False
        )

    def compare(self, job: Job) -> None:
        """Let the first rank of the island compare the call with those of the others."""
        self.agreement.compare(job)

    def compare_all(self, job: Job) -> None:
        """Let no rank of the island go on before its first one has compared the call with the others.

        For calls in which a rank may have nothing to wait for: it too must hear if the ranks make different calls.
        """
        self.agreement.compare(job)
        self.inside(job, "barrier", None, None)

    def across(
        self,
        job: Job,
        made: MessagePrograms,
        ranks: Sequence[int],
        input: Flat | None,
        output: Flat | None,
        elements: int,
        tag: int | None = None,
        counts: Lengths | None = None,
    ) -> Run:
        """A message program of some of the ranks."""
        tag = job.tag() if tag is None else tag
        fold = self.folding(job)
        number = list(ranks).index(self.rank)
        memory, dtype, division = self._memory, job.dtype, Division(len(ranks), made.schedule.chunks, elements, counts)
        return Run(made, number, ranks, self.links, memory, tag, input, output, division, dtype, fold, job.left)

    def folding(self, job: Job) -> Folding:
        return folding(job.call.op, job.dtype, self.size)

    def speakers_of(self, root: int) -> tuple[list[int], int]:
        """The rank of each island that crosses in a rooted collective: the root, elsewhere the first; and that of this one."""
        speakers = [root if root in island else island[0] for island in self.islands]
        return speakers, speakers[self.islands.index(self.mine)]

    def scratch(self, name: str, bytes: int) -> np.ndarray[Any, Any]:
        """Shared memory for a purpose, kept for the next call."""
        known = self._scratch.get(name)
        if known is None or known.size < bytes:
            known = self._scratch[name] = self.shared.messages.empty(bytes)
        return known[:bytes]


def as_bytes(array: Flat) -> Flat:
    return array.reshape(-1).view(np.uint8)
