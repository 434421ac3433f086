"""verify proves what it is given, and its exit status says how it went."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Call, process

import allfold as af
from allfold.cli import verify
from allfold.cli.verify import _Outcome, summarize


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
