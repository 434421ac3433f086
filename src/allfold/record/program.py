"""Facts about a process: its program, its variables, the states of its random generators, and its machine."""

from __future__ import annotations

import base64
import multiprocessing.process
import os
import platform
import random
import sys
import time
from typing import Any

import torch

from . import VARIABLES


def head(rank: int, keep: str, early: dict[str, Any]) -> dict[str, Any]:
    """The first block of a rank's file."""
    return {
        "rank": rank,
        "keep": keep,
        "time": time.time(),
        "program": program(early["arguments"]),
        "folder": os.getcwd(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "random": {"python": early["python"]},
        "facts": facts(),
    }


def facts() -> dict[str, str]:
    """Facts that may change the last bits of a sum."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


def program(arguments: list[str]) -> dict[str, Any]:
    """The command that started this program, as far as needed to start it again. A program may change its `sys.argv`."""
    main: Any = sys.modules.get("__main__")
    own: Any = multiprocessing.process.current_process()
    file = getattr(main, "__file__", None) or getattr(sys.modules.get("__mp_main__"), "__file__", None)
    spec = getattr(main, "__spec__", None)
    found: dict[str, Any] = {"arguments": arguments, "file": None if file is None else os.path.abspath(file)}
    if spec is not None and not own._identity:
        found["module"] = spec.name.removesuffix(".__main__")
    if own._identity:
        found["child"] = list(own._identity)
    return found


def early_state() -> dict[str, Any]:
    """The program's arguments and the state of Python's generator when torch is imported, before the program changes them."""
    return {"python": random.getstate(), "arguments": sys.argv[1:]}


def state() -> dict[str, Any]:
    """The states of all generators, and the number of threads."""
    found = {
        "python": random.getstate(),
        "torch": base64.b64encode(bytes(torch.get_rng_state().tolist())).decode(),
        "threads": torch.get_num_threads(),
    }
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state(legacy=True)
        found["numpy"] = [name, keys.tolist(), *rest]
    return found


def restore(found: dict[str, Any]) -> None:
    """The opposite of `state`."""
    if "python" in found:
        version, keys, gauss = found["python"]
        random.setstate((version, tuple(keys), gauss))
    if "torch" in found:
        torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(found["torch"])), dtype=torch.uint8))
        torch.set_num_threads(found["threads"])
    if "numpy" in found:
        import numpy as np

        name, keys, *rest = found["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), *rest))
