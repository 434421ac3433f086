"""Plans of MSCCL++: they keep the rules of the format and come back as the same."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from each import each
from export_cases import EVERY, grid

import allfold as af
from allfold.export.equivalence import check_equivalent
from allfold.export.mscclpp import mscclpp
from allfold.export.mscclpp import plan as mscclpp_plan

PLANNED = [(collective, name) for collective, name in EVERY if collective in mscclpp_plan.COLLECTIVES.values()]


@each(("collective", "name", "ranks"), grid(PLANNED, (3,), (1, 2, 4, 5, 8)))
def test_mscclpp_comes_back_as_the_same(collective: str, name: str, ranks: int) -> None:
    plan = af.schedule(collective, name, ranks)
    text = mscclpp.write(plan)
    check_equivalent(plan, mscclpp.read(text))
    document = json.loads(text)
    mscclpp_plan.check_plan(document)
    for gpu in document["gpus"]:
        assert all(len(block["ops"]) <= 64 for block in gpu["threadblocks"])


def test_mscclpp_cuts_a_long_line_into_thread_blocks() -> None:
    document = json.loads(mscclpp.write(af.schedule("all_reduce", "ring", 16)))
    first = document["gpus"][0]
    assert len(first["threadblocks"]) > 1 and len(first["semaphores"]) == len(first["threadblocks"]) - 1
    assert first["threadblocks"][0]["ops"][-1]["name"] == "sem_release"
    assert first["threadblocks"][1]["ops"][0]["name"] == "sem_acquire"


def test_what_mscclpp_cannot_express_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(af.UsageError, match="not for broadcast"):
        mscclpp.write(af.schedule("broadcast", "tree", 4))
    with pytest.raises(af.UsageError, match="has 19 peers, and a thread block has 16"):
        mscclpp.write(af.schedule("all_reduce", "naive", 20))
    monkeypatch.setattr(mscclpp_plan, "MOST_SEMAPHORES", 1)
    with pytest.raises(af.UsageError, match="needs 3 semaphores, and there are 1"):
        mscclpp.write(af.schedule("all_reduce", "ring", 16))


def damaged(change: Callable[[list[dict[str, object]]], object]) -> str:
    """A plan of two ranks with changed operations of the first rank."""
    document = json.loads(mscclpp.write(af.schedule("all_reduce", "ring", 2)))
    change(document["gpus"][0]["threadblocks"][0]["ops"])
    return json.dumps(document)


def without(name: str) -> Callable[[list[dict[str, object]]], object]:
    return lambda operations: operations.pop(next(i for i, one in enumerate(operations) if one["name"] == name))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (without("signal"), af.ScheduleError, "is posted .* times and awaited otherwise"),
        (without("wait"), af.ScheduleError, "is posted .* times and awaited otherwise"),
        (without("nop"), af.UsageError, "without a nop between"),
        (lambda operations: operations.insert(0, {"name": "dance"}), af.UsageError, "dance"),
        (lambda operations: operations.extend([{"name": "nop"}] * 64), af.UsageError, "64 are taken"),
        (lambda operations: operations.reverse(), af.AllfoldError, "ring|plan"),
    ],
)
def test_wrong_plans_are_found_wrong(change: Callable[..., object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        mscclpp.read(damaged(change))


def test_a_put_that_nobody_waits_for_is_a_race() -> None:
    document = json.loads(mscclpp.write(af.schedule("all_gather", "direct", 2)))
    for gpu in document["gpus"]:
        for block in gpu["threadblocks"]:
            kept = [one for one in block["ops"] if one["name"] not in ("signal", "wait")]
            block["ops"] = [*kept, {"name": "nop"}, {**kept[-1], "name": "nop"}]
            block["ops"] = [{"name": "nop"}, *(one for one in block["ops"] if one["name"] != "nop"), {"name": "nop"}]
            block["ops"].append(
                {
                    "name": "copy",
                    "src_buff": [{"type": "o", "index": 1 - gpu["id"], "size": 1}],
                    "dst_buff": [{"type": "o", "index": gpu["id"], "size": 1}],
                }
            )
    with pytest.raises(af.ScheduleError, match="race"):
        mscclpp.read(json.dumps(document))
