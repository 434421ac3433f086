"""list, compare and show print what the schedules say."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from commands import Call
from each import each

import allfold as af
from allfold import registry
from allfold.collectives import COLLECTIVES, find_collective
from allfold.view.text import draw, moves_as_text

EVERY = [(collective, name) for collective in COLLECTIVES for name in af.algorithms(collective)]


# Tables and JSON ------------------------------------------------------------------------------------------------------


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


# show -----------------------------------------------------------------------------------------------------------------


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
