"""Flight-recorder dumps in the format of torch 2.13, as its recorder would write them for given calls."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

FILE = "/home/me/train.py"
TORCH = "/env/lib/python3.11/site-packages/torch/distributed"
WORLD = ("0", "default_pg")


def entry(
    operation: str,
    number: int,
    line: int,
    size: int = 4,
    *,
    dtype: str = "Float",
    library: str = "nccl",
    group: tuple[str, str] = WORLD,
    state: str = "completed",
    record: int | None = None,
    p2p: int = 0,
    begun: float = 0.0,
    timeout: float = 600,
) -> dict[str, Any]:
    known = library == "nccl"
    created = int((1_000_000 + begun + number) * 1e9)
    done = known and state == "completed"
    return {
        "frames": [
            {"name": "all_reduce", "filename": f"{TORCH}/distributed_c10d.py", "line": 1},
            {"name": "main", "filename": FILE, "line": line},
            {"name": "<module>", "filename": FILE, "line": 99},
        ],
        "record_id": number - 1 if record is None else record,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": number,
        "p2p_seq_id": p2p,
        "op_id": number,
        "profiling_name": f"{library}:{operation}",
        "time_created_ns": created,
        "input_sizes": [[size]],
        "input_dtypes": [dtype],
        "output_sizes": [[size]],
        "output_dtypes": [dtype],
        "state": state if known else "scheduled",
        "time_discovered_started_ns": created if known else None,
        "time_discovered_completed_ns": created + 1000 if done else None,
        "retired": not known or done,
        "timeout_ms": int(timeout * 1000),
        "is_p2p": bool(p2p),
    }  # fmt: skip


def dump(entries: Iterable[dict[str, Any]], groups: Mapping[str, Sequence[int]] | None = None) -> dict[str, Any]:
    """`groups`: the members, as NCCL's dumps have them; gloo's have none."""
    config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    if groups is not None:
        config = {
            name: {"name": name, "desc": "default_pg" if name == "0" else "undefined", "ranks": str(list(ranks))}
            for name, ranks in groups.items()
        }
    return {"version": "2.10", "pg_config": config, "comm_lib_version": "", "pg_status": {}, "entries": list(entries)}


def write(folder: Path, dumps: dict[int, dict[str, Any]], prefix: str = "nccl_trace_rank_") -> Path:
    for rank, one in dumps.items():
        (folder / f"{prefix}{rank}").write_bytes(pickle.dumps(one, protocol=2))
    return folder
