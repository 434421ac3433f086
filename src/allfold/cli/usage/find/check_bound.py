"""The options of `allfold check-bound`, and its help."""

from __future__ import annotations

import argparse

from .. import add_color, add_json

SUMMARY = """\
Check the certificate of a lower bound, as allfold find --certificate writes it: from the certificate and the topology alone, in
exact numbers, by a program of 150 lines that shares nothing with the search. docs/find.md says what a certificate holds."""

_EPILOG = """\
example:
  $ allfold find --collective all_gather --topology dgx1 --size 1GiB --certificate bound.json
  …
  $ allfold check-bound bound.json dgx1
  all_gather of 1,073,741,824 bytes between 8 ranks on dgx1 takes at least 6.26 ms: proved by the prices of 4 links
  $ allfold check-bound bound.json dgx1 --without "rank 1 to rank 0" --json        # on another network it may not hold

exit status: 0 the bound is proved, 1 the certificate does not prove it, 2 it cannot be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("certificate", metavar="FILE.json", help="what allfold find --certificate wrote")
    parser.add_argument(
        "topology", metavar="TOPOLOGY", help="the network: NAME[:k=v,…] or FILE.json, as for allfold find"
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="LINK", help="without this link; may be repeated"
    )
    add_json(parser)
    add_color(parser)
