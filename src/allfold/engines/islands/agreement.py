"""Checks that all ranks make the same call, before its data are used.

The ranks of an island compare their calls in shared memory, and the leaders of the islands compare theirs by messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import _native
from ...errors import MismatchError
from ...fabrics import tags
from ...fabrics.fabric import FOREVER
from ...wording import name_ranks
from ..engine import Call
from ..signature import PACKED_BYTES, Signature, difference
from .crossing import ALONG_BYTES, most_bytes
from .job import Job
from .roster import Roster, Shared

_NUMBER_BYTES = 8
_MOST_KNOWN = 1000
DIGEST_BYTES = 16
_SAID_BYTES = DIGEST_BYTES + PACKED_BYTES


Difference = tuple[int, bytes, bytes]
"""The rank of another leader whose call differs, its header, and this rank's for the same call, which may be an earlier one."""


class Fronts:
    """The headers that one leader exchanges with the others in every call, with its signature and small data.

    The extension posts the receives of the next headers ahead, each long enough for the longest. So whatever calls ranks
    make, a header is received as a header, and a small call crosses in one message. It also sends and receives those of
    calls that it makes itself.
    """

    def __init__(self, links: _native.PeerLinks, peers: Sequence[int]) -> None:
        self._links, self.peers = links, list(peers)
        most = most_bytes(len(self.peers) + 1)
        links.lead(self.peers, _SAID_BYTES, DIGEST_BYTES, min(ALONG_BYTES, most), most, tags.FRONT, tags.LONG)

    def send(self, job: Job) -> None:
        """Send the header of a call to all other leaders."""
        self._links.send_fronts(job.digest + job.packed, job.deadline)

    def difference(self, job: Job, peer: int) -> Difference | None:
        """Wait for a peer's header for this call: whether it differs, or one of earlier calls did."""
        came, own = self._links.receive_front(peer, job.deadline), job.digest + job.packed
        if not isinstance(came, bytes):
            return came
        return None if came[:DIGEST_BYTES] == job.digest else (peer, came, own)

    def refill(self) -> None:
        """At the end of a call, post the receives of later headers."""
        self._links.refill()


class Agreement:
    """One rank's end. `fronts`: the headers that leaders exchange; None on other ranks."""

    def __init__(self, roster: Roster, shared: Shared, fronts: Fronts | None) -> None:
        self._roster, self._shared, self.fronts = roster, shared, fronts
        self._known: dict[Signature, tuple[bytes, bytes]] = {}

    def describe(self, job: Job) -> None:
        """Compute the bytes that are sent and compared. The call must have its number."""
        job.take(self._roster.rank, self._roster.size)
        known = self._known.get(job.signature)
        if known is None:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            digest = job.signature.digest.to_bytes(DIGEST_BYTES - _NUMBER_BYTES, "little")
            known = self._known[job.signature] = job.signature.packed(), digest
        job.packed, digest = known
        job.digest = digest + job.number.to_bytes(_NUMBER_BYTES, "little")
        self._shared.collectives.native.part_of(job.digest + job.packed)

    # Inside the island -----------------------------------------------------------------------------------------------

    def agree(self, job: Job) -> None:
        """Raise `MismatchError` unless all ranks of the island make the same call."""
        if len(self._roster.mine) > 1:
            self.run_first(job, Call("barrier", timeout=FOREVER))

    def run_first(self, job: Job, step: Call) -> None:
        """Run a first collective of a call inside the island. Its ranks may turn out to make different calls."""
        try:
            self._shared.collectives.run(step, False)
        except MismatchError as error:
            self._explain(job, error)

    def _explain(self, job: Job, error: MismatchError) -> None:
        """Raise the error for an island whose ranks make, or made, different calls."""
        found = self._shared.collectives.native.first_difference()
        calls = {rank: one for rank, one in zip(self._roster.mine, found, strict=True) if one is not None}
        if len(set(calls.values())) < 2:  # they are the same: the error came from elsewhere, with its words
            raise error
        number = min(number for number, _ in calls.values())
        self._disagree(number or job.number, {rank: Signature.unpacked(packed) for rank, (_, packed) in calls.items()})

    # Between islands -------------------------------------------------------------------------------------------------

    def send(self, job: Job) -> None:
        """Send the header of a call to the other leaders. Does nothing unless this rank is a leader."""
        if self.fronts is not None:
            self.fronts.send(job)

    def compare(self, job: Job) -> None:
        """Raise `MismatchError` unless the leaders of the other islands make the same call. Does nothing unless this rank is
        a leader."""
        if self.fronts is not None:
            for peer in self.fronts.peers:
                if (difference := self.fronts.difference(job, peer)) is not None:
                    self.explain(job, difference)

    def explain(self, job: Job, trouble: MismatchError | Difference) -> None:
        """Raise the error of a call that failed natively: the ranks of this island differ, or this leader differs from
        another one."""
        if isinstance(trouble, MismatchError):
            return self._explain(job, trouble)
        peer, said, own = trouble
        headers = {peer: said, self._roster.rank: own}
        number = int.from_bytes(own[DIGEST_BYTES - _NUMBER_BYTES : DIGEST_BYTES], "little")
        self._disagree(number, {rank: Signature.unpacked(one[DIGEST_BYTES:]) for rank, one in headers.items()})

    def prepare_next(self) -> None:
        """At the end of a call, post the receives of later headers."""
        self._shared.collectives.native.part_of(None)
        if self.fronts is not None:
            self.fronts.refill()

    def _disagree(self, number: int, calls: dict[int, Signature]) -> None:
        what = difference(calls)
        if len(set(calls.values())) == 1:
            ranks = name_ranks(sorted(calls))
            what = f"mismatched calls: {ranks} have made different numbers of calls before this one"
        raise MismatchError(f"{what} (call {number} of {self._roster.label})")
