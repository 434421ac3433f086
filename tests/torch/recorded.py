"""Scripts of others, unmodified, under `allfold run --check`, `allfold record`, `diverge`, `explain` and `replay`.

`make test-frameworks` runs this with the Python of an environment that has accelerate and Lightning. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples/frameworks"
ALLFOLD = [sys.executable, "-m", "allfold"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


class Script(NamedTuple):
    """A script for two ranks. `replayed`: the ranks that can be replayed; `repeats`: two runs of it make the same calls."""

    words: list[str]
    by_torchrun: bool = False
    replayed: tuple[int, ...] = (0, 1)
    repeats: bool = True


def scripts() -> list[Script]:
    found = importlib.util.find_spec("accelerate")
    assert found is not None and found.origin is not None
    accelerate = Path(found.origin).parent / "test_utils/scripts"
    return [
        # Its first rank reads a file that the other writes, and its data are drawn without a seed.
        Script([str(accelerate / "test_script.py")], replayed=(1,), repeats=False),
        Script([str(accelerate / "test_sync.py")], repeats=False),  # its data are drawn without a seed
        Script([str(HERE / "lightning_demo.py")], by_torchrun=True),
        Script([str(EXAMPLES / "with_accelerate.py")]),
        Script([str(EXAMPLES / "with_lightning.py")], by_torchrun=True),
        Script([str(EXAMPLES / "with_trainer.py")]),
    ]


def run(folder: Path, words: list[str], expected: str = "", statuses: tuple[int, ...] = (0,), **more: str) -> str:
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "ACCELERATE_USE_CPU": "1"}
    settings |= {"ALLFOLD_CHECK_LATE": "300"}  # a busy machine may keep a rank from its next call for seconds
    environment = os.environ | settings | more
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=folder, timeout=600)
    said = done.stdout + done.stderr
    if done.returncode not in statuses or expected not in said:
        sys.exit(f"{shlex.join(words)}: status {done.returncode}, expected {expected!r}\n{said}")
    return said


def check(script: Script, folder: Path) -> None:
    """Every call is compared and none differs; both ranks alone make the calls of the record, with the same inputs."""
    checked = TORCHRUN if script.by_torchrun else [*ALLFOLD, "run", "-n", "2"]
    said = run(folder, [*checked, *script.words], ALLFOLD_CHECK="1")
    if "allfold check" in said:
        sys.exit(f"{script.words}: the check said:\n{said}")
    way = ["--", *TORCHRUN] if script.by_torchrun else ["-n", "2"]
    for name in ("first", "second") if script.repeats else ("first",):
        where = ["--out", name, "--keep", "all"]
        words = [*ALLFOLD, "record", *where, *way] if script.by_torchrun else [*ALLFOLD, "record", *way, *where]
        recorded = run(folder, [*words, *script.words], "allfold record: ")
    run(folder, [*ALLFOLD, "explain", "first"], "nothing wrong found")
    run(folder, [*ALLFOLD, "diverge", "first"], "no difference in ")
    if script.repeats:
        run(folder, [*ALLFOLD, "diverge", "first", "second"], "no difference in ")
    for rank in script.replayed:
        run(folder, [*ALLFOLD, "replay", "first", "--rank", str(rank)], "calls were made as recorded")
    print(f"{Path(script.words[0]).name}:{recorded.rpartition(f'{name}:')[2].partition(';')[0]}", flush=True)


def main() -> None:
    for script in scripts():
        with tempfile.TemporaryDirectory() as folder:
            check(script, Path(folder))


if __name__ == "__main__":
    main()
