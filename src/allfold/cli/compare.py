"""`allfold compare`: steps, messages and bytes of algorithms side by side."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence

from ..collectives import find_collective
from ..errors import UsageError
from ..registry import algorithms, schedule
from ..schedules import Counts, Schedule
from ..view.entry import bounds_as_json
from ..wording import counted, rank_counts
from .choose import choose_some
from .terminal import progress, times, width, write_json, write_lines, write_table
from .usage.compare import RANKS

Table = dict[int, dict[str, Counts]]


def run(arguments: argparse.Namespace) -> int:
    words = [*arguments.names, *([] if arguments.algorithms is None else arguments.algorithms.split(","))]
    collective, chosen, made = choose_some(words, arguments.collective)
    names = algorithms(collective) if chosen is None else chosen
    ranks = sorted({one.ranks for one in made}) if arguments.ranks is None and made else None
    with progress("counting") as say:
        table = count(collective, names, ranks or rank_counts(arguments.ranks or RANKS), made, say)
    if arguments.json:
        write_json(_as_json(collective, table))
        return 0
    write_comparison(collective, table, arguments.color)
    return 0


def count(
    collective: str,
    names: list[str],
    ranks: list[int],
    made: Sequence[Schedule] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Table:
    """The counts of these algorithms, and of schedules that were made for one of these numbers of ranks."""

    def counts_of(name: str, many: int) -> Counts:
        say(f"counting {name}, {many:,} ranks")
        return schedule(collective, name, many).counts

    for one in made:
        if one.collective != collective or one.ranks not in ranks:
            raise UsageError(f"{one.title} is a schedule for {one.collective} between {one.ranks} ranks only")
    return {
        many: {
            **{name: counts_of(name, many) for name in names},
            **{one.algorithm: one.counts for one in made if one.ranks == many},
        }
        for many in ranks
    }


def write_comparison(collective: str, table: Table, color: bool | None) -> None:
    rows: list[list[str] | None] = []
    for ranks, found in table.items():
        rows += [None] if rows else []
        for name, counts in found.items():
            rows.append(
                [
                    str(ranks),
                    name,
                    str(counts.steps),
                    str(counts.messages),
                    f"{times(counts.bytes)} S",
                    str(counts.busiest_port_messages),
                    f"{times(counts.busiest_port_bytes)} S",
                ]
            )
        least = find_collective(collective).bounds(ranks)
        bytes_least, port_least = f"{times(least.bytes)} S", f"{times(least.busiest_port_bytes)} S"
        rows.append(
            [str(ranks), "at least", "", str(least.messages), bytes_least, counted(least.rounds, "round"), port_least]
        )
    head = (
        "ranks",
        collective,
        "steps",
        "messages in all",
        "bytes in all",
        "messages, busiest port",
        "bytes, busiest port",
    )
    shorter = {head[3]: "messages", head[4]: "bytes", head[5]: "port messages", head[6]: "port bytes"}
    write_table(head, rows, color, left=2, narrow=shorter)
    for note in _notes(collective, table):
        write_lines(["", *textwrap.wrap(note, min(width(), 100))], color)


def _notes(collective: str, table: Table) -> list[str]:
    notes = [
        "“At least” is what no algorithm can do with less of. Rounds are messages that go one after the other when a "
        "port carries one at a time: a step in which a port carries k messages takes k rounds."
    ]
    largest = max(table)
    counted = table[largest]
    if collective != "all_reduce" or largest < 3 or not {"naive", "driver", "ring"} <= set(counted):
        return notes
    naive, driver, ring = counted["naive"], counted["driver"], counted["ring"]
    return [
        *notes,
        f"n(n−1) “naive messages” against 2(n−1) “ring messages” compares two different things. At n = {largest}, "
        f"n(n−1) = {naive.messages} are the messages of all ranks together, and 2(n−1) = {ring.steps} are the ring's "
        f"steps, or the {ring.busiest_port_messages} messages of one of its ranks. In all a ring sends 2n(n−1) = "
        f"{ring.messages} messages, more than naive. It wins because each carries only S/n: its busiest port carries "
        f"{times(ring.busiest_port_bytes)} S, that of naive {times(naive.busiest_port_bytes)} S. The algorithm that "
        f"does take 2(n−1) = {driver.messages} messages in all is the driver, and all of them go through one rank, "
        f"whose ports carry {times(driver.busiest_port_bytes)} S.",
    ]


def _as_json(collective: str, table: Table) -> list[dict[str, object]]:
    document: list[dict[str, object]] = []
    for ranks, found in table.items():
        bounds = bounds_as_json(find_collective(collective).bounds(ranks))
        for name, counts in found.items():
            row = {"collective": collective, "algorithm": name, "ranks": ranks, **counts.to_json(), "bounds": bounds}
            document.append(row)
    return document
