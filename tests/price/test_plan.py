"""Plans (fastest first, for the right reason), maps of who wins where, drawings of machines; docs/model.md is true."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import assert_printed
from written_formulas import value

import allfold as af
from allfold import price
from allfold.cli import main
from allfold.cli.topo import means
from allfold.collectives import COLLECTIVES
from allfold.patterns import Pattern, copies
from allfold.price import Topology, cost, find_topology, plan, sweep
from allfold.price.cost.plan import MOST_COUNTED, duration
from allfold.price.topology.this_machine import Cache, Card, Core, InstalledGpu, Machine, MemoryNode
from allfold.registry import REGISTRY, algorithm, find_algorithm
from allfold.view.topology import drawing_as_svg, drawing_as_text, tree_of
from allfold.wording import parse_size

Call = Callable[..., tuple[int, str, str]]
PAGE = Path(__file__).parents[2] / "docs/model.md"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


# Plans ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
@pytest.mark.parametrize("some", [(1, 2, 5, 16), pytest.param((24,), marks=pytest.mark.exhaustive)], ids=str)
def test_every_algorithm_of_every_collective_has_a_price(collective: str, some: tuple[int, ...]) -> None:
    for ranks in some:
        for text in ("one_host", "fat_tree:ranks_per_host=4,hosts_per_leaf=2", "torus"):
            found = plan(collective, find_topology(text, ranks), ranks, 10_000)
            assert {one.algorithm for one in found.costs} == set(af.algorithms(collective)) and not found.left_out
            assert found.winner.time <= 1.01 * min(one.time for one in found.costs)
            assert [one.time for one in found.costs[1:]] == sorted(one.time for one in found.costs[1:]) or all(
                one.time <= 1.01 * found.winner.time for one in found.costs if one.time < found.winner.time
            )
            assert found.reason.startswith(f"{found.winner.algorithm} wins") and found.reason.endswith(".")
            json.dumps(found.to_json(), allow_nan=False)


def test_a_plan_prices_what_the_schedule_costs() -> None:
    topology = find_topology("fat_tree:ranks_per_host=4,hosts_per_leaf=2", 16)
    found = plan("all_reduce", topology, 16, 2**20)
    assert found.groups == (4, 4, 4, 4)
    groups = [[*range(start, start + 4)] for start in range(0, 16, 4)]
    for one in found.costs:
        given = {"groups": groups} if one.algorithm in ("hierarchical", "two_level") else {}
        counted = cost(af.schedule("all_reduce", one.algorithm, 16, **given), topology, 2**20, one.segments)
        assert one.time == pytest.approx(counted.time), one.algorithm


def test_slices_with_lengths_of_their_own() -> None:
    """Bytes follow the lengths: equal ones cost what none do, and of one long slice a ring sends the least."""
    laptop = price.laptop(4)
    for collective in ("gather", "scatter", "all_gather", "reduce_scatter", "all_to_all"):
        equal: Any = [[7] * 4] * 4 if collective == "all_to_all" else [7] * 4
        for name in ("driver", "tree") if COLLECTIVES[collective].rooted else ("direct",):
            schedule = af.schedule(collective, name, ranks=4)
            even, counted = cost(schedule, laptop, 2**20), cost(schedule, laptop, 2**20, counts=equal)
            assert counted.time == pytest.approx(even.time)
            assert counted.busiest_port_bytes == pytest.approx(even.busiest_port_bytes)
            assert counted.ratio is None  # what nothing can beat is not known here
    for name, busiest in (("ring", 10), ("direct", 27), ("bruck", 18)):
        found = cost(af.schedule("all_gather", name, ranks=4), laptop, 10_000, counts=[1, 0, 9, 0])
        assert found.busiest_port_bytes == pytest.approx(busiest * 1000)
    rows = [[0, 0, 8, 0], [0] * 4, [0, 0, 0, 4], [0] * 4]  # 3 elements of a rank on average
    found = cost(af.schedule("all_to_all", "pairwise", ranks=4), laptop, 3000, counts=rows)
    assert found.busiest_port_bytes == pytest.approx(8000)
    for name in ("ring", "direct", "bruck"):
        schedule = af.schedule("all_gather", name, ranks=4)
        even, counted = (price.simulate(schedule, laptop, 2**20, 2, counts=counts) for counts in (None, [7] * 4))
        assert counted.duration == pytest.approx(even.duration)
        carried = price.simulate(schedule, laptop, 10_000, counts=[1, 0, 9, 0]).bytes
        assert sum(carried) == pytest.approx(30_000)  # every slice to three ranks


def test_a_plan_with_counts(capsys: pytest.CaptureFixture[str]) -> None:
    usual = ["plan", "--topology", "laptop", "--ranks", "3", "--size", "1M", "--counts"]
    assert main([*usual, "9,0,1", "--collective", "all_gather"]) == 0
    said = capsys.readouterr().out
    assert "all_gather of 1M in parts as 9,0,1 between 3 ranks" in said and "least" not in said
    assert main([*usual, "1,0,9/0,0,0/1,1,1", "--collective", "all_to_all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == [[1, 0, 9], [0, 0, 0], [1, 1, 1]]
    assert "cannot move slices with lengths of their own" in found["left_out"]["bruck"]
    assert main(["simulate", "ring", *usual[1:], "9,0,1", "--collective", "all_gather"]) == 0
    assert "at least" not in capsys.readouterr().out
    for counts, says in (
        ("9,0", "counts must be whole numbers, 3, one per rank; got [9, 0]"),
        ("9,x,1", "--counts 9,x,1"),
    ):
        assert main([*usual, counts, "--collective", "all_gather"]) == 2
        assert says in capsys.readouterr().err


def test_few_bytes_win_when_long_and_few_steps_when_short() -> None:
    topology = find_topology("hosts:ranks_per_host=1", 64)
    assert plan("all_reduce", topology, 64, 64).winner.algorithm == "recursive_doubling"
    long = plan("all_reduce", topology, 64, 2**30, ["ring", "tree", "recursive_doubling", "naive"])
    assert long.winner.algorithm == "ring" and long.winner.ratio < 1.05


def test_hosts_are_the_groups_of_two_levels() -> None:
    assert plan("all_reduce", find_topology("dgx_h100", 64), 64, 8).groups == (8,) * 8
    assert plan("all_reduce", find_topology("dgx_h100", 20), 20, 8).groups == (8, 8, 4)
    assert plan("all_reduce", find_topology("one_host", 24), 24, 8).groups == (6,) * 4
    assert plan("all_reduce", find_topology("one_host", 7), 7, 8).groups == (7,)


def test_more_ranks_than_can_be_counted() -> None:
    ranks = 2 * MOST_COUNTED + 1
    found = plan("all_reduce", find_topology("fat_tree", ranks), ranks, 2**20)
    assert set(found.left_out) == {"two_level"}
    assert all("no closed form for 2,049 ranks" in reason for reason in found.left_out.values())
    by_name = {one.algorithm: one.source for one in found.costs}
    assert by_name["direct"] == "at least" and by_name["ring"] == "closed form"


def test_a_tournament_of_many_is_priced_where_routes_are_alike() -> None:
    ranks = 2 * MOST_COUNTED + 1
    alike = plan("all_to_all", find_topology("hosts:ranks_per_host=1", ranks), ranks, 2**20)
    assert not alike.left_out and {one.source for one in alike.costs} == {"closed form"}
    differ = plan("all_to_all", find_topology("fat_tree", ranks), ranks, 2**20)
    assert list(differ.left_out) == ["pairwise"] and "no closed form for 2,049 ranks" in differ.left_out["pairwise"]


@pytest.fixture(autouse=True)
def forget_what_tests_register() -> Iterator[None]:
    with REGISTRY.scope():
        yield


def test_an_algorithm_of_your_own_is_counted() -> None:
    @algorithm("all_reduce", "mine_for_the_plan")
    def mine(ranks: int):  # type: ignore[no-untyped-def]
        yield from find_algorithm("all_reduce", "ring").function(ranks)

    found = plan("all_reduce", find_topology("one_host", 6), 6, 6000, ["ring", "mine_for_the_plan"])
    assert found.costs[0].time == pytest.approx(found.costs[1].time)
    assert {one.algorithm: one.source for one in found.costs} == {"ring": "closed form", "mine_for_the_plan": "counted"}


def test_an_algorithm_of_your_own_that_says_its_costs_is_planned_for_many_ranks() -> None:
    ring = find_algorithm("all_reduce", "ring")

    @algorithm("all_reduce", "mine_that_says_it", steps=ring.steps, port=ring.port, patterns=ring.patterns)
    def mine(ranks: int):  # type: ignore[no-untyped-def]
        yield from ring.function(ranks)

    found = plan("all_reduce", find_topology("torus", 4096), 4096, 2**20, ["ring", "mine_that_says_it"])
    assert price.closed_form("all_reduce", "mine_that_says_it", 4096) == price.closed_form("all_reduce", "ring", 4096)
    assert found.costs[0].time == found.costs[1].time and not found.left_out
    with pytest.raises(af.UsageError, match="steps must be a function of the number of ranks, not 3"):
        algorithm("all_reduce", "mine_that_says_it", steps=3)  # type: ignore[arg-type]


def fails(*_: int) -> Any:
    raise LookupError("lost the way")


def fails_later(ranks: int) -> Iterator[Pattern]:
    yield from find_algorithm("all_reduce", "ring").patterns(ranks)  # type: ignore[misc]
    fails()


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"steps": fails}, r"^mine: steps\(ranks=8\) raised LookupError: lost the way$"),
        ({"port": fails}, r"^mine: port\(ranks=8\) raised LookupError: lost the way$"),
        ({"patterns": fails}, r"^mine: patterns\(ranks=8\) raised LookupError: lost the way$"),
        ({"patterns": fails_later}, r"^mine: patterns\(ranks=8\) raised LookupError: lost the way$"),
        ({"patterns": lambda: []}, r"^mine: patterns\(ranks=8\) raised TypeError: .* takes 0 positional arguments"),
        ({"patterns": lambda ranks: [3]}, r"^mine: patterns\(ranks=8\) gave 3; expected a Pattern or Everybody$"),
        (
            {"patterns": lambda ranks: [copies(np.arange(ranks), np.arange(ranks) + 1, 1.0)]},
            r"^mine: patterns\(ranks=8\) names a rank that is not from 0 to 7$",
        ),
        (
            {"steps": lambda ranks: "x"},
            r"^mine: steps\(ranks=8\) gave 'x'; expected a whole number that is not negative, or None",
        ),
        (
            {"steps": lambda ranks: 2.5},
            r"^mine: steps\(ranks=8\) gave 2.5; expected a whole number that is not negative, or None",
        ),
        (
            {"port": lambda ranks: inf},
            r"^mine: port\(ranks=8\) gave inf; expected a number that is not negative, or None",
        ),
    ],
)
def test_costs_of_your_own_that_fail_are_named(declared: dict[str, Any], sentence: str, call: Call) -> None:
    mine = replace(find_algorithm("all_reduce", "ring"), **{"name": "mine", "patterns": None, **declared})
    REGISTRY.add(mine)
    with pytest.raises(af.UsageError, match=sentence) as caught:
        price.closed_form("all_reduce", "mine", 8)
    if "raised LookupError" in sentence:
        assert isinstance(caught.value.__cause__, LookupError)
    if "patterns" in declared:  # all that a plan asks for
        with pytest.raises(af.UsageError, match=sentence):
            plan("all_reduce", find_topology("one_host", 8), 8, 2**20)
        said = call("plan", "--ranks", "8", "--size", "1M", "--topology", "one_host")
        assert said == (2, "", f"allfold plan: {caught.value}\n")


def test_patterns_of_your_own_that_fail_for_a_root_are_named() -> None:
    mine = replace(find_algorithm("broadcast", "tree"), name="mine", patterns=fails)
    REGISTRY.add(mine)
    with pytest.raises(af.UsageError, match=r"^mine: patterns\(ranks=4, root=0\) raised LookupError: lost the way$"):
        plan("broadcast", find_topology("one_host", 4), 4, 2**20)


def test_durations_have_three_digits() -> None:
    written = {
        0.0: "0 s",
        2e-9: "2.00 ns",
        4.5e-7: "0.45 µs",
        1.23456e-5: "12.3 µs",
        0.0042: "4.20 ms",
        3.0: "3.00 s",
        4321.0: "4,321 s",
    }
    assert {seconds: duration(seconds) for seconds in written} == written


@pytest.mark.parametrize("ranks", [4, 2000])
def test_what_cannot_be_planned_is_refused(ranks: int) -> None:
    """By closed form as well as counted."""
    topology = price.one_host(ranks)
    for many, size, segments in ((0, 8, None), (ranks, -1, None), (ranks, 10**400, None), (ranks, 8, 0)):
        with pytest.raises(af.UsageError, match=r"expected|must be"):
            price.plan("all_reduce", topology, many, size, ["ring"], segments)
    with pytest.raises(af.UsageError, match="at least 1"):
        price.closed_form("all_reduce", "ring", 0)


def test_figures_that_round_up_to_a_thousand_are_no_powers_of_ten() -> None:
    from allfold.cli.plan import _short
    from allfold.cli.tune.report import _round

    assert [duration(0.0009996), duration(0.9996), duration(9.9996e-7)] == ["1.00 ms", "1.00 s", "1.00 µs"]
    assert [_short(999.4), _short(999.6), _short(1234.5)] == ["999", "1,000", "1,234"]
    assert [_round(1_030_000), _round(2**21)] == ["1006K", "2M"]


def test_a_sweep_is_its_plans() -> None:
    found = sweep(
        "all_reduce", lambda ranks: find_topology("dgx_h100", ranks), [8, 64], [1024, 2**26], ["ring", "tree", "swing"]
    )
    assert set(found.plans) == {(8, 1024), (64, 1024), (8, 2**26), (64, 2**26)}
    alone = plan("all_reduce", find_topology("dgx_h100", 64), 64, 2**26, ["ring", "tree", "swing"])
    assert found.plans[64, 2**26].winner.to_json() == alone.winner.to_json()
    assert set(found.winners) == {one.winner.algorithm for one in found.plans.values()}
    large = sweep("all_reduce", lambda ranks: find_topology("dgx_h100", ranks), [1025], [1024], ["ring", "two_level"])
    assert list(large.to_json()["cells"][0]["left_out"]) == ["two_level"]


# The command line ----------------------------------------------------------------------------------------------------


def test_the_help_of_topo_holds_an_example(call: Call) -> None:
    """tests/cli/test_cli.py has that of plan."""
    status, out, _ = call("topo", "--help")
    assert status == 0
    for block in out.split("example:\n")[1].split("  $ allfold ")[1:]:
        words, *quoted = block.split("#")[0].rstrip().splitlines()
        if quoted:
            assert_printed([line[2:] for line in quoted], call(*words.split())[1], words)


def test_a_plan_on_this_machine(call: Call) -> None:
    status, out, _ = call("plan", "--ranks", "4", "--size", "1K")
    assert status == 0 and out.startswith("all_reduce of 1K between 4 ranks on ") and " wins" in out
    document = json.loads(call("plan", "--ranks", "4", "--size", "1K", "--json")[1])
    assert {one["algorithm"] for one in document["algorithms"]} == set(af.algorithms("all_reduce"))
    assert Topology.from_json(document["topology"]).ranks == 4


def test_a_map_as_text_json_and_picture(call: Call, tmp_path: Path) -> None:
    words = ("plan", "--sweep", "--topology", "hosts:ranks_per_host=1", "--ranks", "2,8", "--size", "1K,1M")
    status, out, _ = call(*words, "--svg", str(tmp_path / "map.svg"))
    assert status == 0
    head, ranks, small, large, _, *legend = out.splitlines()
    assert head == "all_reduce: who wins where" and ranks.split() == ["ranks", "2", "8"]
    document = json.loads(call(*words, "--json")[1])
    winners = {(cell["size"], cell["ranks"]): cell["winner"] for cell in document["cells"]}
    meaning = {line.split()[0]: line.split()[1].rstrip(",") for line in legend}
    for line, size in ((small, 1024), (large, 2**20)):
        assert [meaning[letter] for letter in line.split()[1:]] == [winners[size, 2], winners[size, 8]]
    picture = ElementTree.parse(tmp_path / "map.svg").getroot()
    titles = [one.text or "" for one in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 4 and any(title.startswith("8 ranks, 1MB\n" + winners[2**20, 8]) for title in titles)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", "--topology", "fattree"], "did you mean 'fat_tree'?"),
        (["plan", "--ranks", "16", "--topology", "dgx_h100:nodes=1"], "has 8 ranks; you asked for 16"),
        (["plan", "--topology", "fat_tree:bandwidth=0"], "bandwidth of 0"),
        (["plan", "--size", "many"], "expected a number of bytes"),
        (["plan", "--ranks", "0"], "the least is 1"),
        (["plan", "--ranks", "2,4"], "expected one number"),
        (["plan", "--collective", "all_redcue"], "did you mean 'all_reduce'?"),
        (["plan", "--algorithms", "rign"], "did you mean 'ring'?"),
        (["plan", "--segments", "0"], "0 segments: expected a whole number from 1"),
        (["plan", "--svg", "map.svg"], "add --sweep"),
        (["plan", "--sweep", "--segments", "2"], "best number everywhere"),
        (["plan", "--sweep", "--ranks", "2", "--size", "1M-1K"], "an end that is not below it"),
        (["plan", "--sweep", "--ranks", "2", "--size", "1K", "--svg", "no/where.svg"], "cannot be written"),
        (["plan", "--size", "9" * 5000], "at most"),
        (["plan", "--size", "2000000000G"], "1 EiB"),
        (["plan", "--ranks", "9" * 5000], "the most is 16,777,216"),
        (["plan", "--ranks", "1-99999999999"], "the most is 16,777,216"),
        (["plan", "--sweep", "--ranks", "1-16777216"], "more than 65,536 numbers"),
        (["plan", "--ranks", "1" + "0" * 18, "--topology", "torus"], "the most is 16,777,216"),
        (["plan", "--ranks", "4", "--segments", "9" * 400], "expected a whole number"),
        (["plan", "--topology", "a" * 5000], "unknown topology"),
        (["plan", "--topology", "torn.json"], "torn.json: this is not JSON"),
        (["topo", "--gpus"], "--emit"),
        (["topo", "--emit", "no/where.json"], "cannot be written"),
        (["topo", "--ranks", "some"], "expected a number"),
    ],
)
def test_wrong_usage_is_one_sentence(
    words: list[str], says: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("allfold.price.topology.this_machine.ask", lambda *command: "")
    (tmp_path / "torn.json").write_text('{"format"')
    status, out, err = call(*words)
    assert status == 2 and out == ""
    assert len(err.splitlines()) == 1 and err.startswith(f"allfold {words[0]}: ") and says in err


def test_topo_shows_this_machine_and_emits_it(call: Call, tmp_path: Path) -> None:
    emitted, picture = tmp_path / "here.json", tmp_path / "here.svg"
    status, out, _ = call("topo", "--emit", str(emitted), "--svg", str(picture), "--ranks", "3")
    assert status == 0 and out.startswith("this machine\n├─ processor 0") and "ranks" in out
    assert Topology.from_json(emitted.read_text()).ranks == 3
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    document = json.loads(call("topo", "--json")[1])
    assert document["usable_cores"] >= 1 and document["means"]
    assert call("plan", "--topology", str(emitted), "--size", "1K")[0] == 0


LARGE = Machine(
    processor="Some <CPU>",
    cores=tuple(Core(cpu // 16, (cpu, cpu + 32)) for cpu in range(32)),
    caches=(
        *(Cache(2, 2**20, (cpu, cpu + 32)) for cpu in range(32)),
        *(
            Cache(3, 2**25, (*range(16 * half, 16 * half + 16), *range(16 * half + 32, 16 * half + 48)))
            for half in (0, 1)
        ),
    ),
    nodes=tuple(
        MemoryNode(half, (*range(16 * half, 16 * half + 16), *range(16 * half + 32, 16 * half + 48)), 2**36)
        for half in (0, 1)
    ),
    memory=2**37,
    limit=8.0,
    gpus=(InstalledGpu(0, "GPU", {1: "NV4"}), InstalledGpu(1, "GPU", {0: "NV4"})),
    mps=False,
    cards=(Card("mlx5_0", "infiniband", 50e9),),
    absent=("nothing else was found",),
)


def test_a_large_machine_is_drawn() -> None:
    tree = list(tree_of(LARGE))
    assert tree[1] == "├─ processor 0: Some <CPU>" and tree[-1] == "└─ nothing else was found"
    assert "│     └─ 16 cores, CPUs 0–15, 32–47, 2 hardware threads, L2 1 MiB each" in tree
    assert "├─ container: at most 8 CPUs of time" in tree and "│  └─ reaches GPU 1 by NV4" in tree
    text = drawing_as_text(LARGE, 100)
    assert all(len(line) <= 100 for line in text)
    assert any("16 cores, by CPU; each: L2 1 MiB" in line for line in text)
    assert sum(line.count("┌") for line in text) == 2 + 32 + 3
    picture = ElementTree.fromstring(drawing_as_svg(LARGE))
    words = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "Some <CPU>" in words and "memory node 1, 64 GiB" in words and "31, 63" in words
    said = " ".join(means(LARGE))
    assert "Up to 8 ranks run at the same time, because the container is limited to 8 CPUs" in said
    assert "The kernel reports" not in said
    other = " ".join(means(replace(LARGE, memory=2 * LARGE.memory)))
    assert "The kernel reports 256 GiB of memory in all (/proc/meminfo), but 128 GiB in its memory nodes" in other
    assert "Memory has 2 nodes" in said and "2 of 2 GPUs have NVLink" in said


# docs/model.md -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [(8, 1000), pytest.param((100_000,), marks=pytest.mark.exhaustive)], ids=str)
def test_the_table_of_three_rank_counts_is_computed(wanted: tuple[int, ...]) -> None:
    rows = re.findall(r"^\| (1 [KMG]iB) \| ([\d,]+) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 9
    names = ["ring", "tree", "recursive_doubling", "halving_doubling", "direct"]
    for size, ranks, cells in rows:
        many = int(ranks.replace(",", ""))
        if many not in wanted:
            continue
        topology = find_topology("hosts:ranks_per_host=1,port=inf,reduction=inf,overhead=0.7us", many)
        found = plan("all_reduce", topology, many, 2 ** {"K": 10, "M": 20, "G": 30}[size[2]], names, segments=1)
        times = {one.algorithm: duration(one.time) for one in found.costs}
        assert cells.split(" | ") == [*(times[name] for name in names), duration(found.winner.bounds.time)], (
            size,
            ranks,
        )


def test_bine_trees_send_less_between_groups_as_the_page_says() -> None:
    """A third less at best; but more, where a binomial tree is cut exactly where groups are."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z_, ]+) \| (\w+) \| ([^|]* %) \| ([^|]* %) \|$", text, re.MULTILINE)
    dragonflies = [find_topology(f"dragonfly:{group}", 256) for group in ("routers=11,ranks_per_router=3", "routers=8")]
    seen = []
    for collectives, other, *cells in rows:
        for collective in collectives.split(", "):
            seen.append(collective)
            for topology, cell in zip(dragonflies, cells, strict=True):
                found = {one.algorithm: one for one in plan(collective, topology, 256, 2**20, ["bine", other]).costs}
                ours, theirs = (one.bytes_by_kind["uplink"] / 2**20 for one in (found["bine"], found[other]))
                less = f"{100 * (ours / theirs - 1):+.0f} %".replace("-", "−")
                assert cell == f"{ours:.3g} S, {theirs:.3g} S: {less}", collective
                assert found["bine"].steps <= found[other].steps
                assert found["bine"].busiest_port_bytes == pytest.approx(found[other].busiest_port_bytes)
    assert sorted(seen) == sorted(name for name in COLLECTIVES if "bine" in af.algorithms(name))


def test_on_an_oversubscribed_fat_tree_bine_trees_and_pat_are_as_fast_as_the_page_says() -> None:
    rows = re.findall(r"^\| (\d+ [KM]iB) \|((?: [\d.]+ [µm]s \|){7})$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 3
    topology = find_topology("fat_tree:ranks_per_host=1,hosts_per_leaf=18,oversubscription=3", 256)
    names = {
        "all_gather": ["bine", "recursive_doubling", "pat", "bruck", "ring"],
        "all_reduce": ["bine", "recursive_doubling"],
    }
    for size, cells in rows:
        times = []
        for collective, known in names.items():
            costs = plan(collective, topology, 256, parse_size(size.replace(" ", "")), known).costs
            times += [duration(next(one.time for one in costs if one.algorithm == name)) for name in known]
        assert cells.strip(" |").split(" | ") == times
    for collective, other in {"broadcast": "tree", "scatter": "tree", "all_gather": "recursive_doubling"}.items():
        for size in (2**10, 2**16, 2**20):
            found = {one.algorithm: one.time for one in plan(collective, topology, 256, size, ["bine", other]).costs}
            assert found["bine"] <= found[other] * (1 + 1e-9), (collective, size)


def test_bytes_by_kind_are_those_of_the_links() -> None:
    topology = find_topology("fat_tree:ranks_per_host=2,hosts_per_leaf=2", 16)
    found = cost(af.schedule("all_reduce", "ring", 16), topology, 16000)
    assert found.link_bytes is not None and found.bytes_by_kind is not None
    for kind, total in found.bytes_by_kind.items():
        assert total == pytest.approx(
            sum(found.link_bytes[i] for i, link in enumerate(topology.links) if link.kind == kind)
        )
    assert found.bytes_by_kind["uplink"] == 2 * 4 * 30 * 1000  # 4 leaves, 30 steps, up and down
    assert found.to_json()["bytes_by_kind"] == found.bytes_by_kind
    assert "uplink" not in (cost(af.schedule("all_reduce", "ring", 4), price.laptop(4), 8).bytes_by_kind or {})


def test_the_formulas_in_the_page_are_what_is_counted() -> None:
    (table,) = re.findall(r"\| all_reduce \| steps \| time .*?\n\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    rows = [line.strip("| ").split(" | ") for line in table.strip().splitlines()[2:]]
    assert len(rows) == 6
    for name, steps, time, _ in rows:
        for ranks in (2, 8, 64):
            topology = find_topology("hosts:ranks_per_host=1,port=inf,port_latency=0,reduction=inf", ranks)
            found = cost(af.schedule("all_reduce", name, ranks), topology, 2**20, 1)
            latency, card = 2 * topology.links[-1].latency, topology.links[-1].bandwidth
            symbols = {"overhead": topology.overhead, "latency": latency, "α": topology.overhead + latency}
            assert value(steps, ranks) == found.steps, name
            assert value(time, ranks, S=2**20, β=1 / card, **symbols) == pytest.approx(found.time), (name, ranks)


def test_the_code_and_the_document_in_the_page_work() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
    document, with_sizes = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert Topology.from_json(with_sizes).by_size
    topology = Topology.from_json(document)
    assert topology.ranks == 4 and topology.hosts == 2
