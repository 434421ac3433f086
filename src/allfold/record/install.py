"""Starts to record when a script creates its first group. `allfold_autoload` installs it while torch is imported."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..engines.last_words import last_words, note_ending, watch_multiprocessing
from ..errors import UsageError
from ..intercept import RECORD
from ..intercept.dispatch import watch
from ..intercept.install import on_world
from .format import file_name
from .keep import VARIABLE, Keep
from .pickled import make_steady
from .program import early_state, head, state
from .recorder import CallRecorder
from .seeds import DrawnSeeds
from .stores import StoreAnswers
from .wait import wait

_early: dict[str, Any] = {}
_answers: StoreAnswers | None = None
_seeds: DrawnSeeds | None = None
_recorder: CallRecorder | None = None


def install() -> None:
    """Record the calls of all groups that this process creates. Calling it again has no effect."""
    global _answers, _early, _seeds
    if _answers is None:
        _early = early_state()
        _answers, _seeds = StoreAnswers(), DrawnSeeds()
        make_steady()
        on_world(_begin, _end)


def _begin(group: Any, _: Any) -> None:
    global _recorder
    rank = group.rank()
    if _recorder is None:
        try:
            _recorder = _open(rank)
        except UsageError as error:  # the program has no part in it, so there is nothing to see in a traceback
            sys.stderr.write(f"allfold record: rank {rank}: {error}\n")
            raise SystemExit(2) from None
        assert _answers is not None and _seeds is not None
        _answers.note_with(_recorder.note_store)
        _seeds.note_with(_recorder.note_seed)
        dist.Work.wait = wait
        atexit.register(_leave)
        watch_multiprocessing(_leave)
    world = {"rank": rank, "size": group.size(), "backend": str(c10d._world.pg_map[group][0]), "state": state()}
    _recorder.begin_world(world)
    watch("record", _recorder)


def _open(rank: int) -> CallRecorder:
    folder = os.path.abspath(os.environ[RECORD])
    keep = Keep.of(os.environ.get(VARIABLE, "digests"))
    path = os.path.join(folder, file_name(rank, _restarts()))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return CallRecorder(path, head(rank, str(keep), _early), keep)
    except FileExistsError:
        raise UsageError(
            f"{RECORD}={os.environ[RECORD]}: this folder already has a record ({os.path.basename(path)}); name another"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _restarts() -> int:
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(count) if count.isdecimal() else 0


def _end() -> None:
    watch("record", None)


def _leave() -> None:
    note_ending()
    if _recorder is not None:
        watch("record", None)
        _recorder.end(last_words())
