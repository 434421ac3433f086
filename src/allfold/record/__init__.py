"""Recorded runs: every call of every rank in a file, to compare with another run, or to replay rank by rank."""

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
"""The variables that a replay restores. Others are not recorded: they may be secrets."""

FACTS = {"torch": "torch", "python": "Python", "machine": "machine", "processor": "processor"}
"""Facts that may change the last bits of a result, and their names in messages."""
