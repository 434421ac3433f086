"""Which fabric a run gets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from allfold.errors import UsageError
from allfold.fabrics.fabric import Fabric
from allfold.fabrics.table import FABRICS, choose

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2"}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2"}
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
        (BOTH, {}, "gloo"),
        (BOTH, TORCHRUN, "gloo"),
        (BOTH, OPEN_MPI, "mpi"),
        (BOTH, MPICH, "mpi"),
        (BOTH, OPEN_MPI | TORCHRUN, "gloo"),
        (("torch",), OPEN_MPI, "gloo"),
        (("mpi4py",), MPICH, "mpi"),
        (BOTH, OPEN_MPI | {"ALLFOLD_FABRIC": "gloo"}, "gloo"),
        (BOTH, {"ALLFOLD_FABRIC": "mpi"}, "mpi"),
    ],
)
def test_the_launcher_and_what_is_installed_choose(
    packages: Sequence[str], environ: dict[str, str], expected: str, install: Install
) -> None:
    install(*packages)
    assert choose(environ) == expected


@pytest.mark.parametrize(
    ("packages", "environ", "said"),
    [
        (BOTH, {"ALLFOLD_FABRIC": "glo"}, "there is no such fabric; did you mean 'gloo'? known: gloo, mpi"),
        ((), {"ALLFOLD_FABRIC": "mpi"}, "needs mpi4py: pip install mpi4py"),
        ((), {}, "pip install 'allfold[torch]'; or mpi4py (pip install mpi4py) with ranks that mpirun has started"),
        (("mpi4py",), {}, "pip install 'allfold[torch]'; or mpi4py with ranks that mpirun has started"),
        ((), OPEN_MPI, "pip install mpi4py"),
    ],
)
def test_what_is_missing_is_said(packages: Sequence[str], environ: dict[str, str], said: str, install: Install) -> None:
    install(*packages)
    with pytest.raises(UsageError) as caught:
        choose(environ)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", FABRICS)
def test_every_fabric_is_in_its_module(name: str) -> None:
    if name == "gloo" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    things = vars(import_module(FABRICS[name], "allfold.fabrics")).values()
    fabrics = [one for one in things if isinstance(one, type) and issubclass(one, Fabric) and one is not Fabric]
    assert [one.name for one in fabrics] == [name]
