"""The native tests, which need no Python: built beside the installed extension, and run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "native-tests"


@pytest.fixture(scope="module")
def tests() -> Path:
    """The folder of the built tests. It stays, so that a second run compiles only what has changed."""
    scripts = Path(sys.executable).parent
    cmake = shutil.which("cmake", path=scripts) or shutil.which("cmake")
    ninja = shutil.which("ninja", path=scripts) or shutil.which("ninja")
    assert cmake and ninja, "cmake and ninja come with `make setup`"
    configure = [
        "-S",
        str(ROOT),
        "-B",
        str(FOLDER),
        "-G",
        "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        "-DALLFOLD_TESTS=ON",
    ]
    for arguments in (configure, ["--build", str(FOLDER)]):
        came = subprocess.run([cmake, *arguments], capture_output=True, text=True, check=False)
        assert came.returncode == 0, came.stdout + came.stderr
    return FOLDER


@pytest.mark.timeout(900)  # includes compiling the kernels of all instruction sets, once
@pytest.mark.parametrize("name", ["kernels_test", "engine_test", "communicator_test", "channel_test", "cuda_test"])
def test_native(tests: Path, name: str) -> None:
    came = subprocess.run([tests / name], capture_output=True, text=True, check=False)
    assert came.returncode == 0, came.stdout + came.stderr
