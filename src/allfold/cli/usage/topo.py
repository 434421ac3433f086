"""The options of `allfold topo`, and its help."""

from __future__ import annotations

import argparse

from . import add_color, add_json, add_ranks, output_file

SUMMARY = """\
Show the hardware of this machine: cores, caches, memory nodes, GPUs and their links, network cards; as a tree, a table and a
drawing, with what it means for the choice of an algorithm. Missing hardware is listed as missing. A container's CPU limit is
taken into account. Started by a launcher on several hosts, it measures what connects them, and rank 0 prints; --emit then
writes the hosts as a topology with these figures."""

_EPILOG = """\
between hosts: torchrun --nnodes 2 --nproc-per-node 4 … -m allfold topo --emit hosts.json
               and then allfold plan --topology hosts.json --size 64M

example:
  $ allfold topo
  this machine
  …
  $ allfold topo --emit here.json        # as a topology, with built-in figures, for allfold plan --topology here.json
  $ allfold topo --svg here.svg --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add_ranks(parser, "how many ranks the topology has (default: one per core)")
    parser.add_argument("--emit", type=output_file, metavar="FILE", help="write it as a topology, in JSON")
    parser.add_argument("--gpus", action="store_true", help="with --emit: the GPUs instead of the cores")
    parser.add_argument("--svg", type=output_file, metavar="FILE", help="write the drawing as a picture")
    add_json(parser)
    add_color(parser)
