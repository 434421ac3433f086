"""The options of `allfold bench`, and its help."""

from __future__ import annotations

import argparse

from ...bench import HOW_TO_GET
from ...wording import UNITS
from . import output_file, size_text

SUMMARY = """\
Measure collectives between real processes, and compare them with other libraries and with memcpy. Columns and conventions are
those of nccl-tests (1 GB is 10^9 bytes; the size of gather-like collectives is that of the whole array). All libraries are
measured in the same run, in turns: one batch of each per round; the best round of each counts. Results are checked on every
rank. Started alone, it starts ranks on this machine; started by a launcher, it measures between the ranks of that run, on all
their hosts, and rank 0 prints."""

_EPILOG = f"""\
example:
  $ allfold bench -n 2 -b 8 -e 4K --rounds 8 --peers openmpi
  …
  # all_reduce: 2 ranks, float32, sum, private arrays
  #                                                                                              openmpi
  #     size     count     type   redop root      time   algbw   busbw  #wrong  memcpy      time   ratio
  #      (B)                                      (µs)  (GB/s)  (GB/s)           ratio      (µs)
           8         2  float32     sum   -1      1.60    0.01    0.01       0    5.77      0.96     0.6
          64        16  float32     sum   -1      1.60    0.04    0.04       0    5.55      1.18   0.737
         512       128  float32     sum   -1      1.81    0.28    0.28       0    5.44      1.73   0.955
        4096      1024  float32     sum   -1      3.56    1.15    1.15       0    5.45      4.29     1.2
  # Out of bounds values : 0 OK
  # Avg bus bandwidth    : 0.3692
  # openmpi ÷ ours       : 0.844 in the geometric mean, 0.6 at least at 8

  $ allfold bench -n 4 -b 1K -e 1M --algo all --peers none          every algorithm, and the one chosen by default
  $ allfold bench -n 4 --collective all -b 64K -e 64K --both        private and shared arrays side by side
  $ allfold bench -n 2 --collective broadcast -b 64K --fresh        with new data in every call
  $ allfold bench --algo found.json,auto,ring --peers none          a schedule of allfold find --save beside others
  $ allfold bench -n 2 --peers mpich=/opt/mpich/bin/python          an MPI from another environment
  $ allfold bench -n 4 --torch --peers engine,gloo                  ours as a backend of torch.distributed
  $ allfold bench -n 4 --device cuda --both                         CUDA tensors, ours and gloo's (and NCCL's, with a GPU each)

  $ torchrun --nnodes 2 --nproc-per-node 4 … -m allfold bench       between the ranks of two hosts
  $ allfold run -n 8 --hosts 2 -m allfold bench --peers gloo        the same on two simulated hosts

how to install the peers (a peer that is not installed is named, and the run goes on without it):
  gloo     {HOW_TO_GET["gloo"]}
  openmpi  {HOW_TO_GET["openmpi"]}
  mpich    {HOW_TO_GET["mpich"]}

exit status: 0 good, 1 one of our results is wrong, 2 wrong usage, 130 after Ctrl-C; what was measured is still printed."""

LEAST_ROUNDS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("what", nargs="?", metavar="COLLECTIVE", help="what to measure; as --collective")
    add(
        "-n",
        "--ranks",
        type=int,
        metavar="RANKS",
        help="how many processes per library (default: the launcher's, those of --algo F.json, or 2)",
    )
    add("-b", "--begin", type=size_text, default="8", metavar="SIZE", help=f"the smallest size (default: 8). {UNITS}")
    add("-e", "--end", type=size_text, default="64M", metavar="SIZE", help="the largest size (default: 64M)")
    add("-f", "--factor", type=float, default=8, metavar="F", help="every size is F times the one before (default: 8)")
    add(
        "--step",
        type=size_text,
        metavar="SIZE",
        help="every size is this many bytes more than the one before, instead of -f",
    )
    add(
        "--collective",
        metavar="C|all",
        help="one collective, several (A,B) or all (default: that of --algo F.json, or all_reduce)",
    )
    add(
        "--algo",
        default="auto",
        metavar="A,B|F.json|all",
        help="use these algorithms, or schedules of allfold find; auto lets the engine choose (default: auto)",
    )
    add(
        "--torch", action="store_true", help="call ours through torch.distributed; the engine itself is then a peer too"
    )
    add(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: tensors on the GPUs of this host, through torch.distributed (default: cpu)",
    )
    add("--dtype", default="float32", metavar="T", help="element type (default: float32)")
    add("--op", default="sum", metavar="OP", help="reduction (default: sum)")
    add("--root", type=int, metavar="R", help="root of rooted collectives (default: that of --algo F.json, or 0)")
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument("--shared", action="store_true", help="use arrays in shared memory (comm.empty)")
    memory.add_argument("--both", action="store_true", help="use private and shared arrays, side by side")
    add(
        "--fresh",
        action="store_true",
        help="every rank writes its array before every call, as programs do; that time counts, for all libraries alike",
    )
    add("--peers", default="all", metavar="P,Q|all|none", help=f"of {', '.join(HOW_TO_GET)} (default: all)")
    add("-i", "--iterations", type=int, metavar="N", help="calls in a batch (default: as many as --seconds allows)")
    add("-w", "--warmup", type=int, default=2, metavar="N", help="calls before a batch, not timed (default: 2)")
    add("--seconds", type=float, default=0.05, metavar="S", help="about how long a batch takes (default: 0.05)")
    add(
        "--rounds",
        type=int,
        default=LEAST_ROUNDS,
        metavar="N",
        help=f"rounds at every size, the best counts (default and minimum: {LEAST_ROUNDS})",
    )
    add("--check", action=argparse.BooleanOptionalAction, default=True, help="check the results")
    add(
        "--json",
        type=_file_or_stdout,
        metavar="FILE",
        help="also write everything as JSON; - writes JSON to stdout instead of the table",
    )


def _file_or_stdout(path: str) -> str:
    return path if path == "-" else output_file(path)
