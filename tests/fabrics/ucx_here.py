"""Says whether this host has UCX's library, which some tests need."""

from __future__ import annotations

from ctypes.util import find_library

import pytest


def need_ucx() -> None:
    if find_library("ucp") is None:
        pytest.skip("UCX's library, libucp.so.0, is not installed here (Debian and Ubuntu: apt-get install libucx0)")
