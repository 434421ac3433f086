"""`allfold check-bound`: whether a certificate proves its lower bound on a topology."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..documents import object_at, parse
from ..errors import UsageError
from ..price.check_bound import check_bound
from ..price.check_groups import check_bound_of_groups
from ..price.cost.plan import duration
from ..price.topology.parse import find_topology
from ..price.topology.without import without
from ..wording import counted
from .terminal import write_json, write_lines


def run(arguments: argparse.Namespace) -> int:
    try:
        certificate = object_at(parse(Path(arguments.certificate).read_bytes()), "a certificate")
    except OSError as error:
        raise UsageError(f"{arguments.certificate} cannot be read: {error.strerror}") from None
    groups = certificate.get("groups") if certificate.get("format") == "allfold-bound-of-groups" else None
    ranks = certificate.get("ranks")
    room = ranks if groups is None and type(ranks) is int and 0 < ranks < 2**24 else None
    topology = without(find_topology(arguments.topology, room), arguments.without)
    seconds = (check_bound if groups is None else check_bound_of_groups)(certificate, topology)
    kind = certificate["kind"] if groups is None else "groups"
    if arguments.json:
        write_json({"proved": True, "seconds": str(seconds), "bound": float(seconds), "kind": kind})
        return 0
    by = {
        "links": f"the prices of {len(certificate.get('prices', ()))} links",
        "distance": "the latencies between two ranks",
        "spread": "the messages that must be started",
        "combining": "the bytes that must be combined",
        "nothing": "nothing, because it claims nothing",
        "groups": "the certificates of the groups",
    }[kind]
    one = certificate if groups is None else groups[0]["certificate"]
    where = f"between {ranks:,} ranks" if groups is None else f"in each of {counted(len(groups), 'group')}"
    what = f"{one['collective']} of {one['size']:,} bytes {where} on {topology.name}"
    write_lines([f"{what} takes at least {duration(float(seconds))}: proved by {by}"], arguments.color)
    return 0
