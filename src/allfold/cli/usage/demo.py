"""The options of `allfold demo`, and its help."""

from __future__ import annotations

import argparse

from . import add_color, add_json

SUMMARY = """\
Every all_reduce algorithm on four processes: run on real numbers through shared memory, checked against NumPy and, bit by
bit, against the reference engine, proved for all inputs, timed and compared. Then the ring, drawn step by step. Where there
is no engine (macOS, Windows), the reference engine runs them, in one process and without times."""

_EPILOG = """\
example:
  $ allfold demo
  all_reduce between 4 processes: every algorithm, on every rank, gives NumPy's sum and the reference engine's bits
  …"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add_json(parser)
    add_color(parser)
