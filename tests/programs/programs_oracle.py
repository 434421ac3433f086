"""Compiled programs, judged by brute force: every pair of accesses, on the graph of what happens before what.

This shares no code with `allfold.programs.happens_before` and `check`, which leave out waits and certify the rest.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

from allfold.programs.compile import WORK, Programs

Node = tuple[int, int]  # rank, number of its instruction over all segments; the one after the last is its return


def judge_programs(programs: Programs, segments: int) -> str | None:
    """What is wrong with the order of these programs; None if nothing is."""
    order = _run(programs, segments)
    if isinstance(order, str):
        return order
    number = {node: index for index, (node, _) in enumerate(order)}
    before: dict[Node, int] = {}  # the nodes that happen before each, one bit each
    for node, awaited in order:
        known = 0
        for other in [*awaited, *([(node[0], node[1] - 1)] if node[1] else [])]:
            known |= before[other] | 1 << number[other]
        before[node] = known
    for place, users in _accesses(programs, segments).items():
        for (one, one_writes), (other, other_writes) in combinations(users, 2):
            if one[0] == other[0] or not (one_writes or other_writes):
                continue
            if not (before[other] >> number[one] & 1 or before[one] >> number[other] & 1):
                return f"{one} and {other} both use {place}"
    return None


def _run(programs: Programs, segments: int) -> list[tuple[Node, list[Node]]] | str:
    """A possible order of everything, each with what it waited for; or who is stuck.

    A waiting rank sees what was published, not what was done.
    """
    ranks = programs.schedule.ranks
    lengths = [int(programs.starts[rank + 1] - programs.starts[rank]) for rank in range(ranks)]
    done, published, order = [0] * ranks, [0] * ranks, []
    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            if done[rank] > lengths[rank] * segments:
                continue
            awaited = _awaited(programs, segments, lengths, rank, done[rank])
            if any(published[peer] < count for peer, count in awaited):
                continue
            order.append(((rank, done[rank]), [(peer, count - 1) for peer, count in awaited]))
            done[rank] += 1
            leaves = bool(programs.leave.of(rank))
            if done[rank] > lengths[rank] * segments:
                if segments > 1 or not programs.silent[rank]:
                    published[rank] = lengths[rank] * segments
            else:
                row = int(programs.starts[rank]) + (done[rank] - 1) % lengths[rank]
                last = done[rank] == lengths[rank] * segments
                if programs.announce[row] and (not last or leaves):
                    published[rank] = done[rank]
            moved = True
    stuck = [rank for rank in range(ranks) if done[rank] <= lengths[rank] * segments]
    return f"ranks {stuck} are stuck" if stuck else order


def _awaited(programs: Programs, segments: int, lengths: list[int], rank: int, at: int) -> list[tuple[int, int]]:
    """(peer, how many of its instructions must be published), for the instruction of a rank, or for its return."""
    if at == lengths[rank] * segments:
        return [(peer, (segments - 1) * lengths[peer] + count) for peer, count in programs.leave.of(rank)]
    segment, index = divmod(at, lengths[rank])
    row = int(programs.starts[rank]) + index
    waits = [(peer, segment * lengths[peer] + count) for peer, count in programs.waits.of(row)]
    if segment >= 2:
        waits += [(peer, (segment - 2) * lengths[peer] + count) for peer, count in programs.reuse.of(row)]
    return waits


def _accesses(programs: Programs, segments: int) -> dict[tuple[int, ...], list[tuple[Node, bool]]]:
    """By place: who uses it, and whether it writes."""
    found: dict[tuple[int, ...], list[tuple[Node, bool]]] = defaultdict(list)
    foreign: set[tuple[int, ...]] = set()
    for rank in range(programs.schedule.ranks):
        first, end = int(programs.starts[rank]), int(programs.starts[rank + 1])
        for segment in range(segments):
            for row in range(first, end):
                for lists, writes in ((programs.sources, False), (programs.destinations, True)):
                    for owner, slot in lists.of(row):
                        in_work = slot >= WORK * programs.width
                        area = (0 if programs.one_area else segment % 2) if in_work else segment
                        place = (owner, slot, area)
                        found[place].append(((rank, segment * (end - first) + row - first), writes))
                        if owner != rank and not in_work:
                            foreign.add(place)
    for place in foreign:  # a rank that returns gives its arrays back to the caller
        owner = place[0]
        length = int(programs.starts[owner + 1] - programs.starts[owner])
        found[place].append(((owner, length * segments), True))
    return found
