"""Pipelines of torch without uninitialised memory: the same inputs of calls in every run.

Before its first step, torch's pipeline runs each stage on tensors that nobody has written, to learn the shapes of its results.
Tensor parallelism inside a stage then makes calls whose inputs are whatever was in memory.
"""

from __future__ import annotations

import sys
from typing import Any

_STAGES, _UTILS = "torch.distributed.pipelining.stage", "torch.distributed.pipelining._utils"
_MAKE = "_make_tensor_from_meta"


def zero_placeholders() -> None:
    """If the program has imported torch's pipelines, have their placeholders begin as zeros. Cheap to call again."""
    stages = sys.modules.get(_STAGES)
    original = getattr(stages, _MAKE, None)
    if original is None or hasattr(original, "is_zeroed"):
        return

    def zeroed(*arguments: Any, **given: Any) -> Any:
        return original(*arguments, **given).zero_()

    zeroed.is_zeroed = True  # type: ignore[attr-defined]
    for name in (_STAGES, _UTILS):
        if hasattr(sys.modules.get(name), _MAKE):
            setattr(sys.modules[name], _MAKE, zeroed)
