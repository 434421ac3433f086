"""A short form of `make faults` and `make soak`, and the judge on trials that went wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fault_judge import Told, judge
from fault_plans import ENGINES, FAMILIES, FIRST_WITH_PREFIXES, MEMORY, Call, Plan, plan
from soak import A_GROUP, Course, Sample

from allfold.collectives import COLLECTIVES

HERE = Path(__file__).parent
PATIENCE = 280.0  # a hanging trial reports itself before

# The faults that are tried here: all of them; on shared memory, all that it can have.
FAULTS = {
    "shared_memory": tuple(fault for kinds in FAMILIES.values() for fault in kinds if fault != "stream waits"),
    "islands": (
        "late",
        "hold the interpreter",
        "dtype",
        "group",
        "code of the generator",
        "stop and go on",
        "exit",
        "abort",
    ),
    "gpu": (
        *("kill", "leave", "late", "operation waits", "stream waits", "generator raises"),
        *("collective", "op", "algorithm", "code of the operation", "one call more"),
    ),
}

# Trials that found what has been cured since: late ranks that returned what had been rewritten, or wrote into arrays
# that were the caller's again; causes that were not named; different algorithms that nobody compared.
WERE_WRONG = {
    "shared_memory": (5027, 20039, 40033, 1200486, 3100300),
    "islands": (20010, 40057, 3200260, 3200953),
    "gpu": (1034, 20028, 20035, 40006, 1300821, 4100212, 4100882, 4101902, 4101954, 6101051),
}


def run(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / script), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@cache
def a_seed(engine: str, **wanted: Any) -> int:
    """The first seed from 10,000 on whose plan is as wanted."""
    for seed in count(10_000):
        one = plan(seed, engine)
        if all(getattr(one, name) == value for name, value in wanted.items()):
            return seed
    raise AssertionError


def seeds_of_every_fault(engine: str, most_ranks: int) -> list[int]:
    """By fault, the first seed from 10,000 on whose plan has it and no more ranks than that."""
    found: dict[str, int] = {}
    for seed in count(10_000):
        one = plan(seed, engine)
        if one.ranks <= most_ranks and one.fault in FAULTS[engine]:
            found.setdefault(one.fault, seed)
        if len(found) == len(FAULTS[engine]):
            break
    return [*found.values()]


def run_trials(engine: str, seeds: list[int], jobs: int) -> None:
    if engine == "islands":
        pytest.importorskip("torch")
    words = ["--json"] if jobs == 1 else []  # in this process: every job imports everything
    ended = run("faults.py", "--engine", engine, "--jobs", jobs, *words, "--seeds", *seeds)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if jobs == 1:
        assert [json.loads(line)["seed"] for line in ended.stdout.splitlines()] == seeds
    else:
        assert f"{len(seeds)} of {len(seeds)} trials of {engine} went as they should" in ended.stdout


@pytest.mark.parametrize("engine", ENGINES)
def test_trials_that_were_wrong_pass(engine: str) -> None:
    run_trials(engine, [*WERE_WRONG[engine]], 1)


# In every run the faults of the engine whose trials are cheap, with few ranks; what they do to the others is also in
# test_pretended_faults.py and test_gpu_faults.py.
@pytest.mark.parametrize(
    ("engine", "most_ranks"),
    [("shared_memory", 3), *(pytest.param(engine, 6, marks=pytest.mark.exhaustive) for engine in ENGINES)],
)
def test_a_trial_of_every_fault_passes(engine: str, most_ranks: int) -> None:
    run_trials(engine, seeds_of_every_fault(engine, most_ranks), 2)


def test_a_short_soak_finds_every_result_right_and_nothing_growing() -> None:
    ended = run("soak.py", "--seconds", 1, "--calls", 1000)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "small: 1000 calls of each of 2 ranks" in ended.stdout and "mixed: " in ended.stdout


def test_growth_is_seen() -> None:
    def course(last: Sample) -> Course:
        return Course(10, 100.0, [Sample(0, 10**8, 4096, 7, 3)] * 6 + [last] * 2)

    assert course(Sample(1, 10**8 + 2**20, 4096, 7, 3)).growth() == []
    grown = course(Sample(1, 2 * 10**8, 4097 + A_GROUP, 8, 6)).growth()
    assert [word.split()[0] for word in grown] == ["resident", "arena", "descriptors", "threads"]


# The plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_plans_depend_on_their_seeds_only_and_leave_nothing_out(engine: str) -> None:
    plans = [plan(seed, engine) for seed in range(500)]
    assert plans[:30] == [plan(seed, engine) for seed in range(30)]
    elsewhere = {"shared_memory": {"stream waits"}, "islands": {"stream waits", *MEMORY}, "gpu": set(MEMORY)}[engine]
    assert {one.fault for one in plans} == {fault for kinds in FAMILIES.values() for fault in kinds} - elsewhere
    assert {one.ranks for one in plans} == set(range(2, 7))
    later = [plan(seed, engine) for seed in range(FIRST_WITH_PREFIXES, FIRST_WITH_PREFIXES + 100)]
    assert {call.kind for one in later for call in one.calls} >= {*COLLECTIVES}
    assert {how for one in plans for how in one.reactions} == {"keep", "rewrite", "drop"}
    assert {one.comes for one in plans if one.family == "late"} == {"racing", "first", "all", "never"}
    for one in plans:
        assert one.calls[-1].kind == "barrier" and one.calls[-1].where == 0, "everybody waits for everybody in the end"
        assert one.victim in one.members(one.calls[one.at].where)
        meant, given = dict(enumerate(one.calls)), one.calls_of(one.victim)
        if one.family == "mismatch":
            assert given != [(number, call) for number, call in meant.items() if one.victim in one.members(call.where)]


def test_every_fault_is_tried_here() -> None:
    assert {fault for faults in FAULTS.values() for fault in faults} == {
        fault for kinds in FAMILIES.values() for fault in kinds
    }


# The judge ------------------------------------------------------------------------------------------------------------


def a_plan(**wanted: Any) -> Plan:
    return plan(a_seed("shared_memory", groups=(), **wanted), "shared_memory")


CHECKED = {"event": "checked", "time": 2.6, "files": []}


def told(one: Plan, **ends: Any) -> list[Told]:
    """The reports of a trial in which all survivors say the same."""
    ranks = []
    for rank in range(one.ranks):
        lines = [{"event": "met", "time": 0.0}, {"event": "calls", "call": 0, "time": 1.0}]
        is_victim = rank == one.victim
        end = [] if is_victim else [{"event": "end", "time": 2.5, **ends}, CHECKED]
        ranks.append(Told(100 + rank, [*lines, *end], died=2.0, status=0 if not is_victim else -9))
    return ranks


@pytest.mark.parametrize(
    ("ends", "complaint"),
    [
        (
            {
                "error": "RankLost",
                "text": "barrier: rank {v} (process {p}) is gone: killed by signal 9 (call 1 of the world)",
            },
            None,
        ),
        ({"error": "RankLost", "text": "barrier: rank {o} gave up (call 1 of the world)"}, "somebody else"),
        (
            {"error": "RankLost", "text": "barrier: this communicator was aborted (call 1 of the world)"},
            "somebody else",
        ),
        (
            {"error": "CollectiveTimeout", "text": "barrier: rank {v} did not arrive (call 1 of the world)"},
            "CollectiveTimeout",
        ),
        ({"error": "RankLost", "text": "barrier: rank {v} (process {p}) is gone (call 1 of the world)"}, "how it died"),
        ({"error": "RankLost", "text": "barrier: rank {v} (process 7) is gone (call 1 of the world)"}, "process"),
        ({"error": None}, "came to a good end"),
        ({"error": "WrongResult", "text": "3 and not 4"}, "WrongResult"),
        ({"error": "OSError", "text": "no"}, "OSError"),
    ],
)
def test_the_judge_of_a_death(ends: dict[str, Any], complaint: str | None) -> None:
    one = a_plan(fault="kill", moment="between", ranks=3, victim=1, buried=False, afterwards="exit")
    ends = {name: text and text.format(v=1, p=101, o=2) for name, text in ends.items()}
    found = judge(one, told(one, **ends)).complaints
    assert found == [] if complaint is None else found and complaint in found[0], found


def test_the_judge_of_late_news() -> None:
    one = a_plan(fault="kill", moment="between", ranks=3, victim=1, buried=True, afterwards="exit")
    ranks = told(one, error="RankLost", text="barrier: rank 1 (process 101) is gone (call 1 of the world)")
    assert judge(one, ranks).heard == [0.5, 0.5]
    ranks[0].lines[-2]["time"] = 9.0
    assert "after 7.0 s" in judge(one, ranks).complaints[0]


@pytest.mark.parametrize(("where", "is_right"), [(1, True), (0, False)])
def test_the_judge_of_a_rank_that_was_held_up_elsewhere(where: int, is_right: bool) -> None:
    """Rank 2 holds up rank 1 in a group, until rank 0, which is not in it, has given up."""
    one = a_plan(fault="late", ranks=3, victim=2, comes="first", afterwards="exit")
    calls = (Call("group"), Call("all_reduce", where=where), Call("barrier"))
    one = replace(one, groups=((1, 2),), calls=calls, at=1, timeouts=(0.5,) * 3)
    text = "barrier: rank 1 did not arrive; rank 0 gave up: it had waited too long for rank 1 (call 1 of the world)"
    ranks = told(one, error="CollectiveTimeout", text=text)
    for rank, call in ((0, 2), (1, 1), (2, 1)):
        ranks[rank].lines[1]["call"] = call
    ranks[2].lines += [{"event": "end", "time": 2.5, "error": None}, CHECKED]
    ranks[2].status = 0
    found = str(judge(one, ranks).complaints)
    assert ("rank 0 is told of somebody else" in found) is not is_right, found


def test_the_judge_of_a_mismatch() -> None:
    one = a_plan(fault="count", ranks=3, victim=1, afterwards="exit")
    everyone = "all_reduce: ranks 0 and 2 called it with int16[6] sum, rank 1 with int16[7] sum (call 1 of the world)"
    for text, right in (
        (everyone, True),
        ("all_reduce: rank 1 called it with int16[7] sum (call 1 of the world)", False),
    ):
        ranks = told(one, error="MismatchError", text=text)
        ranks[1].lines += [{"event": "end", "time": 2.5, "error": "MismatchError", "text": text}, CHECKED]
        ranks[1].status = 0
        assert (judge(one, ranks).complaints == []) is right


def test_the_judge_of_those_that_were_only_slow() -> None:
    one = a_plan(fault="slow", ranks=2, victim=0)
    ranks = told(one, error=None)
    ranks[0].lines += [{"event": "end", "time": 2.5, "error": None}, CHECKED]
    ranks[0].status = 0
    assert judge(one, ranks).complaints == []
    ranks[1].lines[-2] |= {"error": "CollectiveTimeout", "text": "barrier: rank 0 did not arrive"}
    assert "CollectiveTimeout" in judge(one, ranks).complaints[0]
