"""accelerate's own distributed tests, which its wheel contains, in ranks of the plugin; for `make test-frameworks`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("accelerate")


@pytest.mark.parametrize("script", ["test_ops", "test_sync", "test_script"])
@pytest.mark.ranks(2, backend="allfold", timeout=600)
def test_script_of_accelerate(
    process_group: Any, world_size: int, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """accelerate uses the group that is there, and compares what its operations and loaders give on all ranks."""
    import torch.distributed as dist
    from accelerate import PartialState  # type: ignore[import-not-found]

    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    # Without `cpu`, each rank would be alone on a machine without GPUs.
    assert (PartialState(cpu=True).num_processes, dist.get_backend()) == (world_size, "allfold")
    import_module(f"accelerate.test_utils.scripts.{script}").main()
