"""`allfold studio`: the page with a server behind it, on this machine only."""

from __future__ import annotations

import argparse
import signal
import sys
import webbrowser

from ..errors import UsageError
from ..studio.edit import Limits
from .terminal import write_lines


def run(arguments: argparse.Namespace) -> int:
    if not 0.1 <= arguments.edit_seconds <= 3600:
        raise UsageError(f"--edit-seconds {arguments.edit_seconds:g}: expected between 0.1 and 3600")
    limits = Limits(seconds=arguments.edit_seconds)
    return serve(arguments.port, limits, arguments.folder, not arguments.no_browser)


def serve(port: int, limits: Limits, folder: str | None, browser: bool, place: str = "") -> int:
    """Serve until Ctrl-C or SIGTERM. `place` is what follows the address: `#lessons`."""
    from ..studio.server import Studio  # `allfold learn` imports this module, and seldom serves

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the folder of a waiting worker is removed
    with Studio(port, limits, folder) as studio:
        write_lines([f"The studio is at {studio.url}{place}", "Ctrl-C ends it."], None)
        sys.stdout.flush()
        if browser:
            webbrowser.open(studio.redirect_page(place))
        try:
            studio.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            write_lines(["", "The studio has ended."], None)
    return 0
