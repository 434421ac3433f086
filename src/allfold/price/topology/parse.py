"""Topologies by name: `fat_tree`, `fat_tree:hosts=128,oversubscription=2,bandwidth=400Gb/s`, or the path of a JSON file."""

from __future__ import annotations

import inspect
import os
import re
from math import inf, isqrt, prod
from pathlib import Path
from typing import Any, SupportsIndex

from ...errors import UsageError
from ...wording import suggest
from .machines import CONSTRUCTORS
from .this_machine import read_machine, topology_of_this_machine
from .topology import Topology


def find_topology(text: str, ranks: int | None = None) -> Topology:
    """The topology that the text names, with room for `ranks`.

    If the name leaves its size open, the size is chosen so that the ranks fit; without `ranks` it is small.

    >>> price.find_topology("fat_tree:hosts_per_leaf=4,oversubscription=2", ranks=64).ranks
    64
    """
    if not isinstance(text, str):
        raise UsageError(f"expected the name of a topology, not {text!r:.60}")
    if ranks is not None and (isinstance(ranks, bool) or not isinstance(ranks, SupportsIndex)):
        raise UsageError(f"ranks must be a whole number, not {ranks!r:.60}")
    name, _, given = text.partition(":")
    if name in CONSTRUCTORS:
        parameters = dict(_parameter(name, word) for word in given.split(",") if word.strip())
        found = construct(name, _fit(name, parameters, 8 if ranks is None else ranks))
    elif text.endswith(".json") or os.path.isfile(text):
        try:
            found = Topology.from_json(Path(text).read_bytes())
        except OSError as error:
            raise UsageError(f"the topology {text:.200} cannot be read: {error.strerror}") from None
        except UsageError as error:
            raise UsageError(f"{text}: {error}") from None
    else:
        known = suggest(name, CONSTRUCTORS)
        raise UsageError(f"unknown topology {text[:60]!r}; {known}, or a path that ends in .json")
    found.require(1 if ranks is None else ranks)
    return found


def this_machine_unless(text: str | None, ranks: int | None) -> Topology:
    """The topology that the text names; the cores of this machine, one rank each unless `ranks` says, if there is none."""
    if text is not None:
        return find_topology(text, ranks)
    machine = read_machine()
    return topology_of_this_machine(max(2, machine.usable) if ranks is None else ranks, machine)


def construct(name: object, parameters: dict[str, Any]) -> Topology:
    """Call a named constructor with parameters that come from outside."""
    if not isinstance(name, str) or name not in CONSTRUCTORS:
        raise UsageError(f"unknown topology {name!r}; {suggest(name, CONSTRUCTORS)}")
    known = inspect.signature(CONSTRUCTORS[name]).parameters
    values: dict[str, Any] = {}
    for key, value in parameters.items():
        if key not in known:
            raise UsageError(f"topology {name} has no parameter {key!r}; {suggest(key, known)}")
        if key == "shape":
            if not isinstance(value, (list, tuple)) or not all(type(number) is int for number in value):
                raise UsageError(f"topology {name}: shape is {value!r}; expected whole numbers, as in 8x8x4")
            values[key] = tuple(value)
        elif value == "inf":
            values[key] = inf
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or 1e300 < abs(value) < inf:
            raise UsageError(f"topology {name}: {key} is {value!r}; expected a number")
        else:
            values[key] = value
    missing = [key for key, one in known.items() if one.default is one.empty and key not in values]
    if missing:
        raise UsageError(f"topology {name} needs {missing[0]}, as in {name}:{missing[0]}=8")
    return CONSTRUCTORS[name](**values)


_QUANTITY = re.compile(r"([0-9]+\.?[0-9]*(?:e[+-]?[0-9]{1,3})?) ?([A-Za-zµ/]*)")
_UNITS = {
    "": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9,
    "B/s": 1.0, "KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12,
    "KiB/s": 2.0**10, "MiB/s": 2.0**20, "GiB/s": 2.0**30, "TiB/s": 2.0**40,
    "Kb/s": 1e3 / 8, "Mb/s": 1e6 / 8, "Gb/s": 1e9 / 8, "Tb/s": 1e12 / 8,
}  # fmt: skip


def _parameter(name: str, word: str) -> tuple[str, Any]:
    key, _, value = (part.strip() for part in word.partition("="))
    if not key or not value:
        raise UsageError(f"topology {name}: {word!r}; expected key=value, as in {name}:bandwidth=400Gb/s")
    if key == "shape":
        if not all(part.isdecimal() and len(part) < 9 for part in value.split("x")):
            raise UsageError(f"topology {name}: shape {value!r}; expected numbers joined by x, as in 8x8x4")
        return key, [int(part) for part in value.split("x")]
    if value.isdecimal() and len(value) < 16:
        return key, int(value)
    match = _QUANTITY.fullmatch(value)
    if value == "inf" or match is None or match[2] not in _UNITS:
        if value == "inf":
            return key, inf
        raise UsageError(f"topology {name}: {key}={value}; expected a number, as in 8, 1e-6, 2us or 400Gb/s")
    return key, float(match[1]) * _UNITS[match[2]]


def _fit(name: str, given: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The given parameters; if they do not set the size, also a size into which the ranks fit."""
    if name in ("torus", "mesh"):
        return {"shape": near_cube(ranks), **given}
    if name == "hypercube":
        return {"dimensions": (ranks - 1).bit_length(), **given}
    size, inside = {
        "hosts": ("hosts", {"ranks_per_host": 8}),
        "fat_tree": ("hosts", {"ranks_per_host": 8}),
        "dragonfly": ("groups", {"routers": 8, "ranks_per_router": 4}),
        "dgx1": ("nodes", {"GPUs": 8}),
        "dgx2": ("nodes", {"GPUs": 16}),
        "dgx_a100": ("nodes", {"GPUs": 8}),
        "dgx_h100": ("nodes", {"GPUs": 8}),
        "mi250": ("nodes", {"GCDs": 16}),
        "ndv2": ("nodes", {"GPUs": 8}),
        "ethernet_cloud": ("nodes", {"ranks_per_node": 8}),
    }.get(name, ("ranks", {}))
    each = prod(value if type(value := given.get(key, usual)) is int else usual for key, usual in inside.items())
    return {size: max(1, -(-ranks // max(1, each))), **given}


def near_cube(ranks: int) -> tuple[int, ...]:
    """Three numbers, as equal as possible, whose product is `ranks`: a torus without unused nodes."""
    best = (1, 1, ranks)
    for a in range(1, round(ranks ** (1 / 3)) + 2):
        if ranks % a == 0:
            b = next(b for b in range(isqrt(ranks // a), 0, -1) if ranks // a % b == 0)
            best = min(best, (a, b, ranks // a // b), key=lambda sides: max(sides) - min(sides))
    return best
