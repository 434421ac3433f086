"""Stacks on request: a process reports where it is in its program to waiting peers and to `allfold doctor`.

A thread of the process sleeps in the engine until there is a question, and answers with the stacks of all threads of
the process. Until then it costs nothing. No answer is informative too: the process is stopped, or its interpreter
is held by code that never releases it.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
import weakref
from os.path import basename
from typing import Any

from ... import _native

_FRAMES_IN_A_SENTENCE = 3
_MOST_FRAMES = 40
_OWN = "allfold: where do you stand"


def answer_questions(arena: Any, owner: object) -> None:
    """Answer questions in the arena's directory, as long as the owner lives."""
    threading.Thread(target=_answer, args=(arena,), name=_OWN, daemon=True).start()
    # Not at the end of the interpreter: the thread would wake up only to be ended.
    weakref.finalize(owner, _native.end_questions, arena).atexit = False


def _answer(arena: Any) -> None:
    question = 0
    while question := _native.next_question(arena, question):
        _native.give_answer(arena, question, describe_stacks().encode())


def describe_stacks() -> str:
    """The first line says in a few words where the main thread is; then the stacks of all threads, as JSON."""
    threads, main = [], "?"
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for identity, frame in sys._current_frames().items():
        name = names.get(identity, str(identity))
        if name == _OWN:
            continue
        stack = [
            f"{basename(entry.filename)}:{entry.lineno} in {entry.name}"
            for entry in traceback.StackSummary.extract(
                traceback.walk_stack(frame), limit=_MOST_FRAMES, lookup_lines=False
            )
        ]
        threads.append({"thread": name, "stack": stack})
        if identity == threading.main_thread().ident:
            own = [entry for entry in stack if not entry.startswith("worker.py:")]  # how a spawned rank began
            main = ", called from ".join((own or stack)[:_FRAMES_IN_A_SENTENCE])
    return main + "\n" + json.dumps(threads)
