"""The measurements as a table in the style of nccl-tests, and as JSON.

A row is printed as soon as it is measured. Widths and columns are therefore fixed beforehand. If the table would be too
wide for a page, columns that only repeat the heading are dropped first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..wording import format_size
from .case import Case
from .measure import Subject, Timing

WIDTH = 120
FLOOR = "memcpy"
_LEAST_RATIO_DIGITS = 3


@dataclass(frozen=True)
class Variant:
    """One way to run ours: with which algorithm, on which kind of array."""

    algorithm: str
    shared: bool
    file: str | None = None
    """The file of the algorithm's schedule, if the algorithm is not registered."""

    @property
    def label(self) -> str:
        return f"{self.algorithm} {self.memory}"

    @property
    def memory(self) -> str:
        return "shared" if self.shared else "private"

    def subject(self) -> Subject:
        algorithm = None if self.algorithm == "auto" or self.file else self.algorithm
        return Subject(self.label, "allfold", {"algorithm": algorithm, "file": self.file, "shared": self.shared})


@dataclass(frozen=True)
class CaseResult:
    """One case with everything that was measured in it, by label."""

    case: Case
    timings: Mapping[str, Timing]

    def best(self, label: str) -> float | None:
        timing = self.timings.get(label)
        return timing.best if timing is not None else None

    def bandwidth(self, label: str) -> tuple[float, float]:
        """algbw and busbw, in GB/s."""
        best = self.best(label)
        plain = self.case.size / best / 1e9 if best else 0.0
        return plain, plain * self.case.bus_factor

    def ratio(self, above: str, below: str) -> float | None:
        """The time of one divided by the time of the other."""
        upper, lower = self.best(above), self.best(below)
        return upper / lower if upper is not None and lower else None

    def to_json(self, variants: Sequence[Variant], peers: Sequence[str]) -> dict[str, Any]:
        return {
            **self.case.to_json(),
            "size": self.case.size,
            "ours": [
                {
                    "algorithm": variant.algorithm,
                    "memory": variant.memory,
                    **self._timing(variant.label),
                    "over_memcpy": self.ratio(variant.label, FLOOR),
                    "faster_than": {peer: self.ratio(peer, variant.label) for peer in peers},
                }
                for variant in variants
            ],
            "peers": {peer: self._timing(peer) for peer in peers},
            "memcpy": self._timing(FLOOR),
        }

    def _timing(self, label: str) -> dict[str, Any]:
        timing = self.timings.get(label, Timing())
        plain, bus = self.bandwidth(label)
        return {
            "microseconds": None if timing.best is None else timing.best * 1e6,
            "rounds": [seconds * 1e6 for seconds in timing.rounds],
            "iterations": timing.iterations,
            "algbw": plain,
            "busbw": bus,
            "wrong": timing.wrong,
            "problem": timing.problem,
        }


@dataclass(frozen=True)
class _Column:
    group: str
    name: str
    unit: str
    width: int
    key: str
    """Its key in `_cells`."""
    goes: int = 0
    """Columns with a higher number are dropped first if the table is too wide; 0 is never dropped."""


class BenchTable:
    """One collective's table: a heading, rows as they come, a footer."""

    def __init__(self, case: Case, variants: Sequence[Variant], peers: Sequence[str], fresh: bool = False) -> None:
        self.case = case
        self.fresh = fresh
        self.variants = list(variants)
        self.peers = list(peers)
        self.points: list[CaseResult] = []
        self.is_finished = False
        self.algorithms = list(dict.fromkeys(variant.algorithm for variant in variants))
        self.memories = list(dict.fromkeys(variant.shared for variant in variants))
        self.columns = self._choose_columns()

    def drop_peers(self, missing: Collection[str]) -> None:
        """Remove the columns of missing peers; call it before the heading."""
        self.peers = [peer for peer in self.peers if peer not in missing]
        self.columns = self._choose_columns()

    def _choose_columns(self) -> list[_Column]:
        columns = [_Column("", "size", "(B)", 10, "size"), _Column("", "count", "", 10, "count", 5)]
        columns += [_Column("", "type", "", 9, "type", 6), _Column("", "redop", "", 8, "redop", 7)]
        columns += [_Column("", "root", "", 5, "root", 8)]
        if len(self.algorithms) > 1:
            columns.append(
                _Column("", "algorithm", "", 2 + max(map(len, [*self.algorithms, "algorithm"])), "algorithm")
            )
        several = len(self.memories) > 1
        for shared in self.memories:
            group = ("shared" if shared else "private") if several else ""
            columns += [
                _Column(group, "time", "(µs)", 10, f"time {shared}"),
                _Column(group, "algbw", "(GB/s)", 8, f"algbw {shared}", 3),
                _Column(group, "busbw", "(GB/s)", 8, f"busbw {shared}", 2),
                _Column(group, "#wrong", "", 8, f"wrong {shared}"),
                _Column(group, "memcpy", "ratio", 8, f"memcpy {shared}", 1),
            ]
        for peer in self.peers:
            columns.append(_Column(peer, "time", "(µs)", 10, f"peer {peer}", 4))
            for shared in self.memories:
                name = ("shared" if shared else "priv.") if several else "ratio"
                columns.append(_Column(peer, name, "", 7 if several else 8, f"ratio {peer} {shared}"))
        if not self.case.kind.carries_data:
            without = ("count", "algbw", "busbw", "memcpy", "type", "redop")
            columns = [column for column in columns if column.key.split()[0] not in without]
        while sum(column.width for column in columns) > WIDTH and any(column.goes for column in columns):
            first = max(column.goes for column in columns)
            columns = [column for column in columns if column.goes != first]
        return columns

    def heading(self) -> list[str]:
        case, kind = self.case, self.case.kind
        facts = [case.dtype] if kind.carries_data else []
        facts += [case.op] if kind.reduces and kind.carries_data else []
        facts += [f"root {case.root}"] if kind.rooted else []
        arrays = " and ".join("shared" if shared else "private" for shared in self.memories)
        written = ", written before every call" if self.fresh else ""
        facts += [f"{arrays} arrays{written}"] if kind.carries_data else []
        groups = self._groups()
        return [
            "#",
            f"# {case.collective}: {', '.join([f'{case.ranks} ranks', *facts])}",
            *([groups] if groups.strip("# ") else []),
            self._line([column.name for column in self.columns], mark="#"),
            *([self._line([column.unit for column in self.columns], mark="#")] if kind.carries_data else []),
        ]

    def _groups(self) -> str:
        """The names of groups of columns, each at the right end of its group."""
        line = ""
        for position, column in enumerate(self.columns):
            line += " " * column.width
            is_last = position + 1 == len(self.columns) or self.columns[position + 1].group != column.group
            if is_last and column.group:
                line = line[: len(line) - len(column.group)] + column.group
        return "#" + line[1:]

    def add(self, point: CaseResult) -> list[str]:
        """The lines of a new point, one per algorithm."""
        self.points.append(point)
        return [
            self._line([self._cell(point, algorithm, column.key) for column in self.columns])
            for algorithm in self.algorithms
        ]

    def _cell(self, point: CaseResult, algorithm: str, key: str) -> str:
        case = point.case
        plain = {
            "size": str(case.size),
            "count": str(case.count),
            "type": case.dtype,
            "redop": case.op if case.kind.reduces and case.kind.carries_data else "none",
            "root": str(case.root) if case.kind.rooted else "-1",
            "algorithm": algorithm,
        }
        if key in plain:
            return plain[key]
        what, *rest = key.split()
        if what == "peer":
            return _time(point.best(rest[0]))
        ours = Variant(algorithm, rest[-1] == "True").label
        if what == "ratio":
            return _ratio(point.ratio(rest[0], ours))
        timing = point.timings.get(ours, Timing())
        return {
            "time": _time(timing.best),
            "algbw": f"{point.bandwidth(ours)[0]:.2f}",
            "busbw": f"{point.bandwidth(ours)[1]:.2f}",
            "wrong": "N/A" if timing.wrong is None else str(timing.wrong),
            "memcpy": _ratio(point.ratio(ours, FLOOR)),
        }[what]

    def _line(self, cells: Sequence[str], mark: str = " ") -> str:
        line = "".join(cell.rjust(column.width) for cell, column in zip(cells, self.columns, strict=True))
        return (mark + line[1:] if line[:1] == " " else line).rstrip()

    # What it comes to ------------------------------------------------------------------------------------------------

    @property
    def wrong(self) -> int:
        return sum(point.timings[one.label].wrong or 0 for point in self.points for one in self.variants)

    @property
    def average_bus_bandwidth(self) -> float:
        all_of_them = [point.bandwidth(one.label)[1] for point in self.points for one in self.variants]
        return sum(all_of_them) / len(all_of_them) if all_of_them else 0.0

    def summary(self, variant: Variant, peer: str) -> dict[str, Any] | None:
        """By how much we are faster: the geometric mean over all sizes, and the size where it is least."""
        ratios = [(ratio, p.case.size) for p in self.points if (ratio := p.ratio(peer, variant.label)) is not None]
        if not ratios:
            return None
        mean = math.exp(sum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
        least, size = min(ratios)
        return {"geometric_mean": mean, "least": least, "least_at": size}

    def footer(self) -> list[str]:
        checked = any(t.wrong is not None for p in self.points for t in p.timings.values())
        lines = [f"# Out of bounds values : {self.wrong} {'FAILED' if self.wrong else 'OK'}" if checked else ""]
        lines += [f"# Avg bus bandwidth    : {self.average_bus_bandwidth:.4f}"] if self.case.kind.carries_data else []
        pairs = [(peer, variant) for peer in self.peers for variant in self.variants]
        names = {pair: f"{pair[0]} ÷ {'ours' if len(self.variants) == 1 else pair[1].label}" for pair in pairs}
        width = max(map(len, [*names.values(), "Out of bounds values"]))
        for (peer, variant), name in names.items():
            found = self.summary(variant, peer)
            if found is not None:
                at = f" at {format_size(found['least_at'])}" if self.case.kind.carries_data else ""
                lines.append(
                    f"# {name:<{width}} : {_ratio(found['geometric_mean'])} in the geometric mean, "
                    f"{_ratio(found['least'])} at least{at}"
                )
        lines += [f"# note: {note}" for note in self.notes()]
        return [line for line in lines if line]

    def notes(self) -> list[str]:
        """Notes about peers without figures and peers with wrong results; each once."""
        notes = []
        for peer in self.peers:
            timings = [point.timings[peer] for point in self.points if peer in point.timings]
            notes += [timing.problem for timing in timings if timing.problem]
            wrong = sum(timing.wrong or 0 for timing in timings)
            notes += [f"{peer}: {wrong} elements of its results are wrong"] if wrong else []
        return list(dict.fromkeys(notes))

    def to_json(self) -> dict[str, Any]:
        return {
            "collective": self.case.collective,
            "points": [point.to_json(self.variants, self.peers) for point in self.points],
            "out_of_bounds": self.wrong,
            "average_bus_bandwidth": self.average_bus_bandwidth,
            "faster_than": [
                {"peer": peer, "algorithm": one.algorithm, "memory": one.memory, **found}
                for peer in self.peers
                for one in self.variants
                if (found := self.summary(one, peer)) is not None
            ],
            "notes": self.notes(),
        }


LEGEND = (
    "# ratio: the peer's time divided by ours, so above 1 we are faster; memcpy ratio: our time divided by that of all",
    "#        ranks copying as many bytes at once. Times are of the slowest rank, the best of all rounds.",
)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    microseconds = seconds * 1e6
    return f"{microseconds:.2f}" if microseconds < 100 else f"{microseconds:.1f}"


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return "—"
    return f"{ratio:.0f}" if ratio >= 10**_LEAST_RATIO_DIGITS else f"{ratio:.{_LEAST_RATIO_DIGITS}g}"
