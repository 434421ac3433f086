"""`allfold run --check`: faults of every kind are named with the rank and the line, on every rank, in the same words."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from ranks import run_seeds
from seeded import FAULTS, names_it, trial


@pytest.mark.parametrize("backend", ["gloo", "allfold"])
@pytest.mark.parametrize("hosts", [None, [1, 2]], ids=["one host", "two hosts"])
def test_every_kind_of_fault_is_named(backend: str, hosts: list[int] | None) -> None:
    seeds = list(range(len(FAULTS)))
    for seed, sentences in run_seeds(seeds, backend, hosts=hosts).items():
        one = trial(seed)
        said = [sentence for sentence in sentences if sentence]
        expected = 1 if one.fault == "late" else one.ranks - (one.fault == "dead")
        assert len(said) == expected, (one, sentences)
        assert len(set(said)) == 1, (one, sentences)
        assert names_it(one, said[0].partition(": ")[2]), (one, said[0], one.source)


@pytest.mark.parametrize("backend", ["gloo", "allfold"])
def test_a_circular_wait_with_a_background_call(backend: str) -> None:
    """Rank 0 leaves a call out, and waits for a background call in another group."""
    ((seed, sentences),) = run_seeds([207], backend).items()
    assert len(set(sentences)) == 1 and len(sentences) == 3, sentences
    assert names_it(trial(seed), sentences[0].partition(": ")[2]), sentences
