"""The examples: started in each of three ways, they print the numbers that they claim, and fail if they are wrong."""

from __future__ import annotations

import contextlib
import math
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import allfold as af

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
PLAIN_RANKS = {"reduce_scatter_by_hand": 2}  # the others start 4
APART = ("train_digits", "train_on")  # with options of their own


def start(*command: str) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    variables |= {"PYTHONIOENCODING": "utf-8", "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *command]
    return subprocess.run(words, capture_output=True, encoding="utf-8", env=variables, timeout=240, cwd=EXAMPLES.parent)


def printed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def plainly(name: str) -> str:
    """In this process, except for those with options: starting an interpreter, and a template for its ranks, takes
    longer than most examples."""
    path, out = str(EXAMPLES / f"{name}.py"), StringIO()
    if name in APART:
        return printed(start(path))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", [path])
        runpy.run_path(path, run_name="__main__")
    return out.getvalue()


def module(name: str) -> dict[str, Any]:
    """The functions of an example, which make its input numbers."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def rows(out: str, pattern: str) -> list[tuple[str, ...]]:
    found = re.findall(pattern, out, re.MULTILINE)
    return [row if isinstance(row, tuple) else (row,) for row in found]


# What each must have printed, for a number of ranks -------------------------------------------------------------------


def check_allreduce(out: str, ranks: int) -> None:
    table = {row[0]: row[1:] for row in rows(out, r"^(\w+).*?(\d+) +(\d+) +(\S+) S +(\S+) S +\d+ µs +\d+ µs$")}
    assert list(table) == [
        *af.algorithms("all_reduce"),
        "naive_all_reduce",
        "ring_all_reduce",
        "chunked_ring_all_reduce",
    ]
    for name in af.algorithms("all_reduce"):
        counts = af.schedule("all_reduce", name, ranks).counts
        steps, messages, total, port = table[name]
        assert (int(steps), int(messages)) == (counts.steps, counts.messages)
        assert float(total) == pytest.approx(float(counts.bytes), rel=1e-3)
        assert float(port) == pytest.approx(float(counts.busiest_port_bytes), rel=1e-3)
    assert table["chunked_ring_all_reduce"] == table["ring"] and table["naive_all_reduce"] == table["naive"]
    # n, the two columns of the comparison, then what naive, driver and ring really send.
    truth = rows(out, r"^ +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\S+) S +\S+ S +(\S+) S$")
    assert [tuple(map(int, row[:6])) for row in truth] == [
        (2, 2, 2, 2, 2, 4),
        (4, 12, 6, 12, 6, 24),
        (8, 56, 14, 56, 14, 112),
        (16, 240, 30, 240, 30, 480),
        (32, 992, 62, 992, 62, 1984),
    ]
    assert [(float(row[6]), float(row[7])) for row in truth] == [(n - 1, 2 * (n - 1) / n) for n in (2, 4, 8, 16, 32)]


def check_collective_cheatsheet(out: str, ranks: int) -> None:
    sections = dict(re.findall(r"^(\w+)\(.*\n((?:  rank .*\n)+)", out, re.MULTILINE))
    assert len(sections) == 10
    after = {call: [line.split("→")[1].split() for line in text.splitlines()] for call, text in sections.items()}
    start = [[10 * rank + i for i in range(ranks)] for rank in range(ranks)]
    total = [str(sum(column)) for column in zip(*start, strict=True)]
    assert after["all_reduce"] == [total] * ranks and after["reduce"][0] == total
    assert after["broadcast"] == [[str(i) for i in range(ranks)]] * ranks
    assert after["reduce_scatter"] == [[number] for number in total]
    assert after["scatter"] == [[str(rank)] for rank in range(ranks)]
    everyones = [str(10 * rank + i) for rank in range(ranks) for i in range(2)]
    assert after["all_gather"] == [everyones] * ranks and after["gather"] == [everyones, *[["–"]] * (ranks - 1)]
    assert after["all_to_all"] == [[str(10 * i + rank) for i in range(ranks)] for rank in range(ranks)]
    assert after["isend"] == [[str(number) for number in start[rank - 1]] for rank in range(ranks)]
    comes, leaves = ([int(ms) for ms in re.findall(rf"{verb} after (\d+) ms", out)] for verb in ("comes", "leaves"))
    assert len(comes) == ranks and max(comes) <= min(leaves)


def check_distributed_mean(out: str, ranks: int) -> None:
    samples = [module("distributed_mean")["samples_of"](rank) for rank in range(ranks)]
    everything = np.concatenate(samples)
    assert (
        f"all    : {len(everything):6d} samples, mean {everything.mean():9.5f}, deviation {everything.std():.5f}" in out
    )
    wrong = np.mean([one.mean() for one in samples])
    assert rows(out, r"^mean of the means: +(\S+),") == [(f"{wrong:.5f}",)] and not np.isclose(wrong, everything.mean())


def check_distributed_softmax(out: str, ranks: int) -> None:
    assert f"softmax of 100003 numbers from 987 to 1014; ranks: {ranks}" in out
    assert float(rows(out, r"add up to +(\S+)$")[0][0]) == pytest.approx(1, abs=1e-12)
    assert float(rows(out, r"single process +(\S+)$")[0][0]) < 1e-15
    assert "100003 of 100003 are NaN" in out


def check_distributed_argmax(out: str, ranks: int) -> None:
    rows_of = module("distributed_argmax")["rows_of"]
    table = np.concatenate([rows_of(rank) for rank in range(ranks)])
    places = [divmod(int(place), 1000) for place in table.argmax(axis=0)]
    found = rows(out, r"^  column \d: +(\S+) on rank (\d+) at index +(\d+) ")
    assert [(int(rank), int(index)) for _, rank, index in found] == places
    assert [float(value) for value, *_ in found] == pytest.approx(table.max(axis=0).tolist(), nan_ok=True)
    assert places[2] == (0, 17) and places[1][0] == 1  # NaN wins, and the largest is not always on rank 0


def check_ring_from_send_recv(out: str, ranks: int) -> None:
    steps = rows(out, r"step (\d+): sends chunk (\d+) to rank (\d+), (adds|takes) chunk (\d+) from rank (\d+)$")
    assert (
        len(steps) == 2 * (ranks - 1)
        and {row[2] for row in steps} == {"1"}
        and {row[5] for row in steps} == {str(ranks - 1)}
    )
    assert [row[3] for row in steps] == ["adds"] * (ranks - 1) + ["takes"] * (ranks - 1)
    table = {int(row[0]): row[1:] for row in rows(out, r"^ *(\d+) +(\d+) +(\d+) +(\S+) +(\d+)   the bits of")}
    assert list(table) == [0, 1, 3, 1000, 1003, 100_000]
    for length, (messages, _, bound, most) in table.items():
        assert int(messages) == 2 * (ranks - 1) and float(bound) == round(2 * (ranks - 1) / ranks * length, 1)
        # A rank never sends more than its 2(P−1) chunks of at most one element above S/P.
        assert float(bound) <= int(most) <= 2 * (ranks - 1) * math.ceil(length / ranks)
    assert f"in all {2 * ranks * (ranks - 1)} messages" in out


def check_hierarchical(out: str, ranks: int) -> None:
    groups = {2: [[0], [1]], 4: [[0, 1], [2, 3]]}[ranks]
    assert f"groups {groups}, leaders {[group[0] for group in groups]}" in out
    table = {row[0]: row[1:] for row in rows(out, r"^(ring|hierarchical|two_level) +(\d+) +(\S+) S +(\S+) S$")}
    assert (
        table
        == {
            2: {name: ("2", "1", "2") for name in ("ring", "hierarchical", "two_level")},
            4: {"ring": ("6", "1.5", "3"), "hierarchical": ("4", "2", "2"), "two_level": ("4", "1.5", "2")},
        }[ranks]
    )
    if ranks == 4:  # with two ranks every rank is a leader, and nothing can go wrong
        assert "MismatchError on every rank" in out
        assert "ranks 0 and 2 called all_gather(int64" in out and "ranks 1 and 3 called broadcast(float64" in out


def check_async_overlap(out: str, ranks: int) -> None:
    assert f"ranks: {ranks}, cores: {len(os.sched_getaffinity(0))}" in out
    table = {row[0]: row[1:] for row in rows(out, r"^(\w+) +(\S+) ms +(\S+) ms +(\S+) ms +(\d+)%$")}
    assert list(table) == ["waiting", "computing"]
    for alone, in_turn, at_once, hidden in table.values():
        assert min(float(alone), float(in_turn), float(at_once)) > 0 and 0 <= int(hidden) <= 100
    assert f"4 calls in flight, then waited for: every element is {ranks * (ranks + 1) // 2} on every rank" in out


def check_every_operation(out: str, ranks: int) -> None:
    table = {row[0]: row[1].split() for row in rows(out, r"^(\w+) +([✓–][✓– ]+)$")}
    kinds = {"bool": "✓–✓✓✓✓✓✓", "int": "✓–✓✓✓✓✓✓", "float": "✓✓✓✓✓–––", "complex": "✓✓✓–––––"}
    assert len(table) == 15
    for dtype, marks in table.items():
        kind = next(kind for kind in kinds if kind in dtype)
        assert "".join(marks) == kinds[kind], dtype
    edges = dict(rows(out, r"^  (\w+ \w+).* +(\S+)$"))
    assert edges["int8 sum"] == {2: "-56", 4: "-112"}[ranks]
    assert edges["float16 sum"] == {2: "2048.0", 4: "2052.0"}[ranks] and "beyond 65504 is inf    inf" in out
    assert (edges["float32 max"], edges["float32 min"]) == ("nan", "-0.0")
    assert (edges["bool sum"], edges["bool product"]) == ("True", "False")
    assert "gcd of 60, 120, 180, …: 60" in out
    assert {2: "x → 4x + 4", 4: "x → 16x + 26"}[ranks] in out
    if ranks == 4:
        assert "composition is not commutative, and ring with 4 ranks does not keep rank order" in out


def check_bucketing(out: str, ranks: int) -> None:
    table = rows(out, r"^ +(whole|\d+ KiB) +(\d+) +(\S+) ms +(\S+) GB/s +(\S+) GB/s$")
    elements = 4 * 2**20 + 1003
    sizes = [elements, *(4**power for power in (10, 9, 8, 7, 6))]
    assert [int(row[1]) for row in table] == [math.ceil(elements / size) for size in sizes]
    for _, _, milliseconds, algbw, busbw in table:
        assert float(algbw) == pytest.approx(elements * 4 / float(milliseconds) / 1e6, rel=0.05, abs=0.01)
        assert float(busbw) == pytest.approx(float(algbw) * 2 * (ranks - 1) / ranks, abs=0.02)
    assert "500 tensors of 4 kB: " in out and "in 8 buckets as they come" in out
    assert f"infinite after {math.ceil(128 / math.log2(ranks))} calls" in out


def check_train_digits(out: str, ranks: int) -> None:
    table = rows(out, r"^ +(\d) +(\S+) +(\S+) +(\d+)/360 = (\S+)% +loss (\S+), weight (\S+) ")
    assert [int(row[0]) for row in table] == [one for one in (1, 2, 4) if one <= ranks]
    assert len({row[1:5] for row in table}) == 1  # the same losses and accuracy, to the printed digits
    assert float(table[0][4]) > 93 and float(table[0][1]) > 2.2 > 0.5 > float(table[0][2])
    assert all(float(row[5]) < 1e-9 and float(row[6]) < 1e-9 for row in table)
    assert out.count("•") == 72 and "step 144" in out
    drawn = rows(out, r"^loss curves drawn into (.*)$")
    if drawn:  # where matplotlib is installed
        assert Path(drawn[0][0]).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    else:
        assert "matplotlib is not installed" in out


def check_train_on(out: str, ranks: int) -> None:
    example = module("train_on")
    (inputs, targets), weights = example["data"](), np.zeros(example["FEATURES"])
    losses = []
    for _ in range(example["STEPS"] + 1):
        *gradient, loss = example["sums"](inputs, targets, weights)
        losses.append(loss / example["SAMPLES"])
        weights -= example["RATE"] * np.array(gradient) / example["SAMPLES"]
    assert losses == sorted(losses, reverse=True)
    victim, killed = ranks // 2, example["KILLED_AT"]
    left = [rank for rank in range(ranks) if rank != victim]
    assert f"step {killed}: rank {victim} is lost, {len(left)} go on: {left}," in out
    table = rows(out, r"^step +(\d+): loss +(\S+) by (\d+) ranks?$")
    assert [int(step) for step, *_ in table] == [*range(0, example["STEPS"], 10)]
    assert all(loss == f"{losses[int(step)]:.6f}" for step, loss, _ in table)
    assert [int(by) for *_, by in table] == [ranks if int(step) < killed else ranks - 1 for step, *_ in table]
    assert f"step {example['STEPS']}: loss {losses[-1]:12.6f}; the weights are those of one process" in out


def check_reduce_scatter_by_hand(out: str, ranks: int) -> None:
    assert ranks == 2 and "step 1  +0:1→0  +1:0→1" in out
    assert "rank 0 had [[-1, 5], [2, 2]] and gets [2, 2]" in out
    assert "rank 1 had [[3, -3], [4, 1]] and gets [6, 3]" in out


CHECKS: dict[str, Callable[[str, int], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}


# Three ways to start --------------------------------------------------------------------------------------------------


def test_every_example_is_checked() -> None:
    assert sorted(CHECKS) == NAMES


# The first imports scikit-learn and matplotlib in seven processes; the second computes for seconds, and two ranks do it
# in test_with_allfold_run.
FOR_TEST_ALL = ("train_digits", "async_overlap")
SLOW = [pytest.param(name, marks=pytest.mark.exhaustive) if name in FOR_TEST_ALL else name for name in NAMES]


@pytest.mark.parametrize("name", SLOW)
def test_plainly(name: str) -> None:
    CHECKS[name](plainly(name), PLAIN_RANKS.get(name, 4))


def one_after_the_other(names: list[str], *launcher: str) -> dict[str, str]:
    """What examples print in the same two ranks, each of which connects again for every example."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "all.py"
        lines = ["import contextlib, os, runpy", f"for name in {names}:"]
        lines.append(f"    with open(f'{folder}/{{name}} {{os.environ[\"RANK\"]}}', 'w') as file:")
        lines.append("        with contextlib.redirect_stdout(file):")
        lines.append(f"            runpy.run_path(f'{EXAMPLES}/{{name}}.py', run_name='__main__')")
        script.write_text("\n".join(lines), encoding="utf-8")
        printed(start(*launcher, str(script)))
        return {
            name: "".join((Path(folder) / f"{name} {rank}").read_text("utf-8") for rank in (0, 1)) for name in names
        }


TOGETHER = [name for name in NAMES if name not in APART]
# In every run one that does nothing else in 4 ranks, two that print from every rank, and one with groups.
RUN = ("async_overlap", "collective_cheatsheet", "distributed_mean", "hierarchical")


@cache
def with_allfold_run(every: bool) -> dict[str, str]:
    names = [name for name in TOGETHER if (name in RUN) != every]
    return one_after_the_other(names, "-m", "allfold", "run", "-n", "2")


@pytest.mark.parametrize(
    "name", [name if name in RUN else pytest.param(name, marks=pytest.mark.exhaustive) for name in TOGETHER]
)
def test_with_allfold_run(name: str) -> None:
    CHECKS[name](with_allfold_run(every=name not in RUN)[name], 2)


# Not the training with torch, whose build here is for Linux, and not the one that kills a rank.
IN_THREADS = ("hierarchical", "ring_from_send_recv")


@pytest.mark.parametrize(
    "name", [name if name in IN_THREADS else pytest.param(name, marks=pytest.mark.exhaustive) for name in TOGETHER]
)
def test_as_threads_on_a_system_without_the_engine(name: str) -> None:
    without = str(EXAMPLES.parent / "tests" / "pure" / "without_engine.py")
    run = (without, "-m", "allfold", "run", "-n", "2", "--threads")
    CHECKS[name](printed(start(*run, str(EXAMPLES / f"{name}.py"))), 2)


def test_an_example_that_goes_on_without_a_rank() -> None:
    run = ("-m", "allfold", "run", "-n", "2", "--survive")
    CHECKS["train_on"](printed(start(*run, str(EXAMPLES / "train_on.py"))), 2)


@pytest.mark.exhaustive  # it imports scikit-learn in every process
def test_the_training_with_its_options(tmp_path: Path) -> None:
    run = (
        "-m",
        "allfold",
        "run",
        "-n",
        "2",
        str(EXAMPLES / "train_digits.py"),
        "--picture",
        str(tmp_path / "curve.png"),
    )
    CHECKS["train_digits"](printed(start(*run)), 2)


@pytest.mark.exhaustive  # torchrun imports torch; tests/torch starts it in every run, tests/launch has its variables
def test_with_torchrun() -> None:
    pytest.importorskip("torch")
    names = ["distributed_argmax", "every_operation", "ring_from_send_recv"]
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    for name, out in one_after_the_other(names, *launcher).items():
        CHECKS[name](out, 2)


@pytest.mark.parametrize("name", NAMES)
def test_all_have_the_same_ending(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    more = {"train_digits": ", args=(options.picture,)", "train_on": ", survive=True"}
    assert text.endswith(
        "    if options.ranks < 1:\n"
        '        parser.error(f"--ranks {options.ranks}: expected at least 1")\n'
        f"    af.start(main, options.ranks{more.get(name, '')})\n"
    )


# When something is wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("distributed_argmax", "left.imag < right.imag", "left.imag > right.imag"),
        ("ring_from_send_recv", "chunks[incoming] += arrived", "chunks[incoming][:] = arrived"),
        ("bucketing", "range(0, len(array), elements)", "range(0, len(array) - elements, elements)"),
    ],
)
def test_an_example_that_is_wrong_says_so(
    name: str, right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert text.count(right) == 1
    path = tmp_path / "spoiled.py"
    path.write_text(text.replace(right, wrong), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [str(path), "--ranks", "3"])
    with pytest.raises(af.RankFailed, match="AssertionError"):
        runpy.run_path(str(path), run_name="__main__")


def call(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """Run an example in this process, for cases in which it starts no others; returns its exit status."""
    path = str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, *words])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(path, run_name="__main__")
    return left.value.code


@pytest.mark.parametrize("name", NAMES)
def test_wrong_arguments_are_one_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(name, ["--ranks", "0"], monkeypatch) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[-1] == f"{name}.py: error: --ranks 0: expected at least 1"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ranks", "four"], "argument --ranks: invalid int value: 'four'"),
        (["--picture", "/nowhere/curve.png"], "expected a .png file in a folder that exists"),
        (["--picture", "curve.txt"], "expected a .png file in a folder that exists"),
    ],
)
def test_wrong_arguments_of_the_training(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("train_digits", words, monkeypatch) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


# The page about them --------------------------------------------------------------------------------------------------


def test_the_page_names_them_all() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", text, re.MULTILINE)) == NAMES


@pytest.mark.parametrize("name", SLOW)
def test_the_output_on_the_page_is_real(name: str) -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    block = re.search(rf"```console\n\$ python examples/{name}\.py\n(.*?)```", text, re.DOTALL)
    assert block is not None
    real = [line.rstrip() for line in plainly(name).splitlines()]
    for line in filter(None, (line.rstrip("… ") for line in block[1].splitlines())):
        assert any(one.startswith(line) for one in real), f"{line!r} is not printed"
