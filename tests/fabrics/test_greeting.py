"""The greeting of tcp's connections: who is let in, and that nobody else disturbs a run."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import numpy as np
import pytest

from allfold.errors import AllfoldError, UsageError
from allfold.fabrics.addresses import listen
from allfold.fabrics.board import Board
from allfold.fabrics.greeting import Listener, Refused, accept, dial, dial_all
from allfold.fabrics.secret import Secret
from allfold.fabrics.stores import MemoryStore, dial_first, store_at
from allfold.fabrics.tcp import Tcp

KEY, OTHER = Secret(b"the key of this run"), Secret(b"the key of another run")
FABRIC = b"f" * 16


def hello(key: Secret, question: bytes, own: int = 1, peer: int = 0) -> bytes:
    """The answer of a rank that connects to a question."""
    talk = dial(key, FABRIC, own, peer)
    next(talk)
    said = talk.send(question)
    assert isinstance(said, bytes)
    return said


def is_let_in(answer: bytes, talk: object = None) -> bool:
    try:
        talk.send(answer)  # type: ignore[attr-defined]
    except Refused:
        return False
    return True


def test_only_the_right_answer_to_this_question_lets_in() -> None:
    def asked() -> tuple[object, bytes]:
        talk = accept(KEY, 0, 2)
        question = next(talk)
        assert isinstance(question, bytes) and isinstance(next(talk), int)
        return talk, question

    talk, question = asked()
    right = hello(KEY, question)
    assert is_let_in(right, talk)
    for at in range(len(right)):
        talk, question = asked()
        right = hello(KEY, question)
        assert not is_let_in(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :], talk), at
    for wrong in (hello(OTHER, question), hello(KEY, question, own=2), hello(KEY, question, own=0), right):
        talk, question = asked()
        assert not is_let_in(wrong, talk), "another key, a rank that is not there, this rank, an earlier answer"
    talk, question = asked()
    assert not is_let_in(hello(KEY, question, peer=1), talk), "for somebody else"


def test_who_cannot_prove_that_he_is_a_rank_is_refused_by_the_one_that_connects() -> None:
    listening = listen("127.0.0.1")
    stranger = Listener(listening, 0, 2)
    stranger.start(OTHER)
    try:
        # The stranger hears a wrong answer and hangs up; so it is tried again until the time is up.
        with pytest.raises(AllfoldError, match="rank 1 could not connect to rank 0 in time"):
            dial_all(KEY, FABRIC, 1, {0: ("127.0.0.1", stranger.port)}, time_in(0.3))
    finally:
        stranger.close()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"allfold\1" + bytes(32))
                connection.recv(4096)
                connection.sendall(bytes(32))

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(AllfoldError, match=r"rank 1 refuses rank 0.*does not know the secret"):
            dial_all(KEY, FABRIC, 1, {0: server.getsockname()}, time_in(20))
        answering.join(20)


def time_in(seconds: float) -> float:
    return time.monotonic() + seconds


def disturb(
    port: int, key: Secret, kind: str, dice: random.Random, held: list[socket.socket], heard: list[bytes]
) -> None:
    """Connect as a stranger of some kind. `heard`: what was asked before."""
    with contextlib.suppress(OSError):
        stranger = socket.create_connection(("127.0.0.1", port), 5)
        question = stranger.recv(40)
        said = hello(OTHER if kind == "another key" else key, question if kind != "replay" else heard[0])
        heard.append(question)
        if kind == "garbage":
            said = dice.randbytes(dice.randrange(1, 4096))
        elif kind == "half":
            said = said[: dice.randrange(len(said))]
        elif kind == "silence":
            said = b""
        stranger.sendall(said)
        if kind in ("half", "silence"):
            held.append(stranger)  # and stays
        else:
            with stranger:
                assert stranger.recv(1) == b"", f"{kind} was let in"


@pytest.mark.parametrize("secret", [None, KEY], ids=["without a secret", "with a secret"])
def test_strangers_disturb_nobody(secret: Secret | None) -> None:
    """Three ranks make fabric after fabric, while strangers of all kinds come to all their ports."""
    store, dice, held, heard, over = MemoryStore(), random.Random(3), [], [b"allfold\1" + bytes(32)], threading.Event()

    def connect(rank: int) -> Tcp:
        return Board(store, rank, 3, secret).connect("here", 30.0)

    def disturb_all(ports: list[int], key: Secret) -> int:
        count = 0
        kinds = cycle(["garbage", "half", "silence", "replay", "another key"])
        while not over.is_set() or count < 300:  # more than may greet at a time
            disturb(ports[count % 3], key, next(kinds), dice, held, heard)
            count += 1
        return count

    def work(fabric: Tcp) -> bool:
        good = True
        for turn in range(5):
            other = fabric.another(f"turn {turn}", range(3))
            moving, rooms = [], {}
            for peer in range(3):
                if peer != other.rank:
                    rooms[peer] = np.zeros(5000, np.uint8)
                    moving += [other.receive(peer, rooms[peer], 1)]
                    moving += [other.send(peer, np.full(5000, 1 + other.rank, np.uint8), 1)]
            for one in moving:
                one.wait(30.0)
            good &= all((room == 1 + peer).all() for peer, room in rooms.items())
        return good

    with ThreadPoolExecutor(4) as threads:
        fabrics = list(threads.map(connect, range(3)))
        disturbing = threads.submit(disturb_all, [fabric._hub.listener.port for fabric in fabrics], fabrics[0]._hub.key)
        assert list(threads.map(work, fabrics)) == [True] * 3
        over.set()
        assert disturbing.result(60) >= 300
    for one in held:
        one.close()


def test_a_store_at_a_port_survives_strangers_and_frees_the_port() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dice = random.Random(5)
    kept = store_at("127.0.0.1", port, 0, 2, 20.0)
    for said in (b"", b"GET / HTTP/1.0\r\n\r\n", dice.randbytes(5000), b"allfold store 1\n"):
        stranger = socket.create_connection(("127.0.0.1", port), 5)
        stranger.sendall(said)
    second = dial_first(["127.0.0.1"], port, 1, 20.0)
    for word in (b"\xff\xff\xff\xff", b"\0\0\0\5\0\0\0\1", b"\0\0\0\10\0\0\0\1x\0\0\0", dice.randbytes(64)):
        with contextlib.suppress(OSError):  # the port may be closed by now: all ranks have come
            stranger = socket.create_connection(("127.0.0.1", port), 5)
            stranger.sendall(b"allfold store 1\n\0\0\0\1" + word)
    kept.put("a", b"1" * 100_000)
    assert second.find(["a", "b"], 0.2) == [b"1" * 100_000, None]
    assert [second.decide("c", b"x"), kept.decide("c", b"y")] == [b"x", b"x"]
    with pytest.raises(AllfoldError, match="cannot be reached"):
        second.put("long", bytes(20 << 20))
    with socket.create_server(("127.0.0.1", port)):
        pass  # torch's own store could have it now


@pytest.mark.parametrize("text", ["5000", "5100-5000", "0-10", "1-65536", "a-b", "-"])
def test_ports_that_are_no_range_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a range of ports like 5000-5100"):
        listen("127.0.0.1", environ={"ALLFOLD_PORTS": text})


def test_ports_are_those_of_the_range() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        first = min(free.getsockname()[1], 65535 - 3)
    open_ports = []
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):  # the system may have given one to somebody
        for _ in range(4):
            listening = stack.enter_context(listen("127.0.0.1", environ={"ALLFOLD_PORTS": f"{first}-{first + 3}"}))
            open_ports.append(listening.getsockname()[1])
        with pytest.raises(OSError):
            listen("127.0.0.1", environ={"ALLFOLD_PORTS": f"{first}-{first + 3}"})
    assert open_ports and set(open_ports) <= set(range(first, first + 4)) and len(set(open_ports)) == len(open_ports)
