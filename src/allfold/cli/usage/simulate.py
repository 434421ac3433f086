"""The options of `allfold simulate`, and its help."""

from __future__ import annotations

import argparse

from ...wording import UNITS
from . import add_case, add_color, add_counts, add_json, add_topology, output_file, size_text

SUMMARY = """\
Simulate an algorithm on a topology, message by message: a message leaves as soon as its data is ready and its port is free,
links are shared fairly, reductions take time. The result shows which ranks were busy when, and the critical path."""

_EPILOG = """\
example:
  $ allfold simulate ring --ranks 4 --size 64K --topology laptop
  all_reduce by ring: 4 ranks, 4 chunks, 6 steps, 24 messages
    time            11.5 µs  (step by step 11.5 µs, at least 7.86 µs)
    critical path   6 messages: 1.80 µs startup, 7.86 µs transfer, 0.60 µs latency, 1.23 µs combining
    idle            16% in the mean, rank 0 most with 16%

          0                                                                                    11.5 µs
  rank 0  ··▀██████████▄+++··▀██████████▄+++··▀██████████▄+++··▀██████████▄··▀██████████···▀█████████▄
  …

  $ allfold simulate tree --ranks 16 --size 16M --topology hosts:ranks_per_host=4 --segments 16 --svg tree.svg
  $ allfold simulate double_tree --ranks 64 --size 1M --topology fat_tree --noise 0.2 --slow 3=2 --seed 7 --trace t.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("name", metavar="NAME", help="an algorithm, FILE.py:function, FILE.xml (MSCCL) or FILE.json")
    add_case(parser)
    parser.add_argument(
        "--size", type=size_text, default="1M", metavar="S", help=f"bytes of the buffer (default: 1M). {UNITS}"
    )
    add_topology(parser, "where the ranks sit (default: one_host)", "one_host")
    parser.add_argument("--segments", type=int, default=1, metavar="M", help="cut chunks into M segments (default: 1)")
    add_counts(parser)
    parser.add_argument(
        "--noise",
        type=float,
        default=0.0,
        metavar="X",
        help="random delay of the latency and the transfer of every message, on average by a factor of 1 + X (0.1: 10 %%)",
    )
    parser.add_argument(
        "--slow", action="append", default=[], metavar="RANK=F", help="this rank takes F times as long; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the noise (default: 0)")
    parser.add_argument("--svg", type=output_file, metavar="FILE", help="draw the space-time diagram")
    parser.add_argument(
        "--trace", type=output_file, metavar="FILE", help="write the trace for Perfetto and chrome://tracing"
    )
    add_json(parser)
    add_color(parser)
