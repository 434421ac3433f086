"""`allfold check-bound`: whether a certificate proves its lower bound on a topology."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

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
    if certificate.get("format") == "allfold-bound-of-groups":
        return _of_groups(certificate, arguments)
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


def _of_groups(certificate: dict[str, Any], arguments: argparse.Namespace) -> int:
    topology = without(find_topology(arguments.topology, None), arguments.without)
    seconds = check_bound_of_groups(certificate, topology)
    if arguments.json:
        write_json({"proved": True, "seconds": str(seconds), "bound": float(seconds), "kind": "groups"})
        return 0
    first, many = certificate["groups"][0]["certificate"], counted(len(certificate["groups"]), "group")
    what = f"{first['collective']} of {first['size']:,} bytes in each of {many} on {topology.name}"
    text = f"{what} takes at least {duration(float(seconds))}: proved by the certificates of the groups"
    write_lines([text], arguments.color)
    return 0
