"""Who am I? The place that a rank reads from what its launcher put into its environment."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from launchers import ALLFOLD, MPICH, OPEN_MPI, SLURM, TORCHRUN

from allfold.errors import UsageError
from allfold.launch.environment import launched_place, place_from_environment, with_meeting_point


@pytest.mark.parametrize(
    ("environ", "rank", "size", "local_rank"),
    [
        ({}, 0, 1, 0),
        ({"PATH": "/bin", "LOCAL_RANK": "7", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"}, 0, 1, 0),
        (ALLFOLD, 1, 4, 1),
        (TORCHRUN, 2, 4, 2),
        ({"RANK": "1", "WORLD_SIZE": "2"}, 1, 2, 1),
        (OPEN_MPI, 3, 4, 3),
        (MPICH, 1, 2, 1),
        (SLURM, 1, 3, 1),
        (ALLFOLD | {"RANK": "1", "WORLD_SIZE": "4"} | OPEN_MPI | MPICH | SLURM, 1, 4, 1),
        (TORCHRUN | OPEN_MPI | MPICH | SLURM, 2, 4, 2),
        (OPEN_MPI | MPICH | SLURM, 3, 4, 3),
        (MPICH | SLURM, 1, 2, 1),
    ],
)
def test_the_place_that_a_launcher_gives(environ: dict[str, str], rank: int, size: int, local_rank: int) -> None:
    place = place_from_environment(environ)
    assert (place.rank, place.size, place.local_rank) == (rank, size, local_rank)
    # Another rank of the same run computes the same key.
    assert place_from_environment(dict(environ)).key == place.key
    # Among all these, only processes that no launcher started are alone.
    assert launched_place(environ) == (None if size == 1 else place)


@pytest.mark.parametrize(
    ("environ", "changes"),
    [
        (ALLFOLD, {"ALLFOLD_KEY": "another"}),
        (TORCHRUN, {"MASTER_PORT": "29501"}),
        (TORCHRUN, {"MASTER_ADDR": "localhost"}),
        (TORCHRUN, {"TORCHELASTIC_RUN_ID": "another"}),
        (TORCHRUN, {"TORCHELASTIC_RESTART_COUNT": "1"}),
        (OPEN_MPI, {"PMIX_NAMESPACE": "prterun-host-4183@1"}),
        (MPICH, {"PMI_JOBID": "another"}),
        (SLURM, {"SLURM_JOB_ID": "78"}),
        (SLURM, {"SLURM_STEP_ID": "1"}),
    ],
)
def test_another_run_has_another_key(environ: dict[str, str], changes: dict[str, str]) -> None:
    assert place_from_environment(environ).key != place_from_environment(environ | changes).key


@pytest.mark.parametrize(
    ("environ", "facts"),
    [
        ({"ALLFOLD_RANK": "0"}, ["ALLFOLD_SIZE is not set", "ALLFOLD_RANK='0'"]),
        ({"ALLFOLD_KEY": "x"}, ["ALLFOLD_SIZE is not set"]),
        ({"ALLFOLD_RANK": "0", "ALLFOLD_SIZE": "2"}, ["ALLFOLD_KEY is not set"]),
        (ALLFOLD | {"ALLFOLD_KEY": ""}, ["ALLFOLD_KEY=''"]),
        (ALLFOLD | {"ALLFOLD_RANK": "4"}, ["ALLFOLD_RANK='4'", "0 to 3", "ALLFOLD_SIZE is 4"]),
        (ALLFOLD | {"RANK": "0", "WORLD_SIZE": "4"}, ["RANK='0'", "ALLFOLD_RANK='1'"]),
        (ALLFOLD | {"RANK": "1", "WORLD_SIZE": "2"}, ["WORLD_SIZE='2'", "ALLFOLD_SIZE='4'"]),
        ({"RANK": "0"}, ["WORLD_SIZE is not set", "RANK='0'"]),
        ({"WORLD_SIZE": "2"}, ["RANK is not set", "WORLD_SIZE='2'"]),
        (TORCHRUN | {"RANK": "-1"}, ["RANK='-1'", "whole number"]),
        (TORCHRUN | {"RANK": "two"}, ["RANK='two'", "whole number"]),
        (TORCHRUN | {"RANK": "1.0"}, ["RANK='1.0'"]),
        (TORCHRUN | {"RANK": " 1"}, ["RANK=' 1'"]),
        (TORCHRUN | {"RANK": "٢"}, ["RANK='٢'"]),
        (TORCHRUN | {"RANK": "1" * 5000}, ["RANK='111"]),
        (TORCHRUN | {"WORLD_SIZE": "0"}, ["WORLD_SIZE='0'", "at least one"]),
        (TORCHRUN | {"LOCAL_RANK": "4"}, ["LOCAL_RANK='4'", "0 to 3"]),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "5"}, ["LOCAL_WORLD_SIZE='5'", "1 to 4"]),
        (TORCHRUN | {"MASTER_PORT": "70000"}, ["MASTER_PORT='70000'", "65535"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, ["MASTER_PORT is not set", "MASTER_ADDR='h'"]),
        ({"OMPI_COMM_WORLD_RANK": "0"}, ["OMPI_COMM_WORLD_SIZE is not set"]),
        ({"PMI_RANK": "0", "PMI_SIZE": "x"}, ["PMI_SIZE='x'"]),
        ({"SLURM_PROCID": "0"}, ["SLURM_NTASKS is not set"]),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, ["SLURM_STEP_ID is not set", "srun"]),
    ],
)
def test_variables_that_make_no_sense_are_named(environ: Mapping[str, str], facts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        place_from_environment(environ)
    for fact in facts:
        assert fact in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "spread"),
    [
        (ALLFOLD, False),
        (ALLFOLD | {"ALLFOLD_HOSTID": "one"}, True),
        (TORCHRUN, False),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "2"}, True),
        (TORCHRUN | {"ALLFOLD_HOSTID": "one"}, True),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, True),
        (MPICH | {"MPI_LOCALNRANKS": "1"}, True),
        (SLURM | {"SLURM_NNODES": "2", "SLURM_STEP_NUM_NODES": "2"}, True),
        (SLURM | {"SLURM_NNODES": "2", "SLURM_STEP_NUM_NODES": "1"}, False),
    ],
)
def test_ranks_on_several_hosts_are_known_as_such(environ: Mapping[str, str], spread: bool) -> None:
    assert place_from_environment(environ).spread == spread


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node02", "node02"),
        ("node02,other", "node02"),
        ("gpu[01-04,07],login", "gpu01"),
        ("gpu[7]", "gpu7"),
        ("rack[3,5]node[10-12]-ib,x", "rack3node10-ib"),
        ("10.0.0.[1-2]", "10.0.0.1"),
    ],
)
def test_ranks_of_srun_meet_on_its_first_node(nodes: str, first: str) -> None:
    step = SLURM | {"SLURM_STEP_NODELIST": nodes}
    found = with_meeting_point(step)
    assert found["MASTER_ADDR"] == first and 61440 <= int(found["MASTER_PORT"]) < 65536
    assert dict(found, SLURM_PROCID="0") == with_meeting_point(step | {"SLURM_PROCID": "0"})
    assert with_meeting_point(step | {"SLURM_STEP_ID": "1"})["MASTER_PORT"] != found["MASTER_PORT"]
    assert with_meeting_point(step | {"MASTER_ADDR": "a"})["MASTER_ADDR"] == "a"
    assert with_meeting_point(step | {"MASTER_PORT": "1"})["MASTER_PORT"] == "1"


def test_without_srun_nothing_says_where_to_meet() -> None:
    allocation = {name: text for name, text in SLURM.items() if name not in ("SLURM_PROCID", "SLURM_STEP_ID")}
    for environ in ({}, TORCHRUN, OPEN_MPI, allocation, {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}):
        assert with_meeting_point(environ) == environ
