"""Files that are written whole or not at all: beside their place first, then put there."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from .errors import UsageError


def write_whole(
    path: str | os.PathLike[str], content: str | bytes, folders: bool = False, private: bool = False
) -> None:
    """Whoever reads `path` meanwhile, or finds it after Ctrl-C or on a full disk, has the old content or the new one.

    A link stays a link, and a file keeps its mode; a new one has the usual, or with `private` only its owner's. Pipes
    and devices are written to as they are. With `folders`, those above it are made. `UsageError` where it cannot be written.
    """
    data = content.encode("utf-8", errors="surrogateescape") if isinstance(content, str) else content
    try:
        if folders:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        if _is_stream(path):
            Path(path).write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data, private)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """What is no plain file (a folder too, which then says so), or stands for one that is open already."""
    if str(path).startswith(("/dev/fd/", "/dev/std", "/proc/")):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _replace(place: Path, data: bytes, private: bool) -> None:
    known = place.exists()
    if known and not os.access(place, os.W_OK):
        raise PermissionError(13, "Permission denied")  # its folder would let us, but somebody has protected it
    beside = place.with_name(f".allfold-{secrets.token_hex(6)}")
    mode = stat.S_IMODE(place.stat().st_mode) if known else 0o666
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else mode)
        with open(descriptor, "wb") as file:
            if known and not private:
                os.fchmod(descriptor, mode)
            file.write(data)
        os.replace(beside, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise
