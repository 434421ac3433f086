"""Messages between islands: how one rank takes them in, and the tags of those of collectives."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from allfold.dtypes import DTYPES
from allfold.engines.islands.frames import Frame, News
from allfold.engines.islands.messages import GroupMessages
from allfold.engines.islands.roster import Roster
from allfold.errors import AllfoldError, RankLost
from allfold.fabrics import tags

UINT8, LONG = list(DTYPES).index("uint8"), 128


class Queue(deque[Any]):
    """A queue whose user is preempted right after it took out its last entry."""

    def __init__(self) -> None:
        super().__init__()
        self.popped, self.go_on = threading.Event(), threading.Event()

    def popleft(self) -> Any:
        one = super().popleft()
        if not self:
            self.popped.set()
            self.go_on.wait(0.3)  # with a lock around it nobody can say so: then it ends by itself
        return one


class Data:
    """Long messages. The wait for the second one ends when somebody else asks for it too, or after a moment."""

    def __init__(self) -> None:
        self.asked_for: list[int] = []
        self.twice = threading.Event()

    def wait(self, within: float = 0.0) -> int:
        if 1 in self.asked_for:
            self.twice.wait(0.3)
        return 1

    def data_of(self, source: int, number: int, bytes: int) -> tuple[Any, Any]:
        if number in self.asked_for:
            self.twice.set()
        self.asked_for.append(number)
        return self, np.zeros(bytes, np.uint8)


def messages(ended: Callable[[int | None], AllfoldError | None]) -> GroupMessages:
    """The end of rank 0; rank 1 is on another island. `ended`: the error of a receive, if nothing more can come."""
    roster = Roster.of(0, [[0], [1]], [0, 1], "the world", 1.0, 0)
    frames: Any = Data()
    membership: Any = SimpleNamespace(ended=ended)
    channel: Any = None
    return GroupMessages(roster, frames, channel, membership, lambda name, needed: None)


def test_a_message_that_comes_when_the_queue_has_just_run_empty_is_taken_in_once() -> None:
    box, queue = messages(lambda source: None), Queue()
    box._long[1] = queue
    box.arrived(1, Frame(News.MESSAGE, 0, UINT8 | LONG, (100, 2000, 0)))
    assert queue.popped.wait(10)
    box.arrived(1, Frame(News.MESSAGE, 0, UINT8 | LONG, (101, 2000, 1)))
    queue.go_on.set()
    for thread in threading.enumerate():
        if thread.name == "allfold message":
            thread.join(10)
    assert [message.tag for message in box._unclaimed] == [100, 101] and not queue


def waiting(box: GroupMessages) -> Any:
    return box.start(False, np.zeros(4, np.uint8), 1, 7, None)


def with_end() -> tuple[GroupMessages, list[AllfoldError]]:
    """The end of one rank, and what has happened to the other: an error says that it has left."""
    gone: list[AllfoldError] = []
    return messages(lambda source: gone[0] if gone else None), gone


def test_a_receive_that_begins_while_its_source_leaves_ends() -> None:
    box, gone = with_end()

    def leaves(name: str, needed: Any) -> None:
        gone.append(RankLost("rank 1 has left"))
        box.fail_what_cannot_come()

    box._check_open = leaves
    with pytest.raises(RankLost, match="rank 1 has left"):
        box.wait(waiting(box), 0.0)


def test_a_receive_ends_when_the_last_message_of_a_rank_that_has_left_is_another() -> None:
    box, gone = with_end()
    box._long[1] = deque([Frame(News.MESSAGE, 0, UINT8, (6, 4, 0), b"data")])  # is being taken in
    wanted = waiting(box)
    gone.append(RankLost("rank 1 has left"))
    box.fail_what_cannot_come()
    assert not wanted.done()
    box._take_in(1)
    with pytest.raises(RankLost, match="rank 1 has left"):
        box.wait(wanted, 0.0)
    assert [message.tag for message in box._unclaimed] == [6]


# Tags of collectives --------------------------------------------------------------------------------------------------


def tags_of(kind: int, number: int, many: int = 1) -> list[int]:
    hash = int.from_bytes(blake2b(kind.to_bytes(8, "little"), digest_size=8).digest(), "little")
    return [tags.of_call(hash, number, index) for index in range(many)]


def test_tags_tell_calls_apart() -> None:
    every = [tags_of(kind, 1)[0] for kind in range(5000)]
    assert len(set(every)) > 4950 and all(0 <= tag < tags.FIRST_FREE for tag in every)
    # Calls of the same kind always differ, for as many calls as can be under way, and far beyond.
    for kind in range(20):
        assert len({tags_of(kind, number)[0] for number in range(5000)}) == 5000
    assert len(set(tags_of(3, 7, 2048))) == 2048
    assert not {tag >> 11 for tag in tags_of(3, 7, 2048)} & {tag >> 11 for tag in tags_of(3, 8, 2048)}


def test_no_tag_has_two_uses() -> None:
    fixed = [
        tag for name, tag in vars(tags).items() if name.isupper() and name not in ("MOST_TAG", "FIRST_FREE", "FRAME")
    ]
    beside = [tag for tag in fixed if tag >= tags.FIRST_FREE]
    assert len(set(beside)) == len(beside) == 6 and max(beside) <= tags.MOST_TAG
    assert tags.of_message(0) != tags.FRAME and tags.of_message(2**30 - 1) <= tags.MOST_TAG
