"""The API reference: complete, up to date, and with examples that are true."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from docs_programs import docs_program

import allfold as af
from allfold import price
from allfold.registry import REGISTRY


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    pytest.importorskip("torch")
    return docs_program("reference")


@pytest.fixture(autouse=True)
def forget_what_examples_register() -> Iterator[None]:
    with REGISTRY.scope():
        yield


def entries(reference: ModuleType) -> Iterator[Any]:
    for listed in reference.names().values():
        yield from listed


def failures(title: str, text: str, **names: Any) -> str:
    """What the example in a docstring prints instead of what it says."""
    # As in a script: functions that are defined there travel to other processes by value.
    globs = {"__name__": "__main__", "af": af, "np": np, "price": price, **names}
    test = doctest.DocTestParser().get_doctest(text, globs, title, None, None)
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    return "".join(said)


def test_every_public_name_is_there(reference: ModuleType) -> None:
    listed = [name for names in reference.SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(af.__all__)
    assert len(listed) == len(set(listed))


def test_every_name_has_a_docstring_with_an_example(reference: ModuleType) -> None:
    bare = [one.title for one in entries(reference) if one.text.startswith(">>>") or "\n\n>>> " not in one.text]
    assert not bare


def test_the_page_is_up_to_date(reference: ModuleType) -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "run make reference"


def test_the_examples_are_true(reference: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for one in entries(reference):
        if one.ranks == 1:
            assert not (said := failures(one.title, one.text)), said


def on_two_ranks(comm: Any) -> list[str]:
    import torch
    import torch.distributed as dist

    import allfold.torch

    dist.init_process_group("allfold")
    found = []
    for one in entries(docs_program("reference")):
        if one.ranks == 2:
            said = failures(one.title, one.text, comm=comm, torch=torch, dist=dist, allfold=allfold)
            # On rank 1 other numbers are right, but nothing may be raised.
            if comm.rank == 0 or "Exception raised" in said:
                found.append(said)
    dist.destroy_process_group()
    return [said for said in found if said]


def test_the_examples_of_communicators_are_true(reference: ModuleType) -> None:
    assert [said for rank in af.spawn(on_two_ranks, ranks=2, timeout=120) for said in rank] == []


def test_an_example_that_is_not_true_is_found() -> None:
    assert "Expected:\n    3\nGot:\n    2\n" in failures("wrong", "Text.\n\n>>> 1 + 1\n3\n")
