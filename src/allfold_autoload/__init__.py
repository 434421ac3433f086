"""What torch calls while it is imported: it makes the name "allfold" known to torch.distributed, and nothing else.

A package of its own, because importing anything inside `allfold` imports all of it, and because an allfold that cannot be
imported must leave `import torch` alone: what is wrong is said when a group is asked for.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Make `torch.distributed.init_process_group("allfold")` work; a second time does no harm.

    >>> allfold.torch.register()
    >>> dist.get_backend()
    'allfold'
    """
    import torch.distributed

    if torch.distributed.is_available():
        torch.distributed.Backend.register_backend("allfold", _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, backend_options: Any) -> Any:
    from allfold.torch.bootstrap import create

    return create(options, backend_options)
