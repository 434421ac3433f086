"""Random schedules, correct and wrong ones, and an oracle that says which is which.

`draw` makes a correct schedule of any collective: random merges, exchanges, detours through scratch chunks and other
places, self copies, chunks that are overwritten while they are read, useless moves, several chunks per slice. `spoil`
changes a few of its moves. `judge` follows the rules of docs/language.md, move by move, and shares no code with
allfold: it implements those rules a second time.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from allfold import Move, copy, reduce
from allfold.collectives import COLLECTIVES as TABLE

Cell = tuple[int, int]  # rank, chunk
Datum = tuple[int, int]  # which rank's (0 where it is the same piece of data on all ranks), which chunk
RawMove = tuple[bool, int, int, int, int]  # reduces, chunk, source, destination, into

SLICED = ("gather", "scatter", "all_gather", "reduce_scatter", "all_to_all")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "barrier")
# Without prefixes: parts are merged here in any order, and theirs must stay in that of the ranks.
COLLECTIVES = tuple(name for name, one in TABLE.items() if not one.has_order)


@dataclass(frozen=True)
class Drawn:
    collective: str
    ranks: int
    root: int | None
    chunks: int
    steps: tuple[tuple[RawMove, ...], ...]

    def generate(self, *_: int) -> Iterator[list[Move]]:
        """What an algorithm's generator function gives."""
        for step in self.steps:
            yield [
                (reduce if reduces else copy)(chunk=chunk, source=source, destination=destination, into=into)
                for reduces, chunk, source, destination, into in step
            ]

    @property
    def width(self) -> int:
        named = [1 + max(move[1], move[4]) for step in self.steps for move in step]
        return max([self.chunks, *named])


# What the collectives promise -----------------------------------------------------------------------------------------


def starts(collective: str, ranks: int, root: int | None, chunks: int) -> dict[Cell, Datum]:
    part = chunks // ranks if collective in SLICED else chunks
    result = {}
    for rank, chunk in itertools.product(range(ranks), range(chunks)):
        mine = chunk // part == rank
        holds = {
            "broadcast": rank == root,
            "scatter": rank == root,
            "gather": mine,
            "all_gather": mine,
        }.get(collective, True)
        if holds:
            result[rank, chunk] = (rank if collective == "all_to_all" else 0, chunk)
    return result


def ends(collective: str, ranks: int, root: int | None, chunks: int) -> dict[Cell, Datum]:
    part = chunks // ranks if collective in SLICED else chunks
    result = {}
    for rank, chunk in itertools.product(range(ranks), range(chunks)):
        mine = chunk // part == rank
        wanted = {
            "reduce": rank == root,
            "gather": rank == root,
            "scatter": mine,
            "reduce_scatter": mine,
        }.get(collective, True)
        if collective == "all_to_all":
            result[rank, chunk] = (chunk // part, rank * part + chunk % part)
        elif wanted:
            result[rank, chunk] = (0, chunk)
    return result


def length(elements: int, chunk: int, parts: int) -> int:
    return (chunk + 1) * elements // parts - chunk * elements // parts


def fits(collective: str, ranks: int, chunks: int, datum: Datum, chunk: int) -> bool:
    """Whether a chunk of the buffer holds a piece of data, however many elements the buffer (or a slice) has."""
    if chunk >= chunks or collective == "barrier":
        return True
    part = chunks // ranks if collective in SLICED else chunks
    return all(length(n, datum[1] % part, part) <= length(n, chunk % part, part) for n in range(2 * part))


# Right ones -----------------------------------------------------------------------------------------------------------


def draw(rng: random.Random, collective: str, ranks: int, most_steps: int = 5, root: int | None = None) -> Drawn:
    return _Drawing(rng, collective, ranks, most_steps, root).drawn()


class _Drawing:
    """A schedule in progress. `live` are cells that together hold every contribution to a piece of data exactly
    once."""

    def __init__(
        self, rng: random.Random, collective: str, ranks: int, most_steps: int, root: int | None = None
    ) -> None:
        self.rng, self.collective, self.ranks = rng, collective, ranks
        self.root = None
        if collective in ROOTED:
            self.root = rng.randrange(ranks) if root is None else root
        part = 1 if collective == "barrier" else rng.choice([1, 1, 2, 3, 5])
        self.chunks = part * ranks if collective in SLICED else part
        self.width = self.chunks + rng.choice([0, 1, 2, 4])
        self.held: dict[Cell, tuple[Datum, frozenset[int]]] = {}
        self.live: dict[Datum, set[Cell]] = {}
        for cell, datum in starts(collective, ranks, self.root, self.chunks).items():
            self.held[cell] = (datum, frozenset([cell[0]]))
            self.live.setdefault(datum, set()).add(cell)
        self.steps: list[tuple[RawMove, ...]] = []
        self.most_steps = most_steps

    def drawn(self) -> Drawn:
        for _ in range(self.rng.randint(0, self.most_steps)):
            self._step(self.rng.random())
        self._complete()
        if self.rng.random() < 0.5:
            self._step(0.0)  # complete data travels once more
        self._deliver()
        return Drawn(self.collective, self.ranks, self.root, self.chunks, tuple(self.steps))

    def _step(self, merging: float) -> None:
        """Some random moves that lose nothing; all of them read the state before the step."""
        moves: list[RawMove] = []
        folded: dict[Cell, set[Cell]] = {}  # by target: what is reduced into it
        copied: dict[Cell, Cell] = {}
        live = {datum: set(cells) for datum, cells in self.live.items()}
        fixed = {cell for cells in live.values() for cell in cells}  # must not be overwritten, as far as is known
        for datum in self.rng.sample(sorted(live), len(live)):
            here = self.rng.sample(sorted(live[datum]), len(live[datum]))
            if len(here) > 1 and self.rng.random() < merging:
                target, sources = here[0], here[1 : 1 + self.rng.randint(1, min(3, len(here) - 1))]
                if self.rng.random() < 0.3:  # an exchange: both then hold the same
                    sources = sources[:1]
                    folded[sources[0]] = {target}
                folded[target] = set(sources)
                live[datum] -= set(sources)
                if target not in folded or len(sources) != 1 or sources[0] not in folded:
                    fixed -= set(sources)
            elif self.rng.random() < 0.5:
                source = here[0]
                place = self._place(datum, fixed | set(copied) | set(folded))
                if place is not None:
                    copied[place] = source
                    live[datum] = (live[datum] - {source}) | {place}
                    if source not in folded:
                        fixed.discard(source)  # its readers see what was there before
                    fixed.add(place)
        for _ in range(self.rng.randint(0, 3)):  # useless, but allowed
            source = self.rng.choice(sorted(self.held))
            place = self._place(self.held[source][0], fixed | set(copied) | set(folded))
            if place is not None:
                copied[place] = source
        if self.collective == "barrier" and self.rng.random() < 0.5:  # hearing of a rank twice does no harm
            target, source = (self.rng.choice(sorted(self.held)) for _ in range(2))
            if target not in copied and target not in folded:
                folded[target] = {source}
        before = dict(self.held)
        for target, sources in folded.items():
            datum, who = before[target]
            for source in sorted(sources):
                moves.append((True, source[1], source[0], target[0], target[1]))
                who |= before[source][1]
            self.held[target] = (datum, who)
        for target, source in copied.items():
            moves.append((False, source[1], source[0], target[0], target[1]))
            self.held[target] = before[source]
        self.live = live
        self._add(moves)

    def _place(self, datum: Datum, taken: set[Cell]) -> Cell | None:
        for _ in range(8):
            cell = self.rng.randrange(self.ranks), self.rng.randrange(self.width)
            if cell not in taken and fits(self.collective, self.ranks, self.chunks, datum, cell[1]):
                return cell
        return None

    def _complete(self) -> None:
        """Reduce everything that is still separate: all at once, or a few at a time."""
        while any(len(cells) > 1 for cells in self.live.values()):
            most = self.rng.choice([1, 2, self.ranks])
            moves: list[RawMove] = []
            for datum, cells in self.live.items():
                if len(cells) == 1 or (moves and self.rng.random() < 0.2):
                    continue
                target, *sources = self.rng.sample(sorted(cells), len(cells))
                for source in sources[:most]:
                    moves.append((True, source[1], source[0], target[0], target[1]))
                    self.held[target] = (datum, self.held[target][1] | self.held[source][1])
                    self.live[datum].discard(source)
            self._add(moves)

    def _deliver(self) -> None:
        wanted = ends(self.collective, self.ranks, self.root, self.chunks)
        by_datum: dict[Datum, list[Cell]] = {}  # the cells that hold it, complete
        for cell, (datum, who) in self.held.items():
            if self.collective not in REDUCING or len(who) == self.ranks:
                by_datum.setdefault(datum, []).append(cell)
        missing = [cell for cell, datum in wanted.items() if cell not in by_datum[datum]]
        if self.rng.random() < 0.5 and missing:  # some before the others, where the old content is not needed
            early = []
            for cell in self.rng.sample(missing, self.rng.randint(1, len(missing))):
                kept = self.held.get(cell)
                if kept is None or cell not in by_datum.get(kept[0], []) or len(by_datum[kept[0]]) > 1:
                    if kept is not None and cell in by_datum.get(kept[0], []):
                        by_datum[kept[0]].remove(cell)
                    early.append(cell)
            moves = []
            for cell in early:
                source = self.rng.choice(by_datum[wanted[cell]])
                moves.append((False, source[1], source[0], cell[0], cell[1]))
            for cell in early:
                by_datum[wanted[cell]].append(cell)
            self._add(moves)
            missing = [cell for cell in missing if cell not in early]
        moves = []
        for cell in missing:
            source = self.rng.choice(by_datum[wanted[cell]])
            moves.append((False, source[1], source[0], cell[0], cell[1]))
        self._add(moves)

    def _add(self, moves: list[RawMove]) -> None:
        if moves:
            self.steps.append(tuple(self.rng.sample(moves, len(moves))))


# Wrong ones -----------------------------------------------------------------------------------------------------------


def spoil(rng: random.Random, drawn: Drawn) -> Drawn:
    """The schedule with one to three changes; most results are wrong."""
    steps = [list(step) for step in drawn.steps] or [[]]
    for _ in range(rng.randint(1, 3)):
        number = rng.randrange(len(steps))
        step = steps[number]
        change = rng.choice(["drop", "field", "field", "field", "repeat", "later", "flip", "swap", "new"])
        if change == "swap":
            other = rng.randrange(len(steps))
            steps[number], steps[other] = steps[other], steps[number]
        elif change == "new" or not step:
            ranks = [rng.randrange(drawn.ranks) for _ in range(2)]
            chunks = [rng.randrange(drawn.width) for _ in range(2)]
            step.append((rng.random() < 0.5, chunks[0], ranks[0], ranks[1], rng.choice([chunks[0], chunks[1]])))
        else:
            index = rng.randrange(len(step))
            reduces, chunk, source, destination, into = step[index]
            if change == "drop":
                del step[index]
            elif change == "repeat":
                steps[rng.randrange(len(steps))].append(step[index])
            elif change == "later":
                steps[rng.randrange(len(steps))].append(step.pop(index))
            elif change == "flip":
                step[index] = (not reduces, chunk, source, destination, into)
            else:
                fields = [chunk, source, destination, into]
                field = rng.randrange(4)
                fields[field] = rng.randrange(drawn.ranks if field in (1, 2) else drawn.width)
                step[index] = (reduces, *fields)  # type: ignore[assignment]
    return replace(drawn, steps=tuple(tuple(step) for step in steps))


# The oracle -----------------------------------------------------------------------------------------------------------


def judge(drawn: Drawn) -> str | None:
    """What is wrong with a schedule; None if nothing is."""
    ranks, width = drawn.ranks, drawn.width
    held: dict[Cell, tuple[Datum, Counter[int]]] = {
        cell: (datum, Counter([cell[0]]))
        for cell, datum in starts(drawn.collective, ranks, drawn.root, drawn.chunks).items()
    }
    for number, step in enumerate(drawn.steps):
        after = dict(held)
        writes = Counter((destination, into) for _, _, _, destination, into in step)
        for reduces, chunk, source, destination, into in step:
            assert chunk < width and into < width
            target = (destination, into)
            if (source, chunk) not in held:
                return f"step {number}: takes nothing"
            datum, who = held[source, chunk]
            if not reduces:
                if writes[target] > 1:
                    return f"step {number}: two writes"
                if not fits(drawn.collective, ranks, drawn.chunks, datum, into):
                    return f"step {number}: does not fit"
                after[target] = (datum, who)
                continue
            if target not in held:
                return f"step {number}: reduces into nothing"
            if drawn.collective not in REDUCING:
                return f"step {number}: reduces"
            if held[target][0] != datum:
                return f"step {number}: mixes"
            after[target] = (datum, after[target][1] + who)
            if drawn.collective != "barrier" and max(after[target][1].values()) > 1:
                return f"step {number}: doubles"
        held = after
    for cell, datum in ends(drawn.collective, ranks, drawn.root, drawn.chunks).items():
        if cell not in held or held[cell][0] != datum:
            return f"{cell} does not hold {datum}"
        if drawn.collective in REDUCING and set(held[cell][1]) != set(range(ranks)):
            return f"{cell} lacks somebody"
    return None
