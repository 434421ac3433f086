"""`allfold export`: a schedule in other formats."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path

from ..errors import UsageError
from ..export import FORMATS
from ..files import write_whole
from ..proof import verify
from ..schedules import Schedule
from ..wording import format_size, parse_size, suggest
from .choose import choose, ranks_of
from .terminal import progress


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
    write_whole(path, data)
    result = "proved" if arguments.topology is None else "checked"
    sys.stdout.write(f"{path}: {schedule.collective} {schedule.title} as {form}, {len(data)} bytes, {result}\n")
    return 0


# Each format is loaded when it is asked for: all together take as long to load as NumPy.
WRITERS = {"msccl-xml": "msccl.msccl", "mscclpp-json": "mscclpp.mscclpp"}
"""By format: the module in `export/` with `write(schedule)`, which gives the proved text."""


def _content(schedule: Schedule, form: str, arguments: argparse.Namespace) -> str:
    if form == "perfetto":
        return _trace(schedule, arguments)
    if form == "json":
        verify(schedule, programs=False)
        content = json.dumps(schedule.to_json(), indent=1, ensure_ascii=False) + "\n"
        if Schedule.from_json(content) != schedule:
            raise UsageError(f"{schedule.title} cannot be recovered from its JSON")
        return content
    content = import_module(f"...export.{WRITERS[form]}", __name__).write(schedule)
    return str(content)


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
        raise UsageError(f"-o {arguments.output!r}: expected a prefix, as in -o ring")
    size = parse_size("64M" if arguments.size is None else arguments.size)
    files = chakra.write(schedule, size)
    for rank, content in enumerate(files):
        write_whole(prefix.with_name(f"{prefix.name}.{rank}.et"), content)
    names = f"{prefix}.0.et" + (f" to {prefix}.{len(files) - 1}.et" if len(files) > 1 else "")
    return f"{names}: {schedule.collective} {schedule.title} of {format_size(size)} as chakra, proved\n"
