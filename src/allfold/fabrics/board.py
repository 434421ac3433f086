"""The board: where ranks that are not connected yet publish data for all ranks. Its entries are in a store."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import AllfoldError, CollectiveTimeout
from ..wording import name_ranks
from .secret import Secret, check_unsealed
from .stores import Store

if TYPE_CHECKING:
    from .tcp import Tcp


class Board:
    def __init__(self, store: Store, rank: int, size: int, secret: Secret | None = None, path: str = "") -> None:
        """`secret`: seals all entries; processes that do not know it are rejected. `path`: the prefix of their names."""
        self.store, self.rank, self.size, self.secret, self._path = store, rank, size, secret, path

    def of_this_run(self, timeout: float) -> Board:
        """The same board, on which only this run's entries count; every rank calls it, before anything is published.

        An earlier run may have used the same secret, and whoever controls the store could replay its entries. So every
        rank publishes an unguessable number, and from then on the key depends on all of these numbers.
        """
        if self.secret is None:
            self.put("nonce", b'""')  # so that ranks that have a secret do not wait for this one
            return self
        nonces = self.gather_all("nonce", secrets.token_hex(32), timeout)
        # Reading the entry of a rank without a secret has raised already; an empty number must not become part of a key.
        if not all(nonces):
            return self
        return Board(self.store, self.rank, self.size, self.secret.within(*nonces), self._path + "run/")

    def gather(self, what: str, own: bytes, timeout: float) -> list[bytes | None]:
        """The data that every rank has published under this name, by rank; None for ranks that published nothing in time."""
        self.put(what, own)
        return self._find(what, range(self.size), timeout)

    def gather_all(self, what: str, own: Any, timeout: float) -> list[Any]:
        """The data that every rank has published, as JSON. Raises `CollectiveTimeout` if a rank does not do so in time."""
        values = self.gather(what, json.dumps(own).encode(), timeout)
        missing = [rank for rank, one in enumerate(values) if one is None]
        if missing:
            raise CollectiveTimeout(f"init: {name_ranks(missing)} of {self.size} did not arrive within {timeout:g} s")
        return [json.loads(one) for one in values if one is not None]

    def find(self, what: str, rank: int, timeout: float) -> bytes | None:
        """The data that a rank has published; None if it has published nothing in time."""
        return self._find(what, [rank], timeout)[0]

    def some(self, name: str, ranks: Sequence[int]) -> Board:
        """A board for some of the ranks, in this order; every one of them calls it with the same name."""
        secret = self.secret and self.secret.within(name)
        return Board(self.store, list(ranks).index(self.rank), len(ranks), secret, f"{self._path}{name}/")

    def connect(self, host: str, timeout: float) -> Tcp:
        """Connections between all ranks; every one of them calls it. `host`: a name that the ranks of one host share."""
        from .ucx import connect  # imported here, because boards also work without the engine

        return connect(self, host, timeout)

    def decide(self, what: str, proposal: bytes) -> bytes:
        """The first proposal that any rank made under this name."""
        name = f"{self._path}{what}"
        return self._opened(name, self.store.decide(name, self._sealed(name, proposal)))

    def present(self, what: str) -> list[int]:
        """The ranks that have published something under this name so far."""
        found = self.store.find([self._name(what, rank) for rank in range(self.size)], 0.0)
        return [rank for rank, value in enumerate(found) if value is not None]

    def put(self, what: str, own: bytes) -> None:
        """Publish this rank's data, without waiting."""
        name = self._name(what, self.rank)
        self.store.put(name, self._sealed(name, own))

    def _find(self, what: str, ranks: Sequence[int], timeout: float) -> list[bytes | None]:
        found = self.store.find([self._name(what, rank) for rank in ranks], timeout)
        return [
            None if value is None else self._read(what, rank, value) for rank, value in zip(ranks, found, strict=True)
        ]

    def _name(self, what: str, rank: int) -> str:
        return f"{self._path}{what}/{rank}"

    def _read(self, what: str, rank: int, value: bytes) -> bytes:
        try:
            return self._opened(self._name(what, rank), value)
        except AllfoldError as error:
            raise AllfoldError(f"rank {rank} is refused: {error}") from None

    def _sealed(self, name: str, value: bytes) -> bytes:
        return value if self.secret is None else self.secret.seal(name, value)

    def _opened(self, name: str, value: bytes) -> bytes:
        return check_unsealed(name, value) if self.secret is None else self.secret.open(name, value)
