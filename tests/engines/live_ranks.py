"""Ranks that a test starts by hand, and connections to their rendezvous."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from allfold.engines.shared_memory.rendezvous import socket_name


@contextmanager
def live_ranks(script: str, ranks: int, ready: str) -> Iterator[list[subprocess.Popen[str]]]:
    """One process per rank, each running the script; continues once all have printed that they are ready."""
    key = os.urandom(16).hex()
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(ranks):
            variables = os.environ | {"ALLFOLD_RANK": str(rank), "ALLFOLD_SIZE": str(ranks), "ALLFOLD_KEY": key}
            command = [sys.executable, "-c", script]
            processes.append(
                subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == ready + "\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def knock(key: str, patience: float) -> socket.socket:
    """A connection to rank 0, as soon as it listens."""
    deadline = time.monotonic() + patience
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(socket_name(key, os.geteuid()))
            return connection
        except ConnectionError:
            connection.close()
            if time.monotonic() > deadline:
                raise TimeoutError("rank 0 never listened") from None
            time.sleep(0.001)
