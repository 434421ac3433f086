"""Which fabrics there are, and which one a run gets."""

from __future__ import annotations

from collections.abc import Mapping

from .fabric import Board


def board_from_environment(environ: Mapping[str, str], rank: int, size: int, timeout: float) -> Board:
    from .gloo import board_from_environment

    return board_from_environment(environ, rank, size, timeout)
