"""torch's store as the place where ranks meet: torchrun runs one, and so does a torch process group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

import torch.distributed as dist

from ..errors import AllfoldError
from .addresses import place_in_words
from .stores import Store

_LONGEST = 1e6  # seconds; torch counts in milliseconds, which must not overflow


class TorchStore(Store):
    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def put(self, name: str, value: bytes) -> None:
        with _store_errors():
            self._store.set(name, value)

    def find(self, names: Sequence[str], timeout: float) -> list[bytes | None]:
        # Every kind of store raises RuntimeError when the time is up, and some for other reasons, which `check` repeats.
        if timeout > 0:
            with contextlib.suppress(RuntimeError):
                self._store.wait(list(names), timedelta(seconds=min(max(timeout, 0.001), _LONGEST)))
        with _store_errors():
            return [self._store.get(name) if self._store.check([name]) else None for name in names]

    def decide(self, name: str, proposal: bytes) -> bytes:
        with _store_errors():
            decided: bytes = self._store.compare_set(name, "", proposal.decode("ascii"))
            return decided


def kept_by_torchrun(environ: Mapping[str, str], rank: int, size: int, timeout: float) -> TorchStore:
    """The store at MASTER_ADDR and MASTER_PORT, with entries for this attempt of the run only."""
    place = place_in_words(environ["MASTER_ADDR"], int(environ["MASTER_PORT"]))
    limit = timedelta(seconds=min(timeout, _LONGEST))
    try:
        store, _, _ = next(dist.rendezvous(f"tcp://{place}", rank, size, timeout=limit))
    except (RuntimeError, ValueError) as error:
        raise AllfoldError(f"init: rank {rank} of {size} found no store at {place}: {_first_line(error)}") from None
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return TorchStore(dist.PrefixStore(f"allfold {attempt}", store))


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise AllfoldError(
            f"the store where the ranks meet cannot be reached: {_first_line(error)}; it runs in rank 0, which may have ended"
        ) from None


def _first_line(error: Exception) -> str:
    """torch's message, without the place in its source, advice and the stack."""
    line = str(error).strip().split("\n")[0].partition(". This is typically")[0]
    return line.partition("] ")[2] or line if line.startswith("[/") else line
