"""Perfetto traces: they keep the rules of the format and come back as the same."""

from __future__ import annotations

import json

import pytest
from each import each
from export_cases import EVERY, grid

import allfold as af
from allfold.export import perfetto
from allfold.export.equivalence import check_equivalent

WITH_BARRIERS = [*EVERY, *(("barrier", name) for name in af.algorithms("barrier"))]


@each(("collective", "name", "ranks"), grid(WITH_BARRIERS, (4,), (1, 2, 3, 5, 8)))
def test_perfetto_comes_back_as_the_same(collective: str, name: str, ranks: int) -> None:
    plan = af.schedule(collective, name, ranks)
    document = json.loads(perfetto.write(plan))
    perfetto.check_trace(document)
    again = perfetto.read(document)
    assert [sorted(move[:5] for move in step) for step in again] == [sorted(move[:5] for move in step) for step in plan]
    check_equivalent(plan, again)
    starts = [row for row in document["traceEvents"] if row["ph"] == "s"]
    assert len(starts) == plan.counts.messages


def test_slices_that_overlap_are_refused() -> None:
    document = perfetto.to_chrome(af.schedule("all_reduce", "ring", 3))
    for row in document["traceEvents"]:
        if row["ph"] == "X":
            row["dur"] *= 2
    with pytest.raises(af.UsageError, match="overlap"):
        perfetto.check_trace(document)
