"""The secret of a run: processes that do not know it cannot take part, even if they can reach the ports.

The entries that ranks publish in order to meet are sealed: each is prefixed with a keyed hash of its name and value. And
ranks that connect first challenge each other (`greeting.py`): each proves that it knows the secret without revealing it.
Both keys depend on the run (`Board.of_this_run`). This keeps strangers out. It does not encrypt anything, and does not
stop an attacker on the network path from changing data after the challenge.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Mapping
from hashlib import sha256

from ..documents import DocumentError, read_plain
from ..errors import AllfoldError, UsageError

_SEALED = b"allfold sealed\n"
_BYTES = 32  # of a hash
_LEAST_SECRET = 16
_MOST_SECRET = 4096


class Secret:
    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, b"allfold", sha256)

    def within(self, *names: str) -> Secret:
        """A key for one purpose: seals and answers made with it are valid for nothing else."""
        return Secret(self._sign(b"within", json.dumps(names).encode(), b""))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Secret | None:
        """The secret in ALLFOLD_SECRET, or in the file that ALLFOLD_SECRET_FILE names; None if there is none."""
        told, path = environ.get("ALLFOLD_SECRET"), environ.get("ALLFOLD_SECRET_FILE")
        if told is not None and path is not None:
            raise UsageError("ALLFOLD_SECRET and ALLFOLD_SECRET_FILE are both set; set one of them")
        if told is None and path is None:
            return None
        name, found = ("ALLFOLD_SECRET", (told or "").encode()) if path is None else (path, _read(path))
        if not _LEAST_SECRET <= len(found) <= _MOST_SECRET:
            raise UsageError(
                f"{name}: a secret must have {_LEAST_SECRET} to {_MOST_SECRET} bytes, and this one has {len(found)}; "
                f"`openssl rand -hex 32` generates one"
            )
        return cls(found)

    def seal(self, name: str, value: bytes) -> bytes:
        """The value with its seal before it. Text stays text: some stores can compare nothing else."""
        return _SEALED + self._sign(b"entry", name.encode(), value).hex().encode() + value

    def open(self, name: str, sealed: bytes) -> bytes:
        """The value sealed under this name. Raises `AllfoldError` if it was not sealed, or with another secret."""
        if not sealed.startswith(_SEALED):
            raise AllfoldError(
                f"{name!r}, where the ranks meet, was written without a secret, or by a stranger; "
                f"this rank has one (ALLFOLD_SECRET), and all ranks need the same"
            )
        seal, value = (rest := sealed[len(_SEALED) :])[: 2 * _BYTES], rest[2 * _BYTES :]
        if not hmac.compare_digest(seal, self._sign(b"entry", name.encode(), value).hex().encode()):
            raise AllfoldError(
                f"{name!r}, where the ranks meet, was not written with the secret of this rank; "
                f"all ranks need the same ALLFOLD_SECRET"
            )
        return value

    def proof(self, role: bytes, said: bytes) -> bytes:
        """A proof that the process in this role knows the key, for one greeting."""
        return self._sign(b"greeting", role, said)

    def _sign(self, purpose: bytes, name: bytes, value: bytes) -> bytes:
        parts = b"".join(len(part).to_bytes(8, "little") + part for part in (purpose, name, value))
        return hmac.digest(self._key, parts, sha256)


def check_unsealed(name: str, value: bytes) -> bytes:
    """An entry as read by a rank without a secret. Raises an error if the other ranks have one."""
    if value.startswith(_SEALED):
        raise AllfoldError(
            f"{name!r}, where the ranks meet, is sealed with a secret, and this rank has none; "
            f"all ranks need the same ALLFOLD_SECRET"
        )
    return value


def _read(path: str) -> bytes:
    def check(facts: os.stat_result) -> None:
        if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o027:
            raise DocumentError("the file must belong to you or root, and not be readable by others (chmod 600)")

    try:
        return read_plain(path, _MOST_SECRET + 2, check).rstrip(b"\n")
    except OSError as error:
        raise UsageError(f"ALLFOLD_SECRET_FILE={path!r} cannot be read: {error.strerror}") from None
    except DocumentError as error:
        raise UsageError(f"ALLFOLD_SECRET_FILE={path!r}: {error}") from None
