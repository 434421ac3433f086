"""The GPUs of this machine, from nvidia-smi; the processes that use them; and the state of MPS."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class InstalledGpu:
    number: int
    name: str
    links: dict[int, str]
    """The path to each other GPU, in the words of `nvidia-smi topo`: NV18, PIX, SYS, …"""


def gpus_of(topology: str, names: str) -> Iterable[InstalledGpu]:
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in topology.splitlines()]
    head = next((row for row in rows if row and row[0] == "GPU0" and (len(row) == 1 or row[1] != "X")), None)
    titles = [line.strip() for line in names.splitlines() if line.strip()]
    columns = [int(word[3:]) for word in head or [] if re.fullmatch(r"GPU\d+", word)]
    if not columns and titles:
        columns = list(range(len(titles)))
    for place, number in enumerate(columns):
        row = next((row for row in rows if len(row) > 1 and row[0] == f"GPU{number}" and row is not head), [])
        words = dict(zip(columns, row[1:], strict=False))
        links = {other: word for other, word in words.items() if other != number and word != "X"}
        yield InstalledGpu(number, titles[place] if place < len(titles) else "GPU", links)


def ask(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def gpus_of_processes(processes: Iterable[int], root: Path = Path("/")) -> dict[int, list[int]]:
    """The GPUs that each of these processes uses; only those that use one.

    nvidia-smi knows, except in some containers and under MPS. There it is the GPUs that the process has opened.
    """
    listed = ask("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader")
    numbers = {uuid: int(index) for index, uuid in _rows_of(listed) if index.isdecimal()}
    used: dict[int, set[int]] = {}
    for process, uuid in _rows_of(ask("nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader")):
        if process.isdecimal() and uuid in numbers:
            used.setdefault(int(process), set()).add(numbers[uuid])
    found = {process: used.get(process) or _opened(process, root) for process in processes}
    return {process: sorted(gpus) for process, gpus in found.items() if gpus}


def _rows_of(text: str) -> Iterable[tuple[str, str]]:
    for line in text.splitlines():
        first, comma, second = (word.strip() for word in line.partition(","))
        if comma:
            yield first, second


def _opened(process: int, root: Path) -> set[int]:
    opened = set()
    try:
        for link in (root / f"proc/{process}/fd").iterdir():
            match = re.fullmatch(r"/dev/nvidia(\d+)", os.readlink(link))
            if match:
                opened.add(int(match[1]))
    except OSError:  # it is gone, or belongs to another user
        pass
    return opened


def mps_runs(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> bool:
    """True if the control process of NVIDIA's Multi-Process Service runs where a process of this user looks for it."""
    folder = environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    try:
        process = (root / folder.lstrip("/") / "nvidia-cuda-mps-control.pid").read_text().strip()
    except OSError:
        return False
    return process.isdecimal() and (root / "proc" / process).exists()
