"""The contents of flight recorders, for other tools: PyTorch's Flight Recorder analyser, and Perfetto.

The groups are those of `engines.shared_memory.flight.read` or of `allfold doctor`. torch wants one pickle per rank. It
holds plain lists, dictionaries, strings and numbers; loading it does not need allfold.
"""

from __future__ import annotations

import pickle
from typing import Any

from ..chrome_trace import Row, Track, process_name, trace
from ..collectives import COLLECTIVES, WHOLE
from .perfetto import check_trace

TORCH_VERSION = "2.10"  # of the analyser's format
_LIBRARY = "gloo"  # the analyser knows only a few names; this is the one for CPUs
_TORCH_DTYPES = {
    "bool": "Bool",
    "int8": "Char",
    "uint8": "Byte",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}


def to_torch(groups: list[dict[str, Any]]) -> dict[int, bytes]:
    """By rank, the file for `torchfrtrace`, which expects the rank at the end of the file name.

    Ranks are those of the largest group. The analyser assumes that the first recorded call of a group is its first call
    ever, so calls that only some ranks still have are left out.
    """
    number = numbers_of_processes(groups)
    dumps: dict[int, dict[str, Any]] = {
        rank: {"version": TORCH_VERSION, "entries": [], "pg_config": {}} for rank in sorted(number.values())
    }
    for position, group in enumerate(groups):
        name = str(position)
        ranks = _ranks_of(group, number)
        first = max((member["calls"][0]["call"] for member in group["members"] if member["calls"]), default=0)
        for member in group["members"]:
            dump = dumps[number[member["process"]]]
            dump["pg_config"][name] = {"name": name, "desc": group["label"], "ranks": str(ranks)}
            dump["entries"] += [_entry(call, member, group, name) for call in member["calls"] if call["call"] >= first]
    for dump in dumps.values():
        dump["entries"].sort(key=lambda entry: (entry["time_created_ns"], entry["process_group"], entry["op_id"]))
        for record, entry in enumerate(dump["entries"]):
            entry["record_id"] = entry["id"] = record
    return {rank: pickle.dumps(dump, protocol=2) for rank, dump in dumps.items()}


def to_chrome(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """For Perfetto and chrome://tracing: one process per group, one track per rank, one slice per call."""
    calls = [call for group in groups for member in group["members"] for call in member["calls"]]
    moments = [moment for call in calls for moment in (call["begun"], call["ended"]) if moment is not None]
    begin, end = min(moments, default=0.0), max(moments, default=0.0)
    rows: list[Row] = []
    for position, group in enumerate(groups):
        rows.append(process_name(position, group["label"]))
        for member in group["members"]:
            track = Track(member["rank"], position)
            rows.append(track.name(f"rank {member['rank']} (process {member['process']})"))
            free = 0.0
            for call in member["calls"]:
                if call["begun"] is None:
                    continue
                # Times come from two readings of a clock: neighbouring calls may seem to overlap slightly.
                start = max(free, (call["begun"] - begin) * 1e6)
                length = max(0.0, ((end if call["ended"] is None else call["ended"]) - begin) * 1e6 - start)
                name = call["collective"] + (" (not ended)" if call["ended"] is None else "")
                rows.append(track.slice(name, "call", start, length, dict(call)))
                free = start + length
    document = trace(rows, "ns")
    check_trace(document)
    return document


def numbers_of_processes(groups: list[dict[str, Any]]) -> dict[int, int]:
    """By process, its rank number for all groups: its rank in the largest group; others get further numbers."""
    number: dict[int, int] = {}
    taken = groups[0]["size"] if groups else 0
    for position, group in enumerate(groups):
        for member in group["members"]:
            if position == 0:
                number[member["process"]] = member["rank"]
            elif member["process"] not in number:
                number[member["process"]] = taken
                taken += 1
    return number


def _ranks_of(group: dict[str, Any], number: dict[int, int]) -> list[int]:
    """A group's ranks by their common numbers. The analyser must be told which ranks have no record."""
    known = {member["rank"]: number[member["process"]] for member in group["members"]}
    free = iter(sorted(set(range(group["size"] + len(number))) - set(number.values())))
    return [known[rank] if rank in known else next(free) for rank in range(group["size"])]


def _entry(call: dict[str, Any], member: dict[str, Any], group: dict[str, Any], name: str) -> dict[str, Any]:
    promise = COLLECTIVES.get(call["collective"])  # the file may name another
    parts = (WHOLE, WHOLE) if promise is None else (promise.starts, promise.ends)
    input_size, output_size = (part.length(call["elements"], group["size"], True) for part in parts)
    dtype = _TORCH_DTYPES.get(call["dtype"], call["dtype"])
    done = call["call"] <= member["last_done"]
    created = None if call["begun"] is None else int(call["begun"] * 1e9)
    ended = None if call["ended"] is None else int(call["ended"] * 1e9)
    return {
        "pg_id": int(name),
        "process_group": (name, group["label"]),
        "collective_seq_id": call["call"],
        "p2p_seq_id": 0,
        "op_id": call["call"],
        "profiling_name": f"{_LIBRARY}:{call['collective']}",
        "time_created_ns": created or 0,
        "time_discovered_started_ns": created,
        "time_discovered_completed_ns": ended if done else None,
        "duration_ms": (ended - created) / 1e6 if done and created is not None and ended is not None else None,
        "input_sizes": [[input_size]],
        "input_dtypes": [dtype],
        "output_sizes": [[output_size]],
        "output_dtypes": [dtype],
        "state": "completed" if done else "started",
        "retired": done,
        "timeout_ms": 0,
        "is_p2p": False,
        "frames": [],
    }
