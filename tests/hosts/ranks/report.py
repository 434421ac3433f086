"""What a rank in a laboratory tells the laboratory: lines of JSON in a file of its own. Imported by the ranks' scripts."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any


def rank_and_size() -> tuple[int, int]:
    rank, size = (
        next(int(os.environ[name]) for name in names if name in os.environ)
        for names in (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"))
    )
    return rank, size


def say(event: str, **facts: Any) -> None:
    path = Path(os.environ["ALLFOLD_LAB_REPORTS"]) / f"{rank_and_size()[0]}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps({"event": event, "time": time.monotonic(), **facts}) + "\n")


def say_here() -> None:
    """The first report: where this rank is. Signals from the laboratory find the process by it."""
    say("here", host=socket.gethostname(), process=os.getpid(), size=rank_and_size()[1])
