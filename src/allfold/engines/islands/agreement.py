"""Before data are used, ranks compare the call that they make.

The ranks of an island do so in shared memory, and the leader of every island compares it with those of the others.
"""

from __future__ import annotations

import numpy as np

from ... import _native
from ...errors import AllfoldError, MismatchError
from ...fabrics.fabric import FOREVER
from ...wording import name_ranks
from ..buffer import Flat
from ..engine import Call
from ..signature import PACKED_BYTES, Signature, difference
from .fronts import DIGEST_BYTES, Front, Fronts
from .job import Job
from .roster import Roster, Shared

_EXPLAINING_SECONDS = 5.0  # how long ranks that differ wait for each other, to say in what
_NUMBER_BYTES = 8
_MOST_KNOWN = 1000


class Agreement:
    """One rank's end. `fronts`: what leaders send each other; None on ranks that are no leaders."""

    def __init__(self, roster: Roster, shared: Shared, fronts: Fronts | None) -> None:
        self._roster, self._shared, self.fronts = roster, shared, fronts
        self._known: dict[Signature, tuple[bytes, bytes]] = {}

    def describe(self, job: Job) -> None:
        """Find the bytes that are sent and compared, once the call has its number."""
        job.take(self._roster.rank, self._roster.size)
        known = self._known.get(job.signature)
        if known is None:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            digest = job.signature.digest.to_bytes(DIGEST_BYTES - _NUMBER_BYTES, "little")
            known = self._known[job.signature] = job.signature.packed(), digest
        job.packed, digest = known
        job.digest = digest + job.number.to_bytes(_NUMBER_BYTES, "little")

    # Inside the island -----------------------------------------------------------------------------------------------

    def agree(self, job: Job) -> None:
        """Raise `MismatchError` unless all ranks of the island make the same call."""
        if len(self._roster.mine) == 1:
            return
        table = np.empty((len(self._roster.mine), DIGEST_BYTES), np.uint8)
        own = np.frombuffer(job.digest, np.uint8)
        self.run_first(job, Call("all_gather", input=own, output=table, timeout=FOREVER))
        if any(row.tobytes() != job.digest for row in table):
            self._explain(job)

    def run_first(self, job: Job, step: Call | _native.Prepared) -> None:
        """Run one of the first collectives of a call inside the island, in which its ranks may differ."""
        try:
            if isinstance(step, Call):
                self._shared.collectives.run(step, False)
            else:
                self._shared.collectives.native.perform(step)
        except MismatchError as error:
            self._explain(job, error)

    def _explain(self, job: Job, error: MismatchError | None = None) -> None:
        """The ranks of the island make different calls, and all of them know: say which."""
        mine = self._roster.mine
        job.take(self._roster.rank, self._roster.size)
        own = np.frombuffer(job.signature.packed(), np.uint8)
        table = np.empty((len(mine), PACKED_BYTES), np.uint8)
        try:
            self._shared.messages.run(Call("all_gather", input=own, output=table, timeout=_EXPLAINING_SECONDS), False)
        except AllfoldError as failure:
            raise error or failure from None
        self._disagree(job, {rank: Signature.unpacked(row.tobytes()) for rank, row in zip(mine, table, strict=True)})

    # Between islands -------------------------------------------------------------------------------------------------

    def send(self, job: Job, data: Flat | None = None) -> None:
        """Send the other leaders what call it is, and data with it; nothing where this rank is no leader."""
        if self.fronts is not None:
            self.fronts.send(job.digest, job.packed, job.left(), data)

    def compare(self, job: Job) -> None:
        """Raise `MismatchError` unless the leaders of the other islands make the same call; nothing where this rank is no
        leader."""
        if self.fronts is not None:
            for peer in self.fronts.peers:
                self.receive(job, peer, 0)

    def receive(self, job: Job, peer: int, bytes: int) -> Front:
        """Receive and compare the header of another island's leader. `bytes`: the length of the data in it."""
        assert self.fronts is not None
        front = self.fronts.receive(peer, bytes, job.left())
        if front.digest != job.digest:
            self._disagree(job, {self._roster.rank: job.signature, peer: front.signature})
        return front

    def prepare_next(self) -> None:
        """At the end of a call: be ready for what the leaders send in the next ones."""
        if self.fronts is not None:
            self.fronts.refill()

    def _disagree(self, job: Job, calls: dict[int, Signature]) -> None:
        what = difference(calls)
        if len(set(calls.values())) == 1:
            ranks = name_ranks(sorted(calls))
            what = f"mismatched calls: {ranks} have made different numbers of calls before this one"
        raise MismatchError(f"{what} (call {job.number} of {self._roster.label})")
