"""Predictions: how a committed number is judged, and where it stands in the learner's file."""

from __future__ import annotations

import ast
from math import isfinite
from numbers import Real
from typing import Any

from ..errors import UsageError
from .figures import compute, show
from .lesson import Prediction
from .text import filled

NAME = "PREDICTIONS"


def judge_prediction(one: Prediction, given: object) -> dict[str, Any]:
    """The fields of `judge.Predicted`. The answer is only computed when the learner has committed to one."""
    found: dict[str, Any] = {"name": one.name, "question": one.question, "given": None, "right": False}
    if given is None:
        return found
    number = _number(given)
    if number is None:
        because = "This is not a number."
        if isinstance(given, str) and _number(_read(given)) is not None:
            because = f"This is text. Write {given.strip()}, without the quotation marks."
        return {**found, "given": f"{given!r:.40}", "because": because}
    answer = compute(one.answer)
    return {
        **found,
        "given": show(number),
        "right": abs(number - float(answer)) <= max(one.within, 1e-9) * abs(float(answer)),
        "answer": show(answer),
        "because": filled(one.because),
    }


def _number(given: object) -> float | None:
    if isinstance(given, bool) or not isinstance(given, Real):
        return None
    try:
        return float(given) if isfinite(given) else None
    except OverflowError:
        return None


def _read(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def numbers_in(text: str) -> dict[str, Any]:
    """The predictions in a file, read without running it; None where no number is written."""
    found: dict[str, Any] = {}
    for name, node in _places(text).items():
        try:
            found[name] = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            found[name] = None
    return found


def with_number(text: str, name: str, number: float) -> str:
    """The file with this prediction in it; nothing else is changed."""
    node = _places(text).get(name)
    if node is None or node.end_lineno is None or node.end_col_offset is None:
        raise UsageError(f"the file no longer has {name!r} in {NAME}; a reset restores it")
    lines = text.encode().splitlines(keepends=True)  # positions are counted in bytes
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    written = str(int(number)) if number == int(number) else repr(number)
    return (before + written.encode() + after).decode()


def _places(text: str) -> dict[str, ast.expr]:
    """By prediction, the expression that stands in the dictionary. Empty if the file is not Python."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and ast.unparse(node.targets[0]) == NAME:
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
    return {}
