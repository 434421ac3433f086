"""The tuning file as a whole: measurements and choices, by number of ranks.

`engines/shared_memory/tuning.py` reads the choices alone, when ranks connect; the rest is here, for `allfold tune` and
`allfold plan --measured`. Both make the same checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..collectives import COLLECTIVES
from ..documents import DocumentError, finite_at, list_at, whole_at
from ..engines.shared_memory.choice import ALWAYS, Choice, Way
from ..engines.shared_memory.tuning import (
    FORMAT,
    VARIABLE,
    VERSION,
    Tuning,
    TuningError,
    checked_ways,
    choices_of,
    machine,
    read_document,
    tuning_path,
)
from ..errors import UsageError
from ..files import write_whole
from ..registry import algorithms
from ..version import __version__
from .hosts import HostsRun, runs_between_hosts
from .ordinary import Moved
from .timing import Measurement

_MOST_MEASUREMENTS = 100_000

T = TypeVar("T")


@dataclass(frozen=True)
class TunedRun:
    """One number of ranks, tuned."""

    ranks: int
    machine: Mapping[str, Any]
    date: str
    unrest: float
    """By how much the median round of a timing exceeds the best round, on average: near 0 on a quiet machine."""
    any_order: bool
    choices: Mapping[str, Sequence[Choice]]
    ways: Mapping[str, Sequence[Way]]
    """Ways to move ordinary arrays, where the built-in ones are slower."""
    measured: tuple[Measurement, ...]
    moved: tuple[Moved, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "date": self.date,
            "unrest": _rounded(self.unrest),
            "any_order": self.any_order,
            "choices": {
                name: [[None if limit == ALWAYS else limit, algorithm, reach] for limit, algorithm, reach in rows]
                for name, rows in self.choices.items()
            },
            "ordinary": {
                name: [[None if way.limit == ALWAYS else way.limit, *_way_to_json(way)] for way in rows]
                for name, rows in self.ways.items()
            },
            "measurements": [
                [one.collective, one.algorithm, one.shared, one.size, _rounded(one.seconds)] for one in self.measured
            ],
            "ordinary_measurements": [
                [
                    one.collective,
                    one.algorithm,
                    one.size,
                    *_way_to_json(one.way),
                    _rounded(one.ratio),
                    _rounded(one.noise),
                ]
                for one in self.moved
            ],
        }


def _way_to_json(way: Way) -> list[object]:
    """Without its limit."""
    return [way.fetches, way.handed, way.segment or None, way.in_rows]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def default_path() -> Path:
    """The default path of the tuning file."""
    path, _ = tuning_path()
    if path is None:
        raise UsageError(f"{VARIABLE} is off, or there is no home: name a file with --output")
    return path


def read_runs(path: Path, of_this_machine: bool = True) -> dict[int, TunedRun]:
    """Everything in a tuning file, by number of ranks; `TuningError` if it cannot be used.

    A file from another machine can be read; to be used for choices, a file must be from this machine.
    """
    return _read(path, of_this_machine, runs_of)


def _read(path: Path, of_this_machine: bool, take: Callable[[dict[str, Any]], T]) -> T:
    try:
        return take(read_document(path, of_this_machine))
    except FileNotFoundError:
        raise TuningError(f"{path}: there is no tuning file; `allfold tune` writes one") from None
    except OSError as error:
        raise TuningError(f"{path}: it cannot be read ({error.strerror})") from None
    except TuningError as error:
        raise TuningError(f"{path}: {error}") from None


def runs_of(document: Mapping[str, Any]) -> dict[int, TunedRun]:
    tuning = choices_of(document)
    found = {}
    for ranks in sorted(tuning.choices):
        run = document["runs"][str(ranks)]
        try:
            found[ranks] = _run(ranks, run, tuning, document["machine"])
        except DocumentError as error:
            raise TuningError(f"it is damaged: of {ranks} ranks, {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise TuningError(f"it is damaged: the entry of {ranks} ranks makes no sense ({error!r:.80})") from None
    return found


def read_hosts(path: Path, of_this_machine: bool = True) -> list[HostsRun]:
    """The runs of several hosts in a tuning file; `TuningError` if it cannot be used."""
    return _read(path, of_this_machine, runs_between_hosts)


def write_runs(path: Path, runs: Mapping[int, TunedRun], hosts: Sequence[HostsRun] = ()) -> None:
    """Write the whole file or nothing. All runs are from one machine; those of hosts, from one that was rank 0's."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "allfold": __version__,
        "machine": next(iter(runs.values())).machine if runs else machine(),
        "runs": {str(ranks): run.to_json() for ranks, run in sorted(runs.items())},
        "hosts": [run.to_json() for run in hosts],
    }
    text = json.dumps(document, indent=1, ensure_ascii=False)
    # One line per measurement and per choice.
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]", text)
    write_whole(path, text + "\n", folders=True, private=True)


# ---


def _run(ranks: int, run: Mapping[str, Any], tuning: Tuning, of: Mapping[str, Any]) -> TunedRun:
    measured = []
    for collective, algorithm, shared, size, value in list_at(
        run["measurements"], "measurements", 1, _MOST_MEASUREMENTS
    ):
        if collective not in COLLECTIVES or algorithm not in algorithms(collective) or type(shared) is not bool:
            raise ValueError("a measurement of something unknown")
        whole_at(size, "a size", 0, ALWAYS - 1)
        measured.append(Measurement(collective, algorithm, shared, size, _positive(value, "a time")))
    return TunedRun(
        ranks=ranks,
        machine={"processor": str(of["processor"])[:200], "cores": int(of["cores"])},
        date=str(run["date"])[:40],
        unrest=finite_at(run["unrest"], "unrest"),
        any_order=run.get("any_order") is True,
        choices=tuning.choices[ranks],
        ways=tuning.ways.get(ranks, {}),
        measured=tuple(measured),
        moved=tuple(_moved(ranks, run.get("ordinary_measurements", []))),
    )


def _moved(ranks: int, rows: object) -> Iterator[Moved]:
    for collective, algorithm, size, *way, ratio, noise in list_at(
        rows, "ordinary_measurements", 0, _MOST_MEASUREMENTS
    ):
        if collective not in COLLECTIVES or algorithm not in algorithms(collective):
            raise ValueError("a measurement of something unknown")
        [checked] = checked_ways(collective, ranks, [[None, *way]])
        whole_at(size, "a size", 0, ALWAYS - 1)
        yield Moved(collective, algorithm, size, checked, _positive(ratio, "a ratio"), finite_at(noise, "noise"))


def _positive(value: object, where: str) -> float:
    number = finite_at(value, where, most=1e18)
    if not number:
        raise DocumentError(f"{where} is 0; expected a positive number")
    return number
