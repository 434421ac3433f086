"""NVIDIA's Multi-Process Service for the time of a test run, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def mps(wanted: bool) -> Iterator[None]:
    """Run MPS meanwhile, if it is wanted. Before this process first uses the GPU."""
    if not wanted:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        names = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(names)
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", timeout=60, check=False)
            for name in names:
                del os.environ[name]
