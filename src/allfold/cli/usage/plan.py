"""The options of `allfold plan`, and its help."""

from __future__ import annotations

import argparse

from ...wording import UNITS, parse_sizes, rank_counts
from . import add_algorithms, add_color, add_counts, add_json, add_ranks, add_topology, checked, output_file

SUMMARY = """\
Estimate the time of every algorithm of a collective on a topology, with the α-β-γ model: how long it takes, what limits it, and
how far it is from the lower bound. The fastest comes first (of those within one per cent, the one with the fewest message
starts). A topology is a JSON file (allfold topo --emit writes one) or a name: one_host, hosts, ring, torus, mesh, hypercube,
fat_tree, dragonfly, dgx1, dgx2, dgx_a100, dgx_h100, mi250, ndv2, ethernet_cloud, laptop. Parameters follow a colon:
fat_tree:ranks_per_host=8,oversubscription=4,bandwidth=400Gb/s,latency=1us. docs/model.md explains the model."""

_EPILOG = """\
example:
  $ allfold plan --ranks 64 --size 64MiB --topology dgx_h100 --algorithms ring,tree,halving_doubling,two_level
  all_reduce of 64M between 64 ranks on dgx_h100, 8 hosts
  algorithm         limited by                           time  × least  bus GB/s  uplinks  steps  segments         from
  halving_doubling  rank 0 out and 255 like it         638 µs     2.17       207      0 S     12         2  closed form
  two_level         rank 0 out and 255 like it         697 µs     2.37       189      0 S     28         1  closed form
  ring              host 0 card 7 out and 31 like it  2.99 ms     10.2      44.2   31.5 S    126         1  closed form
  tree              host 0 card 0 out and 3 like it   4.96 ms     16.9      26.6      0 S     12        15  closed form
  …

  $ allfold plan --sweep --ranks 8,64,512 --size 16K,256K,4M --topology dgx_h100
  all_reduce: who wins where
  ranks    8  64 512
  16K      A   A   A
  256K     A   A   B
  4M       B   B   B

  A  recursive_doubling, 5 of 9
  B  halving_doubling, 4 of 9

  $ allfold plan --hosts 2,3 --size 64K --collective all_gather   # what a call without an algorithm does between hosts
  $ allfold plan --ranks 1024 --size 1GiB --topology fat_tree:oversubscription=4 --collective all_gather --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    said = "how many ranks (default: all of the topology; with --sweep: 2 to 1024)"
    add_ranks(parser, said, metavar="N|A,B,C", parse=rank_counts)
    parser.add_argument(
        "--size",
        type=checked(parse_sizes),
        metavar="S|A,B|A-B",
        help=f"bytes of the buffer (default: 64M; with --sweep: a list, or a range, default 1K-1G). {UNITS}",
    )
    add_topology(parser, "where the ranks sit (default: on the cores of this machine)")
    parser.add_argument(
        "--collective", metavar="C", help="of this collective (default: all_reduce; with --hosts: every one)"
    )
    add_algorithms(parser)
    parser.add_argument(
        "--segments", type=int, metavar="M", help="cut chunks into M segments (default: the best number)"
    )
    add_counts(parser)
    parser.add_argument(
        "--sweep", action="store_true", help="map the fastest algorithm over many sizes and numbers of ranks"
    )
    parser.add_argument("--svg", type=output_file, metavar="FILE", help="with --sweep: write the map as a picture")
    parser.add_argument(
        "--measured",
        nargs="?",
        const="",
        metavar="FILE",
        help="show what allfold tune measured on this machine (default: the user's tuning file)",
    )
    parser.add_argument(
        "--hosts",
        nargs="?",
        const="",
        metavar="A,B",
        help="which schedule a call without an algorithm follows between hosts with this many ranks each; with --measured: "
        "what was measured between hosts, not on one machine",
    )
    add_json(parser)
    add_color(parser)
