"""allfold as a backend of torch.distributed: `init_process_group("allfold")`, for CPU and CUDA tensors, on any hosts.

Importing this package registers the backend. Where allfold is installed, `import torch` does so too (allfold_autoload).
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
    # Imported on first use, because these import much of torch.
    if name == "DataParallel":
        from .deprecated import DataParallel

        return DataParallel
    if name == "empty":
        from .shared import empty

        return empty
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
