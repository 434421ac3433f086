"""The options of `allfold doctor`, and its help."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_color, add_json

SUMMARY = """\
Show from outside what the ranks of a live run are doing: their groups, how many calls each has made, which call it is in, which
rank it waits for, and which line of its program it is at. This neither stops nor changes the run. For a run that has failed,
--read shows the last calls of all ranks, from the files that they wrote to the folder ALLFOLD_FLIGHT_DIR."""

_EPILOG = """\
example:
  $ allfold doctor 4711
  the world: 3 ranks
  rank  process  calls  now                               since  waits for
  0     4711     17     all_reduce(float32[1024] sum)     4.2 s     rank 2
  1     4712     17     all_reduce(float32[1024] sum)     4.2 s     rank 2
  2     4713     16     nothing: broadcast ended 4.2 s ago
  rank 2 (process 4713) is at train.py:31 in load, called from train.py:60 in main

  $ allfold doctor --all                   all your runs on this machine
  $ allfold doctor 4711 --dump flight.json the last 256 calls of every rank, as JSON

  $ allfold doctor --read flights/*.json --last 2
  the world: 3 ranks
  call  ranks  what                                      begun              took
  20    0–2    all_reduce(float32[1024] sum)     0 s … 56.3 µs  1.67 µs … 116 µs
  21    0–1    all_reduce(float32[1024] max)  64.6 µs … 125 µs         not ended
  21    2      did not arrive
  call 21: rank 2 did not arrive, ranks 0 and 1 waited
  …
  $ allfold doctor --read flights/*.json --to perfetto --output flight.json
  $ allfold doctor --read flights/*.json --to torch --output flights_of_torch

exit status: 0 good; 1 a rank is lost or waits for another, or the calls read from files differ; 2 no such run or file."""


FORMATS = {
    "torch": "a folder of files for torchfrtrace, one per rank",
    "perfetto": "a Chrome trace, one track per rank",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "process", nargs="?", type=int, metavar="PID", help="a process of the run: a rank, or its launcher"
    )
    parser.add_argument("--all", action="store_true", help="every run of this user")
    parser.add_argument("--stacks", action="store_true", help="the stacks of all threads of all ranks")
    parser.add_argument(
        "--dump", type=Path, metavar="FILE", help="write everything as JSON, including the flight recorders"
    )
    parser.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="files that ranks wrote when a call failed, or a --dump"
    )
    parser.add_argument(
        "--last", type=int, default=12, metavar="N", help="with --read: how many calls to show (default: 12)"
    )
    forms = "; ".join(f"{name}: {what}" for name, what in FORMATS.items())
    parser.add_argument("--to", choices=[*FORMATS], help=f"the calls of all ranks in another format. {forms}")
    parser.add_argument("--output", type=Path, metavar="PATH", help="where to write what --to makes")
    add_json(parser)
    add_color(parser)
