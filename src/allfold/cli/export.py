"""`allfold export`: a schedule in other formats."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..collectives import suggest
from ..errors import UsageError
from ..export import FORMATS
from ..files import write_whole
from ..schedule import Schedule
from ..verify import verify
from ..wording import UNITS, format_size, parse_size
from .choose import add_with, choose, ranks_of
from .terminal import progress

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
  $ allfold export ring --ranks 64 --to chakra --size 64M -o traces/ring
  $ allfold export ring --ranks 8 --to perfetto --topology dgx_h100 --size 256M -o ring.trace.json

exit status: 0 written and proved, 1 the schedule is wrong, 2 wrong usage or more than the format can express."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("name", metavar="NAME", help="an algorithm, FILE.py:function, FILE.xml (MSCCL) or FILE.json")
    listing = "; ".join(f"{name}: {what}" for name, what in FORMATS.items())
    parser.add_argument("--to", required=True, metavar="FORMAT", help=listing)
    parser.add_argument("--collective", metavar="C", help="of this collective (default: all_reduce where it has one)")
    parser.add_argument("--ranks", metavar="N", help="how many ranks (default: 4, or those of the file)")
    parser.add_argument("--root", type=int, metavar="R", help="the root of a rooted collective (default: 0)")
    add_with(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write to this file (chakra: a prefix, followed by .RANK.et)"
    )
    parser.add_argument(
        "--size",
        metavar="BYTES",
        help=f"bytes of the buffer, for chakra and for perfetto with --topology: 64M. {UNITS}",
    )
    parser.add_argument("--topology", metavar="T", help="perfetto: use the times of a simulation on this topology")
    parser.add_argument("--segments", type=int, metavar="S", help="perfetto: segments of the simulation (default: 1)")


def run(arguments: argparse.Namespace) -> int:
    form = arguments.to
    if form not in FORMATS:
        raise UsageError(f"--to {form}: unknown format; {suggest(form, FORMATS)}")
    concerned = {"size": ("chakra", "perfetto"), "topology": ("perfetto",), "segments": ("perfetto",)}
    for option, forms in concerned.items():
        if getattr(arguments, option) is not None and form not in forms:
            raise UsageError(f"--{option} does not concern --to {form}")
    choice = choose(arguments.name, arguments.collective, arguments.parameters)
    with progress("making the schedule") as say:
        schedule = choice.schedule(ranks_of(choice, arguments.ranks), arguments.root)
        say(f"writing {form}, and checking it")
        if form == "chakra":
            sentence = _write_traces(schedule, arguments)
        else:
            content = _content(schedule, form, arguments)
    if form == "chakra":
        sys.stdout.write(sentence)
        return 0
    if arguments.output is None:
        sys.stdout.write(content)
        return 0
    path, data = Path(arguments.output), content.encode()
    write_whole(path, data, folders=True)
    result = "proved" if arguments.topology is None else "checked"
    sys.stdout.write(f"{path}: {schedule.collective} {schedule.title} as {form}, {len(data)} bytes, {result}\n")
    return 0


# Each format is loaded when it is asked for: all together take as long to load as NumPy.


def _content(schedule: Schedule, form: str, arguments: argparse.Namespace) -> str:
    if form == "perfetto":
        return _trace(schedule, arguments)
    if form == "json":
        verify(schedule, programs=False)
        content = json.dumps(schedule.to_json(), indent=1, ensure_ascii=False) + "\n"
        if Schedule.from_json(content) != schedule:
            raise UsageError(f"{schedule.title} does not come back from its JSON")
        return content
    if form == "msccl-xml":
        from ..export.msccl import msccl

        return msccl.write(schedule)
    from ..export.mscclpp import mscclpp

    return mscclpp.write(schedule)


def _trace(schedule: Schedule, arguments: argparse.Namespace) -> str:
    from ..export import perfetto

    if arguments.topology is None:
        for option in ("size", "segments"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"--{option} needs --topology: a trace of steps has no {option.removesuffix('s')}s")
        return perfetto.write(schedule)
    from ..price import find_topology
    from ..price.simulate.simulate import simulate

    topology = find_topology(arguments.topology, schedule.ranks)
    size = parse_size("64M" if arguments.size is None else arguments.size)
    return perfetto.write(
        schedule, simulate(schedule, topology, size, 1 if arguments.segments is None else arguments.segments)
    )


def _write_traces(schedule: Schedule, arguments: argparse.Namespace) -> str:
    from ..export.chakra import chakra

    if arguments.output is None:
        raise UsageError("--to chakra writes one file per rank: add -o PREFIX")
    prefix = Path(arguments.output)
    if prefix.name in ("", ".."):
        raise UsageError(f"-o {arguments.output!r}: expected a prefix, as in traces/ring")
    size = parse_size("64M" if arguments.size is None else arguments.size)
    files = chakra.write(schedule, size)
    for rank, content in enumerate(files):
        write_whole(prefix.with_name(f"{prefix.name}.{rank}.et"), content, folders=True)
    names = f"{prefix}.0.et" + (f" to {prefix}.{len(files) - 1}.et" if len(files) > 1 else "")
    return f"{names}: {schedule.collective} {schedule.title} of {format_size(size)} as chakra, proved\n"
