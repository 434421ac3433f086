"""monitored_barrier: a barrier that reports who did not arrive. It is made of messages, so the group survives a failed one.

Every rank reports to rank 0 and waits for its verdict. The messages' tag is the number of the barrier, which increases
only when a barrier succeeds, so a rank that missed a failed barrier takes part in the next one. Receives that were
pending when a barrier failed are used by the next. A report contains the sender's attempt, and the verdict repeats it, so
that a rank does not mistake a bad verdict on an earlier attempt for the one it waits for. The errors use gloo's wording,
because people search for it.
"""

from __future__ import annotations

import time

import torch

from ..communicator.messages import Pending
from ..errors import AllfoldError
from .device import Device
from .work import GroupTimeout

_TAGS = 2**20  # barriers before a tag is used again
_REPORT, _VERDICT = (2**31 - 3 - kind * _TAGS for kind in (1, 2))


class Monitor:
    """The monitored barriers of one group, as one rank sees them."""

    def __init__(self) -> None:
        self._number = 0
        self._attempt = 0
        self._awaited: dict[int, tuple[Pending, torch.Tensor]] = {}  # by rank, what has not arrived yet

    def barrier(self, device: Device, seconds: float, wait_all_ranks: bool) -> None:
        self._attempt += 1
        if device.rank == 0:
            self._collect(device, seconds, wait_all_ranks)
        else:
            self._report(device, seconds)
        self._number = (self._number + 1) % _TAGS

    def _collect(self, device: Device, seconds: float, wait_all_ranks: bool) -> None:
        deadline = time.monotonic() + seconds
        milliseconds = round(seconds * 1000)
        reports = {rank: self._expect(device, rank, _REPORT) for rank in range(1, device.size)}
        missing: list[int] = []
        for rank, (report, _) in reports.items():
            if not _arrives(report, deadline):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        for rank, (report, attempt) in reports.items():
            if not missing or report.done():
                del self._awaited[rank]
                device.send(_numbers(not missing, int(attempt[0])), rank, _VERDICT - self._number)
        if missing and seconds <= 0:
            raise GroupTimeout(
                f"Rank 0 timed out in monitoredBarrier after {milliseconds} ms: rank {missing[0]} had not arrived"
            )
        if missing:
            names = f"Ranks {', '.join(map(str, missing))}" if wait_all_ranks else f"Rank {missing[0]}"
            raise GroupTimeout(f"{names} failed to pass monitoredBarrier in {milliseconds} ms")

    def _report(self, device: Device, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        device.send(_numbers(self._attempt, 0), 0, _REPORT - self._number)
        reason = f"it did not answer within {seconds:g} s"
        pending, verdict = self._expect(device, 0, _VERDICT)
        while _arrives(pending, deadline):
            del self._awaited[0]
            good, attempt = verdict.tolist()
            if good:
                return
            if attempt == self._attempt:
                reason = "it reported that a rank did not arrive"
                break
            pending, verdict = self._expect(device, 0, _VERDICT)
        raise GroupTimeout(
            f"Rank {device.rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            f"rank 0: {reason}. Please check rank 0 logs for faulty rank"
        )

    def _expect(self, device: Device, rank: int, kind: int) -> tuple[Pending, torch.Tensor]:
        if rank not in self._awaited:
            tensor = _numbers(0, 0)
            self._awaited[rank] = device.receive(tensor, rank, kind - self._number)[0], tensor
        return self._awaited[rank]


def _arrives(pending: Pending, deadline: float) -> bool:
    try:
        pending.wait(max(0.0, deadline - time.monotonic()))
    except AllfoldError:  # too late, or the rank is lost
        return False
    return True


def _numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)
