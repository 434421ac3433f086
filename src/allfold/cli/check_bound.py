"""`allfold check-bound`: whether a certificate proves its lower bound on a topology."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..documents import object_at, parse
from ..errors import UsageError
from ..price.check_bound import check_bound
from ..price.cost.plan import duration
from ..price.topology.parse import find_topology
from ..price.topology.without import without
from .terminal import add_color, add_json, write_json, write_lines

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


def run(arguments: argparse.Namespace) -> int:
    try:
        certificate = object_at(parse(Path(arguments.certificate).read_bytes()), "a certificate")
    except OSError as error:
        raise UsageError(f"{arguments.certificate} cannot be read: {error.strerror}") from None
    ranks = certificate.get("ranks")
    topology = find_topology(arguments.topology, ranks if type(ranks) is int and 0 < ranks < 2**24 else None)
    topology = without(topology, arguments.without)
    seconds = check_bound(certificate, topology)
    kind = certificate["kind"]
    by = {
        "links": f"the prices of {len(certificate.get('prices', ()))} links",
        "distance": "the latencies between two ranks",
        "spread": "the messages that must be started",
        "combining": "the bytes that must be combined",
        "nothing": "nothing, because it claims nothing",
    }[kind]
    if arguments.json:
        write_json({"proved": True, "seconds": str(seconds), "bound": float(seconds), "kind": kind})
        return 0
    what = f"{certificate['collective']} of {certificate['size']:,} bytes between {ranks:,} ranks on {topology.name}"
    write_lines([f"{what} takes at least {duration(float(seconds))}: proved by {by}"], arguments.color)
    return 0
