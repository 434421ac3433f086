"""The rendezvous between real processes: everyone gets everything, or everyone gets the same error."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from live_ranks import knock

import allfold
from allfold import _native
from allfold.engines.shared_memory import rendezvous
from allfold.engines.shared_memory.rendezvous import Peer, exchange, is_trusted, peer_of, socket_name
from allfold.errors import AllfoldError

# Fork and not spawn: the children need this module's functions at once, and the test process has no other threads.
processes = multiprocessing.get_context("fork")

LONG = 60.0  # longer than any test may take: a test that needs the timeout fails


@dataclass(frozen=True)
class Outcome:
    value: object = None
    error: str = ""
    message: str = ""
    seconds: float = 0.0
    leaked: int = 0


class Child:
    """A function in its own process, and its outcome."""

    def __init__(self, work: Callable[..., object], *arguments: object) -> None:
        self.results, sender = processes.Pipe(duplex=False)
        self.process = processes.Process(target=_report, args=(sender, work, arguments), daemon=True)
        self.process.start()
        sender.close()

    def outcome(self) -> Outcome:
        assert self.results.poll(LONG / 2), "a child process did not come to an end"
        outcome = self.results.recv()
        self.process.join(LONG / 2)
        assert isinstance(outcome, Outcome)
        return outcome


def _report(sender: Connection, work: Callable[..., object], arguments: Sequence[object]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    start = time.monotonic()
    try:
        outcome = Outcome(work(*arguments))
    except AllfoldError as error:
        leaked = len(os.listdir("/proc/self/fd")) - before
        outcome = Outcome(None, type(error).__name__, str(error), time.monotonic() - start, leaked)
    sender.send(outcome)


@pytest.fixture
def key() -> Iterator[str]:
    name = f"test {os.urandom(16).hex()}"
    yield name
    deadline = time.monotonic() + LONG / 2  # a child that was ended may take a moment to be gone
    while socket_name(name, os.geteuid())[1:] in Path("/proc/net/unix").read_bytes():
        assert time.monotonic() < deadline, "the socket was left behind"
        time.sleep(0.01)


def plain(rank: int, size: int, key: str, timeout: float = LONG) -> list[bytes]:
    return [payload for payload, _ in exchange(rank, size, key, f"rank {rank}".encode(), [], timeout)]


def share_memory(rank: int, size: int, key: str, payload_bytes: int, count: int) -> bool:
    """Every rank contributes memory, writes into everyone's, and reads what was written into its own."""
    own = [os.memfd_create("part", os.MFD_CLOEXEC) for _ in range(count)]
    for descriptor in own:
        os.ftruncate(descriptor, 8 * size)
    before = len(os.listdir("/proc/self/fd"))
    entries = exchange(rank, size, key, bytes([rank]) * payload_bytes, own, LONG)
    assert len(os.listdir("/proc/self/fd")) - before == size * count
    assert [payload for payload, _ in entries] == [bytes([other]) * payload_bytes for other in range(size)]
    assert [len(descriptors) for _, descriptors in entries] == [count] * size
    for other, (_, descriptors) in enumerate(entries):
        for index, descriptor in enumerate(descriptors):
            assert not os.get_inheritable(descriptor)
            with mmap.mmap(descriptor, 8 * size) as memory:
                memory[8 * rank : 8 * rank + 8] = struct.pack("=HHI", rank, other, index)
    # A second rendezvous under the same key: the barrier after the writes, and a proof that a key can be used again.
    exchange(rank, size, key, b"", [], LONG)
    for index, descriptor in enumerate(own):
        with mmap.mmap(descriptor, 8 * size) as memory:
            for other in range(size):
                assert struct.unpack_from("=HHI", memory, 8 * other) == (other, rank, index)
    return True


@pytest.mark.parametrize(
    ("size", "payload_bytes", "count"), [(1, 100, 2), (2, 0, 0), (2, 1, 600), (5, 300_000, 3), (16, 1000, 1)]
)
def test_everyone_gets_the_bytes_and_the_memory_of_everyone(
    key: str, size: int, payload_bytes: int, count: int
) -> None:
    children = [Child(share_memory, rank, size, key, payload_bytes, count) for rank in reversed(range(size))]
    assert [child.outcome().value for child in children] == [True] * size


def test_a_missing_rank_is_named_on_every_rank(key: str) -> None:
    # Rank 1 times out long before the others, but after they have come: rank 0 knows who is missing, so rank 1 must ask it.
    timeouts = {0: LONG, 1: 3.0, 3: LONG}
    children = [Child(plain, rank, 5, key, timeout) for rank, timeout in timeouts.items()]
    for child in children:
        outcome = child.outcome()
        assert outcome.error == "CollectiveTimeout"
        assert outcome.message == f"rendezvous: ranks 2 and 4 of 5 did not arrive within 3 s (key {key})"
        assert outcome.leaked == 0


def test_a_missing_rank_zero_is_named(key: str) -> None:
    outcome = Child(plain, 2, 4, key, 0.1).outcome()
    assert outcome.error == "CollectiveTimeout"
    assert outcome.message == f"rendezvous: rank 0 of 4 did not arrive within 0.1 s (key {key})"


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([(0, 3), (1, 3), (1, 3)], "rank 1 came twice: rank 0 of 3 (process "),
        ([(0, 3), (0, 3), (1, 3)], "rank 0 came twice: rank 0 of 3 (process "),
        ([(0, 4), (1, 3), (2, 3)], "the ranks disagree about how many they are: rank 0 of 4 (process "),
        ([(0, 3), (1, 3), (7, 3)], "there is no rank 7 of 3: rank 0 of 3 (process "),
    ],
)
def test_ranks_that_disagree_are_named_on_every_rank(key: str, places: list[tuple[int, int]], expected: str) -> None:
    children = [Child(plain, rank, size, key) for rank, size in places]
    outcomes = [child.outcome() for child in children]
    assert {outcome.error for outcome in outcomes} == {"MismatchError"}
    assert len({outcome.message for outcome in outcomes}) == 1
    assert expected in outcomes[0].message
    assert max(outcome.seconds for outcome in outcomes) < LONG / 4
    assert {outcome.leaked for outcome in outcomes} == {0}


def test_a_rank_without_a_possible_place_is_refused_at_once(key: str) -> None:
    for rank, size in [(0, 0), (-1, 2), (1, 1), (0, -3), (2**40, 4)]:
        with pytest.raises(ValueError, match=f"{rank}|{size}"):
            exchange(rank, size, key, b"", [], LONG)


# What is not one of the ranks -----------------------------------------------------------------------------------------


def hello(
    rank: int,
    size: int,
    payload_bytes: int = 0,
    count: int = 0,
    version: int = 2,
    build: tuple[int, bytes] | None = None,
) -> bytes:
    build = build or (_native.LAYOUT, allfold.__version__.encode())
    return struct.pack("!B8sHIIQIQ32s", 0, b"allfold\0", version, rank, size, payload_bytes, count, *build)


def test_strangers_and_garbage_disturb_nobody(key: str) -> None:
    children = [Child(plain, 0, 3, key)]
    garbage = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0",
        b"x" * 100_000,
        hello(1, 3)[:-1],
        hello(1, 3) + b"x",
        b"\0notfold\0" * 3,
    ]
    strangers = [knock(key, LONG / 2) for _ in range(len(garbage) + 2)]
    for stranger, packet in zip(strangers, garbage, strict=False):
        stranger.send(packet)
    memory = os.memfd_create("unwanted")
    socket.send_fds(strangers[-1], [b"garbage with a descriptor"], [memory])
    os.close(memory)
    # The stranger in the middle stays silent, and stays connected. Those who spoke are rejected before the ranks even
    # come.
    for stranger in [*strangers[: len(garbage)], strangers[-1]]:
        stranger.settimeout(LONG / 2)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    children += [Child(plain, rank, 3, key) for rank in (1, 2)]
    assert [child.outcome().value for child in children] == [[b"rank 0", b"rank 1", b"rank 2"]] * 3
    for stranger in strangers:
        stranger.close()


def test_another_version_is_an_error_that_names_both(key: str) -> None:
    child = Child(plain, 0, 2, key)
    with knock(key, LONG / 2) as connection:
        connection.send(hello(1, 2, version=99) + b"whatever a later version says besides")
        answer = connection.recv(1000)
    outcome = child.outcome()
    assert outcome.error == "MismatchError"
    assert f"process {os.getpid()} speaks version 99" in outcome.message
    assert outcome.message.encode() in answer


@pytest.mark.parametrize("build", [(_native.LAYOUT ^ 1, allfold.__version__.encode()), (_native.LAYOUT, b"0.0.9")])
def test_another_build_is_an_error_that_names_both(key: str, build: tuple[int, bytes]) -> None:
    """Its memory layout may be different: nobody may map it."""
    child = Child(plain, 0, 2, key)
    with knock(key, LONG / 2) as connection:
        connection.send(hello(1, 2, build=build))
        answer = connection.recv(1000)
    outcome = child.outcome()
    assert outcome.error == "MismatchError"
    assert (
        f"rank 1 (process {os.getpid()}) allfold {build[1].decode()} with the layout {build[0]:016x}" in outcome.message
    )
    assert f"allfold {allfold.__version__} with the layout {_native.LAYOUT:016x}" in outcome.message
    assert outcome.message.encode() in answer


def test_only_the_same_user_is_trusted() -> None:
    assert is_trusted(Peer(process=10, user=1000), user=1000)
    assert not is_trusted(Peer(process=10, user=1001), user=1000)
    assert not is_trusted(Peer(process=10, user=0), user=1000)
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        assert peer_of(left) == Peer(os.getpid(), os.geteuid())


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
NOBODY = 65534


@as_root
def test_another_user_cannot_join(key: str) -> None:
    def intrude() -> bool:
        os.setuid(NOBODY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(socket_name(key, 0))
            try:
                connection.send(hello(1, 2))
                return connection.recv(1000) == b""
            except (BrokenPipeError, ConnectionResetError):
                return True

    host = Child(plain, 0, 2, key)
    knock(key, LONG / 2).close()
    assert Child(intrude).outcome().value is True
    other = Child(plain, 1, 2, key)
    assert host.outcome().value == other.outcome().value == [b"rank 0", b"rank 1"]


@contextlib.contextmanager
def held_by_another_user(key: str, names: Sequence[bytes], kind: int, listens: bool) -> Iterator[Child]:
    """Another user has guessed the key and holds these names: that of the run with each of the suffixes."""
    here, ready = processes.Pipe(duplex=False)

    def hold(enough: Connection) -> None:
        os.setuid(NOBODY)
        with contextlib.ExitStack() as stack:
            for ending in names:
                held = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
                held.bind(socket_name(key, 0) + ending)
                if listens:
                    held.listen()
            ready.send(True)
            enough.recv()

    enough, stop = processes.Pipe(duplex=False)
    impostor = Child(hold, enough)
    assert here.recv()
    yield impostor
    stop.send(True)
    impostor.outcome()


@as_root
@pytest.mark.parametrize(
    ("names", "kind", "listens"),
    [
        ([b""], socket.SOCK_SEQPACKET, True),
        ([b"", b"-0", b"-1"], socket.SOCK_SEQPACKET, True),
        ([b""], socket.SOCK_SEQPACKET, False),
        ([b""], socket.SOCK_STREAM, True),
    ],
    ids=["listens", "listens at several", "holds it", "another kind"],
)
def test_another_user_who_takes_the_name_cannot_block_a_start(
    key: str, names: Sequence[bytes], kind: int, listens: bool
) -> None:
    with held_by_another_user(key, names, kind, listens):
        children = [Child(plain, rank, 3, key) for rank in (1, 0, 2)]
        assert [child.outcome().value for child in children] == [[b"rank 0", b"rank 1", b"rank 2"]] * 3


@as_root
def test_another_user_cannot_pose_as_rank_zero(key: str) -> None:
    with held_by_another_user(key, [b""], socket.SOCK_SEQPACKET, True) as impostor:
        outcome = Child(plain, 1, 2, key, 0.3).outcome()
        assert outcome.error == "CollectiveTimeout"
        assert f"process {impostor.process.pid} of user {NOBODY} holds the name of this run" in outcome.message


@as_root
def test_a_second_rank_zero_is_noticed_where_the_name_was_taken(key: str) -> None:
    with held_by_another_user(key, [b""], socket.SOCK_SEQPACKET, True):
        first = Child(plain, 0, 2, key)
        deadline = time.monotonic() + LONG / 2
        while Path("/proc/net/unix").read_bytes().count(socket_name(key, 0)[1:] + b"-") < 1:
            assert time.monotonic() < deadline, "rank 0 never listened"
            time.sleep(0.001)
        for child in (first, Child(plain, 0, 2, key)):
            outcome = child.outcome()
            assert outcome.error == "MismatchError"
            assert "rank 0 came twice" in outcome.message


# A rank that dies in the middle ---------------------------------------------------------------------------------------


def die_after_hello(rank: int, size: int, key: str) -> None:
    connection = knock(key, LONG / 2)
    connection.send(hello(rank, size, payload_bytes=100))
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_receiving(rank: int, size: int, key: str) -> None:
    connection = knock(key, LONG / 2)
    connection.send(hello(rank, size))
    connection.recv(1000)  # the answer begins: by now every rank has come and delivered its part
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("dying", [die_after_hello, die_while_receiving])
def test_a_rank_that_dies_is_named_on_every_rank_at_once(key: str, dying: Callable[[int, int, str], None]) -> None:
    children = [Child(plain, rank, 4, key) for rank in (0, 1, 3)]
    victim = Child(dying, 2, 4, key)
    for child in children:
        outcome = child.outcome()
        assert outcome.error == "RankLost"
        assert outcome.message == (
            f"rendezvous: rank 2 (process {victim.process.pid}) was lost: its connection ended (key {key})"
        )
        assert outcome.seconds < LONG / 4
        assert outcome.leaked == 0


def test_rank_zero_that_dies_is_named(key: str) -> None:
    host, other = Child(plain, 0, 3, key), Child(plain, 1, 3, key)
    # The kernel's list shows when rank 1 is connected: rank 0's end of a connection has the name of the listener.
    name = socket_name(key, os.geteuid())[1:]
    deadline = time.monotonic() + LONG / 2
    while Path("/proc/net/unix").read_bytes().count(name) < 2:
        assert time.monotonic() < deadline, "rank 1 never connected"
        time.sleep(0.001)
    assert host.process.pid is not None
    os.kill(host.process.pid, signal.SIGKILL)
    outcome = other.outcome()
    assert outcome.error == "RankLost"
    assert f"rank 0 (process {host.process.pid}) was lost" in outcome.message


def test_a_rank_that_fails_tells_the_others_why(key: str) -> None:
    def with_few_descriptors() -> object:
        import resource

        # The limit is one on numbers: earlier tests may have left numbers free below the highest one in use.
        highest = max(map(int, os.listdir("/proc/self/fd")))
        fillers = []
        while not fillers or fillers[-1] < highest:
            fillers.append(os.open(os.devnull, os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 9, fillers[-1] + 9))
        try:
            return plain(2, 3, key)
        finally:
            for filler in fillers:
                os.close(filler)

    def with_many_descriptors() -> object:
        return exchange(1, 3, key, b"", [0] * 20, LONG)

    children = [Child(plain, 0, 3, key), Child(with_many_descriptors), Child(with_few_descriptors)]
    outcomes = [child.outcome() for child in children]
    assert [outcome.error for outcome in outcomes] == ["RankLost", "RankLost", "AllfoldError"]
    for outcome in outcomes:
        assert f"rank 2 (process {children[2].process.pid}) failed: " in outcome.message
        assert "ulimit -n" in outcome.message
        assert outcome.leaked == 0


def test_a_rank_that_stops_in_the_middle_is_named(key: str) -> None:
    for limit in (0.5, 3, 20):  # on a busy machine rank 0 may give up before this process has come
        children = [Child(plain, 0, 3, key, limit), Child(plain, 1, 3, key, LONG)]
        with contextlib.ExitStack() as open_until_then:
            with contextlib.suppress(OSError):
                connection = open_until_then.enter_context(knock(key, limit))
                connection.send(hello(2, 3, payload_bytes=1))  # and never sends that byte
            outcomes = [child.outcome() for child in children]
        if "did not arrive" not in outcomes[0].message:
            break
    for outcome in outcomes:
        assert outcome.error == "CollectiveTimeout"
        assert outcome.message == f"rendezvous: rank 2 of 3 came but did not finish within {limit:g} s (key {key})"


def test_keys_need_not_be_text() -> None:
    odd = b"\xff\xfe key".decode(errors="surrogateescape")
    outcome = Child(plain, 1, 2, odd, 0.05).outcome()
    assert outcome.error == "CollectiveTimeout"
    assert outcome.message.encode()  # printable, whatever the key holds
    assert socket_name(odd, 1) != socket_name(odd, 2) != rendezvous.socket_name("", 2)
