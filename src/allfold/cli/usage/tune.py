"""The options of `allfold tune`, and its help."""

from __future__ import annotations

import argparse

from ...tune import HOSTS_SECONDS, SECONDS
from ...wording import parse_sizes
from . import add_color, add_json, checked

SUMMARY = """\
Time every algorithm of every collective between real processes on this machine, on ordinary and on shared arrays. Find the
fastest algorithm for each range of sizes, and the fastest way to move ordinary arrays (read out of the work area of the rank
that made a result, written into those of its readers, or fetched by the kernel; and the length of segments). Write both to a
tuning file. Calls that name no algorithm then use the one that was fastest here, and all calls move ordinary arrays the way
that was fastest. This does not change results: for reductions, only algorithms that fold from rank 0 up are chosen, as by the
built-in rule, unless --any-order allows others. The file is
~/.config/allfold/tuning.json (or in $XDG_CONFIG_HOME), or what --output names. ALLFOLD_TUNING=FILE makes runs read another
file, ALLFOLD_TUNING=off makes them ignore it. Numbers of ranks that were not tuned keep the built-in rule. The machine should
be otherwise idle. Started by a launcher on several hosts, it times how an all_reduce crosses between them, and rank 0 prints
and writes: up to which size one leader per host crosses, and how long the segments are. Runs on as many hosts with as many
ranks on each then use that."""

_EPILOG = """\
between hosts: torchrun --nnodes 2 --nproc-per-node 4 … -m allfold tune
               and then allfold plan --measured --hosts

example:
  $ allfold tune -n 4                                        about two minutes
  $ allfold tune -n 2 --collectives all_reduce,broadcast --sizes 1K-4M --seconds 20
  $ allfold tune -n 4 --refit --any-order                    choose again from what is in the file, without measuring
  $ allfold tune --show                                      what the file says, for every number of ranks in it
  $ allfold plan --measured --collective all_reduce          every time that was measured
  $ ALLFOLD_TUNING=off python train.py                       as if nothing had been tuned

exit status: 0 good, 2 wrong usage, 130 after Ctrl-C (nothing is written)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("-n", "--ranks", type=int, metavar="RANKS", help="how many processes (default: 2)")
    add(
        "--sizes",
        type=checked(parse_sizes),
        metavar="A,B|A-B",
        help="bytes of the whole buffer, or from A to B in factors of 4 (default: 256-16M)",
    )
    add("--collectives", default="all", metavar="C,D|all", help="these collectives (default: all)")
    add(
        "--seconds",
        type=float,
        metavar="S",
        help=f"about how long to measure (default: {SECONDS:g}, between hosts {HOSTS_SECONDS:g}); large sizes take longer",
    )
    add("--output", metavar="FILE", help="write the tuning file there")
    add("--any-order", action="store_true", help="allow reductions to fold in another order where that is faster")
    add("--refit", action="store_true", help="choose again from the measurements that the file holds")
    add("--show", action="store_true", help="show what the file (--output names another) holds; measure nothing")
    add_json(parser)
    add_color(parser)
