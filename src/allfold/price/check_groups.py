"""Check a lower bound for several groups that share a network, from its certificate and the topology alone.

There is a certificate for each group, on the network as the group sees it. Each holds by itself: others do not make a group
faster. If all charge the same prices for the same links, all groups together pay the sum of what each must pay, and links
earn no more than for one: the times add up.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ..errors import BoundError, UsageError
from .check_bound import check_bound
from .topology.seen import check_groups, seen_from
from .topology.topology import Topology


def check_bound_of_groups(certificate: dict[str, Any], topology: Topology) -> Fraction:
    """The seconds that are proved, which are those that the certificate claims; a `BoundError` if it proves less.

    >>> both = af.find("broadcast", "ring:ranks=4", size=10**6, groups=[[0, 1], [2, 3]], method="built_in", seconds=2)
    >>> float(price.check_bound_of_groups(both.certificate, price.ring(4))) >= both.bound
    True
    """
    try:
        parts = [(one["ranks"], one["certificate"]) for one in certificate["groups"]]
        if (certificate["format"], certificate["version"]) != ("allfold-bound-of-groups", 1) or not parts:
            raise UsageError("this is not a certificate of a bound for groups")
        check_groups(topology, [ranks for ranks, _ in parts])
        if any(len(ranks) != one["ranks"] for ranks, one in parts):
            raise UsageError("a group has more or fewer ranks than its certificate")
        tasks = {(one["collective"], one["size"], one["root"]) for _, one in parts}
        claimed = Fraction(certificate["seconds"])
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UsageError(f"this is not a certificate of a bound: {type(error).__name__}: {str(error)[:100]}") from None
    if len(tasks) > 1:
        raise UsageError("the certificates of the groups are for different calls")
    each = [check_bound(one, seen_from(topology, ranks)) for ranks, one in parts]
    same = all(one["kind"] == "links" and one["prices"] == parts[0][1]["prices"] for _, one in parts)
    # Where speed depends on the size of a message, links earn as much for each only if groups are alike.
    adds_up = same and (not topology.by_size or len({len(ranks) for ranks, _ in parts}) == 1)
    proved = sum(each, Fraction(0)) if adds_up else max(each)
    if not 0 <= claimed <= proved:
        raise BoundError(f"it claims {float(claimed):.9g} s, but proves only {float(proved):.9g} s on {topology.name}")
    return claimed
