"""The kernel that folds arrays on a GPU, made by NVIDIA's run-time compiler, which comes with torch's CUDA builds.

The bits are those of the CPU's kernels: from left to right, no fused operations, 16-bit types computed in float32 and
rounded once; with a NaN the result is a NaN, and −0 is less than +0. A kernel is compiled once for its type, operation,
number of sources and GPU, and kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import sys
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ...dtypes import find_dtype
from ...errors import DeviceError, UsageError
from ...files import write_whole

THREADS = 256
MOST_ARRAYS = 16
"""Sources, and destinations, of one kernel."""

_TYPES = {
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
    "float16": "unsigned short",
    "bfloat16": "unsigned short",
}
_BITWISE = {"band": "a & b", "bor": "a | b", "bxor": "a ^ b"}
_OPS = {
    "sum": "a + b",
    "avg": "a + b",
    "product": "a * b",
    "min": "smaller(a, b)",
    "max": "larger(a, b)",
    **_BITWISE,
}

_SOURCE = r"""
typedef TYPE Element;
typedef WIDE Wide;
struct Arguments {
    const void* sources[MOST];
    void* destinations[MOST];
    unsigned long long elements;
    unsigned int copies, divisor, aligned, unused;
};
#if HALF == 1
__device__ Wide widen(Element x) { Wide y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
__device__ Element narrow(Wide x) { Element y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
#elif HALF == 2
__device__ Wide widen(Element x) { return __uint_as_float((unsigned int)x << 16); }
__device__ Element narrow(Wide x) {
    unsigned int bits = __float_as_uint(x);
    if (x != x) return (Element)((bits >> 16) | 0x40);
    return (Element)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to the nearest, ties to even
}
#else
__device__ Wide widen(Element x) { return (Wide)x; }
__device__ Element narrow(Wide x) { return (Element)x; }
#endif
// With a NaN the sum is a NaN. Of two zeros, only the sign can differ.
template <class T> __device__ bool is_negative(T x) { return 1 / x < 0; }
__device__ Wide smaller(Wide a, Wide b) {
#if FLOATING
    if (a != a || b != b) return a + b;
    if (a == 0 && b == 0) return is_negative(a) ? a : b;
#endif
    return b < a ? b : a;
}
__device__ Wide larger(Wide a, Wide b) {
#if FLOATING
    if (a != a || b != b) return a + b;
    if (a == 0 && b == 0) return is_negative(a) ? b : a;
#endif
    return a < b ? b : a;
}
__device__ Wide combine(Wide a, Wide b) { return OPERATION; }
__device__ Wide finish(Wide x, unsigned int divisor) {
#if FLOATING
    return divisor == 1 ? x : x / (Wide)divisor;
#else
    return x;
#endif
}
struct alignas(16) Pack { Element of[16 / sizeof(Element)]; };
extern "C" __global__ void fold(const Arguments given) {
    const unsigned long long width = 16 / sizeof(Element), threads = (unsigned long long)gridDim.x * blockDim.x;
    const unsigned long long packs = given.aligned ? given.elements / width : 0;
    const unsigned long long thread = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned long long i = thread; i < packs; i += threads) {
        Pack read[SOURCES], result;
#pragma unroll
        for (int s = 0; s < SOURCES; ++s) read[s] = ((const Pack*)given.sources[s])[i];
#pragma unroll
        for (int k = 0; k < width; ++k) {
            Wide value = widen(read[0].of[k]);
#pragma unroll
            for (int s = 1; s < SOURCES; ++s) value = combine(value, widen(read[s].of[k]));
            result.of[k] = narrow(finish(value, given.divisor));
        }
        for (int d = 0; d < given.copies; ++d) ((Pack*)given.destinations[d])[i] = result;
    }
    for (unsigned long long i = packs * width + thread; i < given.elements; i += threads) {
        Wide value = widen(((const Element*)given.sources[0])[i]);
        for (int s = 1; s < SOURCES; ++s) value = combine(value, widen(((const Element*)given.sources[s])[i]));
        const Element result = narrow(finish(value, given.divisor));
        for (int d = 0; d < given.copies; ++d) ((Element*)given.destinations[d])[i] = result;
    }
}
"""


class Arguments(ctypes.Structure):
    """The kernel's arguments, laid out as in its source."""

    _fields_ = [
        ("sources", ctypes.c_void_p * MOST_ARRAYS),
        ("destinations", ctypes.c_void_p * MOST_ARRAYS),
        ("elements", ctypes.c_ulonglong),
        ("copies", ctypes.c_uint),
        ("divisor", ctypes.c_uint),
        ("aligned", ctypes.c_uint),
        ("unused", ctypes.c_uint),
    ]

    @staticmethod
    def of(sources: Sequence[int], destinations: Sequence[int], elements: int, divisor: int) -> Arguments:
        made = Arguments(elements=elements, copies=len(destinations), divisor=divisor)
        made.sources[: len(sources)] = sources
        made.destinations[: len(destinations)] = destinations
        made.aligned = all(pointer % 16 == 0 for pointer in (*sources, *destinations))
        return made


def can_fold(op: str, dtype: str) -> bool:
    if dtype not in _TYPES or op not in _OPS:
        return False
    floating = find_dtype(dtype).kind == "floating"
    return not (floating and op in _BITWISE) and (floating or op != "avg")


def source_of(op: str, dtype: str, sources: int) -> str:
    kind, half = find_dtype(dtype), {"float16": 1, "bfloat16": 2}.get(dtype, 0)
    wide = "float" if half else _TYPES[dtype]
    meanings = {
        "TYPE": _TYPES[dtype],
        "WIDE": wide,
        "HALF": half,
        "FLOATING": int(kind.kind == "floating"),
        "OPERATION": _OPS[op],
        "SOURCES": sources,
        "MOST": MOST_ARRAYS,
    }
    return "".join(f"#define {name} {value}\n" for name, value in meanings.items()) + _SOURCE


def compiled(op: str, dtype: str, sources: int, architecture: str) -> bytes:
    """The machine code, from the cache or from the compiler."""
    source = source_of(op, dtype, sources)
    found = compiler()
    if found is None:
        raise DeviceError("there is no run-time compiler for GPU kernels (NVRTC) in this environment")
    name = blake2b(f"{found.version} {architecture} {source}".encode(), digest_size=16).hexdigest()
    place = _own_folder(_cache())
    code = None if place is None else _read_own(place / name)
    if code is None:
        code = found.compile(source, architecture)
        if place is not None:
            with contextlib.suppress(UsageError):  # then it is compiled again next time
                write_whole(place / name, code, private=True)
    return code


def _own_folder(place: Path | None) -> Path | None:
    """The folder, created if missing, if it is this user's. Files that others could have put there are removed."""
    if place is None:
        return None
    try:
        place.parent.parent.mkdir(parents=True, exist_ok=True)
        for folder in (place.parent, place):
            folder.mkdir(mode=0o700, exist_ok=True)
            facts = folder.stat()
            if facts.st_uid != os.geteuid():
                return None
            if not _is_own(facts):
                folder.chmod(0o700)
                for path in place.glob("*"):
                    path.unlink()
    except OSError:
        return None
    return place


def _read_own(path: Path) -> bytes | None:
    """A file that this user has written; the GPU would run any code that somebody else put there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        return file.read() if _is_own(os.fstat(descriptor)) else None


def _is_own(facts: os.stat_result) -> bool:
    """True if it belongs to this user, and no other one may write to it."""
    return facts.st_uid == os.geteuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _cache() -> Path | None:
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        if not os.environ.get("HOME"):
            return None
        home = os.path.join(os.environ["HOME"], ".cache")
    return Path(home) / "allfold" / "kernels"


class Compiler(NamedTuple):
    """NVIDIA's run-time compiler (NVRTC)."""

    library: ctypes.CDLL
    version: str

    def compile(self, source: str, architecture: str) -> bytes:
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"fold.cu", 0, None, None)
        try:
            options = [f"--gpu-architecture={architecture}".encode(), b"--fmad=false", b"--std=c++17"]
            given = (ctypes.c_char_p * len(options))(*options)
            if self.library.nvrtcCompileProgram(program, len(options), given):
                raise DeviceError(f"the kernel for GPUs did not compile for {architecture}: {self._log(program)}")
            size = ctypes.c_size_t()
            self._call("nvrtcGetCUBINSize", program, ctypes.byref(size))
            code = ctypes.create_string_buffer(size.value)
            self._call("nvrtcGetCUBIN", program, code)
            return code.raw
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._call("nvrtcGetProgramLogSize", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call("nvrtcGetProgramLog", program, text)
        return text.value.decode(errors="replace")[:2000]

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise DeviceError(f"the compiler of GPU kernels (NVRTC) refused {name} (error {status})")


@lru_cache(maxsize=1)
def compiler() -> Compiler | None:
    """The run-time compiler of this environment: the one that comes with torch, or with the system."""
    names = [f"libnvrtc.so.{version}" for version in (13, 12)]
    beside = [Path(folder) / "nvidia" for folder in sys.path if folder]
    places = [str(one) for folder in beside for name in names for one in sorted(folder.glob(f"*/lib/{name}"))]
    for place in (*places, *names):
        try:
            library = ctypes.CDLL(place)
        except OSError:
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return Compiler(library, f"{major.value}.{minor.value}")
    return None
