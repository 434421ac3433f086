"""Files that are written whole or not at all: first under another name beside their place, then renamed."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from .errors import UsageError

try:  # not when it is needed: without a free descriptor nothing can be imported
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]


def write_whole(
    path: str | os.PathLike[str], content: str | bytes, folders: bool = False, private: bool = False
) -> None:
    """Write a file so that `path` always has the old content or the new one, even after Ctrl-C or on a full disk.

    A link stays a link. A file keeps its mode and a new one gets the usual mode; with `private`, only the owner has
    access. Pipes and devices are written to directly. With `folders`, missing parent folders are created. Raises
    `UsageError` if the file cannot be written.
    """
    data = content.encode("utf-8", errors="surrogateescape") if isinstance(content, str) else content
    try:
        if folders:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        if _is_stream(path):
            Path(path).write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data, private)
    except BrokenPipeError:  # as in `--html /dev/stdout | head`
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        if isinstance(error, FileNotFoundError) and not (folder := Path(path).absolute().parent).exists():
            why = f"there is no folder {folder}"
        raise UsageError(f"{path} cannot be written: {why}") from None


def require_writable(path: str | os.PathLike[str], folders: bool = False) -> None:
    """Raise `UsageError` if `write_whole` could not write this file: before the work, not after it.

    Nothing is made. With `folders`, `write_whole` may create missing folders.
    """
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        is_folder = False
    except (OSError, ValueError) as error:
        raise UsageError(f"{path!s:.200} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    if is_folder:
        raise UsageError(f"{path} cannot be written: Is a directory")
    if _is_stream(path):
        return
    place = Path(os.path.realpath(path))
    folder = next(one for one in place.parents if not folders or one.exists())
    if not folder.exists():
        raise UsageError(f"{path} cannot be written: there is no folder {folder}")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{path} cannot be written: no file can be made in {folder}")


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """True if this is not a plain file (for a folder, writing then raises), or names one that is already open."""
    if str(path).startswith(("/dev/fd/", "/dev/std", "/proc/")):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _replace(place: Path, data: bytes, private: bool) -> None:
    known = place.exists()
    if known and not os.access(place, os.W_OK):
        raise PermissionError(13, "Permission denied")  # its folder would allow it, but somebody has protected the file
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


def explain_open_files(error: OSError, ranks: int) -> str | None:
    """The sentence and the advice if ranks need more open files than this process may have; None for other errors."""
    if resource is None or error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"{ranks} ranks need more open files than this process may have ({most}, `ulimit -n`); "
        "`ulimit -n 4096` allows more"
    )
