"""Figures only mean something with their environment: the machine and the versions, as text and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from .. import _native
from ..engines.shared_memory.processor import this_processor
from ..price.topology.this_machine import read_machine
from ..version import __version__
from .peers import cores


def describe_environment(ranks: int, peers: Mapping[str, str]) -> dict[str, Any]:
    """Facts by name. Nothing in it identifies the machine or its user."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "allfold": __version__,
        "processor": f"{this_processor()} ({platform.machine()})",
        "cores": cores(),
        "caches": ", ".join(caches()) or "unknown",
        "memory": f"{memory / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "peers": dict(peers),
        "ranks": ranks,
        "oversubscribed": ranks > cores(),
        "load": round(os.getloadavg()[0], 2),
        "recorder_ns": round(_native.recorder_nanoseconds(), 1),
    }


def environment_lines(facts: Mapping[str, Any]) -> list[str]:
    crowd = "more ranks than cores" if facts["oversubscribed"] else "a core for every rank"
    return [
        f"# allfold {facts['allfold']} bench, {facts['date']}",
        f"# processor  {facts['processor']}, {facts['cores']} cores; caches {facts['caches']}; memory {facts['memory']}",
        f"# system     {facts['kernel']}, Python {facts['python']}, NumPy {facts['numpy']}; load {facts['load']} before",
        *(f"# {name:<10} {version}" for name, version in facts["peers"].items()),
        f"# ranks      {facts['ranks']}, {crowd}",
        f"# recorder   {facts['recorder_ns']:.0f} ns of every call of ours, for the flight recorder",
    ]


def caches() -> Iterator[str]:
    """`L1 48 KiB`, … of the first core, without instruction caches."""
    found = [cache for cache in read_machine(topology_of_gpus="").caches if min(os.sched_getaffinity(0)) in cache.cpus]
    return (f"L{cache.level} {cache.size >> 10} KiB" for cache in found)
