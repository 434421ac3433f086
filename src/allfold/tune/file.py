"""The tuning file as a whole: what was measured, what was fitted and what is chosen, by number of ranks.

`engines/shared_memory/tuning.py` reads the choices alone, when ranks connect; the rest is here, for `allfold tune` and
`allfold plan --measured`. Both make the same checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

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
from .caches import Floats, Setting
from .fit import Judgement, Model, fit, held_out, judge
from .hosts import HostsRun, runs_between_hosts
from .model import TERMS, Item
from .ordinary import Moved

_MOST_MEASUREMENTS = 100_000

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
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
    """How ordinary arrays are moved, where the built-in ways are slower."""
    items: tuple[Item, ...]
    seconds: Floats
    moved: tuple[Moved, ...]
    model: Model
    judgement: Judgement
    held_out: Judgement
    """The same for a model that was fitted without the sizes it is judged on."""

    def to_json(self) -> dict[str, Any]:
        rows = zip(self.items, self.seconds.tolist(), strict=True)
        return {
            "date": self.date,
            "unrest": float(f"{self.unrest:.4g}"),
            "any_order": self.any_order,
            "choices": {
                name: [[None if limit == ALWAYS else limit, algorithm, reach] for limit, algorithm, reach in rows]
                for name, rows in self.choices.items()
            },
            "ordinary": {
                name: [[None if way.limit == ALWAYS else way.limit, *_way_to_json(way)] for way in rows]
                for name, rows in self.ways.items()
            },
            "setting": asdict(self.model.setting),
            "terms": {name: float(f"{value:.4g}") for name, value in self.model.named().items()},
            "judgement": asdict(self.judgement),
            "held_out": asdict(self.held_out),
            "measurements": [
                [one.collective, one.algorithm, one.shared, one.size, float(f"{seconds:.4g}")] for one, seconds in rows
            ],
            "ordinary_measurements": [
                [one.collective, one.algorithm, one.size, *_way_to_json(one.way), *_digits(one.ratio, one.noise)]
                for one in self.moved
            ],
        }


def _way_to_json(way: Way) -> list[object]:
    """Without its limit."""
    return [way.fetches, way.handed, way.segment or None, way.in_rows]


def _digits(*values: float) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def default_path() -> Path:
    """Where a tuning file goes, and is looked for, when the user does not say."""
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
            raise TuningError(f"it is damaged: what it says of {ranks} ranks makes no sense ({error!r:.80})") from None
    return found


def read_hosts(path: Path, of_this_machine: bool = True) -> list[HostsRun]:
    """What a tuning file holds of several hosts; `TuningError` if it cannot be used."""
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
    items, seconds = [], []
    for collective, algorithm, shared, size, value in list_at(
        run["measurements"], "measurements", 1, _MOST_MEASUREMENTS
    ):
        if collective not in COLLECTIVES or algorithm not in algorithms(collective) or type(shared) is not bool:
            raise ValueError("a measurement of something unknown")
        items.append(Item(collective, algorithm, ranks, shared, whole_at(size, "a size", 0, ALWAYS - 1)))
        seconds.append(_positive(value, "a time"))
    setting = run["setting"]
    cores, fetches = whole_at(setting["cores"], "cores", 1, 2**20 - 1), setting["fetches"]
    if type(fetches) is not bool:
        raise ValueError("fetches")
    caches = (_positive(setting["own_cache"], "own_cache"), _positive(setting["last_cache"], "last_cache"))
    model, judgement, unseen = _model(run, items, np.array(seconds), Setting(cores, *caches, fetches))
    return TunedRun(
        ranks=ranks,
        machine={"processor": str(of["processor"])[:200], "cores": int(of["cores"])},
        date=str(run["date"])[:40],
        unrest=finite_at(run["unrest"], "unrest"),
        any_order=run.get("any_order") is True,
        choices=tuning.choices[ranks],
        ways=tuning.ways.get(ranks, {}),
        items=tuple(items),
        seconds=np.array(seconds),
        moved=tuple(_moved(ranks, run.get("ordinary_measurements", []))),
        model=model,
        judgement=judgement,
        held_out=unseen,
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


def _model(
    run: Mapping[str, Any], items: Sequence[Item], seconds: Floats, setting: Setting
) -> tuple[Model, Judgement, Judgement]:
    """The fitted model, and how good it is. Fitted again if the file has another model's terms."""
    if run["terms"].keys() != set(TERMS):
        model = fit(items, seconds, setting)
        return model, judge(items, model.predict(items), seconds), held_out(items, seconds, setting)
    terms = np.array([finite_at(run["terms"][name], name) for name in TERMS])
    if not terms.any():
        raise ValueError("terms")
    return Model(setting, terms), _judgement(run["judgement"]), _judgement(run["held_out"])


def _judgement(facts: Mapping[str, Any]) -> Judgement:
    cases, contests, right = (facts[name] for name in ("cases", "contests", "right"))
    if any(type(one) is not int for one in (cases, contests, right)) or not 0 <= right <= contests <= cases:
        raise ValueError("judgement")
    return Judgement(cases, finite_at(facts["error"], "error"), contests, right)


def _positive(value: object, where: str) -> float:
    number = finite_at(value, where, most=1e18)
    if not number:
        raise DocumentError(f"{where} is 0; expected more")
    return number
