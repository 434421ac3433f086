"""The rows of a Chrome trace, which Perfetto and chrome://tracing show. All its times are microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Row = dict[str, Any]


@dataclass(frozen=True)
class Track:
    """One line of the picture: a thread of a process. The caller defines the meaning of threads and processes."""

    thread: int
    process: int = 0

    def name(self, name: str) -> Row:
        return {"name": "thread_name", "ph": "M", **self._place(), "args": {"name": name}}

    def slice(
        self, name: str, category: str, start: float, length: float, arguments: dict[str, Any] | None = None
    ) -> Row:
        """Something that took time. Slices of one track must not overlap."""
        row = {"name": name, "cat": category, "ph": "X", "ts": start, "dur": length, **self._place()}
        return row if arguments is None else {**row, "args": arguments}

    def arrow(self, number: int, at: float, leaves: bool) -> Row:
        """One end of an arrow between two slices: where it leaves, or where it arrives."""
        end = {"ph": "s"} if leaves else {"ph": "f", "bp": "e"}
        return {"name": "message", "cat": "flow", "id": number, "ts": at, **self._place(), **end}

    def _place(self) -> Row:
        return {"pid": self.process, "tid": self.thread}


def process_name(process: int, name: str) -> Row:
    return {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}


def trace(rows: list[Row], unit: Literal["ms", "ns"], **more: Any) -> dict[str, Any]:
    """The whole document; `unit` is the one that viewers show."""
    return {"traceEvents": rows, "displayTimeUnit": unit, **more}
