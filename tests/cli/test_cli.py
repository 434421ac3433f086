"""The command line: it prints what the schedules say, and its exit status says how it went."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from each import each

import allfold as af
from allfold import registry
from allfold.cli import choose, demo, main, verify
from allfold.cli.verify import _Outcome, summarize
from allfold.collectives import COLLECTIVES, find_collective
from allfold.files import require_writable, write_whole
from allfold.registry import REGISTRY
from allfold.view.text import draw, moves_as_text

COMMANDS = (
    *(
        "list",
        "show",
        "verify",
        "compare",
        "export",
        "plan",
        "find",
        "check-bound",
        "simulate",
        "topo",
        "studio",
        "run",
        "tune",
        "bench",
        "learn",
        "demo",
    ),
)
EVERY = [(collective, name) for collective in COLLECTIVES for name in af.algorithms(collective)]

MINE = '''\
from allfold import algorithm, copy, reduce


def share(ranks, steps):
    for step in range(steps):
        yield [reduce(chunk=(r - 1 - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]
    for step in range(ranks - 1):
        yield [copy(chunk=(r - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]


@algorithm("all_reduce")
def my_ring(ranks):
    """The ring again."""
    yield from share(ranks, ranks - 1)


def short_ring(ranks):
    yield from share(ranks, ranks - 2)


def raising(ranks):
    yield [reduce(0, 1, 0)]
    raise LookupError("lost the way")


NUMBER = 3
'''

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def forget_what_files_registered() -> Iterator[None]:
    """A command ends with its process; here, what its file registers must not show up in later tests."""
    with REGISTRY.scope():
        yield
    choose._load_module.cache_clear()


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


def process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8", **environment}
    command = [sys.executable, "-m", "allfold", *words]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=variables, timeout=120)


# Help and usage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_holds_an_example(command: str, call: Call) -> None:
    status, out, _ = call(command, "--help")
    assert status == 0
    assert "example:" in out and f"$ allfold {command}" in out


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_alone_it_prints_help(words: tuple[str, ...], call: Call) -> None:
    status, out, _ = call(*words)
    assert status == 0
    assert all(re.search(rf"^    {command}( |$)", out, re.MULTILINE) for command in COMMANDS)


def assert_printed(quoted: list[str], printed: str, what: str) -> None:
    """Every quoted line, or the quoted part of it, was printed."""
    real = [line.rstrip() for line in printed.splitlines()]
    for line in filter(None, (line.rstrip("… ") for line in quoted)):
        assert any(one.startswith(line) for one in real), f"{what}: {line!r} is not printed"


def examples_of(command: str, call: Call) -> Iterator[tuple[str, list[str]]]:
    """The commands that the help of a command shows, with what it says that they print."""
    example = call(command, "--help")[1].split("example:\n")[1].split("\nexit status")[0]
    for block in example.split("  $ allfold ")[1:]:
        words, *rest = block.rstrip().splitlines()
        quoted = [line[2:] for line in rest if not line.startswith("  $ ")]  # other programs are not run
        if quoted:
            yield words, quoted


@pytest.mark.parametrize("command", ["list", "show", "verify", "compare", "export", "plan", "find", "simulate"])
def test_the_example_of_the_help_is_real(command: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for words, quoted in examples_of(command, call):
        assert_printed(quoted, call(*words.split())[1], words)


def test_the_first_lines_of_the_readme_print_what_it_says() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    code, output = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL).groups()  # type: ignore[union-attr]
    command = [sys.executable, "-c", code]
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    assert subprocess.run(command, capture_output=True, encoding="utf-8", env=variables, timeout=60).stdout == output


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option: str, call: Call) -> None:
    status, out, _ = call(option)
    first, *others = out.splitlines()
    assert status == 0 and first == f"allfold {af.__version__}"
    assert [line.split()[0] for line in others] == ["python", "numpy", "system", "engine"]
    assert np.__version__ in out and "kernels" in others[-1] and "baseline" in others[-1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["shwo"], "did you mean 'show'?"),
        (["show", "rinng"], "did you mean 'ring'?"),
        (["show"], "NAME"),
        (["show", "ring", "--collective", "al_reduce"], "did you mean 'all_reduce'?"),
        (["show", "halving", "--collective", "all_reduce"], "all_reduce has no algorithm 'halving'"),
        (["show", "ring", "--ranks", "0"], "the least is 1"),
        (["show", "ring", "--ranks", "four"], "expected a number"),
        (["show", "ring", "--ranks", "1-4"], "expected one number"),
        (["show", "ring", "--root", "1"], "has no root"),
        (["show", "chain", "--root", "9"], "root must be between 0 and 3"),
        (["show", "hierarchical", "--with", "groups"], "expected KEY=VALUE"),
        (["show", "hierarchical", "--with", "groups=[[0,1]]"], "groups must hold each of the ranks"),
        (["show", "hierarchical", "--with", "groups=7"], "allfold show: groups must hold each of the ranks"),
        (["show", "ring", "--nonsense"], "--nonsense"),
        (["list", "all_redcue"], "did you mean 'all_reduce'?"),
        (["verify"], "expected the names of algorithms or --all"),
        (["verify", "ring", "--all"], "expected the names of algorithms or --all"),
        (["verify", "ring", "--ranks", "9-3"], "9-3 goes backwards"),
        (["verify", "chain", "--roots", "first"], "expected all, or ranks"),
        (["verify", "chain", "--roots", "16"], "there is no rank 16 among 16"),
        (["verify", "ring", "--jobs", "0"], "at least 1"),
        (["verify", "nowhere.py:ring"], "there is no file nowhere.py"),
        (["show", "ring", "--values", "1 2; 3"], "expected 2 rows of equally many numbers"),
        (["show", "ring", "--values", "1 x; 3 4"], "expected numbers, as in"),
        (["show", "ring", "--op", "max"], "add --values"),
        (["show", "dissemination", "--collective", "barrier", "--values", "1"], "a barrier carries no data"),
        (["list", "--size", "1M"], "add --what-for"),
        (["list", "reduce", "--what-for"], "leave out the name"),
        (["compare", "--algorithms", "ring,rign"], "did you mean 'ring'?"),
        (["compare", "ring", "rign"], "did you mean 'ring'?"),
        (["show", "ring", "--rnaks", "4"], "unknown option --rnaks; did you mean --ranks?"),
        (["export", "ring", "--format", "json"], "unknown option --format (see"),  # nothing is like it
        (["plan", "-o", "x"], "unknown option -o (see"),
        (
            ["show", "ring", "--html", "/nowhere/x.html"],
            "--html: /nowhere/x.html cannot be written: there is no folder",
        ),
        (["show", "ring", "--svg", "/"], "--svg: / cannot be written: Is a directory"),
        (["find", "--save", "/nowhere/x.json"], "--save: /nowhere/x.json cannot be written: there is no folder"),
        (["export", "ring", "--too", "json"], "unknown option --too; did you mean --to?"),
        (["learn", "check", "--wacth"], "did you mean --watch?"),
        (["run", "-n", "2", "--prefx", "x.py"], "unknown option --prefx; did you mean --prefix?"),
        (["run", "x.py", "-n", "2"], "-n goes before the script: allfold run -n 2 x.py"),
        (["run"], "expected -n RANKS"),
        (["run", "-n", "2", "--threads", "--", "true"], "--threads does not work with -- and a command"),
        (["run", "-n", "2", "--threads", "--hosts", "2", __file__], "--threads does not work with --hosts"),
        (["run", "-n", "2", "--threads", "--prefix", __file__], "--threads does not work with --prefix"),
        (["run", "-n", "2", "--threads", "--pdb", "0", __file__], "--threads does not work with --pdb"),
        (["run", "-n", "2", "--threads", "--engine", "thread", __file__], "there is no engine 'thread'"),
        (["show", "hierarchical", "--with", "groups=[[0,1],[2"], "the value is not JSON"),
        (["export", "ring", "--to", "json", "-o", "/nowhere/at/all/ring.json"], "there is no folder /nowhere/at/all"),
        (["bench", "-n", "100000"], "100000 ranks are too many for one machine"),
        (["bench", "all_redcue"], "did you mean 'all_reduce'?"),
        (["bench", "reduce", "--collective", "gather"], "name only one of them"),
    ],
)
def test_wrong_usage_is_one_sentence(words: list[str], says: str, call: Call) -> None:
    status, out, err = call(*words)
    assert status == 2 and out == ""
    assert len(err.splitlines()) == 1 and err.startswith("allfold") and says in err


def test_wrong_options_are_refused_before_anything_is_loaded() -> None:
    """NumPy and rich take longer to load than a typo should cost."""
    code = (
        "import sys; from allfold.cli import COMMANDS, main\n"
        "assert [main([command, '--nonsense']) for command in COMMANDS] == [2] * len(COMMANDS)\n"
        "assert main(['shwo']) == main(['run', 'x.py', '-n', '2']) == 2\n"
        "for wrong in ('show ring -n 0', 'verify ring -n 3-2', 'plan --size 8Q', 'bench -b many', 'tune --sizes 1K-'):\n"
        "    assert main(wrong.split()) == 2, wrong\n"
        "assert not {'numpy', 'rich', 'allfold._native'} & {*sys.modules}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# Tables and JSON -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 5, 8])
def test_list_counts_every_algorithm(ranks: int, call: Call) -> None:
    status, out, _ = call("list", "--ranks", str(ranks), "--json")
    rows = json.loads(out)
    assert status == 0 and [(row["collective"], row["algorithm"]) for row in rows] == EVERY
    for row in rows:
        counts = af.schedule(row["collective"], row["algorithm"], ranks).counts
        assert row["summary"] and {key: row[key] for key in counts.to_json()} == counts.to_json()


def test_list_of_many_ranks_builds_no_schedules(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "build", None)
    status, out, _ = call("list", "all_reduce", "--ranks", "2000", "--json")
    assert status == 0
    found = {row["algorithm"]: row for row in json.loads(out)}
    assert found["ring"]["steps"] == 3998 and found["ring"]["messages"] == 2000 * 3998
    assert found["two_level"]["messages"] is None  # not declared for groups of different sizes
    status, out, _ = call("list", "scan", "--ranks", "100000")  # of all pairs of ranks, there is no list
    assert status == 0 and "99999 S" in next(line for line in out.splitlines() if "direct" in line)
    status, out, _ = call("list", "all_gather", "--ranks", "2000")
    assert status == 0 and "—" in next(line for line in out.splitlines() if "two_level" in line)


def test_a_file_with_a_zero_byte_is_not_python(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "zero.py"
    path.write_bytes(b"\0")
    status, _, err = call("verify", f"{path}:f")
    assert status == 2 and "is not Python" in err and "(line" not in err


def test_list_is_a_table_with_a_line_an_algorithm(call: Call) -> None:
    lines = call("list", "all_gather")[1].splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["all_gather", name] for name in af.algorithms("all_gather")]
    assert any("0.875 S" in line and line.split()[1:3] == ["ring", "7"] for line in lines)


def test_show_with_numbers(call: Call) -> None:
    status, out, _ = call("show", "ring", "--ranks", "3", "--values", "1 2 3; 4 5 6; 7 8 9")
    assert status == 0 and "rank 0, chunk 1:  2 + 8 from rank 2 = 10\n" in out
    assert "rank 1, chunk 0:  12 from rank 0 in place of 4\n" in out
    last = [line.replace("[", " ").replace("]", " ").split() for line in out.splitlines()[-3:]]
    assert last == [["rank", str(rank), "12", "15", "18"] for rank in range(3)]
    status, out, _ = call("show", "driver", "--values", "1; 9; 5", "--op", "max")
    assert status == 0 and "rank 0:  max of 1, 9 from rank 1, 5 from rank 2 = 9\n" in out
    out = call("show", "driver", "--values", "1; 9; 5", "--op", "avg")[1]
    assert "1 + 9 from rank 1 + 5 from rank 2, divided by 3 = 5\n" in out
    out = call("show", "ring", "--collective", "all_gather", "--ranks", "2", "--values", "1 2; 3 4")[1]
    assert "rank 1, chunk 0:  1 2 from rank 0\n" in out
    assert call("show", "tree", "--collective", "broadcast", "--values", "5 6")[0] == 0
    assert call("show", "ring", "--ranks", "4", "--values", "random")[0] == 0


def test_list_says_what_collectives_are_for(call: Call) -> None:
    rows = json.loads(call("list", "--what-for", "--ranks", "8", "--size", "64M", "--json")[1])
    assert {row["collective"] for row in rows} == set(COLLECTIVES)
    found = {row["collective"]: row for row in rows}
    assert found["all_reduce"]["busiest_port_bytes"] == 2**26 * 14 / 8 and found["all_gather"]["brings"] == 1 / 8
    assert found["barrier"]["busiest_port_bytes"] == 0 < found["barrier"]["seconds"]
    status, out, _ = call("list", "--what-for", "--ranks", "4", "--topology", "laptop")
    assert status == 0 and "reduce_scatter" in out and "S/4" in out


def test_compare_counts_the_schedules(call: Call) -> None:
    for row in json.loads(call("compare", "--ranks", "2,4,8", "--json")[1]):
        plan = af.schedule("all_reduce", row["algorithm"], row["ranks"])
        assert {key: row[key] for key in plan.counts.to_json()} == plan.counts.to_json()
        least = find_collective("all_reduce").bounds(row["ranks"])
        assert row["bounds"]["messages"] == least.messages
        assert Fraction(row["bounds"]["busiest_port_bytes"]).limit_denominator(64) == least.busiest_port_bytes


def test_compare_takes_names_as_they_are(call: Call) -> None:
    assert call("compare", "ring", "tree", "--ranks", "4") == call(
        "compare", "--algorithms", "ring,tree", "--ranks", "4"
    )


def test_compare_says_what_the_two_columns_count(call: Call) -> None:
    """n(n−1) against 2(n−1): 2/2, 12/6, 56/14, 240/30, 992/62, and what the ring really sends."""
    status, out, _ = call("compare", "--algorithms", "naive,driver,ring")
    assert status == 0
    rows = [line.split() for line in out.splitlines() if line[:1].isdecimal()]
    rows = [row for row in rows if row[1] in ("naive", "driver", "ring")]
    of = {(int(row[0]), row[1]): (int(row[2]), int(row[3])) for row in rows}
    for n in (2, 4, 8, 16, 32):
        assert of[n, "naive"] == (1, n * (n - 1))
        assert of[n, "driver"] == (2, 2 * (n - 1))
        assert of[n, "ring"] == (2 * (n - 1), 2 * n * (n - 1))
    note = " ".join(out.split())
    assert "n(n−1) = 992 are the messages of all ranks together, and 2(n−1) = 62 are the ring's steps" in note


def test_compare_of_another_collective_has_no_note_on_the_ring(call: Call) -> None:
    status, out, _ = call("compare", "--collective", "broadcast", "--ranks", "6")
    assert status == 0 and "naive" not in out and "at least" in out


# show ----------------------------------------------------------------------------------------------------------------


def test_show_json_is_the_schedule(call: Call) -> None:
    out = call("show", "tree", "--collective", "scatter", "--ranks", "6", "--root", "4", "--json")[1]
    assert af.Schedule.from_json(out) == af.schedule("scatter", "tree", 6, root=4)


def test_show_prefers_all_reduce_without_a_note(call: Call) -> None:
    assert call("show", "ring", "--moves-only") == (0, str(af.schedule("all_reduce", "ring", 4)) + "\n", "")


def test_show_draws_who_holds_what(call: Call) -> None:
    lines = call("show", "ring", "--ranks", "4")[1].splitlines()
    assert lines[0] == "all_reduce by ring: 4 ranks, 4 chunks, 6 steps, 24 messages"
    at = lines.index("step 3  +1:0→1  +2:1→2  +3:2→3  +0:3→0")
    assert lines[at + 2 : at + 6] == [
        "  rank 0 [0123✓]  0·23    0··3    0···",
        "  rank 1  ·1··   [0123✓]  01·3    01··",
        "  rank 2  ·12·    ··2·   [0123✓]  012·",
        "  rank 3  ·123    ··23    ···3   [0123✓]",
    ]


def test_show_programs(call: Call) -> None:
    status, out, _ = call("show", "rotate", "--ranks", "3", "--programs")
    assert status == 0 and all(f"rank {rank}\n  0: " in out for rank in range(3))


def test_show_messages(call: Call) -> None:
    status, out, _ = call("show", "ring", "--ranks", "3", "--messages")
    assert status == 0 and out.count("\nrank ") == 3
    assert "send 0 to 1: out[2]" in out and "out[1] ← out[1] ⊕ message[2.0]" in out


def test_show_takes_parameters(call: Call) -> None:
    words = ("--ranks", "5", "--with", "groups=[[0,1,2],[3,4]]", "--with", "across=tree", "--json")
    out = call("show", "hierarchical", *words)[1]
    wanted = af.schedule("all_reduce", "hierarchical", 5, groups=[[0, 1, 2], [3, 4]], across="tree")
    assert af.Schedule.from_json(out) == wanted


@each(("collective", "name"), EVERY)
@pytest.mark.parametrize("ranks", [1, 2, 5, *(pytest.param(ranks, marks=pytest.mark.exhaustive) for ranks in (7, 12))])
def test_every_algorithm_can_be_drawn(collective: str, name: str, ranks: int) -> None:
    plan = af.schedule(collective, name, ranks)
    for width in (40, 100):
        lines = [line.plain for line in draw(plan, width)]
        words = [word for line in lines if line.startswith(("step ", "      ")) for word in line.split() if "→" in word]
        assert all(line == line.rstrip() for line in lines)
        grids = [line for line in lines if line.startswith("  rank ") or line.startswith("  chunk ")]
        assert all(len(line) <= width for line in grids)
        assert words and len(words) <= plan.moves if plan.moves else not words
    # At the end, every cell that the collective makes a promise about is marked.
    *_, last = (line for line in draw(plan, 10_000, full=True) if line.plain.startswith("  rank "))
    promised = plan.promise.ends_with(ranks, plan.root, plan.chunks)[ranks - 1] >= 0
    assert last.plain.count("✓") == int(promised.sum())


def test_long_schedules_are_shortened_and_counted() -> None:
    plan = af.schedule("all_reduce", "ring", 64)
    text = moves_as_text(plan)
    assert len(text.splitlines()) < 50 and max(map(len, text.splitlines())) <= 100
    assert "steps 30–115 with 5504 moves are left out" in text and "… 57 more" in text
    assert moves_as_text(plan, full=True).count("→") == plan.moves


def test_colour_only_where_somebody_looks(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (("show", "ring"), ("list", "reduce"), ("compare", "--ranks", "4"), ("verify", "ring")):
        assert "\x1b" not in call(*command)[1]
    assert "\x1b[" in call("show", "ring", "--color")[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in call("show", "ring")[1]


# verify --------------------------------------------------------------------------------------------------------------


def test_verify_one_case_prints_the_proof(call: Call) -> None:
    status, out, _ = call("verify", "ring", "--ranks", "4")
    assert status == 0 and out == f"{af.verify(af.schedule('all_reduce', 'ring', 4))}\n"


def test_hosts_are_the_groups_of_programs_in_two_levels(call: Call) -> None:
    for words in (("hierarchical",), ("two_level",), ("hierarchical", "--collective", "barrier")):
        status, out, err = call("verify", *words, "--hosts", "2,3")
        assert status == 0 and out.endswith("every message received in the two-level programs of 2 + 3 ranks\n"), err
    status, out, _ = call("show", "hierarchical", "--hosts", "2", "--ranks", "4", "--messages")
    assert status == 0 and "rank 3\n  0: reduce of [2, 3] root 2: out[0]\n  1: broadcast of [2, 3] root 2" in out
    status, _, err = call("verify", "hierarchical", "--hosts", "3,3", "--with", "up=tree")
    assert status == 1 and "what ranks [0, 1, 2] do with chunk 0 is no collective" in err
    status, _, err = call("verify", "ring", "--hosts", "2,2")
    assert status == 2 and "'groups'" in err


def test_verify_many_cases_is_a_line_an_algorithm(call: Call) -> None:
    status, out, _ = call("verify", "--all", "--collective", "reduce", "--ranks", "1-3,5")
    assert status == 0
    rows = {line.split()[1]: line for line in out.splitlines()[1:]}
    assert list(rows) == af.algorithms("reduce")
    assert all("1–3, 5" in line and " 11 " in line and line.endswith("proved") for line in rows.values())


def test_verify_json_and_a_pool_of_processes(call: Call, mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("verify", f"{mine}:my_ring", "tree", "--ranks", "1-12", "--json", "--jobs")
    status, alone, err = call(*words, "1")
    assert status == 0, err
    monkeypatch.setattr(verify, "_WORTH_A_POOL", 0)
    assert call(*words, "2") == (0, alone, "")
    ring, tree = json.loads(alone)
    assert ring["algorithm"] == "my_ring" and ring["proved"] and tree["proved"]
    assert [proof["ranks"] for proof in ring["proofs"]] == list(range(1, 13))
    assert all(proof["same_bits"] for proof in ring["proofs"])
    assert all(proof["rank_order"] for proof in tree["proofs"])


def test_verify_a_file_of_ones_own(call: Call, mine: str) -> None:
    assert call("verify", f"{mine}:my_ring", "--ranks", "1-9")[0] == 0
    assert call("verify", f"{mine}:my_ring", "--collective", "all_reduce", "--ranks", "6")[0] == 0


def test_a_wrong_one_is_named_and_the_others_still_checked(call: Call, mine: str) -> None:
    words = ("verify", f"{mine}:short_ring", "ring", "--collective", "all_reduce", "--ranks", "3-6")
    status, out, err = call(*words)
    assert status == 1
    assert "4 of 4 wrong" in out and out.splitlines()[-1].endswith("proved")
    assert err.startswith("allfold verify: all_reduce short_ring(ranks=3): after step 3, rank 0 chunk 0 lacks ")
    assert "4 of 4 cases are wrong" in err


def test_a_wrong_one_in_json(call: Call, mine: str) -> None:
    status, out, err = call("verify", f"{mine}:short_ring", "--collective", "all_reduce", "--ranks", "4", "--json")
    (document,) = json.loads(out)
    assert status == 1 and not document["proved"] and document["errors"][0]["message"] in err


def test_a_generator_that_raises_is_wrong(call: Call, mine: str) -> None:
    status, _, err = call("verify", f"{mine}:raising", "--collective", "all_reduce", "--ranks", "4")
    assert status == 1 and "LookupError" in err and "lost the way" in err and "mine.py:" in err


ENDINGS = """\
import os, signal, sys, threading, time
if "loaded" in sys.argv[2]:
    os._exit(0)
def exits(ranks):
    yield []
    sys.exit(0)
def leaves(ranks):
    os._exit(0)
    yield []
def is_killed(ranks):
    os.kill(os.getpid(), signal.SIGKILL)
    yield []
def is_ended_by_a_thread(ranks):
    threading.Thread(target=os._exit, args=(0,)).start()
    time.sleep(60)
    yield []
"""


@pytest.mark.parametrize(
    ("function", "ranks", "says"),
    [
        ("exits", "4", "raised SystemExit at step 1: 0 (ends.py:6)"),
        ("leaves", "4", "the process exited with status 0 while running the file: nothing was proved"),
        ("loaded", "4", "the process exited with status 0 while running the file: nothing was proved"),
        ("is_killed", "4", "the process was killed by signal 9 (Killed) while running the file: nothing was proved"),
        ("is_ended_by_a_thread", "4", "the process exited with status 0 while running the file: nothing was proved"),
        ("is_killed", "230-231", "the process that proved is_killed for 23"),
        ("leaves", "230-231", "the process that proved leaves for 23"),
    ],
)
def test_a_file_that_ends_its_process_proves_nothing(function: str, ranks: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / ("loaded.py" if function == "loaded" else "ends.py")
    path.write_text(ENDINGS)
    done = process("verify", f"{path}:{function}", "--collective", "all_reduce", "--ranks", ranks, "--jobs", "2")
    assert done.returncode == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and says in done.stderr


def test_a_folder_that_is_gone_gets_a_sentence(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place, said = tmp_path / "gone", "the current folder no longer exists; cd to one that does\n"
    place.mkdir()
    command = f'cd "{place}" && rmdir "{place}" && exec "$@"'
    run = ["sh", "-c", command, "sh", sys.executable, "-P", "-m", "allfold", "show", "mine.py:f"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, f"allfold show: {said}")
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    for words in (("learn",), ("show", "mine.py:f"), ("studio", "--no-browser")):
        assert call(*words) == (2, "", f"allfold {words[0]}: {said}")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (":missing", "its generator functions: share, my_ring, short_ring, raising"),
        (":NUMBER", "is not a function"),
        ("", "must be followed by :function"),
        (":short_ring", "does not name its collective"),
    ],
)
def test_what_a_file_does_not_have(name: str, says: str, call: Call, mine: str) -> None:
    status, _, err = call("verify", f"{mine}{name}", "--ranks", "4")
    assert status == 2 and says in err


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("x = 1\ny = 1 / 0\n", "ZeroDivisionError: division by zero (line 2)"),
        ("def f(:\n", "(line 1)"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 (line 2)"),
        (
            "import allfold\n@allfold.algorithm('all_reduce')\ndef ring(ranks): yield\n",
            "already has an algorithm 'ring'",
        ),
    ],
)
def test_a_file_that_cannot_be_loaded(source: str, says: str, call: Call, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    status, _, err = call("verify", f"{path}:f", "--collective", "all_reduce", "--ranks", "4")
    assert status == 2 and says in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("holds", "says"),
    [
        (lambda ranks, root: True, "yes"),
        (lambda ranks, root: ranks <= 2, "no"),
        (lambda ranks, root: root == 0, "root 0 only"),
        (lambda ranks, root: ranks in (1, 2, 4, 8), "powers of two only"),
        (lambda ranks, root: ranks < 6, "up to 5 ranks"),
        (lambda ranks, root: root in (0, ranks - 1), "first and last root only"),
        (lambda ranks, root: root == 0 or (ranks, root) == (6, 3), "root 0, and 1 of 35 others"),
        (lambda ranks, root: (ranks, root) in ((3, 1), (7, 2)), "2 of 42 cases"),
    ],
)
def test_summaries_say_where_a_fact_holds(holds: Callable[[int, int], bool], says: str) -> None:
    cases = [_Outcome(n, root, {"fact": holds(n, root)}) for n in range(1, 10) for root in range(n)]
    assert summarize(cases, "fact") == says


# The process ---------------------------------------------------------------------------------------------------------


def test_demo(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all that can be seen in it: it takes longer than most commands. The times are of shorter buffers."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(demo, "_TIMED", {"4 KiB": 1024, "16 MiB": 4096})
    ((words, quoted),) = examples_of("demo", call)
    assert words == "demo"
    status, out, _ = call("demo")
    assert status == 0 and out.count("checked, proved") == len(af.algorithms("all_reduce"))
    assert "all_reduce by ring: 4 ranks" in out
    assert_printed(quoted, out, words)
    assert "\x1b" not in out


def test_as_a_process() -> None:
    done = process("list", "barrier")
    assert done.returncode == 0 and done.stderr == "" and "dissemination" in done.stdout
    assert process("shwo").returncode == 2


def test_a_terminal_without_unicode() -> None:
    done = process("show", "ring", "--ranks", "2", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "+1:0>1" in done.stdout
    assert "[01v]" in done.stdout and "?" not in done.stdout


NOBODY = [
    pytest.param(words, where, status, marks=[pytest.mark.exhaustive] if number % 2 else [], id=f"{words} {where}")
    for number, (words, where, status) in enumerate(
        (words, where, status)
        for words in ("list barrier", "plan --ranks 4 --json")
        for where, status in ((">/dev/full", 2), (">&-", 0), (">&- 2>&-", 0))
    )
]


@pytest.mark.parametrize(("words", "where", "status"), NOBODY)
def test_output_that_nobody_can_take_is_no_traceback(words: str, where: str, status: int) -> None:
    command = [sys.executable, "-m", "allfold", *words.split()]
    done = subprocess.run(["sh", "-c", f'exec "$@" {where}', "sh", *command], stderr=subprocess.PIPE, text=True)
    assert done.returncode == status
    said = f"allfold {words.split()[0]}: cannot write output: No space left on device\n"
    assert done.stderr == (said if status else "")


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ("plan --ranks 64 --topology dgx_h100 --algorithms ring,two_level", "ring .*2.99 ms"),
        ("compare --ranks 4 --algorithms ring,recursive_doubling", "4 +recursive_doubling +2 +8 +8 S +2 +2 S"),
    ],
)
def test_tables_fit_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, row: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main([*words.split(), "--no-color"]) == 0
    out = capsys.readouterr().out
    table = [
        line for line in out.splitlines() if line.startswith(("algorithm ", "ring ", "two_level ", "ranks ", "4 "))
    ]
    assert len(table) >= 3 and max(map(len, table)) <= 80
    assert "…" not in out and re.search(row, "\n".join(table))


@each(
    ("path", "reason"),
    [
        (".", "Is a directory"),
        ("a/b", "there is no folder"),
        ("file/b", "no file can be made in"),
        ("a" * 5000, "File name too long"),
        ("a\0b", "null byte"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_the_work(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(af.UsageError, match=f"cannot be written: .*{reason}"):
        require_writable(tmp_path / path)
    with pytest.raises(af.UsageError, match="cannot be written: "):
        write_whole(tmp_path / path, "new")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_files_that_can_be_written_are_not_made_before_the_work(tmp_path: Path) -> None:
    for path in (tmp_path / "new", Path(__file__), Path("/dev/null"), Path("/dev/stdout")):
        require_writable(path)
    require_writable(tmp_path / "a" / "b", folders=True)
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_whole(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, "new")
    assert path.read_text() == "new" and link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    write_whole(tmp_path / "a" / "b", b"there", folders=True, private=True)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o600
    with pytest.raises(af.UsageError, match="cannot be written: Is a directory"):
        write_whole(tmp_path, "new")
    with pytest.raises(af.UsageError, match="cannot be written: File name too long"):
        write_whole(tmp_path / ("a" * 300), "new")
    write_whole("/dev/null", "new")
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    path.write_text("old")
    command = [sys.executable, "-m", "allfold", "export", "ring", "--ranks", "48", "--to", "json", "-o", str(path)]
    limited = ["sh", "-c", 'trap "" XFSZ; ulimit -f 8; exec "$@"', "sh", *command]
    done = subprocess.run(limited, capture_output=True, text=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 2 and "cannot be written: File too large" in done.stderr
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_an_interrupt_ends_a_prover_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    """Also while it imports what it needs."""
    prover = verify._Prover()
    interrupt, masks = 1 << signal.SIGINT - 1, [0]
    while not any(mask & interrupt for mask in masks):
        status = Path(f"/proc/{prover.process.pid}/status").read_text()
        masks = [int(mask, 16) for mask in re.findall(r"^Sig(?:Blk|Cgt):\s*(\w+)", status, re.MULTILINE)]
    assert prover.process.pid is not None
    os.kill(prover.process.pid, signal.SIGINT)
    prover.process.join()
    assert prover.process.exitcode == -signal.SIGINT and capfd.readouterr().err == ""
    prover.end()


@pytest.mark.parametrize("where", [("--full",), ("--html", "/dev/stdout")])
def test_a_closed_pipe_is_quiet(where: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "allfold", "show", "ring", "--ranks", "48", *where]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None and running.stderr is not None
    running.stdout.read(100)
    running.stdout.close()
    err = running.stderr.read().decode()
    assert running.wait(60) == 128 + signal.SIGPIPE
    assert err == ""
    running.stderr.close()
