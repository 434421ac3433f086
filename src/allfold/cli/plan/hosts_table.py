"""Times measured between hosts as a table, for `tune` and `plan --measured --hosts`."""

from __future__ import annotations

from ...price.cost.plan import duration
from ...tune.hosts import HostsRun
from ...wording import format_size

HOSTS_HEAD = ("size", "who crosses", "fastest", "predicted", "measured", "error")


def hosts_rows(found: HostsRun) -> list[list[str] | None]:
    """By size, the fastest first, with a gap between sizes."""
    rows: list[list[str] | None] = []
    both = list(zip(found.timings, found.predicted(), strict=True))
    for size in dict.fromkeys(one.bytes for one in found.timings):
        group = sorted((pair for pair in both if pair[0].bytes == size), key=lambda pair: pair[0].seconds)
        foreseen = min((said for _, said in group if said is not None), default=None)
        rows += [None] if rows else []
        for one, said in group:
            marks = ["measured"] * (one is group[0][0]) + ["predicted"] * (said is not None and said == foreseen)
            error = "" if said is None else f"{said / one.seconds - 1:+.0%}"
            predicted = "" if said is None else duration(said)
            rows.append([format_size(size), one.way, ", ".join(marks), predicted, duration(one.seconds), error])
    return rows
