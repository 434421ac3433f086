"""The GPUs of this machine: who uses them, whether MPS runs, and what `allfold topo` and `allfold bench` say about them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import allfold as af
from allfold.cli.bench import _need_a_gpu
from allfold.cli.topo import _rows, means
from allfold.price.topology.gpus import gpus_of_processes, mps_runs
from allfold.price.topology.this_machine import read_machine


def fake_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, applications: str) -> None:
    script = folder / "nvidia-smi"
    script.write_text(
        f"#!/bin/sh\ncase $1 in *compute-apps*) printf '{applications}';; *) printf '0, GPU-a\\n1, GPU-b\\n';; esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_which_processes_use_which_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, monkeypatch, "11, GPU-b\\n12, GPU-a\\n12, GPU-b\\n99, GPU-a\\n[N/A], GPU-a\\n")
    opened = tmp_path / "proc/13/fd"
    opened.mkdir(parents=True)
    for number, target in enumerate(("/dev/nvidia0", "/dev/nvidiactl", "/dev/null")):
        (opened / str(number)).symlink_to(target)
    assert gpus_of_processes([11, 12, 13, 14], tmp_path) == {11: [1], 12: [0, 1], 13: [0]}


def test_whether_mps_runs(tmp_path: Path) -> None:
    environ = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}
    assert not mps_runs(tmp_path, environ)
    (tmp_path / "run/mps").mkdir(parents=True)
    (tmp_path / "run/mps/nvidia-cuda-mps-control.pid").write_text("77\n")
    assert not mps_runs(tmp_path, environ)  # it is left over
    (tmp_path / "proc/77").mkdir(parents=True)
    assert mps_runs(tmp_path, environ) and not mps_runs(tmp_path, {})


@pytest.mark.parametrize(("mps", "words"), [(False, "MPS does not run, so they take turns"), (True, "MPS runs")])
def test_topo_says_what_several_ranks_on_a_gpu_can_expect(mps: bool, words: str) -> None:
    machine = replace(read_machine(Path("/"), "", "NVIDIA A\nNVIDIA A\n"), mps=mps)
    said = " ".join(means(machine))
    assert words in said and "cuda:nccl" in said
    assert ["MPS", "", "runs" if mps else "does not run", ""] in list(_rows(machine))


def test_a_benchmark_on_gpus_needs_one() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(af.UsageError, match="has no GPU here"):
        _need_a_gpu()
