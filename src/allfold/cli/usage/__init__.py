"""The options and the help of the commands, one file each: they load at once, without NumPy and rich.

A module has a `SUMMARY` and `add_arguments(parser)`. What a command does is in the module of its name beside this room.
"""

from __future__ import annotations

import argparse


def add_color(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="styled output, or plain (default: styled on a terminal unless NO_COLOR is set)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def add_with(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--with",
        dest="parameters",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter of the algorithm, its value in JSON or a plain word: --with groups=[[0,1,2],[3,4]]",
    )


def add_counts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--counts",
        metavar="3,0,5",
        help="the buffer's slices are as long as these numbers say, one per rank; for all_to_all one row per rank: 1,2/3,0",
    )
