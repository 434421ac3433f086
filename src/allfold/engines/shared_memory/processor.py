"""The name of a processor, from /proc/cpuinfo."""

from __future__ import annotations

# ARM processors have numbers there instead of a name: who made them, and which part it is.
_ARM = {
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD09): "Cortex-A73",
    (0x41, 0xD0A): "Cortex-A75",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD0D): "Cortex-A77",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD41): "Cortex-A78",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x43, 0x0AF): "ThunderX2",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "Kunpeng 920",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}
UNKNOWN = "unknown processor"


def this_processor() -> str:
    # The beginning is enough, and the kernel generates only what is read: a machine may have hundreds of cores.
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            return processor_name(file.read(2048).decode("ascii", "replace"))
    except OSError:
        return UNKNOWN


def processor_name(cpuinfo: str) -> str:
    named = [line.partition(":") for line in cpuinfo.strip().split("\n\n")[0].splitlines()]
    facts = {key.strip(): " ".join(value.split()) for key, _, value in named}
    if name := facts.get("model name"):
        return name
    maker, part = facts.get("CPU implementer", ""), facts.get("CPU part", "")
    try:
        return _ARM[int(maker, 16), int(part, 16)]
    except (ValueError, KeyError):
        return f"ARM processor {maker} {part}" if maker and part else UNKNOWN
