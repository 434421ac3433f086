"""A part of torch's own test-suite for backends; `make conformance` runs all of it, on gloo too."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import conformance
import pytest

TESTS = (
    "test_DistributedDataParallelCPU",
    "test_all_gather_object_subgroup",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_to_all_single_unequal_split_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_get_future",
    "test_monitored_barrier_gloo_subgroup",
    "test_sparse_all_reduce_sum",
)
MORE = (
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_full_group",
    "test_all_reduce_coalesced_full_group_product",
    "test_all_reduce_group_max",
    "test_all_reduce_sum_async",
    "test_all_reduce_sum_complex",
    "test_all_to_all_complex",
    "test_barrier_timeout_full_group",
    "test_broadcast_full_group",
    "test_destroy_full_group",
    "test_gather_checks",
    "test_gather_object_subgroup",
    "test_grads_same_across_ranks_with_no_sync",
    "test_new_subgroups_with_group_param",
    "test_reduce_sum_twice",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
    "test_static_graph_api_cpu",
)

ON_TWO_HOSTS = (
    "test_DistributedDataParallelCPU",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_full_group_product",
    "test_all_to_all_single_unequal_split_full_group",
    "test_broadcast",  # with a profiler, as most of them
    "test_destroy_full_group",
    "test_monitored_barrier_gloo_subgroup",
    "test_send_recv_any_source_torch_profiler",
    "test_sparse_all_reduce_sum",
)


@functools.cache
def results(column: str, names: tuple[str, ...]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, conformance.__file__, "--backend", column, "--results", folder, "--only", *names]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return conformance.read_results(Path(folder), column)


@pytest.mark.timeout(900)  # the first one waits for all
@pytest.mark.parametrize("name", [*TESTS, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE)])
def test_of_torch(name: str) -> None:
    result = results("allfold", TESTS if name in TESTS else MORE)[name]
    assert result["outcome"] == "pass", result["reason"]


@pytest.mark.timeout(900)
@pytest.mark.exhaustive  # in every run: test_every_function_on_two_hosts, test_training_gives_…
@pytest.mark.parametrize("name", ON_TWO_HOSTS)
def test_of_torch_on_two_hosts(name: str) -> None:
    result = results("allfold-on-2-hosts", ON_TWO_HOSTS)[name]
    assert result["outcome"] == "pass", result["reason"]


def test_the_committed_table_has_nothing_that_only_gloo_passes() -> None:
    text = conformance.TABLE.read_text(encoding="utf-8")
    assert "Tests that pass with gloo and do not pass with allfold: none." in text
    for name in (*TESTS, *MORE):
        assert f"| `{name}` |" in text and f"| `{name}` | pass | fail" not in text


def test_a_name_that_answers_to_two_others() -> None:
    name = conformance.Allfold("allfold")
    assert name == "allfold" and name == "gloo" and name == "mpi" and name in {"gloo"} and name.upper() == "ALLFOLD"
    assert name != "nccl" and name not in {"nccl"}
