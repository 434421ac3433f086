"""Pickled tensors have the same bytes wherever they lie in memory, as records of `all_gather_object` need."""

from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    from allfold.record.pickled import make_steady

    for kind in (torch.UntypedStorage, torch.TypedStorage):
        monkeypatch.setattr(kind, "__reduce__", kind.__reduce__)
    make_steady()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64", "int64"])
def test_bytes_do_not_depend_on_addresses(steady: None, dtype: str) -> None:
    made = [torch.arange(count).to(getattr(torch, dtype)) for count in (5, 5, 0)]
    first, second, _ = map(pickle.dumps, made)
    assert first == second and str(made[0].untyped_storage()._cdata).encode() not in first
    for tensor in made:
        assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)


def test_views_and_contents_that_look_like_an_address(steady: None) -> None:
    whole = torch.arange(6.0)
    one, other = pickle.loads(pickle.dumps((whole[2:], whole.view(2, 3).t())))
    assert torch.equal(one, whole[2:]) and torch.equal(other, whole.view(2, 3).t())
    storage = torch.zeros(64, dtype=torch.uint8)
    name = str(storage.untyped_storage()._cdata).encode()
    text = b"X" + bytes([len(name), 0, 0, 0]) + name
    storage[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    assert torch.equal(pickle.loads(pickle.dumps(storage)), storage)
    assert torch.equal(pickle.loads(pickle.dumps(torch.nn.Linear(2, 3))).weight, torch.nn.Linear(2, 3).weight) is False
