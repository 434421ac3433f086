"""The search as a whole: what it gives, what it refuses, and how it ends early."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from graphs import written

import allfold as af
from allfold import price
from allfold.cli import main
from allfold.errors import UsageError
from allfold.price import Topology, cost, find_topology
from allfold.schedules import Schedule
from allfold.search.find import METHODS, most_proved
from allfold.search.found import Task

SQUARE = written(4, [edge for a in range(4) for edge in ((a, (a + 1) % 4, 1e9), ((a + 1) % 4, a, 1e9))])


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"])
def test_what_is_found_is_priced_and_proved(collective: str) -> None:
    found = af.find(collective, SQUARE, size=2**20)
    assert found.time == cost(found.schedule, SQUARE, 2**20).time >= found.bound > 0
    assert found.cut is not None and found.method in METHODS
    assert af.verify(found.schedule).schedule.collective == collective
    document = json.loads(json.dumps(found.to_json()))
    assert document["time"] == found.time and document["cut"]["links"] == found.cut.links


def test_the_reason_of_the_bound_is_told_truly(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # Three pairs in a triangle of slow cables. By any cut, 1 buffer leaves over 2 GB/s; but 3 groups need 4 messages
    # between them, over 6 GB/s in all, and only the linear program knows.
    near = [(a, b, 50e9) for pair in ((0, 1), (2, 3), (4, 5)) for a, b in (pair, pair[::-1])]
    far = [(a, b, 1e9) for a, b in ((1, 2), (2, 1), (3, 4), (4, 3), (5, 0), (0, 5))]
    topology = written(6, [*near, *far])
    found = af.find("all_reduce", topology, size=6 * 10**9, seconds=5)
    assert found.bound == pytest.approx(4.0, rel=1e-5)
    assert found.cut is None and found.to_json()["cut"] is None and "by a linear program" in found.why
    (tmp_path / "pairs.json").write_text(json.dumps(topology.to_json()))
    assert main(["find", "--topology", str(tmp_path / "pairs.json"), "--size", "6000000000", "--seconds", "5"]) == 0
    assert "least    4.00 s: however the ranks share the links" in capsys.readouterr().out
    # For few bytes it is the latency.
    small = af.find("all_gather", "dgx_h100:nodes=2", size=16, seconds=2)
    assert small.cut is None and small.why == "data cannot reach all ranks sooner" and small.bound > 0


def test_a_root_is_kept() -> None:
    found = af.find("broadcast", SQUARE, size=2**20, root=2)
    assert found.schedule.root == 2


def test_one_rank_has_nothing_to_send() -> None:
    found = af.find("all_gather", "laptop", ranks=1)
    assert (found.schedule.moves, found.time, found.ratio) == (0, 0.0, 1.0)


def test_it_is_never_slower_than_the_built_in_algorithms() -> None:
    topology = find_topology("laptop")
    found = af.find("all_reduce", topology, size=4096, seconds=4)
    for name in af.algorithms("all_reduce"):
        assert found.time <= cost(af.schedule("all_reduce", name, 8), topology, 4096).time * 1.011


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"collective": "gossip"}, "unknown collective 'gossip'"),
        ({"topology": "dgx9"}, "unknown topology 'dgx9'"),
        ({"topology": None}, "expected a topology, as of .*, not None"),
        ({"ranks": "4"}, "ranks must be a whole number, not '4'"),
        ({"topology": price.laptop(4), "ranks": 2.0}, "ranks must be a whole number, not 2.0"),
        ({"method": "magic"}, "unknown method 'magic'"),
        ({"root": 1}, "has no root"),
        ({"collective": "broadcast", "root": 9}, "expected a rank from 0 to 7"),
        ({"seconds": 0}, "expected a number above 0"),
        ({"chunks": 0}, "chunks is 0"),
        (
            {"chunks": 100_000, "seconds": 2},
            "make at least 5,600,000 moves, and no more than 24,000 can be proved in time",
        ),
        ({"size": -1}, "size must be a number of bytes"),
        ({"topology": "one_host:ranks=8", "ranks": 99}, "8 ranks; you asked for 99"),
        ({"collective": "all_to_all", "method": "throughput"}, "not for all_to_all"),
    ],
)
def test_bad_requests_get_a_sentence(words: dict[str, object], sentence: str) -> None:
    request = {"collective": "all_gather", "topology": "dgx1", **words}
    with pytest.raises(UsageError, match=sentence):
        af.find(**request)  # type: ignore[arg-type]


def measured(ranks: int, seed: int) -> Topology:
    """Every pair has its own bandwidth, and none has anything in common with another."""
    speeds = np.random.default_rng(seed).uniform(5e9, 15e9, ranks * ranks).tolist()
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    return written(ranks, [(a, b, speeds[a * ranks + b]) for a, b in pairs])


@pytest.mark.parametrize(
    "collective",
    ["all_gather", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("reduce", "all_reduce"))],
)
def test_no_more_moves_than_can_be_proved_in_time(collective: str) -> None:
    root = 4 if collective == "reduce" else None
    found = af.find(collective, measured(5, 1), root=root, method="throughput", seconds=4)
    assert found.schedule.moves <= most_proved(5, 4) == 28_000
    assert found.ratio < (1.3 if collective != "all_reduce" else 2)


def test_ctrl_c_gives_the_best_so_far() -> None:
    sentences: list[str] = []

    def interrupt(sentence: str) -> None:
        sentences.append(sentence)
        if "×" in sentence:  # something was found
            signal.raise_signal(signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    found = af.find("all_reduce", "mi250:nodes=1", progress=interrupt)
    assert not found.complete and found.schedule.moves and sentences[-1] == "proving it"


@pytest.mark.parametrize(
    ("at", "sentence"),
    [("linear program", "before anything was found"), ("proving it", "before what was found was proved")],
)
def test_ctrl_c_before_there_is_anything(at: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(task: Task, doing: str) -> None:
        task.progress(doing)  # type: ignore[misc]
        if at in doing:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Task, "say", interrupt)
        assert main(["find", "--topology", "dgx1", "--method", "built_in"]) == 130
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", f"allfold find: ended by Ctrl-C {sentence}\n")


def test_time_that_is_over_at_once_still_finds_something() -> None:
    assert af.find("all_reduce", "dgx1", seconds=1e-9).method == "built_in"


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ({"bandwidth": 1e308}, "link '0→1': bandwidth is 1e\\+308; expected a number"),
        ({"bandwidth": float("inf")}, "link '0→1': bandwidth is inf; expected a number, or \"inf\" for no limit"),
        ({"bandwidth": float("nan")}, "link '0→1' has a bandwidth of nan B/s; expected more than 0"),
        ({"bandwidth": 0}, "link '0→1' has a bandwidth of 0.0 B/s; expected more than 0"),
        ({"bandwidth": -1}, "link '0→1' has a bandwidth of -1.0 B/s; expected more than 0"),
        ({"bandwidth": 1e30}, "link '0→1' has a bandwidth of 1e\\+30 B/s; expected at most 1e\\+18"),
        ({"bandwidth": 1e9, "latency": 1e12}, "link '0→1' has a latency of 1000000000000.0 s; expected at most"),
        ({"bandwidth": 1e9, "latency": "inf"}, "link '0→1' has a latency of inf s; expected at most"),
    ],
)
def test_impossible_links_are_named(figures: dict[str, object], sentence: str, tmp_path: Path) -> None:
    document = written(2, [(0, 1, 1e9), (1, 0, 1e9)]).to_json()
    document["links"] = [{"name": "0→1", **figures}, {"name": "1→0", "bandwidth": 1e9}]
    document["graph"]["edges"] = [{"from": a, "to": 1 - a, "link": f"{a}→{1 - a}"} for a in (0, 1)]
    (tmp_path / "two.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=sentence):
        af.find("all_reduce", str(tmp_path / "two.json"))


@pytest.mark.parametrize("speeds", [(1e18, 1e-6), ("inf", 1e9), ("inf", "inf")])
@pytest.mark.parametrize(
    "collective",
    [
        "all_reduce",
        "all_to_all",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("all_gather", "broadcast")),
    ],
)
def test_links_far_apart_or_without_a_limit(collective: str, speeds: tuple[float, float]) -> None:
    pairs = [(a, b, speeds[(a, b) != (0, 1)]) for a in range(3) for b in range(3) if a != b]
    found = af.find(collective, written(3, pairs), size=2**20, seconds=2)
    assert 1 - 1e-9 <= found.ratio < 10


def test_a_found_schedule_runs(tmp_path: Path) -> None:
    found = af.find("all_gather", "one_host:ranks=2", size=2**16)

    def work(comm: object) -> list[float]:
        result = np.zeros(6, np.float32)
        comm.all_gather(np.full(3, comm.rank + 1, np.float32), result, algorithm=found.schedule)  # type: ignore[attr-defined]
        return [float(number) for number in result]

    assert af.spawn(work, ranks=2) == [[1, 1, 1, 2, 2, 2]] * 2
    with pytest.raises(
        UsageError, match=r"all_gather|one_host.*works for that number of ranks only; you asked for 3 ranks"
    ):
        af.schedule("all_gather", found.schedule, 3)
    with pytest.raises(UsageError, match="not for all_reduce"):
        af.schedule("all_reduce", found.schedule, 2)


def test_the_command_saves_what_others_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = str(tmp_path / "gather.json"), str(tmp_path / "page.html")
    words = ["--collective", "all_gather", "--topology", "dgx1", "--size", "1M", "--method", "greedy", "--chunks", "1"]
    assert main(["find", *words, "--save", file, "--html", page]) == 0
    out = capsys.readouterr().out
    assert "times the least" in out and "ranks 1–7 can send no more than 150 GB/s to the rest" in out
    saved = Schedule.from_json(Path(file).read_text())
    assert "allfold" in Path(page).read_text()
    for command in (
        ["verify", file],
        ["show", file, "--moves-only"],
        ["plan", "--topology", "dgx1", "--algorithms", f"{file},ring"],
        ["simulate", file, "--topology", "dgx1"],
        ["compare", "--algorithms", f"{file},ring"],
        ["export", file, "--to", "msccl-xml", "-o", str(tmp_path / "gather.xml")],
    ):
        assert main(command) == 0, command
        assert saved.algorithm in capsys.readouterr().out or command[0] == "export"


def test_the_command_without_a_link(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["find", "--collective", "all_gather", "--topology", "dgx1", "--json"]
    times = []
    for more in ([], ["--without", "rank 1 to rank 0"]):
        assert main([*words, *more]) == 0
        times.append(json.loads(capsys.readouterr().out)["bound"])
    assert times[1] == pytest.approx(times[0] * 150 / 100)
    assert main([*words, "--without", "rank 1 to rank 9"]) == 2
    assert "rank 1 to rank 9" in capsys.readouterr().err
    assert main(["find", "--topology", "dgx1", "--save", "schedule.txt"]) == 2
