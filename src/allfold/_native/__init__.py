"""The engine, compiled from native/, where it is installed. Elsewhere its work for proofs and searches, in Python.

Shared memory and kernels exist in C++ only. Without it everything that runs between processes raises `EngineMissing`;
schedules, proofs, prices, searches, pictures, exports and ranks that are threads give the same answers, more slowly.
"""

import platform as _platform

from ..errors import EngineMissing

MISSING: str | None = None  # why there is no engine
try:
    from ._engine import *  # noqa: F403
except ImportError as _error:
    from ..pure import *  # noqa: F403

    _here = {"Darwin": "macOS"}.get(_platform.system(), _platform.system()) or "an unknown system"
    if not isinstance(_error, ModuleNotFoundError):
        MISSING = f"it is installed and cannot be loaded here: {_error}"
    elif _here == "Linux":
        MISSING = (
            "this allfold was installed without it (where there is a C++ compiler, `pip install --force-reinstall "
            "--no-cache-dir allfold` builds it)"
        )
    else:
        MISSING = f"this is {_here}"


def require_engine(what: str) -> None:
    """Raise `EngineMissing` where there is no engine."""
    if MISSING is not None:
        raise EngineMissing(
            f"{what} needs allfold's engine, which runs on Linux (glibc; x86_64 or aarch64), and {MISSING}. "
            "Without it schedules, list, show, verify, compare, plan, simulate, find, topo, export, studio, learn, replay and "
            'ranks that are threads (ranks_are="threads", allfold run --threads) work'
        )


def __getattr__(name: str) -> object:
    if MISSING is not None and not name.startswith("__"):
        require_engine(f"this (_native.{name})")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
