"""`allfold studio`: the page with a server behind it, on this machine only."""

from __future__ import annotations

import argparse
import sys
import webbrowser

from ..errors import UsageError
from ..studio.edit import Limits
from ..studio.server import Studio
from .terminal import write_lines

SUMMARY = """\
Open the interactive page with a server behind it. The server computes any algorithm, number of ranks, topology and size on
request, proves source code as you edit it, and can run and record what is shown. It listens on this machine only, and answers
only requests with the token that is in the printed address. Ctrl-C ends it."""

_EPILOG = """\
example:
  $ allfold studio
  The studio is at http://127.0.0.1:41687/?token=…
  $ allfold studio --port 8642 --no-browser   # on a machine without a screen: then ssh -L 8642:127.0.0.1:8642 …

docs/studio.md says what the studio refuses, and what edited code may use."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--port", type=int, default=0, metavar="N", help="listen on this port (default: any free port)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument(
        "--edit-seconds",
        type=float,
        default=Limits.seconds,
        metavar="S",
        help=f"CPU seconds that edited code may use (default: {Limits.seconds:g})",
    )


def run(arguments: argparse.Namespace) -> int:
    if not 0.1 <= arguments.edit_seconds <= 3600:
        raise UsageError(f"--edit-seconds {arguments.edit_seconds:g}: expected between 0.1 and 3600")
    with Studio(arguments.port, Limits(seconds=arguments.edit_seconds)) as studio:
        write_lines([f"The studio is at {studio.url}", "Ctrl-C ends it."], None)
        sys.stdout.flush()
        if not arguments.no_browser:
            webbrowser.open(studio.url)
        try:
            studio.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            write_lines(["", "The studio has ended."], None)
    return 0
