"""A model of successive calls: who may enter the next call while others are still in the last one.

What is modelled is native/collectives/communicator.cpp. The programs are the compiled ones that the engine gets. Each
rank's calls are written out as a list of steps, after `Communicator::enter`, `agree` and `perform`; `try_calls` then
tries all orders of the steps of all ranks. Every place in memory (work slots, arrays, the chains that ranks compare)
holds a tag that says who wrote it in which call. A reader must find the tag that the call would have put there if it
ran alone.

A step waits, reads, writes and publishes atomically. That hides no errors: what a rank reads too late or overwrites too
early, it also reads or overwrites if the whole step happens late or early, since nobody waits for the middle of a step.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from protocol import Broken, explore

from allfold.engines.shared_memory.programs import facts
from allfold.programs.compile import INPUT, OUTPUT, WORK, Programs
from allfold.proved import programs_of

Place = tuple[Hashable, ...]
_USER = -1  # the writer of what lies in an array before the call


@dataclass(frozen=True)
class Rules:
    """What the engine does; a test changes one rule and expects an error."""

    keeps_its_end: str = "if heard"  # or "always", or "awaited": even if somebody waits for it in this call
    calls_ahead: int = 7  # how many calls a rank may be ahead of another
    uses_behind: int = 1  # of a large work area: this many, and the one that has just ended
    areas: int = 2
    small_areas: int = 8
    one_area_for_all: bool = False  # not only for programs that work with one
    chains_kept: int = 8
    settles_with_segments: bool = True
    waits_in_second_segment: bool = True
    waits_for_reuse: bool = True
    waits_to_leave: bool = True


@dataclass(frozen=True)
class Call:
    collective: str
    algorithm: str
    root: int | None = None
    segments: int = 1
    memory: str = "private"
    small: bool = False  # it fits a small work area: calls of one segment, where there is a root


@dataclass
class Step:
    waits: list[tuple[int, int]]  # peer, progress
    reads: list[tuple[Place, Hashable]]  # and what must be found
    writes: list[tuple[Place, Hashable]]
    publishes: int | None = None


def try_calls(ranks: int, calls: Iterable[Call], rules: Rules = Rules()) -> int:  # noqa: B008 - it is frozen
    """Try all orders of these calls on this many ranks; returns the number of states."""
    calls = list(calls)
    rows = [_steps(rank, ranks, calls, rules) for rank in range(ranks)]
    places = sorted({place for row in rows for step in row for place, _ in step.reads + step.writes}, key=repr)
    number = {place: index for index, place in enumerate(places)}

    def moves(state: Any) -> Iterable[tuple[str, Any]]:
        positions, progress, memory = state
        for rank, row in enumerate(rows):
            if positions[rank] == len(row):
                continue
            step = row[positions[rank]]
            if any(progress[peer] < target for peer, target in step.waits):
                continue
            for place, tag in step.reads:
                if (found := memory[number[place]]) != tag:
                    raise Broken(f"rank {rank} finds {found} in {place}, not {tag}")
            changed = list(memory)
            for place, tag in step.writes:
                changed[number[place]] = tag
            news = progress[rank] if step.publishes is None else step.publishes
            yield (
                f"{rank}: step {positions[rank]}",
                (_with(positions, rank, positions[rank] + 1), _with(progress, rank, news), tuple(changed)),
            )

    lengths = tuple(len(row) for row in rows)
    start = ((0,) * ranks, (0,) * ranks, (None,) * len(places))
    return explore(start, moves, lambda state: state[0] == lengths)


def _with(row: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*row[:index], value, *row[index + 1 :])


def _steps(rank: int, ranks: int, calls: list[Call], rules: Rules) -> list[Step]:
    """One rank's calls, as `Communicator::run` goes through them."""
    peers = [peer for peer in range(ranks) if peer != rank]
    base, areas_used, steps = 0, 0, []
    ends, ends_in_turns = [0] * (rules.calls_ahead + 1), [0] * (rules.uses_behind + 1)
    settled = 0
    for call, chosen in enumerate(calls, 1):
        programs = programs_of(chosen.collective, chosen.algorithm, ranks, chosen.root, chosen.memory)  # type: ignore[arg-type]
        program = facts(programs, rank, chosen.algorithm)
        found, left = _alone(programs)
        first, stride, instructions = (
            int(programs.starts[rank]),
            int(program["lengths"].max()),
            program["lengths"][rank],
        )
        one_area = program["one_area"] or rules.one_area_for_all
        met: set[int] = set()

        def place_of(
            slot: tuple[int, int],
            segment: int,
            used: int = areas_used,
            programs: Programs = programs,
            call: int = call,
            chosen: Call = chosen,
        ) -> Place:
            space, index = _space(programs, slot[1])
            if space != WORK:
                return (slot[0], space, index, segment)
            area = ("small", call % rules.small_areas) if chosen.small else used % rules.areas
            return (slot[0], space, index, area)

        def meet(peer: int, call: int = call, met: set[int] = met) -> list[tuple[Place, Hashable]]:
            if peer in met:
                return []
            met.add(peer)
            return [((peer, "chain", call % rules.chains_kept), call)]

        # The caller fills its arrays; then enter(): leave the chain, and only then wait.
        arrays = {slot for slot in left if slot[0] == rank and _space(programs, slot[1])[0] != WORK}
        filled: list[tuple[Place, Hashable]] = [
            (place_of(slot, segment), (call, segment, _USER)) for slot in arrays for segment in range(chosen.segments)
        ]
        steps.append(Step([], [], [*filled, ((rank, "chain", call % rules.chains_kept), call)]))
        step = Step([(peer, ends[-rules.calls_ahead]) for peer in peers], [], [])
        if chosen.memory != "private":  # agree(): every rank has entered, and says where its arrays are
            steps.append(Step(step.waits, [], [], base + 1))
            step = Step([(peer, base + 1) for peer in peers], [read for peer in peers for read in meet(peer)], [])
        start = base + 1
        if not chosen.small:
            step.waits += [(peer, settled) for peer in peers]
        for segment in range(chosen.segments):
            here = start + segment * stride
            if segment == 1 and rules.waits_in_second_segment:
                step.waits += [(peer, base) for peer in peers]
            for i in range(instructions):
                for peer, count in programs.waits.of(first + i):
                    step.waits.append((peer, here + count))
                    step.reads += meet(peer)
                if segment >= 2 and rules.waits_for_reuse:
                    step.waits += [(peer, here - 2 * stride + count) for peer, count in programs.reuse.of(first + i)]
                for slot in programs.sources.of(first + i):
                    step.reads.append((place_of(slot, segment, areas_used), (call, segment, found[first + i, slot])))
                for slot in programs.destinations.of(first + i):
                    step.writes.append((place_of(slot, segment, areas_used), (call, segment, first + i)))
                last = i + 1 == instructions and segment + 1 == chosen.segments
                if program["announce"][i] and (not last or len(program["leave_rank"])):
                    step.publishes = here + i + 1
                steps.append(step)
                step = Step([], [], [])
            areas_used += not one_area and not chosen.small
        areas_used += one_area and not chosen.small
        last_start = start + (chosen.segments - 1) * stride
        for peer, count in programs.leave.of(rank) if rules.waits_to_leave else []:
            step.waits.append((peer, last_start + count))
            step.reads += meet(peer)
        base = start + chosen.segments * stride + 1
        ends.append(base)
        if not chosen.small:
            ends_in_turns.append(base)
            settled = ends_in_turns[-1 - rules.uses_behind]
            if chosen.segments > 1 and not one_area and rules.settles_with_segments:
                settled = last_start
        for slot in arrays:  # what the caller reads
            step.reads += [(place_of(slot, one), (call, one, left[slot])) for one in range(chosen.segments)]
        may_be_silent = {
            "if heard": bool(program["silent"]),
            "always": True,
            "awaited": len(met) == len(peers) and any(program["announce"]),
        }
        if not may_be_silent[rules.keeps_its_end] or chosen.segments > 1:
            step.publishes = base
        steps.append(step)
    return steps


def _alone(programs: Programs) -> tuple[dict[tuple[int, tuple[int, int]], int], dict[tuple[int, int], int]]:
    """The call run alone: by instruction and source, the instruction that wrote it; by slot, the last writer."""
    wrote: dict[tuple[int, int], int] = {}
    found = {}
    ranks = programs.schedule.ranks
    for lists in (programs.sources, programs.destinations):
        for slot in zip(lists.rank.tolist(), lists.value.tolist(), strict=True):
            wrote[slot] = _USER
    done = [0] * ranks
    ready = True
    while ready:
        ready = False
        for rank in range(ranks):
            row = int(programs.starts[rank]) + done[rank]
            if row == programs.starts[rank + 1] or any(done[peer] < count for peer, count in programs.waits.of(row)):
                continue
            found |= {(row, slot): wrote[slot] for slot in programs.sources.of(row)}
            wrote |= dict.fromkeys(programs.destinations.of(row), row)
            done[rank] += 1
            ready = True
    assert sum(done) == programs.starts[-1]
    return found, wrote


def _space(programs: Programs, slot: int) -> tuple[int, int]:
    space = min(slot // programs.width, WORK)
    assert space in (INPUT, OUTPUT, WORK)
    return space, slot - space * programs.width
