"""The secret of a run: what it lets in, and whom it keeps out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from launched import launched

import allfold as af
from allfold.communicator.communicator import Communicator
from allfold.errors import AllfoldError, UsageError
from allfold.fabrics.board import Board
from allfold.fabrics.secret import Secret, check_unsealed
from allfold.fabrics.stores import MemoryStore, Store
from allfold.launch.environment import Place

RIGHT, WRONG = "the right secret of this run", "the secret of another run"


def test_it_is_read_from_the_environment_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(RIGHT + "\n")
    path.chmod(0o600)
    told, kept = (
        Secret.from_environment(environ) for environ in ({"ALLFOLD_SECRET": RIGHT}, {"ALLFOLD_SECRET_FILE": str(path)})
    )
    assert told is not None and kept is not None
    assert kept.open("name", told.seal("name", b"value")) == b"value"
    assert Secret.from_environment({}) is None


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"ALLFOLD_SECRET": "short"}, "16 to 4096 bytes, and this one has 5"),
        ({"ALLFOLD_SECRET": "x" * 5000}, "16 to 4096 bytes"),
        ({"ALLFOLD_SECRET": RIGHT, "ALLFOLD_SECRET_FILE": "f"}, "both set"),
        ({"ALLFOLD_SECRET_FILE": "/nowhere/at/all"}, "No such file"),
        ({"ALLFOLD_SECRET_FILE": "/dev/null"}, "not a regular file"),
    ],
)
def test_a_secret_that_cannot_be_used_is_refused(environ: Mapping[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Secret.from_environment(environ)


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o602])
def test_a_file_that_others_could_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    path.write_text(RIGHT)
    path.chmod(mode)
    with pytest.raises(UsageError, match="chmod 600"):
        Secret.from_environment({"ALLFOLD_SECRET_FILE": str(path)})


def test_a_seal_holds_for_one_name_one_value_and_one_secret() -> None:
    secret, other = Secret(RIGHT.encode()), Secret(WRONG.encode())
    sealed = secret.seal("place/0", b"here")
    assert secret.open("place/0", sealed) == b"here"
    with pytest.raises(AllfoldError, match="not written with the secret"):
        secret.open("place/1", sealed)
    with pytest.raises(AllfoldError, match="not written with the secret"):
        other.open("place/0", sealed)
    for at in range(15, len(sealed)):
        with pytest.raises(AllfoldError, match="not written with the secret"):
            secret.open("place/0", sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :])
    with pytest.raises(AllfoldError, match="not written with the secret"):
        secret.open("place/0", sealed[:20])
    with pytest.raises(AllfoldError, match="without a secret, or by a stranger"):
        secret.open("place/0", b"here")
    with pytest.raises(AllfoldError, match="this rank has none"):
        check_unsealed("place/0", sealed)
    assert check_unsealed("place/0", b"here") == b"here"


def torch_store() -> Store:
    dist = pytest.importorskip("torch.distributed")
    from allfold.fabrics.torch_store import TorchStore

    return TorchStore(dist.HashStore())


@pytest.mark.parametrize("stores", [MemoryStore, torch_store])
def test_boards_in_one_store_read_and_decide_what_was_sealed(stores: Callable[[], Store]) -> None:
    store, secret = stores(), Secret(RIGHT.encode())
    first, second = (Board(store, rank, 2, secret).some("left", [0, 1]) for rank in range(2))
    first.put("place", b"here")
    assert second.find("place", 0, 10.0) == b"here" and store.find(["left/place/0"], 0.0) != [b"here"]
    assert second.find("place", 1, 0.0) is None and second.present("place") == [0]
    assert [first.decide("who", b"[0]"), second.decide("who", b"[1]")] == [b"[0]", b"[0]"]
    stranger = Board(store, 1, 2, Secret(WRONG.encode())).some("left", [0, 1])
    with pytest.raises(AllfoldError, match=r"rank 0 is refused: .* not written with the secret"):
        stranger.find("place", 0, 10.0)
    with pytest.raises(AllfoldError, match="not written with the secret"):
        stranger.decide("who", b"[1]")
    with pytest.raises(AllfoldError, match="this rank has none"):
        Board(store, 1, 2, None).some("left", [0, 1]).decide("who", b"[1]")
    store.put("left/open", b"[1]")
    with pytest.raises(AllfoldError, match="without a secret, or by a stranger"):
        first.decide("open", b"[0]")


def test_entries_of_an_earlier_run_with_the_same_secret_are_refused() -> None:
    def of_this_run(store: Store, rank: int) -> Board:
        return Board(store, rank, 2, Secret(RIGHT.encode())).of_this_run(20.0)

    earlier, shown = MemoryStore(), MemoryStore()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(of_this_run, [earlier] * 2, range(2)))[1].put("place", b"there")
    for name in ("nonce/1", "run/place/1"):
        (put_up,) = earlier.find([name], 0.0)
        assert put_up is not None
        shown.put(name, put_up)
    first = of_this_run(shown, 0)
    with pytest.raises(AllfoldError, match="rank 1 is refused"):
        first.find("place", 1, 0.0)


# Whole runs -----------------------------------------------------------------------------------------------------------


def sums(comm: Communicator) -> float:
    array = np.full(3, comm.rank + 1.0)
    comm.all_reduce(array)
    group = comm.group([0, comm.size - 1])  # has connections of its own
    if group is not None:
        group.all_reduce(array)
    return float(array[0])


def test_a_run_with_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLFOLD_SECRET", RIGHT)
    assert af.spawn(sums, 3, hosts=(2, 1), timeout=60) == [12.0, 6.0, 12.0]


def with_a_secret(place: Place, *secrets: str) -> str:
    os.environ["ALLFOLD_SECRET"] = secrets[place.rank]
    try:
        af.init(timeout=20)
    except af.AllfoldError as error:
        return str(error)
    return ""


def test_a_rank_with_another_secret_is_named() -> None:
    first, second, third = launched(with_a_secret, 3, RIGHT, RIGHT, WRONG, hosts=(2, 1))
    for said in (first, second):
        assert said.startswith("rank 2 is refused") and "not written with the secret" in said, said
    assert third.startswith("rank 0 is refused"), third
