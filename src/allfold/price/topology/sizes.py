"""Latency and bandwidth that depend on the size of a message, as a table for every kind of link.

A row holds for messages of its `bytes` and more, up to the next row. A message of b bytes then takes latency + b / bandwidth
on a link of that kind, of which it keeps the link busy for b / bandwidth. `Topology.latency` and `Topology.bandwidth` are
the best of all rows, so that whatever knows nothing of sizes stays a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import inf

from ...errors import UsageError
from ...wording import suggest
from .topology import Block, Links, Row, Topology, check_link

MOST_ROWS = 64


def with_sizes(topology: Topology, tables: dict[str, list[Row]], written: object) -> Topology:
    """The topology with a table for each of these kinds of links; their own figures hold for shorter messages.

    `written` is what its file says of it.
    """
    if not tables:
        return topology
    kinds = {block.kind for block in topology.links.blocks}
    for kind, rows in tables.items():
        if kind not in kinds:
            raise UsageError(
                f"topology {topology.name} has no links of the kind {kind!r:.60}; {suggest(kind, sorted(kinds))}"
            )
        _check(topology.name, kind, rows)
    blocks = []
    for block in topology.links.blocks:
        rows = tables.get(block.kind, [])
        if rows and rows[0][0] > 0:
            rows = [(0.0, block.latency, block.bandwidth), *rows]
        limits = {bandwidth == inf for _, _, bandwidth in rows}
        if len(limits) > 1:
            raise UsageError(
                f"topology {topology.name}: some messages have no limit on {block.template!r}, and others have one; "
                "expected a bandwidth for all of them, or inf for all"
            )
        blocks.append(replace(block, rows=tuple(rows)))
    found = _with_best(topology, blocks, inf)
    return replace(found, recipe={**topology.recipe, "sizes": written})


@lru_cache(maxsize=64)
def at_best(topology: Topology, most: float) -> Topology:
    """The topology with the best figures for messages with at most this many useful bytes, whatever their size.

    Longer messages may be faster, and something useless may be added to a message to make it longer.
    """
    if not topology.by_size:
        return topology
    found = _with_best(topology, topology.links.blocks, most)
    return replace(found, links=Links([replace(block, rows=()) for block in found.links.blocks]))


def _with_best(topology: Topology, blocks: Iterable[Block], most: float) -> Topology:
    better = [_best(block, most) for block in blocks]
    # A cut consists of some of these links, and cannot gain more than any of them.
    gains = [
        new.bandwidth / old.bandwidth
        for new, old in zip(better, topology.links.blocks, strict=True)
        if old.bandwidth < inf
    ]
    gain = max(gains, default=1.0)
    cuts = tuple(replace(cut, bandwidth=cut.bandwidth * gain) for cut in topology.cuts)
    return replace(topology, links=Links(better), cuts=cuts, throughput=topology.throughput * gain)


def _best(block: Block, most: float) -> Block:
    if not block.rows:
        return block
    speeds = [bandwidth * (1.0 if start <= most else most / start) for start, _, bandwidth in block.rows]
    return replace(block, latency=min(latency for _, latency, _ in block.rows), bandwidth=max(speeds))


def _check(topology: str, kind: str, rows: list[Row]) -> None:
    before = -1.0
    if not 1 <= len(rows) <= MOST_ROWS:
        raise UsageError(f"topology {topology}: {len(rows)} sizes of {kind}; expected 1 to {MOST_ROWS}")
    for start, latency, bandwidth in rows:
        if not before < start <= 2**62:
            raise UsageError(
                f"topology {topology}: sizes of {kind}: {start:g} bytes after {max(before, 0):g}; expected rising sizes"
            )
        before = start
        check_link(topology, f"{kind} from {start:g} bytes on", latency, bandwidth)
