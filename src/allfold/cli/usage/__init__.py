"""The options and the help of the commands, one file each: they load at once, without NumPy and rich.

A module has a `SUMMARY` and `add_arguments(parser)`. What a command does is in the module of its name beside this room.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ...errors import UsageError
from ...files import require_writable
from ...wording import one_rank_count, parse_size


def add_color(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="styled output, or plain (default: styled on a terminal unless NO_COLOR is set)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """The type of an option whose text is refused at once if `parse` refuses it; the command gets the text."""

    def check(text: str) -> str:
        try:
            parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return check


output_file = checked(require_writable)
size_text = checked(parse_size)


def add_ranks(
    parser: argparse.ArgumentParser,
    said: str,
    *,
    metavar: str = "N",
    default: str | None = None,
    parse: Callable[[str], object] = one_rank_count,
) -> None:
    parser.add_argument("-n", "--ranks", type=checked(parse), default=default, metavar=metavar, help=said)


def add_with(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--with",
        dest="parameters",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter of the algorithm, its value in JSON or a plain word: --with groups=[[0,1,2],[3,4]]",
    )


def add_case(parser: argparse.ArgumentParser) -> None:
    """The collective, how many ranks, the root and parameters, for commands about one schedule."""
    add_collective(parser)
    add_ranks(parser, "how many ranks (default: 4, or those of the file)")
    parser.add_argument("--root", type=int, metavar="R", help="the root of a rooted collective (default: 0)")
    add_with(parser)


def add_collective(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--collective", metavar="C", help="of this collective (default: all_reduce where it has one)")


def add_hosts(parser: argparse.ArgumentParser, programs: str) -> None:
    groups = "hosts with this many ranks each are the algorithm's groups"
    parser.add_argument("--hosts", metavar="A,B", help=f"{groups}; {programs}")


def add_algorithms(parser: argparse.ArgumentParser) -> None:
    said = "these algorithms only; FILE.json or FILE.xml is a schedule, as of allfold find"
    parser.add_argument("--algorithms", metavar="A,B", help=said)


def add_topology(parser: argparse.ArgumentParser, said: str, default: str | None = None) -> None:
    parser.add_argument("--topology", default=default, metavar="NAME[:k=v,…]|FILE.json", help=said)


def add_counts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--counts",
        metavar="3,0,5",
        help="the buffer's slices are as long as these numbers say, one per rank; for all_to_all one row per rank: 1,2/3,0",
    )


def add_program(parser: argparse.ArgumentParser) -> None:
    """The script, the module or the command that is started; everything after it is for it."""
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module; the rest is for it"
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT",
        help="a Python script and its arguments, or -- and a command",
    )
