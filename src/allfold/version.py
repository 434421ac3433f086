"""The version of allfold."""

from __future__ import annotations

__version__ = "0.2.0"


def facts() -> dict[str, str]:
    """Lines for a bug report: versions, the system, and how the engine was built."""
    import platform

    import numpy as np

    from . import _native

    python = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.machine()}"
    library = " ".join(platform.libc_ver()).strip()
    if _native.MISSING is None:
        engine = f"kernels {', '.join(_native.KERNELS)}; compiled by {_native.COMPILER.strip()}"
    else:
        engine = f"none: {_native.MISSING}"
    return {
        "allfold": __version__,
        "python": python,
        "numpy": np.__version__,
        "system": f"{system}, {library}" if library else system,
        "engine": engine,
    }
