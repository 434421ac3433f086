"""The fabrics that need no launcher, tcp and ucx, between real processes that meet in a folder."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import fabric_checks
import pytest
from fabric_checks import CHECKS, RANKS, VICTIM, Check, passed, those_who_are_left_go_on
from ucx_here import need_ucx

from allfold.launch.environment import Place
from allfold.launch.spawn import run_everywhere


def check(place: Place, fabric: str, file: Path, names: tuple[str, ...]) -> None:
    sys.stdout = (file.parent / f"printed {place.rank}").open("w")
    fabric_checks.main(fabric, *names, f"@{place.rank}", str(RANKS), str(file))


def printed_by(fabric: str, folder: Path, *names: str) -> str:
    arguments = fabric, folder / "store", names
    run_everywhere(nullcontext, check, RANKS, args=arguments, hosts=RANKS, survive=True, timeout=180)
    return "".join(path.read_text() for path in sorted(folder.glob("printed *")))


@pytest.fixture(scope="module", params=["tcp", "ucx"])
def fabric(request: pytest.FixtureRequest) -> str:
    if request.param == "ucx":
        need_ucx()
    return str(request.param)


@pytest.fixture(scope="module")
def printed(fabric: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return printed_by(fabric, tmp_path_factory.mktemp(fabric), *(check.__name__ for check in CHECKS))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_holds(check: Check, printed: str) -> None:
    assert [passed(check.__name__, rank) in printed for rank in range(RANKS)] == [True] * RANKS, printed


def test_a_rank_that_is_killed_is_noticed(fabric: str, tmp_path: Path) -> None:
    printed = printed_by(fabric, tmp_path, those_who_are_left_go_on.__name__)
    for rank in range(VICTIM):
        assert passed(those_who_are_left_go_on.__name__, rank) in printed, printed
