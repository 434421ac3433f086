"""Text logs: what torch's watchdog, gloo, DETAIL, torchrun and allfold write when a run hangs.

A log seldom has more than one call per rank. It says which rank reported what, and sometimes how a rank ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .calls import CallFacts, CodeLine, GroupFacts, RankFacts, RunFacts, Tensor
from .torch_dumps import MOST_RANKS, user_frames

_MOST_LINE = 4000
_MOST_SAID = 4  # per rank
_PREFIX = re.compile(r"^\s*\[(?:rank|Rank )?(\d{1,7})\](?:\s*:)?\s?")
_TORCHRUN_PREFIX = re.compile(r"^\s*\[[\w.-]{1,60}?(\d{1,7})\]:")
_FRAME = re.compile(r'File "([^"]{1,1000})", line (\d{1,9}),? in (\S{1,200})')
_WATCHDOG = re.compile(
    r"\[PG (?:ID (?P<id>\w+) )?(?:PG )?(?:GUID )?(?P<guid>\w*)(?:\((?P<label>[^)]{0,200})\))? ?"
    r"Rank (?P<rank>\d{1,7})\].{0,200}?"
    r"WorkNCCL\(SeqNum=(?P<number>\d{1,18}), OpType=(?P<op>\w{1,40})"
    r"(?:, NumelIn=(?P<input>\d{1,18}))?(?:, NumelOut=(?P<output>\d{1,18}))?"
    r"(?:, Timeout\(ms\)=(?P<timeout>\d{1,18}))?"
)
_PRINT = (
    r"CollectiveFingerPrint\((?:SequenceNumber=(\d{1,18}), )?OpType=(\w{1,40})"
    r"(?:, TensorShape=\[([\d, ]{0,200})\])?(?:, TensorDtypes=(\w{1,40}))?"
)
_DETAIL = re.compile(rf"Rank (\d{{1,7}}) is running (?:inconsistent )?collective: {_PRINT}")
_BARRIER = re.compile(r"Ranks? ([\d, ]{1,2000}?) failed to pass monitoredBarrier")
_KILLED = re.compile(r"exitcode\s*:\s*(-?\d{1,4})")
_RANK_LINE = re.compile(r"^\s*rank\s*:\s*(\d{1,7})")
_CRASH = re.compile(r"Fatal Python error: ([\w ]{1,40})")
_TELLING = (
    "Fatal Python error",
    "Timed out waiting",
    "Received data size doesn't match expected size",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Watchdog caught collective operation timeout",
    "failed to pass monitoredBarrier",
    "Detected mismatch between collectives",
    "NCCL communicator was aborted",
    "MismatchError:",
    "RankLost:",
    "CollectiveTimeout:",
)
_ENDED_BY_TORCHRUN = 15  # SIGTERM, which it sends to all ranks as soon as one has failed
_OPERATIONS = {
    "ALLREDUCE": "all_reduce",
    "BROADCAST": "broadcast",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather_single",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "reduce_scatter_single",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all_single",
    "REDUCE": "reduce",
    "GATHER": "gather",
    "SCATTER": "scatter",
    "BARRIER": "barrier",
    "SEND": "send",
    "RECV": "recv",
    "COALESCED": "coalesced",
}
_DTYPES = {"Float": "float32", "Double": "float64", "Long": "int64", "Int": "int32", "Half": "float16"}


def is_telling(text: str) -> bool:
    return any(words in text for words in _TELLING)


class LogReader:
    """Collects the facts about ranks from the lines of one or more logs."""

    def __init__(self) -> None:
        self.run = RunFacts({}, {})
        self.reports: list[str] = []  # of unknown ranks
        self._frames: dict[int | None, list[CodeLine]] = {}
        self._status: int | None = None
        self._failed: int | None = None
        self._crashed: set[int] = set()

    def read(self, lines: Iterable[str], number: int | None = None) -> None:
        """`number`: the rank that wrote the log, if its name says so."""
        self._frames.clear()
        for line in lines:
            text = line[:_MOST_LINE].rstrip()
            match = _PREFIX.match(text) or _TORCHRUN_PREFIX.match(text)
            rank = int(match[1]) if match and int(match[1]) <= MOST_RANKS else number
            self._line(text[match.end() :] if match else text, rank)

    def _line(self, text: str, rank: int | None) -> None:
        if frame := _FRAME.search(text):
            found_frame = CodeLine(frame[1], int(frame[2]), frame[3])
            if rank in self._crashed:  # these are listed in reverse
                self._rank(rank).at = user_frames([*self._rank(rank).at, found_frame])
            else:
                self._frames.setdefault(rank, []).insert(0, found_frame)
        elif "Traceback (most recent call last)" in text:
            self._frames[rank] = []
        if found := _WATCHDOG.search(text):
            self._watchdog(found)
            rank = int(found["rank"])
        elif "Detected mismatch between collectives" in text:
            self._detail(text, rank)
        if rank is not None and (crash := _CRASH.search(text)):
            self._rank(rank).ended = f"crashed ({crash[1].strip()})"
            self._crashed.add(rank)
            return
        if match := _RANK_LINE.match(text):
            self._failed = int(match[1])
        if self._failed is not None and (status := _KILLED.search(text)):
            code = int(status[1])
            if code != -_ENDED_BY_TORCHRUN:
                how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
                self._rank(self._failed).ended = how
            self._failed = None
        if barrier := _BARRIER.search(text):
            for word in barrier[1].split(",")[:1000]:
                if word.strip().isdecimal() and int(word) <= MOST_RANKS:
                    self._rank(int(word))
        if any(words in text for words in _TELLING):
            self._said(text.strip()[:500], rank)

    def _said(self, text: str, rank: int | None) -> None:
        text = "".join(one if one.isprintable() else "?" for one in text)
        if rank is None:
            if len(self.reports) < _MOST_SAID and text not in self.reports:
                self.reports.append(text)
            return
        facts = self._rank(rank)
        if not facts.at:
            facts.at, facts.in_call = user_frames(self._frames.get(rank, [])), True
        if len(facts.said) < _MOST_SAID and text not in facts.said:
            facts.said.append(text)

    def _watchdog(self, found: re.Match[str]) -> None:
        rank = int(found["rank"])
        if rank > MOST_RANKS:
            return
        key = found["id"] or found["guid"] or "0"
        label = "the world" if found["label"] == "default_pg" else f"group {key}"
        elements = found["input"]
        tensors = (Tensor("", (int(elements),)),) if elements is not None else None
        timeout = int(found["timeout"]) / 1000 if found["timeout"] else None
        self._call(rank, key, label, int(found["number"]), found["op"], tensors, timeout)

    def _detail(self, text: str, rank: int | None) -> None:
        for found in _DETAIL.finditer(text):
            shape = tuple(int(word) for word in (found[4] or "").split(",") if word.strip().isdecimal())
            dtype = _DTYPES.get(found[5] or "", (found[5] or "").lower())
            tensors = (Tensor(dtype, shape),) if found[4] else None
            if int(found[1]) <= MOST_RANKS:
                self._call(int(found[1]), "0", "the group", int(found[2] or 1), found[3], tensors, None)

    def _call(
        self,
        rank: int,
        key: str,
        label: str,
        number: int,
        op: str,
        tensors: tuple[Tensor, ...] | None,
        timeout: float | None,
    ) -> None:
        facts = self._rank(rank)
        group = self.run.groups.setdefault(key, GroupFacts(key, label, (), complete=False))
        group.ranks = tuple(sorted({*group.ranks, rank}))
        if number in facts.of(key):
            return
        operation = _OPERATIONS.get(op.upper(), op.lower())
        stack = user_frames(self._frames.get(rank, []))
        facts.calls.append(
            CallFacts(key, number, operation, len(facts.calls), tensors, stack=stack, done=False, timeout=timeout)
        )
        facts.starts[key] = min(facts.starts.get(key, number), number)
        facts.starts[""] = 2**63
        facts.has_record = True

    def _rank(self, number: int) -> RankFacts:
        if number not in self.run.ranks:
            self.run.ranks[number] = RankFacts(number, has_record=False)
        return self.run.ranks[number]
