"""Packages that use mpi4py, from PyPI: their own tests and examples, run on allfold.

    python tests/mpi4py/mpi_packages.py                          all of them
    python tests/mpi4py/mpi_packages.py --only numpi --ranks 2

pip downloads the source of each package, and what it needs, into build/mpi-packages. Nothing in the packages is changed:
their `import mpi4py` is allfold's. What is left out tests a part that allfold does not have (files of MPI), or needs
another compiled package.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mpi-packages"
SECONDS = 600  # that a run may take


class Package(NamedTuple):
    name: str
    version: str
    needs: tuple[str, ...]
    runs: tuple[str, ...]
    """Arguments of `python -m allfold.mpi4py`."""
    ranks: tuple[int, ...]
    sources: str = "."
    """The folder with the modules."""
    folder: str = "."
    """The folder where the runs begin."""


PACKAGES = (
    Package(
        "numpi",
        "0.18.1",
        ("array-api-compat",),
        ("-m pytest -q -p no:cacheprovider test/Optimization test/Tools",),
        (1, 2),
    ),
    Package(
        "schwimmbad",
        "0.4.2",
        ("multiprocess", "dill"),
        ("test_mpi.py", "test_mpi_with_dill.py"),
        (2, 4),
        "src",
        "tests",
    ),
    Package("mpi-master-slave", "0.2.1", (), tuple(f"examples/example{one}.py" for one in range(1, 6)), (3,)),
)


def prepared(package: Package) -> Path:
    """The folder of the package's source; what it needs lies in `needs` beside it."""
    place = FOLDER / f"{package.name}-{package.version}"
    if not place.is_dir():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        FOLDER.mkdir(parents=True, exist_ok=True)
        wanted = f"{package.name}=={package.version}"
        subprocess.run(
            [*pip, "download", "--no-deps", "--no-binary", package.name, "-d", str(FOLDER), wanted], check=True
        )
        if package.needs:
            target = str(FOLDER / "needs")
            subprocess.run([*pip, "install", "--no-deps", "--upgrade", "--target", target, *package.needs], check=True)
        archive = next(FOLDER.glob(f"{package.name.replace('-', '?')}-{package.version}.tar.gz"))
        with tarfile.open(archive) as opened:
            opened.extractall(FOLDER, filter="data")
    return place


def run(package: Package, arguments: str, ranks: int) -> bool:
    place = prepared(package)
    paths = os.pathsep.join([str(place / package.sources), str(FOLDER / "needs")])
    command = [sys.executable, "-m", "allfold", "run", "-n", str(ranks), "--", sys.executable, "-m", "allfold.mpi4py"]
    environment = {**os.environ, "PYTHONPATH": paths, "ALLFOLD_MPI_TIMEOUT": "60", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *arguments.split()],
            cwd=place / package.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"{package.name} {package.version}, {arguments}, {ranks} ranks: not done after {SECONDS} s", flush=True)
        return False
    lines = done.stdout.splitlines()
    summaries = [line.strip() for line in lines if " passed" in line or " failed" in line]
    words = "; ".join(summaries) if summaries else "ran" if done.returncode == 0 else "failed"
    print(f"{package.name} {package.version}, {arguments}, {ranks} ranks: {words}", flush=True)
    if done.returncode:
        print("\n".join([*lines[-20:], *done.stderr.splitlines()[-20:]]), flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--ranks", nargs="*", type=int, default=[])
    options = parser.parse_args()
    results = [
        run(package, arguments, ranks)
        for package in PACKAGES
        if not options.only or package.name in options.only
        for arguments in package.runs
        for ranks in options.ranks or package.ranks
    ]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
