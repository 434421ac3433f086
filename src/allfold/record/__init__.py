"""Runs that are recorded: every call of every rank in a file, to be compared with another run, or replayed rank by rank."""

from __future__ import annotations

VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    *(
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "PYTHONHASHSEED",
        "PYTHONPATH",
    ),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR", "ATEN_CPU_CAPABILITY", "TORCH_DIST_INIT_BARRIER"),
)
"""Those that a replay sets again. Others are not written: they may be secrets."""

FACTS = {"torch": "torch", "python": "Python", "machine": "machine", "processor": "processor"}
"""What may change the last bits of a result, and its name in sentences."""
