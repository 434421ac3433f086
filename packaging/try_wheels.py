"""`make test-wheels`: every wheel in dist/ that runs here, installed where there is no compiler, and tried.

The demo, a spawn, a torch script and some of the tests with the engine; without it, the commands that need none.
Wheels of the other architecture are only built and looked at (auditwheel).
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SPAWN = """
import numpy as np
import allfold as af

def work(comm):
    x = np.full(1 << 20, comm.rank + 1.0, np.float32)
    comm.all_reduce(x)
    return float(x[-1])

if __name__ == "__main__":
    assert af.spawn(work, 3) == [6.0] * 3
    print("a spawn of 3 ranks: fine")
"""
TORCH = """
import torch
import torch.distributed as dist

dist.init_process_group("allfold")
x = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(x)
assert x.tolist() == [3.0] * 1000
dist.destroy_process_group()
print("torch: fine")
"""
TESTS = ["tests/engines/test_boundary.py", "tests/language", "tests/pure"]


def main() -> None:
    machine = f"cp{sys.version_info.major}{sys.version_info.minor}", platform.machine()
    fitting = [file for file in sorted((ROOT / "dist").glob("*.whl")) if fits(file, *machine)]
    if not fitting:
        raise SystemExit("there is no wheel for this machine in dist/: run make wheels first")
    for wheel in fitting:
        with tempfile.TemporaryDirectory(prefix="allfold-wheel-") as folder:
            print(f"== {wheel.name}", flush=True)
            attempt(wheel, Path(folder), "none-any" not in wheel.name)


def fits(wheel: Path, interpreter: str, architecture: str) -> bool:
    """A wheel with the stable ABI runs on this interpreter if it is 3.12 or later."""
    _, _, python, abi, system = wheel.stem.split("-")
    stable = abi == "abi3" and sys.version_info >= (3, 12)
    return system == "any" or (architecture in system and (python == interpreter or stable))


def attempt(wheel: Path, folder: Path, has_engine: bool) -> None:
    call([sys.executable, "-m", "venv", folder / "venv"], folder)
    python = folder / "venv" / "bin" / "python"
    test = ["pytest", "hypothesis", "pytest-timeout", "pytest-xdist", "scipy"]
    constraints: list[str | Path] = ["-c", ROOT / "constraints.txt"]
    call([python, "-m", "pip", "install", "--quiet", *constraints, wheel, *(test if has_engine else [])], folder)
    allfold = python.with_name("allfold")
    call([allfold, "--version"], folder)
    call([allfold, "demo", "--no-color"], folder)
    call([allfold, "verify", "--all", "--ranks", "2-5"], folder)
    if not has_engine:
        done = subprocess.run([allfold, "run", "-n", "2", "x.py"], capture_output=True, text=True, env=bare(python))
        assert done.returncode == 2 and "Linux" in done.stderr, done
        return
    (folder / "spawn.py").write_text(SPAWN)
    call([python, "spawn.py"], folder)
    call([python, "-m", "pip", "install", "--quiet", *constraints, "torch"], folder)
    (folder / "torch_script.py").write_text(TORCH)
    call([allfold, "run", "-n", "2", "torch_script.py"], folder)
    shutil.copytree(ROOT / "tests", folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    call([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", *TESTS], folder)


def bare(python: Path) -> dict[str, str]:
    """An environment in which no compiler is found."""
    return {"PATH": str(python.parent), "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}


def call(command: list[str | Path], folder: Path) -> None:
    print("+", *command, flush=True)
    python = folder / "venv" / "bin" / "python"
    done = subprocess.run([str(word) for word in command], cwd=folder, env=bare(python), check=False)
    if done.returncode:
        raise SystemExit(f"status {done.returncode}")


if __name__ == "__main__":
    main()
