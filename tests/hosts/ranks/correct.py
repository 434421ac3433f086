"""What a rank does in the checks of correctness: the sections named on the command line, each with a report of its own.

correct.py BACKEND TIMEOUT SECTION…
"""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from datetime import timedelta
from importlib import import_module

from report import say, say_here


def main(backend: str, timeout: str, *sections: str) -> int:
    say_here()
    import torch
    import torch.distributed as dist
    from oracle import Tally

    warnings.simplefilter("ignore", FutureWarning)  # newer torch has other names for some functions
    torch.set_num_threads(1)
    say("meets")
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=float(timeout)))
    except Exception as error:
        say("refused", error=type(error).__name__, text=str(error))
        raise
    for section in sections:
        tally, began = Tally(), time.monotonic()
        try:
            import_module(section).check(tally)
        except Exception as error:
            tally.wrong.append(f"{type(error).__name__}: {error}")
            traceback.print_exc()
        say(section, seconds=time.monotonic() - began, **vars(tally))
        if tally.wrong:
            return 1  # the group may be broken, and others may wait in it
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
