"""The studio's answers to requests: entries, rows of the table, edited code, measurements.

All input comes from outside and is checked here; a refusal is a sentence that says why.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..collectives import find_collective
from ..errors import UsageError
from ..price.topology.machines import CONSTRUCTORS
from ..price.topology.parse import find_topology
from ..price.topology.topology import Topology
from ..registry import find_algorithm, schedule
from ..schedules import Schedule
from ..view import TOPOLOGY
from ..view.entry import NO_TOPOLOGY, check_size, entry, within
from ..view.page import SIZE, TABLE_RANKS, document, planned
from ..view.wins import table
from .edit import MOST_CODE, Limits, Prover, Workers

MOST_RANKS = 1024
MOST_MOVES = 2_200_000  # a ring of 1,024 ranks
MOST_EXPORTED = 40_000  # moves; takes a few seconds
PROVED = 17  # ranks, up to which edited code is proved
_MOST_TABLE_RANKS = 256
_MOST_PLACES = 65_536
_CACHED = 128 * 2**20  # bytes of answers to keep


@dataclass
class Answers:
    """Computes answers, and keeps the last ones.

    At most two are computed here at a time, and two in other processes, so that an endless loop does not block others.
    """

    limits: Limits = field(default_factory=Limits)
    workers: Prover = field(default_factory=Workers)
    _kept: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(2))
    _turns_elsewhere: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(2))

    def page(self, token: str) -> dict[str, Any]:
        """The document that the page opens with; it asks for the rest."""
        self.workers.prepare()
        first = json.loads(self.entry("all_reduce", "ring", 8, None, TOPOLOGY, SIZE))
        cases = json.loads(self.table("all_reduce", TOPOLOGY, list(TABLE_RANKS)))
        return document([first], mode="studio", token=token, cases=cases, all_topologies=True)

    def entry(self, collective: str, algorithm: str, ranks: int, root: int | None, topology: str, size: int) -> bytes:
        key = json.dumps(["entry", collective, algorithm, ranks, root, topology, size])
        return self._answer(key, lambda: _entry_by_name(collective, algorithm, ranks, root, topology, size))

    def table(self, collective: str, topology: str, ranks: list[int]) -> bytes:
        find_collective(collective)
        for many in ranks:
            _check_ranks(many, 1, _MOST_TABLE_RANKS, "the table prices schedules of")
            topology_of(topology, many)
        if len(ranks) > 32:
            raise UsageError(f"{len(ranks)} numbers of ranks at once; at most 32")
        where = None if topology == NO_TOPOLOGY else topology
        key = json.dumps(["table", collective, topology, ranks])
        return self._answer(key, lambda: table(collective, where, ranks))

    def edit(self, request: dict[str, Any]) -> bytes:
        """The entry of the schedule that edited code makes."""
        return self._answer(None, lambda: self.workers.prove(self._question(request), self.limits))

    def prove(self, request: dict[str, Any]) -> bytes:
        """The verdicts on edited code for several numbers of ranks, for every root."""
        many = request.get("many")
        if not isinstance(many, list) or not 1 <= len(many) <= PROVED or not all(type(one) is int for one in many):
            raise UsageError(f"many is {many!r:.60}; expected a list of at most {PROVED} numbers of ranks")
        for ranks in many:
            _check_ranks(ranks, 1, PROVED, "the studio proves edited code for")
        question = {**self._question({**request, "ranks": max(many)}), "many": many}
        return self._answer(None, lambda: self.workers.prove(question, self.limits))

    def msccl(self, request: dict[str, Any]) -> bytes:
        """The schedule of the request as MSCCL XML, in `text`: what `allfold export --to msccl-xml` writes."""
        from ..export.msccl.msccl import write  # only here: edits are proved without it

        made = Schedule.from_json(request.get("schedule") or {})
        if made.moves > MOST_EXPORTED:
            raise UsageError(
                f"{made.moves:,} moves; the studio exports up to {MOST_EXPORTED:,}, allfold export any number"
            )
        key = json.dumps(["msccl", made.digest.hex(), made.algorithm])
        return self._answer(key, lambda: {"text": write(made)})

    def _question(self, request: dict[str, Any]) -> dict[str, Any]:
        code = request.get("code")
        if not isinstance(code, str) or len(code) > MOST_CODE:
            raise UsageError(f"code must be text of at most {MOST_CODE:,} characters")
        collective, ranks, root, topology, size = _case(request)
        named, file = request.get("algorithm"), request.get("file")
        return {
            "collective": collective,
            "ranks": ranks,
            "root": root,
            "topology": topology,
            "size": size,
            "code": code,
            "algorithm": named if isinstance(named, str) else None,
            "file": file if isinstance(file, str) and re.fullmatch(r"[A-Za-z_]\w{0,80}\.py", file) else None,
        }

    def measure(self, request: dict[str, Any]) -> bytes:
        collective, ranks, root, topology, size = _case(request)
        algorithm = request.get("algorithm")
        if not isinstance(algorithm, str):
            raise UsageError(f"algorithm is {algorithm!r}; expected a name")
        return self._answer(None, lambda: _measured(collective, algorithm, ranks, root, topology, size))

    def _answer(self, key: str | None, compute: Callable[[], Any]) -> bytes:
        if key is not None and (kept := self._take(key)) is not None:
            return kept
        with self._turns_elsewhere if key is None else self._turns:
            if key is not None and (kept := self._take(key)) is not None:
                return kept  # another request has computed the same
            answer = json.dumps(compute(), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        if key is not None:
            with self._lock:
                self._kept[key] = answer
                while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _CACHED:
                    self._kept.popitem(last=False)
        return answer

    def _take(self, key: str) -> bytes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)


def _case(request: dict[str, Any]) -> tuple[str, int, int | None, str, int]:
    collective = find_collective(request.get("collective")).name
    ranks, root, size = request.get("ranks"), request.get("root"), request.get("size", SIZE)
    topology = request.get("topology", NO_TOPOLOGY)
    if type(ranks) is not int or type(size) is not int or not (root is None or type(root) is int):
        raise UsageError(f"ranks, root and size must be whole numbers, not {ranks!r}, {root!r} and {size!r}")
    if not isinstance(topology, str):
        raise UsageError(f"topology is {topology!r}; expected a name")
    _check_ranks(ranks, 1, MOST_RANKS, "the studio draws")
    return collective, ranks, root, topology, check_size(size)


def _check_ranks(ranks: int, least: int, most: int, what: str) -> None:
    if not least <= ranks <= most:
        raise UsageError(f"{ranks} ranks; {what} {least} to {most:,}")


def _entry_by_name(
    collective: str, algorithm: str, ranks: int, root: int | None, topology: str, size: int
) -> dict[str, Any]:
    find_collective(collective)
    _check_ranks(ranks, 1, MOST_RANKS, "the studio draws")
    check_size(size)
    chosen = find_algorithm(collective, algorithm)
    where = topology_of(topology, ranks)
    given = planned(collective, algorithm, ranks, root, where)
    made = schedule(collective, within(chosen, MOST_MOVES), ranks, root, **given)
    return entry(made, where, size, topology_name=topology, function=chosen, parameters=given)


def _measured(
    collective: str, algorithm: str, ranks: int, root: int | None, topology: str, size: int
) -> dict[str, Any]:
    from .measure import record  # only here: it needs processes, which a browser does not have

    made = schedule(collective, algorithm, ranks, root)
    recording = record(made, size)
    return entry(made, topology_of(topology, ranks), size, topology_name=topology, recording=recording)


def topology_of(text: str, ranks: int) -> Topology | None:
    """A topology by its name. No file is read, and no topology is made that is too large to draw."""
    if text == NO_TOPOLOGY:
        return None
    name, _, given = text.partition(":")
    if name not in CONSTRUCTORS or len(text) > 300:
        raise UsageError(f"the studio knows no topology {text[:60]!r}; known: {', '.join(CONSTRUCTORS)}")
    places = 1
    for key, value in re.findall(r"(\w+)=([\w.]+)", given):
        if key in _COUNTS:
            for number in value.split("x"):
                places *= max(1, int(number)) if number.isdecimal() and len(number) < 9 else _MOST_PLACES + 1
    if places > _MOST_PLACES:
        raise UsageError(f"the topology {text} has more than {_MOST_PLACES:,} places")
    return find_topology(text, ranks)


_COUNTS = {
    "ranks", "hosts", "nodes", "groups", "routers", "shape", "cards",
    "ranks_per_host", "ranks_per_node", "ranks_per_router", "hosts_per_leaf",
}  # fmt: skip
