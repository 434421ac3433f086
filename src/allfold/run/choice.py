"""Which algorithm the engine takes when the caller names none.

On shared memory nothing beats reading straight from everyone. Up to a few KiB everybody reads everything (`naive`: one
wait); beyond that everybody reduces its own chunk and the others fetch it (`direct`: two waits, the least bytes). Both
fold every element over the ranks from left to right, so the choice never changes a bit of the result.
"""

from __future__ import annotations

ALWAYS = 2**63

Choice = tuple[int, str, bool]
"""(up to how many bytes, algorithm, whether to reach into arrays that lie in shared memory)"""


def choices(collective: str, ranks: int) -> list[Choice]:
    small = 16 * 1024
    return {
        "all_reduce": [(small // max(1, ranks // 4), "naive", False), (ALWAYS, "direct", True)],
        "reduce": [(small, "driver", False), (ALWAYS, "direct", True)],
        "broadcast": [(small, "driver", False), (ALWAYS, "driver", True)],
        "gather": [(small, "driver", False), (ALWAYS, "driver", True)],
        "scatter": [(small, "driver", False), (ALWAYS, "driver", True)],
        "all_gather": [(small, "direct", False), (ALWAYS, "direct", True)],
        "reduce_scatter": [(small, "direct", False), (ALWAYS, "direct", True)],
        "all_to_all": [(small, "direct", False), (ALWAYS, "direct", True)],
        "barrier": [(ALWAYS, "dissemination", False)],
    }[collective]
