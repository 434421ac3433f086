"""Latency and bandwidth that depend on the size of a message: in files, prices, simulations, bounds and certificates."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import allfold as af
from allfold.engines.engine import MeasuredNetwork, Wire
from allfold.errors import BoundError, UsageError
from allfold.price import Topology, check_bound, cost, hosts, plan, simulate, without
from allfold.price.topology.measured_hosts import hosts_as_measured, rows_of

TABLE = [
    {"bytes": 1000, "latency": 5e-6, "bandwidth": 2e9},
    {"bytes": 100_000, "latency": 20e-6, "bandwidth": 8e9},
]


def pair(sizes: dict[str, Any] | None = None, ranks: int = 2, **parameters: Any) -> Topology:
    """Hosts of one rank each; a message crosses two cards."""
    given = {"hosts": ranks, "ranks_per_host": 1, "port": "inf", "port_latency": 0, "bandwidth": 1e9, "latency": 1e-6}
    given |= {"overhead": 0, "reduction": "inf", **parameters}
    document = {"format": "allfold-topology", "version": 1, "constructor": "hosts", "parameters": given}
    return Topology.from_json(document | ({} if sizes is None else {"sizes": sizes}))


def by_hand(bytes: float) -> float:
    """The seconds of one message over two cards of `TABLE`."""
    if bytes < 1000:
        return 2e-6 + bytes / 1e9
    return 10e-6 + bytes / 2e9 if bytes < 100_000 else 40e-6 + bytes / 8e9


@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 50_000, 99_999, 100_000, 10**7])
def test_one_message_takes_what_its_row_says(size: int) -> None:
    topology = pair({"nic": TABLE})
    sent = af.schedule("broadcast", "tree", ranks=2)
    assert cost(sent, topology, size, segments=1).time == pytest.approx(by_hand(size), rel=1e-9)
    assert simulate(sent, topology, size).duration == pytest.approx(by_hand(size), rel=1e-9)
    assert cost(sent, topology, size).time <= by_hand(size) * (1 + 1e-9)  # in segments, if that is faster


@pytest.mark.parametrize(
    "collective,algorithm", [("all_reduce", "ring"), ("all_gather", "direct"), ("all_to_all", "direct")]
)
def test_messages_of_a_quarter_of_the_buffer_are_in_the_row_of_a_quarter(collective: str, algorithm: str) -> None:
    made = af.schedule(collective, algorithm, ranks=4)
    for size in (3996, 4000, 399_996, 400_000):
        row = next((row for row in reversed(TABLE) if size / 4 >= row["bytes"]), {"latency": 1e-6, "bandwidth": 1e9})
        alike = pair(ranks=4, latency=row["latency"], bandwidth=row["bandwidth"])
        topology = pair({"nic": TABLE}, ranks=4)
        assert cost(made, topology, size, segments=1).time == pytest.approx(cost(made, alike, size, segments=1).time)
        assert simulate(made, topology, size).duration == pytest.approx(simulate(made, alike, size).duration)
        assert simulate(made, topology, size, symmetric=False).duration == pytest.approx(
            simulate(made, topology, size).duration
        )
        planned = {one.algorithm: one for one in plan(collective, topology, 4, size, segments=1).costs}
        assert planned[algorithm].time == pytest.approx(cost(made, topology, size, segments=1).time)
        busy = simulate(made, topology, size).link_use(50)
        assert busy.max() <= 1 + 1e-9  # of the bandwidth that messages of this size have


def test_segments_are_cut_where_that_is_cheapest() -> None:
    """Shorter messages are much slower here: the best number is that of trying all."""
    made = af.schedule("broadcast", "chain", ranks=5)
    for seed in range(2):
        random = Random(seed)
        starts = sorted(random.sample(range(5000, 400_000), 3))
        rows = [
            {"bytes": start, "latency": random.choice([1e-6, 9e-6]), "bandwidth": random.choice([5e8, 1e9, 4e9, 8e9])}
            for start in starts
        ]
        topology, size = pair({"nic": rows}, ranks=5, overhead=1e-6), random.randrange(10**5, 10**6)
        best = min(cost(made, topology, size, segments=many).time for many in range(1, size // 4096 + 1))
        assert best <= cost(made, topology, size).time <= 1.0101 * best, seed


def test_a_file_keeps_its_table_and_links_can_fail() -> None:
    topology = pair({"nic": TABLE})
    assert topology.by_size and Topology.from_json(topology.to_json()).to_json() == topology.to_json()
    written = {
        "format": "allfold-topology",
        "version": 1,
        "name": "ring",
        "ranks": 3,
        "port": {"latency": 0, "bandwidth": "inf"},
        "links": [{"name": f"{a}{b}", "bandwidth": 1e9} for a in range(3) for b in range(3) if a != b],
        "graph": {"edges": [{"from": a, "to": b, "link": f"{a}{b}"} for a in range(3) for b in range(3) if a != b]},
        "sizes": {"link": TABLE},
    }
    broken = without(Topology.from_json(written), ["01"])
    sent = af.schedule("broadcast", "tree", ranks=2)
    assert cost(sent, broken, 50_000, segments=1).time == pytest.approx(2 * 5e-6 + 50_000 / 2e9)
    assert Topology.from_json(broken.to_json()).to_json() == broken.to_json()


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "all_to_all", "broadcast"])
@pytest.mark.parametrize("size", [900, 99_000, 10**6])
def test_the_bound_takes_the_best_row_that_may_be_used(collective: str, size: int) -> None:
    topology = pair({"nic": TABLE}, ranks=3)
    found = af.find(collective, topology, size, method="built_in", seconds=1)
    assert check_bound(found.certificate.to_json(), topology) == found.certificate.seconds
    assert found.bound <= found.time * (1 + 1e-9)
    # The fastest row is no help to the bound of a buffer that is far too short for it.
    longest = size * (3 if collective == "all_to_all" else 1)
    best = max(1e9, 2e9 * min(1, longest / 1000), 8e9 * min(1, longest / 100_000))
    plain = af.find(collective, pair(ranks=3, bandwidth=best), size, method="built_in", seconds=1)
    assert found.bound == pytest.approx(plain.bound, rel=1e-6)
    claimed = {**found.certificate.to_json(), "seconds": str(found.certificate.seconds * 2)}
    with pytest.raises(BoundError):
        check_bound(claimed, topology)


@pytest.mark.parametrize(
    "sizes,says",
    [
        ([], "sizes is"),
        ({"card": TABLE}, "no links of the kind 'card'"),
        ({"nic": []}, "0 sizes of nic; expected 1 to 64"),
        ({"nic": TABLE[::-1]}, "1000 bytes after 100000; expected rising sizes"),
        ({"nic": [{"bytes": 1.5, "latency": 0, "bandwidth": 1}]}, "bytes is 1.5"),
        ({"nic": [{"bytes": 1, "latency": -1, "bandwidth": 1}]}, "latency of -1.0 s"),
        ({"nic": [{"bytes": 1, "latency": 0, "bandwidth": 0}]}, "bandwidth of 0.0 B/s"),
        ({"nic": [{"bytes": 1, "latency": 0, "bandwidth": "inf"}]}, "others have one"),
        ({"nic": [{"bytes": 1, "latency": 0, "bandwidth": 1, "speed": 2}]}, "speed"),
        ({"nic": [{"bytes": 1, "bandwidth": 1}]}, "latency is None"),
    ],
)
def test_bad_tables_are_refused_with_the_reason(sizes: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        pair(sizes)


def test_measured_sizes_become_a_table() -> None:
    """Time is a straight line between measured sizes, and what was measured comes out again."""
    times = [(8, 50e-6), (4096, 60e-6), (65536, 200e-6), (1 << 20, 900e-6), (8 << 20, 7e-3)]
    wire = Wire(([0, 1], [2, 3]), 60e-6, 10e-6, 1e9, 1e9, sizes=[(size, took + 10e-6) for size, took in times])
    topology = hosts_as_measured([[0, 1], [2, 3]], MeasuredNetwork([wire], 1e12, 1e12))
    assert topology is not None and topology.by_size
    for size, took in times[1:-1]:
        routes = topology.routes(np.array([0]), np.array([2]), np.array([float(size)]))
        alone = (
            routes.latency(topology.latency)[0] + size / routes.slowest(topology.bandwidth)[0] * 2
        )  # two share a card
        assert alone == pytest.approx(took, rel=0.01), size
    plain = hosts_as_measured(
        [[0, 1], [2, 3]], MeasuredNetwork([Wire(([0, 1], [2, 3]), 60e-6, 10e-6, 1e9, 1e9)], 1e12, 1e12)
    )
    assert (
        plain is not None
        and plain.to_json()
        == hosts(2, 2, port=1e12, bus=1e12, bandwidth=1e9, latency=25e-6, overhead=10e-6, reduction=1e12).to_json()
    )


@pytest.mark.parametrize(
    "times",
    [
        [-3.0, -2.0, -1.0],
        [-2.0, -1.0, 4.0],
        [5.0, 4.0, 3.0],
        [1.0, 1.0, 1.0],
        [0.0, 9.0, 1.0],
        [1.0, 9.0, 8.0],
        [1e-3, 2e-3, 9.0],
    ],
)
def test_measurements_that_make_no_sense_still_make_a_table(times: list[float]) -> None:
    rows = rows_of([(8, times[0]), (4096, times[1]), (65536, times[2])], 2)
    assert rows[0][0] == 0 and all(latency >= 0 and 0 < bandwidth < 1e18 for _, latency, bandwidth in rows)
    assert [start for start, _, _ in rows] == sorted({start for start, _, _ in rows})
