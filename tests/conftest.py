"""What all tests need: signals as they are on a terminal, no tuning of this machine, the same examples every time.

Whoever runs the tests in the background, or under nohup, has them ignore interrupts and hang-ups; every process that they
start would inherit that, and the launcher rightly keeps on ignoring what it was told to ignore.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# What somebody has tuned on this machine must not change what is tested.
os.environ.setdefault("ALLFOLD_TUNING", "off")

# Whoever runs the tests sees what everybody sees. To look further: pytest -m hypothesis --hypothesis-profile=default
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
