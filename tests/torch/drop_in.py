"""torch's own test suite for backends, on gloo, through `from allfold.testing import MultiProcessTestCase`.

    python tests/torch/drop_in.py [--sample 6] [--only PART …]

All tests run through the drop-in. Running all of them as torch does takes hours, since every rank of every test imports
torch: a sample of them runs that way, and once more through the drop-in. The exit status is 1 if a test of the sample has
another outcome than as in torch, or one of the others another than docs/conformance.md says for gloo.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from conformance import ROOT, TABLE, read_results

RESULTS = ROOT / "build" / "drop-in"
_STARTED_SECONDS = 0.1  # a test that took less was skipped before ranks started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=6, help="the number of tests that run as in torch, too")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of the sample")
    parser.add_argument(
        "--only", nargs="*", default=[], help="tests with these names, or with these parts in their names"
    )
    options = parser.parse_args()

    whole, took, processor = _run("drop-in", "all", options.only)
    started = sorted(name for name, one in whole.items() if one["seconds"] >= _STARTED_SECONDS)
    sample = sorted(random.Random(options.seed).sample(started, min(options.sample, len(started))))
    torchs, _, processor_of_torch = _run("torch", "sample", sample)
    again, _, processor_again = _run("drop-in", "sample", sample)

    outcomes = [one["outcome"] for one in whole.values()]
    counts = ", ".join(f"{outcomes.count(kind)} {kind}" for kind in ("pass", "skip", "fail"))
    print(f"\n{len(whole)} tests through the drop-in: {counts}; {took:.0f} s, {processor:.0f} s of processor time")
    known = _known()
    odd = sorted(name for name, one in whole.items() if one["outcome"] != known.get(name, "skip"))
    print(f"not as in {TABLE.relative_to(ROOT)}: {', '.join(odd) or 'none'}")
    print(f"\n{'sample of ' + str(len(sample)):60} {'torch':>18} {'drop-in':>18}")
    for name in sample:
        cells = (f"{one['outcome']} {one['seconds']:8.1f} s" for one in (torchs[name], again[name]))
        print(f"{name:60} {' '.join(f'{cell:>18}' for cell in cells)}")
    # The first test through the drop-in waits for the imports of the process that is kept.
    totals = [sum(found[name]["seconds"] for name in sample[1:]) for found in (torchs, again)]
    print(f"{'without the first':60} {totals[0]:16.1f} s {totals[1]:16.1f} s   {totals[0] / totals[1]:.1f} ×")
    print(
        f"{'processor time, everything':60} {processor_of_torch:16.1f} s {processor_again:16.1f} s   "
        f"{processor_of_torch / processor_again:.1f} ×"
    )
    differ = sorted(name for name in sample if torchs[name]["outcome"] != again[name]["outcome"])
    print(f"other outcomes than as in torch: {', '.join(differ) or 'none'}")
    return 1 if odd or differ else 0


def _run(way: str, name: str, only: list[str]) -> tuple[dict[str, Any], float, float]:
    """The results by test, the seconds, and those of processor time."""
    folder: Path = RESULTS / f"{way}-{name}"
    options = ["--backend", "gloo", "--way", way, "--results", str(folder), "--fresh", "--only", *only]
    begin, before = time.monotonic(), _processor_seconds()
    subprocess.run([sys.executable, str(Path(__file__).with_name("conformance.py")), *options], check=True)
    return read_results(folder, "gloo"), time.monotonic() - begin, _processor_seconds() - before


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _known() -> dict[str, str]:
    """The outcomes with gloo in docs/conformance.md; tests that are not in its table are skipped."""
    return dict(re.findall(r"^\| `(test_\w+)` \| (\w+)", TABLE.read_text(encoding="utf-8"), flags=re.MULTILINE))


if __name__ == "__main__":
    sys.exit(main())
