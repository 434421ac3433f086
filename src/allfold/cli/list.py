"""`allfold list`: which algorithms there are."""

from __future__ import annotations

import argparse

from ..collectives import COLLECTIVES, find_collective
from ..errors import UsageError
from ..registry import algorithms, find_algorithm, schedule
from .choose import one_rank_count
from .terminal import add_color, add_json, times, write_json, write_table
from .what_for import run as what_for

SUMMARY = """\
List the algorithms, with their steps and the bytes through their busiest port. S is the size of one whole buffer, all slices
together."""

_EPILOG = """\
example:
  $ allfold list reduce
  collective  algorithm       steps, 8 ranks  busiest port  what it does
  reduce      driver                       1           7 S  Everyone sends its buffer to the root, which adds them up.
  reduce      tree                         3           3 S  Neighbours pair up, one of each pair adds up both and …
  reduce      chain                        7           1 S  The farthest rank hands its buffer to the next, which …
  reduce      direct                       2        1.75 S  Each rank collects and adds up the chunk it owns, then …
  reduce      scatter_gather               6        1.75 S  A reduce_scatter by halving, then the root gathers the …

  $ allfold list --what-for --ranks 8 --size 64M     # from a task to a collective, its bytes and its time"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("collective", nargs="?", help="the algorithms of this collective only")
    parser.add_argument("--ranks", default="8", metavar="N", help="count for N ranks (default: 8)")
    parser.add_argument(
        "--what-for", action="store_true", help="which collective for which task, and what it costs each process"
    )
    parser.add_argument("--size", metavar="S", help="with --what-for: bytes of one whole buffer (default: 64M)")
    parser.add_argument(
        "--topology", metavar="T", help="with --what-for: where the ranks sit (default: on this machine)"
    )
    add_json(parser)
    add_color(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.what_for:
        if arguments.collective is not None:
            raise UsageError("--what-for lists all collectives; leave out the name")
        return what_for(arguments)
    if arguments.size is not None or arguments.topology is not None:
        raise UsageError("--size and --topology are for estimates; add --what-for")
    ranks = one_rank_count(arguments.ranks)
    wanted = COLLECTIVES if arguments.collective is None else [find_collective(arguments.collective).name]
    found = [
        (find_algorithm(one, name), schedule(one, name, ranks).counts) for one in wanted for name in algorithms(one)
    ]
    if arguments.json:
        write_json(
            [
                {
                    "collective": algorithm.collective,
                    "algorithm": algorithm.name,
                    "summary": algorithm.summary,
                    "ranks": ranks,
                    **counts.to_json(),
                }
                for algorithm, counts in found
            ]
        )
        return 0
    rows: list[list[str] | None] = []
    for algorithm, counts in found:
        is_first = algorithm.name == algorithms(algorithm.collective)[0]
        rows += [None] if is_first and rows else []
        port = f"{times(counts.busiest_port_bytes)} S"
        rows.append([algorithm.collective, algorithm.name, str(counts.steps), port, algorithm.summary])
    head = ("collective", "algorithm", f"steps, {ranks} ranks", "busiest port", "what it does")
    write_table(head, rows, arguments.color, left=2)
    return 0
