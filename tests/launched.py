"""What tests run in ranks that have a launcher's variables. Their templates are forked from a kept process (conftest.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from io import StringIO
from typing import Any

from allfold.launch.spawn import run_everywhere


def launched(work: Callable[..., Any], ranks: int, *args: Any, hosts: Any = None) -> list[Any]:
    """What `work` returns in processes that have the variables of `allfold run`, and no communicator yet."""
    return run_everywhere(contextlib.nullcontext, work, ranks, args=args, hosts=hosts, timeout=120)


def command(_: object, *words: str) -> tuple[int, str, str]:
    """The work of a rank: a command of allfold; its status, what it printed, and what it said on stderr."""
    from allfold.cli import main

    out, err = StringIO(), StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(words))
    return status, out.getvalue(), err.getvalue()


class RankAlone:
    """What the work of a rank gets instead of a communicator: its rank."""

    def __init__(self, place: Any) -> None:
        self.rank = place.rank

    def __enter__(self) -> int:
        return int(self.rank)

    def __exit__(self, *_: object) -> None:
        pass
