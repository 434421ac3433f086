"""The options of `allfold find`, and its help."""

from __future__ import annotations

import argparse

from ....wording import UNITS
from .. import add_color, add_json, add_ranks, add_topology, output_file, size_text

SUMMARY = """\
Find the best schedule for a network. It is priced as allfold plan prices algorithms, proved as allfold verify proves them, and
compared with the time that nothing can beat, with the ranks and links that it comes from. The topology is a name or a JSON
file, as for allfold plan. Ctrl-C ends the search with the best so far, if there is one. docs/find.md explains the methods."""

_EPILOG = """\
methods:
  throughput  spanning trees (for scatter and gather, paths) that keep the narrowest place busy; for large buffers
  steps       the fewest steps, and what more of them buy, exactly; for small networks
  greedy      the rarest chunks first, round by round; for thousands of ranks, and for all_to_all
  channels    rings and trees once per network card of a host, each part of the buffer over other ranks, as NCCL does
  levels      one algorithm inside hosts and one across them; for switches that fold
  built_in    the best of the algorithms that allfold list lists
  auto        those that suit the collective and the network, one after the other, until the least is nearly met

example:
  $ allfold find --collective all_gather --topology dgx1 --size 1GiB
  all_gather of 1G between 8 ranks on dgx1
    found    greedy_dgx1: 48 chunks, 7 steps, 224 messages
    time     6.31 ms, 170.2 GB/s: 1.007 times the least
    least    6.26 ms: ranks 1–7 can send no more than 150 GB/s to the rest: 4 links (rank 1 to rank 0, rank 4 to …
    beside   direct, the best built-in algorithm here, 16.1 ms: 2.573 times the least
    search   greedy, …

  $ allfold find --collective all_gather --topology dgx1 --without "rank 1 to rank 0" --html page.html
  $ allfold find --collective all_gather --topology dgx1 --certificate bound.json
  $ allfold check-bound bound.json dgx1   # what proves the least time, checked by another program
  $ allfold find --topology dgx_h100:nodes=16 --size 64M --seconds 20 --save reduce.json
  $ allfold verify reduce.json            # likewise show, plan --algorithms, simulate, export and compare

  $ allfold find --collective all_gather --topology torus:shape=4x4 --groups 0-7 8-15   # at the same time

  $ allfold find --collective all_gather --ranks 4 --size 1M --save here.json       # on the cores of this machine
  $ allfold bench --algo here.json,auto,ring --peers none                           # measured beside others
  $ torchrun --nnodes 2 … -m allfold topo --emit hosts.json                         # hosts as measured, for --topology

exit status: 0 found, also if Ctrl-C ended the search early; 2 wrong usage, or nothing was found in the time; 130 after
Ctrl-C before anything was found and proved."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--collective", default="all_reduce", metavar="C", help="what to find (default: all_reduce)")
    add_topology(parser, "the network, as for allfold plan (default: the cores of this machine)")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="LINK",
        help="without this link, which failed; may be repeated",
    )
    add_ranks(parser, "the first N ranks take part, others only relay (default: all of the topology)")
    parser.add_argument(
        "--groups",
        nargs="+",
        metavar="RANKS",
        help="groups that share the network, each with a buffer and a schedule of its own, as in 0-3 4-7 or 0,2 1,3",
    )
    parser.add_argument(
        "--root", type=int, metavar="R", help="the root of a rooted collective (default: 0); a place in its group"
    )
    parser.add_argument(
        "--size", type=size_text, default="1GiB", metavar="S", help=f"bytes of the buffer (default: 1GiB). {UNITS}"
    )
    parser.add_argument(
        "--method", default="auto", metavar="M", help="auto, or one of the methods below (default: auto)"
    )
    parser.add_argument("--chunks", type=int, metavar="K", help="K chunks (or trees) per rank, not the best number")
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="T", help="give the best found after T seconds (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (default: 0)")
    parser.add_argument(
        "--save",
        type=output_file,
        metavar="FILE.json",
        help="write the schedule; commands take it wherever they take an algorithm. For groups: FILE.0.json, …",
    )
    parser.add_argument(
        "--certificate",
        type=output_file,
        metavar="FILE.json",
        help="write what proves the least time, in exact numbers; allfold check-bound checks it",
    )
    parser.add_argument("--html", type=output_file, metavar="FILE", help="write the interactive page of the schedule")
    add_json(parser)
    add_color(parser)
