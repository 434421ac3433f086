"""Where the ranks of a run meet, and the names of fabrics."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from allfold.errors import UsageError
from allfold.fabrics.stores import FolderStore
from allfold.fabrics.table import meets_through_mpi

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2"}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2"}
PLACE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
BOTH = ("torch", "mpi4py")


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """Make packages be there, or not, as far as can be seen without importing them."""

    def having(*packages: str) -> None:
        for name in BOTH:
            if name in packages:
                (tmp_path / name).mkdir()
                (tmp_path / name / "__init__.py").write_text("raise AssertionError('imported')")
                monkeypatch.delitem(sys.modules, name, raising=False)
            else:
                monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
        monkeypatch.syspath_prepend(str(tmp_path))

    return having


@pytest.mark.parametrize(
    ("packages", "environ", "expected"),
    [
        (BOTH, {}, False),
        ((), {}, False),
        (BOTH, TORCHRUN, False),
        (BOTH, OPEN_MPI, True),
        (BOTH, MPICH, True),
        (BOTH, OPEN_MPI | TORCHRUN, False),
        (("torch",), OPEN_MPI, False),
        (("mpi4py",), MPICH, True),
        (BOTH, OPEN_MPI | PLACE, True),
        (BOTH, OPEN_MPI | {"ALLFOLD_FABRIC": "tcp"}, True),
        (BOTH, OPEN_MPI | {"ALLFOLD_FABRIC": "tcp"} | PLACE, False),
        (BOTH, OPEN_MPI | {"ALLFOLD_FABRIC": "mpi"} | PLACE, True),
        (BOTH, {"ALLFOLD_FABRIC": "mpi"}, True),
        ((), {"ALLFOLD_FABRIC": "ucx"}, False),
    ],
)
def test_the_launcher_and_what_is_installed_choose(
    packages: Sequence[str], environ: dict[str, str], expected: bool, install: Install
) -> None:
    install(*packages)
    assert meets_through_mpi(environ) == expected


@pytest.mark.parametrize(
    ("packages", "environ", "said"),
    [
        (BOTH, {"ALLFOLD_FABRIC": "tpc"}, "there is no such fabric; did you mean 'tcp'? known: tcp, ucx, mpi"),
        (
            BOTH,
            {"ALLFOLD_FABRIC": "gloo"},
            "this fabric was removed, because tcp is faster and needs nothing installed",
        ),
        ((), {"ALLFOLD_FABRIC": "mpi"}, "needs mpi4py: pip install mpi4py"),
    ],
)
def test_what_is_missing_is_said(packages: Sequence[str], environ: dict[str, str], said: str, install: Install) -> None:
    install(*packages)
    with pytest.raises(UsageError) as caught:
        meets_through_mpi(environ)
    assert said in str(caught.value)


def test_a_folder_in_which_nobody_can_write_is_named(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    (tmp_path / "store").rmdir()
    with pytest.raises(UsageError, match=r"the ranks cannot meet in the folder .*/store: No such file"):
        store.put("name", b"value")
    with pytest.raises(UsageError, match=r"the ranks cannot meet in the folder .*/store/below: No such file"):
        FolderStore(tmp_path / "store" / "below")
