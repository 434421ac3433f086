"""The secret of a run: what it lets in, and whom it keeps out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from warm_templates import launched

import allfold as af
from allfold.communicator.communicator import Communicator
from allfold.errors import AllfoldError, UsageError
from allfold.fabrics import tags
from allfold.fabrics.fabric import Fabric
from allfold.fabrics.secret import Secret, check_unsealed
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
        ({"ALLFOLD_SECRET_FILE": "/dev/null"}, "not a plain file"),
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
    with pytest.raises(AllfoldError, match="without a secret, or a stranger"):
        secret.open("place/0", b"here")
    with pytest.raises(AllfoldError, match="this rank has none"):
        check_unsealed("place/0", sealed)
    assert check_unsealed("place/0", b"here") == b"here"


def test_boards_in_one_store_read_and_decide_what_was_sealed() -> None:
    dist = pytest.importorskip("torch.distributed")
    from allfold.fabrics.gloo import board_in

    store, secret = dist.HashStore(), Secret(RIGHT.encode())
    first, second = (board_in(store, rank, 2, secret).some("left", [0, 1]) for rank in range(2))
    first.put("place", b"here")
    assert second.read("place", 0) == b"here" and store.get("left/place/0") != b"here"
    assert [first.decide("who", b"[0]"), second.decide("who", b"[1]")] == [b"[0]", b"[0]"]
    stranger = board_in(store, 1, 2, Secret(WRONG.encode())).some("left", [0, 1])
    with pytest.raises(AllfoldError, match=r"rank 0 is refused: .* not written with the secret"):
        stranger.read("place", 0)
    with pytest.raises(AllfoldError, match="not written with the secret"):
        stranger.decide("who", b"[1]")
    with pytest.raises(AllfoldError, match="this rank has none"):
        board_in(store, 1, 2, None).some("left", [0, 1]).decide("who", b"[1]")
    store.set("left/open", "[1]")
    with pytest.raises(AllfoldError, match="without a secret, or a stranger"):
        first.decide("open", b"[0]")


# The challenge --------------------------------------------------------------------------------------------------------


def together(*works: Callable[[Fabric], Any]) -> list[Any]:
    """Ranks as threads, connected by gloo: what each of them returned, or the error it raised."""
    dist = pytest.importorskip("torch.distributed")
    from allfold.fabrics.gloo import StoreBoard

    store, size = dist.HashStore(), len(works)

    def run(rank: int) -> Any:
        fabric = StoreBoard(store, rank, size).connect("", 30.0)
        try:
            return works[rank](fabric)
        except AllfoldError as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


def with_secret(secret: str) -> Callable[[Fabric], None]:
    return lambda fabric: Secret(secret.encode()).challenge(fabric, 10.0)


def test_ranks_with_the_same_secret_let_each_other_in() -> None:
    assert together(*[with_secret(RIGHT)] * 4) == [None] * 4


def test_a_stranger_is_refused_and_named() -> None:
    first, stranger, third = together(with_secret(RIGHT), with_secret(WRONG), with_secret(RIGHT))
    assert "rank 0 refuses rank 1" in str(first) and "rank 2 refuses rank 1" in str(third)
    assert "rank 1 refuses rank 0" in str(stranger)


def test_nobody_gets_in_by_repeating_what_he_was_told() -> None:
    def parrot(fabric: Fabric) -> None:
        heard = np.zeros(32, np.uint8)
        for _ in range(2):
            fabric.receive(0, heard, tags.SECRET).wait(10.0)
            fabric.send(0, heard, tags.SECRET).wait(10.0)

    first, _ = together(with_secret(RIGHT), parrot)
    assert "rank 0 refuses rank 1" in str(first)


def test_nobody_gets_in_between_by_repeating_what_an_earlier_run_has_put_up() -> None:
    """Rank 0 finds what rank 1 has put up in an earlier run, connects to where that was, and whoever listens there now
    passes on its challenge to rank 1, and the answer back."""
    dist = pytest.importorskip("torch.distributed")
    from allfold.fabrics.gloo import StoreBoard, board_in

    def of_this_run(store: Any, rank: int) -> StoreBoard:
        board = board_in(store, rank, 2, Secret(RIGHT.encode())).of_this_run(20.0)
        assert isinstance(board, StoreBoard)
        return board

    earlier, shown, kept = (dist.HashStore() for _ in range(3))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(of_this_run, [earlier] * 2, range(2)))[1].put("place", b"there")
        for name in ("nonce/1", "place/1"):
            shown.set(name, earlier.get(name))
        first = of_this_run(shown, 0)
        with pytest.raises(AllfoldError, match="rank 1 is refused"):
            first.read("place", 1)
        kept.set("nonce/0", shown.get("nonce/0"))
        second = of_this_run(kept, 1)
        stores = dist.HashStore(), dist.HashStore()
        connect = [(stores[pair], rank) for pair in range(2) for rank in range(2)]
        ends = list(threads.map(lambda one: StoreBoard(*one, 2).connect("", 30.0), connect))

        def pass_on() -> None:
            heard = [np.zeros(32, np.uint8) for _ in range(2)]
            for _ in range(2):
                for end, peer, room in zip(ends[1:3], (0, 1), heard, strict=True):
                    end.receive(peer, room, tags.SECRET).wait(10.0)
                for end, peer, room in zip(ends[1:3], (0, 1), reversed(heard), strict=True):
                    end.send(peer, room, tags.SECRET).wait(10.0)

        def challenge(board: StoreBoard, fabric: Fabric) -> str:
            assert board.secret is not None
            with pytest.raises(AllfoldError) as refused:
                board.secret.challenge(fabric, 10.0)
            return str(refused.value)

        passing = threads.submit(pass_on)
        said = list(threads.map(challenge, (first, second), (ends[0], ends[3])))
        passing.result(20)
    assert "rank 0 refuses rank 1" in said[0] and "rank 1 refuses rank 0" in said[1]


# Whole runs -----------------------------------------------------------------------------------------------------------


def sums(comm: Communicator) -> float:
    array = np.full(3, comm.rank + 1.0)
    comm.all_reduce(array)
    group = comm.group([0, comm.size - 1])  # has connections of its own
    if group is not None:
        group.all_reduce(array)
    return float(array[0])


def test_a_run_with_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
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
    pytest.importorskip("torch")
    first, second, third = launched(with_a_secret, 3, RIGHT, RIGHT, WRONG, hosts=(2, 1))
    for said in (first, second):
        assert said.startswith("rank 2 is refused") and "not written with the secret" in said, said
    assert third.startswith("rank 0 is refused"), third
