"""Coverage in ranks that are processes: measured in each rank with this process's settings, and added to its data.

So `pytest --cov` and `coverage run -m pytest` report the lines that ran in ranks, with nothing to configure.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def settings() -> str | None:
    """The settings of the measurement that runs in this process; None if there is none."""
    current = _current()
    return None if current is None else str(current.config.serialize())


@contextlib.contextmanager
def measured(settings: str | None, folder: str, rank: int) -> Iterator[None]:
    """Measure in this rank. A rank that is killed leaves no data."""
    if settings is None:
        yield
        return
    from coverage import Coverage

    measurement = Coverage(config_file=f":data:{settings}", messages=False)
    measurement.config.data_file = os.path.join(folder, f"coverage-{rank}")
    # One rank may not run what another one does.
    measurement._warn_no_data = measurement._warn_unimported_source = measurement._warn_preimported_source = False
    measurement.start()
    try:
        yield
    finally:
        measurement.stop()
        measurement.save()


def collect(folder: str) -> None:
    """Add what the ranks of a run have measured to the data of this process."""
    current = _current()
    if current is None:
        return
    from coverage import CoverageData

    # Not get_data(): it looks at all sources, to warn about those that were not imported.
    data = current.get_data() if current._data is None else current._data
    for file in Path(folder).glob("coverage-*"):
        of_a_rank = CoverageData(str(file))
        with contextlib.suppress(Exception):  # the rank was killed while it wrote
            of_a_rank.read()
            # Not update(): it does not change the hash of the data, and of xdist's workers with the same hash, only one counts.
            for name in of_a_rank.measured_files():
                if of_a_rank.has_arcs():
                    data.add_arcs({name: of_a_rank.arcs(name) or []})
                else:
                    data.add_lines({name: of_a_rank.lines(name) or []})


def _current() -> Any:
    """The measurement that runs in this process, by a version of coverage that can send its settings: 7.10 or later."""
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    return current if hasattr(getattr(current, "config", None), "serialize") else None
