"""Messages between islands: how one rank's end takes them in."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np

from allfold.dtypes import DTYPES
from allfold.engines.islands.letters import Letters
from allfold.engines.islands.post import Frame, News

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


def test_a_message_that_comes_when_the_queue_has_just_run_empty_is_taken_in_once() -> None:
    engine: Any = SimpleNamespace(world=SimpleNamespace(post=Data()), ranks=[0, 1], size=2, local={0: 0})
    box, queue = Letters(engine, None), Queue()  # type: ignore[arg-type]
    box._long[1] = queue
    box.arrived(1, Frame(News.LETTER, 0, UINT8 | LONG, (100, 2000, 0)))
    assert queue.popped.wait(10)
    box.arrived(1, Frame(News.LETTER, 0, UINT8 | LONG, (101, 2000, 1)))
    queue.go_on.set()
    for thread in threading.enumerate():
        if thread.name == "allfold letter":
            thread.join(10)
    assert [message.tag for message in box._come] == [100, 101] and not queue
