"""Processors have names, also those of which the kernel gives only numbers."""

from __future__ import annotations

import pytest

from allfold.engines.shared_memory.processor import processor_name

ARM = (
    "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: {}\nCPU variant\t: 0x3\nCPU part\t: {}\n\nprocessor\t: 1\n"
)


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (
            "processor : 0\nmodel name\t: Some  CPU @ 2 GHz\n\nprocessor : 1\nmodel name\t: Another\n",
            "Some CPU @ 2 GHz",
        ),
        (ARM.format("0x41", "0xd0c"), "Neoverse-N1"),
        (ARM.format("0x46", "0x001"), "A64FX"),
        (ARM.format("0x41", "0xfff"), "ARM processor 0x41 0xfff"),
        (ARM.format("0x41", "two"), "ARM processor 0x41 two"),
        ("", "unknown processor"),
        ("processor : 0\nisa : rv64imafdc", "unknown processor"),
    ],
)
def test_names(cpuinfo: str, name: str) -> None:
    assert processor_name(cpuinfo) == name
