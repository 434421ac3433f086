"""`allfold studio`: the page with a server behind it, on this machine only."""

from __future__ import annotations

import argparse
import signal
import sys
import webbrowser

from ..errors import UsageError
from ..studio.edit import Limits
from .terminal import write_lines

SUMMARY = """\
Open the interactive page with a server behind it. The server computes any algorithm, number of ranks, topology and size on
request, proves source code as you edit it, and can run and record what is shown. The lessons of `allfold learn` are there too.
It listens on this machine only, and answers only requests with the token that is in the printed address. Ctrl-C ends it."""

_EPILOG = """\
example:
  $ allfold studio
  The studio is at http://127.0.0.1:41687/?token=…
  $ allfold studio --port 8642 --no-browser   # on a machine without a screen: then ssh -L 8642:127.0.0.1:8642 …

docs/studio.md says what the studio refuses, and what edited code may use."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add_serving(parser)
    parser.add_argument(
        "--edit-seconds",
        type=float,
        default=Limits.seconds,
        metavar="S",
        help=f"CPU seconds that edited code may use (default: {Limits.seconds:g})",
    )
    parser.add_argument(
        "--folder", metavar="F", help="the folder of the lessons (default: the one you are in, or allfold-learn)"
    )


def add_serving(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=0, metavar="N", help="listen on this port (default: any free port)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


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
