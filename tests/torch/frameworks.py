"""The recipes of docs/frameworks.md, each with one process and with two, which must give the same numbers.

`make test-frameworks` runs this with the Python of an environment that has the frameworks. Nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "examples/frameworks"
PAGE = ROOT / "docs/frameworks.md"
ALLFOLD_RUN = [sys.executable, "-m", "allfold", "run", "-n"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# How two processes are started: in each of the ways that the page shows, somewhere.
STARTED = {
    "with_accelerate.py": [TORCHRUN],
    "with_lightning.py": [[sys.executable], TORCHRUN],
    "with_trainer.py": [TORCHRUN],
    "with_torchmetrics.py": [[*ALLFOLD_RUN, "2"]],
}
# A number behind its name: "loss 0.1234", "'loss': '0.1234'", "confusion [[1, 2], [3, 4]]".
_FIGURES = re.compile(r"\b(loss|accuracy|curve|confusion)'?:? '?((?:[\d.e+-]+|\[.*\]))")
LEAST_FIGURES = {"with_torchmetrics.py": 3}  # the others print one loss per epoch
CLOSE = 2e-4  # of a number of 1: what is printed has four digits, and sums are added in another order


def printed(words: list[str], processes: int) -> str:
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_COLOR": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | settings, timeout=300)
    if done.returncode or f"\n{processes} processes on allfold\n" not in done.stdout:
        sys.exit(f"{' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def figures(text: str) -> list[tuple[str, list[float]]]:
    return [
        (name, [float(one) for one in re.findall(r"[\d.]+(?:e-?\d+)?", found)])
        for name, found in _FIGURES.findall(text)
    ]


def on_the_page(name: str) -> list[tuple[str, list[float]]]:
    """The numbers that the page says are printed."""
    block = re.search(rf"```console\n\$ .*/{re.escape(name)}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return figures(block[1]) if block else []


def same(first: list[tuple[str, list[float]]], second: list[tuple[str, list[float]]]) -> bool:
    if [(name, len(found)) for name, found in first] != [(name, len(found)) for name, found in second]:
        return False
    pairs = [pair for (_, a), (_, b) in zip(first, second, strict=True) for pair in zip(a, b, strict=True)]
    return all(abs(a - b) <= CLOSE * max(1, abs(a)) for a, b in pairs)


def main() -> None:
    if sorted(STARTED) != sorted(path.name for path in RECIPES.glob("*.py")):
        sys.exit(f"{RECIPES} has other recipes than {', '.join(STARTED)}")
    for name, ways in STARTED.items():
        script = str(RECIPES / name)
        alone = printed([*ALLFOLD_RUN, "1", script], 1)
        expected = figures(alone)
        if len(expected) < LEAST_FIGURES.get(name, 5):
            sys.exit(f"{name} printed too few numbers to compare:\n{alone}")
        if not same(on_the_page(name), expected):
            sys.exit(f"{name}: {PAGE.name} says {on_the_page(name)}, and printed was\n{alone}")
        for way in ways:
            together = printed([*way, script], 2)
            if not same(figures(together), expected):
                sys.exit(f"{name}: two processes give other numbers than one\n{alone}{together}")
            print(f"{name}: {' '.join(Path(word).name for word in way)}: the numbers of one process", flush=True)


if __name__ == "__main__":
    main()
