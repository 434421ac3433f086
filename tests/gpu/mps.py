"""NVIDIA's Multi-Process Service for the time of a test, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def mps(wanted: bool) -> Iterator[dict[str, str]]:
    """Run MPS meanwhile, if it is wanted. Yields the variables that processes need to use it."""
    if not wanted:
        yield {}
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = os.environ | variables
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, env=environment)
        try:
            yield variables
        finally:
            control = ["nvidia-cuda-mps-control"]
            with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for processes that are ending
                subprocess.run(control, input=b"quit -t 5\n", timeout=30, check=False, env=environment)
