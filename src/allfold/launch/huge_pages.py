"""Memory that is cheap to fork: private pages of this process, gathered into huge pages.

A fork copies an entry of the page table for every page of 4 KiB that the process has written, and the end of the child
frees each. A process with torch has 60,000 of them: 13 ms for a fork and 17 ms in the child, even if that does nothing. With
huge pages of 2 MiB it is 3 and 6 ms. A child that writes to a huge page gets a copy of 4 KiB of it, as without.
"""

from __future__ import annotations

import ctypes

_MADV_COLLAPSE = 25  # since Linux 6.1
_HUGE_PAGE = 2 * 1024 * 1024


def gather() -> None:
    """Put what this process has written into huge pages, where the kernel can. It copies: 0.3 s for 250 MB."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        regions = [line.split() for line in file]
    for addresses, rights, _, _, _, *path in regions:
        if rights != "rw-p" or path not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in addresses.split("-"))
        for page in range(-(-begin // _HUGE_PAGE) * _HUGE_PAGE, end - _HUGE_PAGE + 1, _HUGE_PAGE):
            madvise(page, _HUGE_PAGE, _MADV_COLLAPSE)  # refused where nothing was written
