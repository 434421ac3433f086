"""The options of `allfold export`, and its help."""

from __future__ import annotations

import argparse

from ...export import FORMATS
from ...wording import UNITS
from . import add_case, size_text

SUMMARY = """\
Write a schedule in another format: to run on GPUs (msccl-xml, mscclpp-json), to simulate in ASTRA-sim (chakra), to view
(perfetto), or as it is (json). The output is read back and proved to do the same as the schedule, down to the brackets of
every reduction. What a format cannot express is refused with the reason."""

_EPILOG = """\
example:
  $ allfold export ring --ranks 2 --to msccl-xml
  <algo name="ring" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1" …
    <gpu id="0" i_chunks="2" o_chunks="2" s_chunks="0">
      <tb id="0" send="1" recv="1" chan="0">
        <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
        <step s="1" type="rrcs" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" …
  …

  $ allfold export ring --ranks 8 --to msccl-xml -o ring.xml
  $ allfold export halving_doubling --ranks 8 --to mscclpp-json -o plan.json
  $ allfold export ring --ranks 64 --to chakra --size 64M -o ring
  $ allfold export ring --ranks 8 --to perfetto --topology dgx_h100 --size 256M -o ring.trace.json

exit status: 0 written and proved, 1 the schedule is wrong, 2 wrong usage or more than the format can express."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("name", metavar="NAME", help="an algorithm, FILE.py:function, FILE.xml (MSCCL) or FILE.json")
    listing = "; ".join(f"{name}: {what}" for name, what in FORMATS.items())
    parser.add_argument("--to", required=True, metavar="FORMAT", help=listing)
    add_case(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write to this file (chakra: a prefix, followed by .RANK.et)"
    )
    parser.add_argument(
        "--size",
        type=size_text,
        metavar="BYTES",
        help=f"bytes of the buffer, for chakra and for perfetto with --topology: 64M. {UNITS}",
    )
    parser.add_argument("--topology", metavar="T", help="perfetto: use the times of a simulation on this topology")
    parser.add_argument("--segments", type=int, metavar="S", help="perfetto: segments of the simulation (default: 1)")
