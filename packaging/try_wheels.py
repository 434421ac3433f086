"""`make test-wheels`: every wheel in dist/ that runs here, installed where there is no compiler, and tried.

The demo, a spawn, a torch script and some of the tests with the engine; without it, the commands that need none.
The Python that runs this file is the one that is tried: python3.13 packaging/try_wheels.py tries the wheel for that.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
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
TESTS = ["tests/language", "tests/pure"]
TESTS_WITH_TORCH = ["tests/engines/test_boundary.py"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-torch", action="store_true", help="where there is no torch for this Python")
    parser.add_argument("--no-tests", action="store_true", help="where tests would take too long (under an emulator)")
    arguments = parser.parse_args()
    machine = f"cp{sys.version_info.major}{sys.version_info.minor}", platform.machine()
    fitting = [file for file in sorted((ROOT / "dist").glob("*.whl")) if fits(file, *machine)]
    if not fitting:
        raise SystemExit("there is no wheel for this machine in dist/: run make wheels first")
    for wheel in fitting:
        with tempfile.TemporaryDirectory(prefix="allfold-wheel-") as folder:
            print(f"== {wheel.name}", flush=True)
            attempt(wheel, Path(folder), has_engine(wheel), not arguments.no_torch, not arguments.no_tests)


def fits(wheel: Path, interpreter: str, architecture: str) -> bool:
    """A wheel with the stable ABI runs on this interpreter if it is 3.12 or later; the one without the engine, anywhere."""
    _, _, python, abi, system = wheel.stem.split("-")
    stable = abi == "abi3" and sys.version_info >= (3, 12) and not is_free_threaded()
    return not has_engine(wheel) or (architecture in system and (python == interpreter or stable))


def has_engine(wheel: Path) -> bool:
    return "-py3-none-" not in wheel.name


def is_free_threaded() -> bool:
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def attempt(wheel: Path, folder: Path, engine: bool, torch: bool, tests: bool) -> None:
    if not engine:  # it is named for macOS and Windows, and pip would refuse it here
        name = "-".join([*wheel.name.split("-")[:2], "py3-none-any.whl"])
        wheel = Path(shutil.copy(wheel, folder / name))
    call([sys.executable, "-m", "venv", folder / "venv"], folder)
    python = folder / "venv" / "bin" / "python"
    test = ["pytest", "hypothesis", "pytest-timeout", "pytest-xdist", "scipy"]
    constraints: list[str | Path] = ["-c", ROOT / "constraints.txt"]
    call([python, "-m", "pip", "install", "--quiet", *constraints, wheel, *(test if engine and tests else [])], folder)
    allfold = python.with_name("allfold")
    call([allfold, "--version"], folder)
    call([allfold, "demo", "--no-color"], folder)
    call([allfold, "verify", "--all", "--ranks", "2-5"], folder)
    if not engine:
        (folder / "spawn.py").write_text(SPAWN)
        command: list[str | Path] = [allfold, "run", "-n", "2", folder / "spawn.py"]
        done = subprocess.run(command, capture_output=True, text=True, env=bare(python))
        assert done.returncode == 2 and "Linux" in done.stderr, done
        return
    (folder / "spawn.py").write_text(SPAWN)
    call([python, "spawn.py"], folder)
    if torch:
        call([python, "-m", "pip", "install", "--quiet", *constraints, "torch"], folder)
        (folder / "torch_script.py").write_text(TORCH)
        call([allfold, "run", "-n", "2", "torch_script.py"], folder)
    if tests:
        chosen = [*TESTS, *(TESTS_WITH_TORCH if torch else [])]
        shutil.copytree(ROOT / "tests", folder / "tests")
        shutil.copy(ROOT / "pyproject.toml", folder)
        call([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", *chosen], folder)


def bare(python: Path) -> dict[str, str]:
    """An environment in which no compiler is found; pip keeps what it was told."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {**settings, "PATH": str(python.parent), "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}


def call(command: list[str | Path], folder: Path) -> None:
    print("+", *command, flush=True)
    python = folder / "venv" / "bin" / "python"
    done = subprocess.run([str(word) for word in command], cwd=folder, env=bare(python), check=False)
    if done.returncode:
        raise SystemExit(f"status {done.returncode}")


if __name__ == "__main__":
    main()
