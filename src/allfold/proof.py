"""Prove a schedule: that it does what its collective promises, for every rank and chunk, whatever the data.

The schedule is run once in symbols (`symbolic`), which refuses a step that makes no sense and a contribution that
arrives twice. Then what every chunk holds is compared with the postcondition. Then the schedule is compiled, and the
programs are proved free of deadlocks and of unordered accesses. The `Proof` also records what else was found: whether
all ranks get the same bits, whether rank order is kept, and whether every element is reduced by the same expression.
For few ranks, the message programs that run across hosts are proved as well; for many, they are when they are needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, get_args

import numpy as np

from .collectives import Bounds
from .errors import ScheduleError, UsageError
from .programs.check import check
from .programs.check_messages import check_messages
from .programs.compile import compile
from .programs.messages import lower
from .programs.places import check_message_places, check_places, check_program_places
from .programs.versions import Memory, Versions
from .schedules import Counts, Schedule
from .symbolic import Cells, State, unkept
from .wording import name_ranks

ACROSS_HOSTS = 12  # ranks up to which the message programs are proved, too


@dataclass(frozen=True)
class Proof:
    """The facts that were proved of a schedule. `None` where a question does not arise, as for a collective that only copies.

    >>> proof = af.verify(af.schedule("all_reduce", "ring", ranks=4))
    >>> proof.same_bits, proof.rank_order, proof.counts.steps
    (True, False, 6)
    """

    schedule: Schedule
    counts: Counts
    bounds: Bounds
    same_bits: bool | None
    """All ranks that get a result get the same bits: each element is reduced by the same expression everywhere, and
    rounded at the same places. (A NaN is a NaN everywhere; which one it is may differ.) None for a scan, where every
    rank gets another result."""
    rank_order: bool | None
    """Contributions are combined in the order of the ranks, so an operation need not be commutative."""
    uniform: bool | None
    """All elements of a rank's result are reduced by the same expression, so it does not change with the length of the
    buffer."""
    across_hosts: bool
    """The message programs were proved too: every message is received, nobody waits forever, the bits are the same."""
    uneven: bool = False
    """Proved for slices with lengths of their own too (`counts`), whatever these are; False where it was not asked."""

    def __str__(self) -> str:
        schedule, counts, bounds = self.schedule, self.counts, self.bounds
        if schedule.promise.idempotent:
            right = "nobody leaves before everybody has come"
        elif schedule.promise.reduces:
            right = "every contribution arrives exactly once, wherever it must"
        else:
            right = "every chunk arrives where it belongs"
        lines = [f"{schedule.promise.label} {schedule.title} is right: {right}."]
        if self.same_bits is not None:
            lines.append(f"  same bits on all ranks   {_yes(self.same_bits)}")
        if self.rank_order is not None:
            lines += [
                f"  rank order kept          {_yes(self.rank_order)}",
                f"  same for any length      {_yes(self.uniform)}",
            ]
        lines += [
            "  no deadlock, no unordered access in the compiled programs",
            *["  no deadlock, every message received in the programs across hosts"][: self.across_hosts],
            *["  slices of any lengths    yes"][: self.uneven],
            f"  steps                    {counts.steps}",
            f"  rounds (1 message/port)  {counts.rounds}  (at least {bounds.rounds})",
            f"  messages in all          {counts.messages}  (at least {bounds.messages})",
        ]
        if schedule.promise.carries_data:
            lines += [
                f"  bytes in all             {_times(counts.bytes)}  (at least {_times(bounds.bytes)})",
                f"  bytes, busiest port      {_times(counts.busiest_port_bytes)}  "
                f"(at least {_times(bounds.busiest_port_bytes)})",
            ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The proof as `allfold verify --json` prints it."""
        return {
            "collective": self.schedule.collective,
            "algorithm": self.schedule.algorithm,
            "ranks": self.schedule.ranks,
            "root": self.schedule.root,
            "chunks": self.schedule.chunks,
            "scratch": self.schedule.scratch,
            "same_bits": self.same_bits,
            "rank_order": self.rank_order,
            "uniform": self.uniform,
            "across_hosts": self.across_hosts,
            "uneven": self.uneven,
            **self.counts.to_json(),
            "bounds": self.bounds.to_json(),
        }


def verify(schedule: Schedule, programs: bool = True, uneven: bool = False) -> Proof:
    """Prove a schedule, or raise `ScheduleError` with the rank, the chunk, the step and the source line.

    `uneven`: prove it for slices with lengths of their own too, whatever these are.

    >>> print(af.verify(af.schedule("all_gather", "ring", ranks=4)))
    all_gather ring(ranks=4) is right: every chunk arrives where it belongs.
      no deadlock, no unordered access in the compiled programs
      no deadlock, every message received in the programs across hosts
      steps                    3
      rounds (1 message/port)  3  (at least 2)
      messages in all          12  (at least 6)
      bytes in all             3 S  (at least 3 S)
      bytes, busiest port      0.75 S  (at least 0.75 S)
    """
    if not isinstance(schedule, Schedule):
        raise UsageError(
            f"verify: expected a schedule, as of allfold.schedule(collective, algorithm, ranks); got {schedule!r}"
        )
    if uneven and not schedule.promise.sliced:
        raise UsageError(f"{schedule.collective} has no slices that could have lengths of their own")
    versions = Versions(schedule) if programs or uneven else None
    state = versions.state if versions else State(schedule).run_to_end()
    results = check_promise(state)
    if uneven and versions is not None:
        check_places(versions)
    state.members = None  # large, and only needed up to here
    # Three segments cover the reuse of the work area; the largest schedules are proved for one. Programs for arrays
    # that peers cannot reach are proved for few ranks only: for many, the compiler follows the same rule.
    segments = None if schedule.moves < 100_000 else 1
    kinds = list(get_args(Memory)[: 3 if schedule.ranks <= ACROSS_HOSTS else 1])
    while programs and versions and kinds:
        made = compile(schedule, kinds.pop(0), versions)
        versions = versions if kinds else None  # large, and no longer needed
        check(made, state, segments)
        if uneven:
            check_program_places(made)
    across_hosts = programs and schedule.ranks <= ACROSS_HOSTS
    if across_hosts:
        messages = lower(schedule)
        check_messages(messages, state)
        if uneven:
            check_message_places(messages)
    same_bits = rank_order = uniform = None
    if schedule.promise.reduces and not schedule.promise.idempotent:
        bits, (rank, chunk) = state.bits[results], np.divmod(results, state.width)
        if schedule.promise.combines_all:
            first = np.zeros(schedule.chunks, np.uint64)
            first[chunk] = bits
            same_bits = bool((first[chunk] == bits).all())
            rank = np.zeros_like(rank)  # the result is the same everywhere
        rank_order = bool(state.in_order[results].all())
        first = np.zeros(schedule.ranks, np.uint64)
        first[rank] = bits
        uniform = bool((first[rank] == bits).all())
    bounds = schedule.promise.bounds(schedule.ranks)
    return Proof(schedule, schedule.counts, bounds, same_bits, rank_order, uniform, across_hosts, uneven)


def check_promise(state: State) -> Cells:
    """The cells that hold results. Raises for the first cell that does not hold what the collective promises."""
    schedule, promise = state.schedule, state.promise
    results, wrong = unkept(state)
    if not wrong.any():
        return results
    cell = int(results[wrong.argmax()])
    rank, chunk = divmod(cell, state.width)
    wanted = promise.ends_with(schedule.ranks, schedule.root, schedule.chunks)[rank, chunk]
    if state.datum[cell] != wanted:
        fault = f"holds {state.name_of(state.datum[cell])} instead of {state.name_of(wanted)}"
    else:
        needed, there = set(promise.contributors(rank, schedule.ranks)), set(state.contributors(rank, chunk))
        faults = [f"lacks {name_ranks(sorted(needed - there))}"] if needed - there else []
        faults += [f"has {name_ranks(sorted(there - needed))}, which it should not"] if there - needed else []
        fault = " and ".join(faults)
    writes = (schedule.columns["destination"] == rank) & (schedule.columns["into"] == chunk)
    site = schedule.where(int(np.flatnonzero(writes)[-1])) if writes.any() else None
    others = int(wrong.sum()) - 1
    more = f"; {others} more {'chunk is' if others == 1 else 'chunks are'} wrong" if others else ""
    last = f"after step {schedule.steps}, " if schedule.steps else "without any step, "
    where = f" ({site})" if site else " (nothing was ever moved there)"
    message = f"{schedule.title}: {last}rank {rank} chunk {chunk} {fault}{where}{more}"
    raise ScheduleError(message, rank=rank, chunk=chunk, step=schedule.steps - 1, site=site)


def _yes(value: bool | None) -> str:
    return "yes" if value else "no"


def _times(value: Fraction) -> str:
    """`1.75 S`; exact where four digits are enough."""
    return f"{int(value) if value.denominator == 1 else round(float(value), 4)} S"
