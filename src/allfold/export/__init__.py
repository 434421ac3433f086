"""Schedules in other formats, each read back and proved before it is handed out.

`msccl` (XML, out and in) and `mscclpp` (JSON plans) run on GPUs, `chakra` is simulated by ASTRA-sim, `perfetto` is for
viewing. Nothing here is needed to prove, price, draw or run a schedule.
"""

from __future__ import annotations

FORMATS = {
    "msccl-xml": "MSCCL XML, for GPUs under the MSCCL runtimes",
    "mscclpp-json": "an MSCCL++ execution plan, for GPUs",
    "chakra": "Chakra execution traces, one per rank, for ASTRA-sim",
    "perfetto": "a Chrome trace, for Perfetto and chrome://tracing",
    "json": "the schedule itself",
}
