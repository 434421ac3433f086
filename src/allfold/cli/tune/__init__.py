"""`allfold tune`: time every algorithm on this machine, and choose the fastest for each range of sizes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ... import _native
from ...collectives import COLLECTIVES, find_collective
from ...engines.shared_memory.tuning import TuningError
from ...errors import UsageError
from ...files import require_writable
from ...launch.environment import launched_place
from ...launch.spawn import init
from ...tune import HOSTS_SECONDS, SECONDS
from ...tune.file import TunedRun, default_path, read_hosts, read_runs, write_runs
from ...tune.hosts import SIZES as HOSTS_SIZES
from ...tune.hosts import HostsRun, fitted, tune_hosts
from ...tune.timing import Progress
from ...tune.tune import SIZES, choose_again, tune
from ...wording import parse_sizes
from ..terminal import bar, write_json, write_lines
from .report import report, report_hosts, write_notes

_MOST_RANKS = 64

T = TypeVar("T")


def run(arguments: argparse.Namespace) -> int:
    if (place := launched_place()) is not None and place.size > 1:
        return _between_hosts(arguments)
    if arguments.show:
        return _show(arguments)
    if not arguments.refit:
        _native.require_engine("measuring")
    names, sizes = _collectives(arguments.collectives), _sizes(arguments.sizes)
    arguments.ranks = 2 if arguments.ranks is None else arguments.ranks
    if not 2 <= arguments.ranks <= _MOST_RANKS:
        raise UsageError(f"-n {arguments.ranks}: expected 2 to {_MOST_RANKS} ranks")
    if arguments.refit and (arguments.sizes, arguments.collectives, arguments.seconds) != (None, "all", None):
        raise UsageError("--refit uses all measurements in the file; leave out --sizes, --collectives and --seconds")
    seconds = _seconds(arguments, SECONDS)
    path = default_path() if arguments.output is None else Path(arguments.output)
    require_writable(path, folders=True)
    begin = time.monotonic()
    with _progress() as progress:
        if arguments.refit:
            known = read_runs(path, of_this_machine=False)
            if arguments.ranks not in known:
                raise UsageError(_not_tuned(path, arguments.ranks, known))
            found = choose_again(known[arguments.ranks], arguments.any_order)
        else:
            known = _known(path, read_runs) or {}
            found = tune(arguments.ranks, sizes, names, seconds, arguments.any_order, progress)
    write_runs(path, {**known, arguments.ranks: found}, _known(path, read_hosts) or [])
    if arguments.json:
        write_json(_document(found, path))
        return 0
    report(found, time.monotonic() - begin, arguments.color)
    write_notes(found, path, arguments.color)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    given = (arguments.sizes, arguments.collectives, arguments.seconds, arguments.any_order, arguments.refit)
    if given != (None, "all", None, False, False):
        raise UsageError("--show measures nothing; it takes -n, --output, --json and colors only")
    path = default_path() if arguments.output is None else Path(arguments.output)
    runs = read_runs(path, of_this_machine=False)
    if arguments.ranks is not None and arguments.ranks not in runs:
        raise UsageError(_not_tuned(path, arguments.ranks, runs))
    shown = [run for ranks, run in runs.items() if arguments.ranks in (None, ranks)]
    if arguments.json:
        write_json([_document(run, path) for run in shown])
        return 0
    if not shown:
        write_lines(
            [f"{path}: nothing was tuned on one machine; `allfold plan --measured --hosts` shows the rest"], None
        )
    for run in shown:
        report(run, None, arguments.color)
    return 0


def _document(found: TunedRun, path: Path) -> dict[str, Any]:
    return {"path": str(path), "ranks": found.ranks, "machine": dict(found.machine), **found.to_json()}


def _not_tuned(path: Path, ranks: int, known: Mapping[int, TunedRun]) -> str:
    return f"{path}: {ranks} ranks were not tuned; the file has {', '.join(map(str, known)) or 'no ranks'}"


def _known(path: Path, read: Callable[[Path], T]) -> T | None:
    """The present content of the file; an unusable file is replaced."""
    if not os.path.exists(path):
        return None
    try:
        return read(path)
    except TuningError as error:
        sys.stderr.write(f"allfold tune: {error}; it will be replaced\n")
        return None


def _between_hosts(arguments: argparse.Namespace) -> int:
    """Every rank of a launcher's run comes here; rank 0 writes and prints."""
    alone = arguments.any_order or arguments.refit or arguments.show
    if arguments.ranks is not None or arguments.collectives != "all" or alone:
        raise UsageError(
            "inside the ranks of a launcher, tune takes --sizes, --seconds, --output, --json and colors only"
        )
    sizes = HOSTS_SIZES if arguments.sizes is None else _sizes(arguments.sizes)
    seconds = _seconds(arguments, HOSTS_SECONDS)
    path = default_path() if arguments.output is None else Path(arguments.output)
    begin = time.monotonic()
    with init() as comm, _progress() as progress:
        if comm.rank == 0:
            require_writable(path, folders=True)
        if comm.rank and len(comm.engine.hosts()) == 1:
            return 0  # rank 0 says why
        found = tune_hosts(comm, sizes, seconds, progress)
        comm.barrier()
    if comm.rank:
        return 0
    found = fitted(found)
    others = [one for one in _known(path, read_hosts) or [] if _key(one) != _key(found)]
    write_runs(path, _known(path, read_runs) or {}, [*others, found])
    if arguments.json:
        write_json({"path": str(path), **found.to_json()})
        return 0
    report_hosts(found, path, time.monotonic() - begin, arguments.color)
    return 0


def _key(run: HostsRun) -> tuple[tuple[int, ...], str]:
    return run.tuned.hosts, run.tuned.fabric


def _seconds(arguments: argparse.Namespace, default: float) -> float:
    seconds: float = default if arguments.seconds is None else arguments.seconds
    if not 0 < seconds < 86_400:
        raise UsageError(f"--seconds {seconds:g}: expected a time above 0 and below a day")
    return seconds


def _collectives(text: str) -> list[str]:
    if text == "all":
        return list(COLLECTIVES)
    return list(dict.fromkeys(find_collective(word.strip()).name for word in text.split(",")))


def _sizes(text: str | None) -> Sequence[int]:
    if text is None:
        return SIZES
    sizes = parse_sizes(text)
    if not sizes[0]:
        raise UsageError(f"--sizes {text}: expected at least 1 byte")
    return sizes


@contextmanager
def _progress() -> Iterator[Progress]:
    with bar("starting", 1.0) as update:
        yield lambda what, part: update(completed=part, description=what)
