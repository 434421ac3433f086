"""The native tests, which need no Python: built with the engine of the installed extension, and run."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from ucx_here import need_ucx

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "native-tests"


def built_engine() -> Path | None:
    """The engine that `make setup` has compiled for this interpreter; None if a source is newer, or it is elsewhere."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_")
    library = ROOT / "build" / f"{tag}-{tag}-{platform}" / "liballfold_engine.a"
    sources = [ROOT / "CMakeLists.txt", *(ROOT / "native").rglob("*.[ch]pp"), *(ROOT / "native").rglob("*.cmake")]
    sources = [source for source in sources if not {"bindings", "tests"} & {*source.relative_to(ROOT).parts}]
    is_newest = library.exists() and library.stat().st_mtime > max(source.stat().st_mtime for source in sources)
    return library if is_newest else None


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
        f"-DALLFOLD_ENGINE={built_engine() or ''}",  # its kernels take a minute to compile
    ]
    for arguments in (configure, ["--build", str(FOLDER)]):
        came = subprocess.run([cmake, *arguments], capture_output=True, text=True, check=False)
        assert came.returncode == 0, came.stdout + came.stderr
    return FOLDER


@pytest.mark.timeout(900)  # may include compiling the kernels of all instruction sets
@pytest.mark.parametrize(
    "words",
    [
        *(["kernels_test"], ["engine_test"], ["communicator_test"], ["channel_test"], ["islands_test"], ["cuda_test"]),
        ["wire_test"],
        ["wire_test", "ucx"],
        pytest.param(["kernels_test", "every"], marks=pytest.mark.exhaustive),
    ],
    ids=" ".join,
)
def test_native(tests: Path, words: list[str]) -> None:
    if "ucx" in words:
        need_ucx()
    came = subprocess.run([tests / words[0], *words[1:]], capture_output=True, text=True, check=False)
    assert came.returncode == 0, came.stdout + came.stderr
