"""The function that torch calls while it is imported. By default it only makes the name "allfold" known to
torch.distributed. With ALLFOLD_FLIGHT_DIR set, flight records are written (`flights.py`); with ALLFOLD_CHECK=1, all calls
are compared; with ALLFOLD_RECORD=FOLDER, they are recorded. `allfold replay` starts a rank with ALLFOLD_REPLAY=FILE.

It is a package of its own, because importing anything inside `allfold` imports all of it, and because an allfold that
cannot be imported must not break `import torch`: the error comes when a group is requested.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def register() -> None:
    """Make `torch.distributed.init_process_group("allfold")` work; calling it again has no effect.

    >>> allfold.torch.register()
    >>> dist.get_backend()
    'allfold'
    """
    import torch.distributed

    if torch.distributed.is_available():
        torch.distributed.Backend.register_backend("allfold", _create, extended_api=True, devices=["cpu", "cuda"])
        if "allfold.launch.torch_worlds" in sys.modules:
            from allfold.launch.torch_worlds import torch_is_there

            torch_is_there()
        if os.environ.get("ALLFOLD_FLIGHT_DIR"):
            from .flights import install

            install()
        if os.environ.get("ALLFOLD_REPLAY"):
            from allfold.record.alone import install as install_replay

            install_replay()
            return
        if os.environ.get("ALLFOLD_CHECK", "") not in ("", "0"):
            from allfold.check.install import install as install_check

            install_check()
        if os.environ.get("ALLFOLD_RECORD"):
            from allfold.record.install import install as install_record

            install_record()


def _create(options: Any, backend_options: Any) -> Any:
    from allfold.torch.bootstrap import create

    return create(options, backend_options)
