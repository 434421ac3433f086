"""allfold as a backend of torch.distributed: `init_process_group("allfold")`, on CPUs, on one host or several.

Importing this registers the backend. torch imports it by itself if allfold is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allfold_autoload import register

if TYPE_CHECKING:
    from .deprecated import DataParallel as DataParallel
    from .shared import empty as empty

__all__ = ["DataParallel", "empty", "register"]

register()


def __getattr__(name: str) -> Any:
    # Only for those who use it: it imports torch's autograd and modules.
    if name == "DataParallel":
        from .deprecated import DataParallel

        return DataParallel
    if name == "empty":
        from .shared import empty

        return empty
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
