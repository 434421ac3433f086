"""The model compared with measurements: what it predicts for this machine, beside what was timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log2
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from .caches import Floats
from .file import TunedRun, default_path, read_runs
from .fit import AS_GOOD, JUDGED_FROM, Judgement, judge
from .model import Item


@dataclass(frozen=True, eq=False)
class Comparison:
    """Some or all timings of one run, and the predictions for them."""

    run: TunedRun
    path: Path
    items: tuple[Item, ...]
    measured: Floats
    predicted: Floats

    @property
    def judgement(self) -> Judgement:
        """Of what is compared here."""
        return judge(self.items, self.predicted, self.measured)

    def errors(self) -> Floats:
        """predicted ÷ measured − 1."""
        return np.asarray(self.predicted / self.measured - 1)

    def lines(self) -> list[str]:
        """Both figures in sentences: for what is compared, for the whole run, and for the sizes held out of the fit."""
        here, whole, unseen = self.judgement, self.run.judgement, self.run.held_out
        lines = [_sentence("compared here", here)]
        if (here.cases, here.contests) != (whole.cases, whole.contests):
            lines.append(_sentence("the whole run", whole))
        if unseen.cases:
            lines.append(_sentence("held out (fitted on every second size, judged on the others)", unseen))
        lines.append(
            f"Error: the geometric mean of predicted ÷ measured, or its reverse, from {JUDGED_FROM // 1024} KiB on. A "
            f"winner is right if it took at most {AS_GOOD - 1:.0%} more than the fastest."
        )
        return lines

    def to_json(self) -> dict[str, Any]:
        rows = zip(self.items, self.predicted.tolist(), self.measured.tolist(), self.errors().tolist(), strict=True)
        return {
            "ranks": self.run.ranks,
            "machine": dict(self.run.machine),
            "date": self.run.date,
            "terms": self.run.model.named(),
            "rows": [
                {**asdict(item), "predicted": predicted, "measured": measured, "error": error}
                for item, predicted, measured, error in rows
            ],
            "compared": asdict(self.judgement),
            "whole_run": asdict(self.run.judgement),
            "held_out": asdict(self.run.held_out),
        }


def measured(
    path: Path | None = None,
    ranks: int | None = None,
    collectives: Sequence[str] | None = None,
    algorithms: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
) -> Comparison:
    """What the tuning file holds for these collectives, algorithms and sizes (default: all), and the predictions.

    Without a path, the user's own file is read, which must be from this machine.
    """
    where = default_path() if path is None else path
    runs = read_runs(where, of_this_machine=path is None)
    if ranks is None and len(runs) == 1:
        ranks = next(iter(runs))
    if ranks not in runs:
        there = ", ".join(map(str, runs)) or "none on one machine (--hosts shows what was tuned between hosts)"
        asked = "which number of ranks? --ranks says it" if ranks is None else f"{ranks} ranks were not tuned"
        raise UsageError(f"{where}: {asked}; tuned were {there}")
    run = runs[ranks]
    kept = [
        i
        for i, item in enumerate(run.items)
        if (collectives is None or item.collective in collectives)
        and (algorithms is None or item.algorithm in algorithms)
        and (sizes is None or any(_close(item.size, size) for size in sizes))
    ]
    if not kept:
        there = ", ".join(dict.fromkeys(item.collective for item in run.items))
        raise UsageError(f"{where}: nothing like that was measured; it has sizes of {there} with {ranks} ranks")
    items = tuple(run.items[i] for i in kept)
    return Comparison(run, where, items, run.seconds[kept], run.model.predict(items))


def _close(size: int, wanted: int) -> bool:
    """Compare with tolerance: sizes were rounded to whole elements per rank before they were measured."""
    return size == wanted or (size > 0 and wanted > 0 and abs(log2(size / wanted)) < 0.5)


def _sentence(what: str, figures: Judgement) -> str:
    if not figures.cases:
        return f"{what}: nothing of 64 KiB or more."
    winners = f"; winner right in {figures.right} of {figures.contests}" if figures.contests else ""
    return f"{what}: error {figures.error:.1%} over {figures.cases} cases{winners}."
