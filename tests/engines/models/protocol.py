"""The engine's waiting and waking (native/shared/wait.hpp) as a model, small enough to try every order.

`explore` visits all states of a model, and reports the shortest path to an invalid one. The models of calls
(`protocol_calls`) and of continuing with the survivors (`protocol_shrink`) use it as well.

Waking is hard because a store is not visible to others at once. Each rank here has a buffer of stores that reach memory
later: in program order (`tso`, as on x86), or in any order that keeps stores to the same place in order and keeps
release stores behind everything before them (`weak`, as on ARM). Sleeping has no time limit in the model, though it has
one in the engine: a lost wake-up is a rank that sleeps forever, and is found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)


class Broken(AssertionError):
    """An invalid state; the message ends with the steps that lead there."""


def explore(
    start: State,
    moves: Callable[[State], Iterable[tuple[str, State]]],
    is_over: Callable[[State], bool],
    most_states: int = 1_000_000,
) -> int:
    """The number of states. Raises `Broken` if a move does, or if nobody can move and not all are done."""
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        stuck = True
        try:
            for what, then in moves(state):
                stuck = False
                if then not in came_from:
                    came_from[then] = state, what
                    waiting.append(then)
        except Broken as error:
            raise Broken(f"{error}, after: {_way(came_from, state)}") from None
        if stuck and not is_over(state):
            raise Broken(f"nobody can go on, after: {_way(came_from, state)}")
        assert len(came_from) <= most_states, "the model is too large to try everything"
    return len(came_from)


def _way(came_from: dict[State, tuple[State, str] | None], state: State) -> str:
    steps = []
    while (before := came_from[state]) is not None:
        state, what = before
        steps.append(what)
    return "; ".join(reversed(steps))


# Waiting and waking ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """Variants of the protocol. The defaults are the engine's; a test changes one and expects an error."""

    order: str = "tso"  # or "weak"
    fenced_by_sleepers: bool = False
    publisher_fences: bool = True  # unless fenced_by_sleepers
    sleeper_fences: bool = True
    sleeper_fences_for_all: bool = True  # membarrier, where fenced_by_sleepers
    looks_after_the_store: bool = True
    counts: bool = True
    looks_after_counting: bool = True
    wakes_all: bool = True
    # About the kernel: FUTEX_WAIT sleeps only if the value is still the one that was seen, and FUTEX_WAKE is a fence
    # for what came before it (`futex_hb_waiters_pending` has one for a rank that stores and then wakes). That
    # FUTEX_WAIT is a fence as well is not relied upon.
    kernel_compares: bool = True
    wake_is_a_fence: bool = True
    releases: bool = True
    acquires: bool = True
    with_data: bool = False  # something is written before publishing and read after waiting: for the last two


class Rank(NamedTuple):
    at: int = 0  # in its program
    seen: int = 0
    held: int = 0  # what it has read from the data
    asleep_on: int = -1
    buffer: tuple[tuple[int, str, int], ...] = ()  # place, what (store, release, add), number; oldest first


class World(NamedTuple):
    memory: tuple[int, ...]
    ranks: tuple[Rank, ...]


Instruction = tuple[str, int, int]  # what, place, number
# The places: of every rank its progress, its count of sleepers, and what it made known by publishing.
PROGRESS, SLEEPERS, DATA = range(3)


def place(rank: int, what: int) -> int:
    return 3 * rank + what


def publish(rank: int, number: int, rules: Rules) -> list[Instruction]:
    data, value, sleepers = (place(rank, what) for what in (DATA, PROGRESS, SLEEPERS))
    store = ("release" if rules.releases else "store", value, number)
    look = ("look at sleepers", sleepers, number)
    fence = [("fence", 0, 0)] if rules.publisher_fences and not rules.fenced_by_sleepers else []
    order = [store, *fence, look] if rules.looks_after_the_store else [look, store, *fence]
    return [*([("store", data, number)] if rules.with_data else []), *order, ("wake if any", value, 0)]


def wait_for(rank: int, target: int, rules: Rules, ranks: int, own: int, start: int) -> list[Instruction]:
    """`await`, without the checks that only save time; `start` is its position in the program, for the jumps."""
    value, sleepers, data = (place(rank, what) for what in (PROGRESS, SLEEPERS, DATA))
    count: list[Instruction] = [("add", sleepers, 1)] if rules.counts else []
    fences: list[Instruction] = [("fence", 0, 0)] if rules.sleeper_fences else []
    if rules.fenced_by_sleepers and rules.sleeper_fences_for_all:
        fences += [("fence for", peer, 0) for peer in range(ranks) if peer != own]
    look: list[Instruction] = [("look", value, 0)]
    body = count + fences + look if rules.looks_after_counting else look + count + fences
    body += [("sleep unless", value, target), *(("add", sleepers, -1) for _ in count)]
    read: list[Instruction] = [("read", data, 0)] if rules.with_data else []
    early = [] if rules.acquires else read  # a processor may read early, before its wait ends
    loop = start + len(early)
    end = loop + 2 + len(body) + 1
    program = [*early, ("look", value, 0), ("go if", end, target), *body, ("go", loop, 0)]
    return [*program, *(read if rules.acquires else []), *(("use", data, target) for _ in read)]


def programs(shape: str, ranks: int, rules: Rules) -> list[list[Instruction]]:
    """`one`: rank 0 publishes, all others wait for it. `twice`: they do so again. `ring`, `all`: everybody publishes, and
    then waits for its neighbour, or for everybody else."""
    result: list[list[Instruction]] = []
    for rank in range(ranks):
        program: list[Instruction] = []
        one_publishes = shape in ("one", "twice")
        numbers = [1, 2] if shape == "twice" else [1]
        peers = [0] if one_publishes else [(rank - 1) % ranks] if shape == "ring" else [*range(ranks)]
        for number in numbers if rank == 0 or not one_publishes else []:
            program += publish(rank, number, rules)
        for number in numbers:
            for peer in peers:
                if peer != rank:
                    program += wait_for(peer, number, rules, ranks, rank, len(program))
        result.append(program)
    return result


def try_everything(shape: str, ranks: int, rules: Rules) -> int:
    """All orders in which the ranks can do this; the number of states."""

    def is_over(world: World) -> bool:
        return all(world.memory[place(rank, SLEEPERS)] == 0 for rank in range(ranks))

    return try_programs(programs(shape, ranks, rules), rules, is_over)


def try_programs(code: list[list[Instruction]], rules: Rules, is_good: Callable[[World], bool]) -> int:
    """All orders in which the ranks can run these programs; the number of states. `is_good` judges the end."""
    ranks = len(code)

    def moves(world: World) -> Iterable[tuple[str, World]]:
        for rank in range(ranks):
            for what, then in _moves_of(world, rank, code[rank], rules):
                yield f"{rank}: {what}", _settle(then, rank, code[rank])

    def is_over(world: World) -> bool:
        done = all(rank.at == len(program) for rank, program in zip(world.ranks, code, strict=True))
        return done and is_good(world)

    return explore(World((0,) * 3 * ranks, (Rank(),) * ranks), moves, is_over)


def _moves_of(world: World, number: int, program: list[Instruction], rules: Rules) -> Iterable[tuple[str, World]]:
    me = world.ranks[number]
    for index in _may_leave(me, rules):
        yield "a store arrives", _drain(world, number, [index])
    if me.asleep_on >= 0 or me.at == len(program):
        return
    what, where, value = program[me.at]
    next_one = me._replace(at=me.at + 1)
    if what in ("store", "release", "add"):
        if what == "add" and rules.order == "tso":  # a locked instruction: everything before it arrives first
            world = _drain(world, number, range(len(me.buffer)))
            yield what, _set(_change(world, number, next_one._replace(buffer=())), where, world.memory[where] + value)
        else:
            yield what, _change(world, number, next_one._replace(buffer=(*me.buffer, (where, what, value))))
    elif what == "fence":
        yield what, _change(_drain(world, number, range(len(me.buffer))), number, next_one._replace(buffer=()))
    elif what == "fence for":  # not all at once: the kernel interrupts one CPU after the other
        drained = _drain(world, where, range(len(world.ranks[where].buffer)))
        yield f"fence for {where}", _change(drained, number, next_one)
    elif what in ("look", "look at sleepers"):
        yield what, _change(world, number, next_one._replace(seen=_read(world, me, where)))
    elif what == "wake if any":
        if rules.wake_is_a_fence:
            world = _drain(world, number, range(len(me.buffer)))
            next_one = next_one._replace(buffer=())
        asleep = [other for other, rank in enumerate(world.ranks) if rank.asleep_on == where]
        world = _change(world, number, next_one._replace(seen=0))
        for other in asleep if rules.wakes_all else asleep[:1]:
            world = _change(world, other, world.ranks[other]._replace(asleep_on=-1))
        yield "wake", world
    elif what == "sleep unless":
        sleeps = not rules.kernel_compares or world.memory[where] == me.seen
        slept = next_one._replace(seen=0, asleep_on=where if sleeps else -1)
        yield "sleep" if sleeps else "no sleep", _change(world, number, slept)
    elif what == "read":
        yield what, _change(world, number, next_one._replace(held=_read(world, me, where)))
    elif what == "use":
        if me.held < value:
            raise Broken(f"rank {number} uses data of publication {me.held}, not {value}")
        yield what, _change(world, number, next_one._replace(held=0))
    elif what == "believe":
        if me.held == value:
            raise Broken(f"rank {number} believes what was changed after the call")
        yield what, _change(world, number, next_one._replace(held=0))


def _settle(world: World, number: int, program: list[Instruction]) -> World:
    """Advance to the next instruction that others can observe: the order of local ones does not matter."""
    me = world.ranks[number]
    while me.at < len(program) and me.asleep_on < 0:
        what, where, value = program[me.at]
        if what == "go if":
            me = me._replace(at=where if me.seen >= value else me.at + 1, seen=0)
        elif what == "go if odd":
            me = me._replace(at=where if me.seen % 2 else me.at + 1, seen=0)
        elif what == "go":
            me = me._replace(at=where, seen=0)
        elif what == "fence" and not me.buffer:
            me = me._replace(at=me.at + 1)
        elif (what == "wake if any" and not me.seen) or (what == "sleep unless" and me.seen >= value):
            me = me._replace(at=me.at + 1, seen=0)
        else:
            break
    return _change(world, number, me)


def _may_leave(rank: Rank, rules: Rules) -> list[int]:
    """Which of the buffered stores may reach the memory next."""
    if rules.order == "tso":
        return [0] if rank.buffer else []
    return [
        index
        for index, (where, what, _) in enumerate(rank.buffer)
        if index == 0 or (what != "release" and all(where != earlier for earlier, _, _ in rank.buffer[:index]))
    ]


def _drain(world: World, number: int, indexes: Iterable[int]) -> World:
    rank, memory, chosen = world.ranks[number], list(world.memory), set(indexes)
    for index in sorted(chosen):
        where, what, value = rank.buffer[index]
        memory[where] = memory[where] + value if what == "add" else value
    left = tuple(entry for index, entry in enumerate(rank.buffer) if index not in chosen)
    return _change(world._replace(memory=tuple(memory)), number, rank._replace(buffer=left))


def _read(world: World, rank: Rank, where: int) -> int:
    """A rank sees its own stores before anybody else does."""
    own = [(what, value) for place, what, value in rank.buffer if place == where]
    assert all(what != "add" for what, _ in own), "nobody reads the counts that it changes itself"
    return own[-1][1] if own else world.memory[where]


def _change(world: World, number: int, rank: Rank) -> World:
    return world._replace(ranks=(*world.ranks[:number], rank, *world.ranks[number + 1 :]))


def _set(world: World, where: int, value: int) -> World:
    return world._replace(memory=(*world.memory[:where], value, *world.memory[where + 1 :]))
