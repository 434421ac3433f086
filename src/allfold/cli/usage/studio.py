"""The options of `allfold studio`, and its help."""

from __future__ import annotations

import argparse

from ...studio.edit import Limits

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
