"""Hints: chosen by the kind of mistake, from a nudge to nearly the answer; the code comes last.

A lesson says what fits its exercise. Where it says nothing about a kind of mistake, what is said here fits any exercise.
"""

from __future__ import annotations

import ast
import re

from .lesson import Exercise, Lesson

NUDGES = {
    "self_send": "What a rank adds to itself, it has twice. Which value of your loop makes source and destination "
    "equal? Leave that move out, or change the formula.",
    "no_such_rank": "Work out the highest rank that this line can name. Leave the move out where there is no such rank, "
    "or take the remainder, `% ranks`, if the ranks form a circle.",
    "no_such_chunk": "Take the remainder: in Python `-1 % ranks` is `ranks - 1`.",
    "twice_same": "The same part goes to the same rank twice. One of these two moves is too many.",
    "twice_sum": "What travels there is not one rank's part but a sum, and some of it has already arrived. Write down "
    "for three ranks what each of them holds before that step.",
    "twice_result": "That sum is finished. It must replace what the others have, not be added to it: use `copy`.",
    "lost": "A `copy` replaces what is there. If both must count, use `reduce`.",
    "incomplete": "The sum is handed out before it is complete. Where is it complete, and after which step? Begin there.",
    "too_early": "All moves of a step read what was there before the step. What arrives in one step can be sent on in "
    "the next step, not in the same one.",
    "missing": "Start from the rank that misses something: who should send it, and in which step?",
    "too_much": "A part that reaches a rank which must not have it cannot be taken out again. Which of your moves brings it?",
    "nothing_moved": "Nothing is sent yet. Begin with a single move and look at what the check says.",
    "chunk_unmoved": "Your moves leave this chunk out. Which values does the expression after `chunk=` take?",
    "two_writes": "Two moves of one step write to the same place. Use `reduce` if both count; otherwise one is too many.",
    "sends_nothing": "Only a rank that has something can send it. Who has it at the start?",
    "adds_to_nothing": "There is nothing to add to. The first that arrives is put there with `copy`.",
    "mixed": "The destination expects another chunk. Source and destination must mean the same chunk: what do your "
    "formulas give for step 0?",
    "only_copies": "Nothing is added up in this collective: use `copy`.",
    "root": "It works when the root is rank 0. Count from the root: let i be a distance, and the rank `(root + i) % ranks`.",
    "split_steps": "Every `yield` is a step. Moves that do not wait for each other belong in one list, with one `yield`.",
    "extra_step": "Leave that step out: how often does your loop have to run?",
    "steps": "Who is idle in a step, and could already send something?",
    "messages": "Some message can be saved: each rank's part has to be sent once, and the result has to reach each once.",
    "port": "One rank does too much of the work. Give the others a share.",
    "whole_buffer": "Whole buffers travel. Name more chunks: `chunk=…` must depend on the rank or on the step.",
    "raised": "Python stopped at this line. Print what you use there: whatever your file prints is shown by the check.",
}


def ladder(lesson: Lesson, exercise: Exercise, kind: str, wrong: str) -> list[str]:
    """The hints for this mistake: those that fit it, those that always help, the code."""
    fits = [one.say for one in exercise.hints if kind in one.kinds or (one.when and re.search(one.when, wrong))]
    if not fits and kind in NUDGES:
        fits = [NUDGES[kind]]
    always = [one.say for one in exercise.hints if one.when is None and not one.kinds]
    return [*fits, *always, f"One way to write it:\n\n{code_of(lesson, exercise.function)}"]


def code_of(lesson: Lesson, function: str) -> str:
    """A function of the solution, as it is written there."""
    text = lesson.read("solution.py")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return ast.get_source_segment(text, node) or ""
    return ""
