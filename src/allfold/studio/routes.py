"""The studio's questions by their addresses, wherever they are asked: of the server, or inside a reader's browser."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from .answers import Answers
from .lessons import Lessons

POSTED = ("/api/edit", "/api/prove", "/api/measure", "/api/learn", "/api/msccl")
"""Addresses of questions that come with a document."""


@dataclass
class Api:
    """Answers as JSON; None where an address has none."""

    answers: Answers
    lessons: Lessons

    def get(self, path: str, query: dict[str, str]) -> bytes | None:
        if path == "/api/entry":
            root = query.get("root", "null")
            return self.answers.entry(
                query.get("collective", ""),
                query.get("algorithm", ""),
                _whole(query, "ranks"),
                None if root == "null" else _whole(query, "root"),
                query.get("topology", "none"),
                _whole(query, "size"),
            )
        if path == "/api/table":
            ranks = [_whole({"ranks": word}, "ranks") for word in query.get("ranks", "").split(",")]
            return self.answers.table(query.get("collective", ""), query.get("topology", "none"), ranks)
        if path == "/api/lessons":
            return _as_json(self.lessons.list())
        if path == "/api/lesson":
            return _as_json(self.lessons.lesson(query.get("name", "")))
        if path == "/api/work":
            return _as_json(self.lessons.work(query.get("name", ""), query.get("stamp", "")))
        return None

    def post(self, path: str, request: dict[str, Any]) -> bytes:
        """`path` is one of `POSTED`."""
        if path == "/api/learn":
            return _as_json(self.lessons.act(request))
        if path == "/api/measure":
            return self.answers.measure(request)
        if path == "/api/msccl":
            return self.answers.msccl(request)
        return self.answers.prove(request) if path == "/api/prove" else self.answers.edit(request)


def _whole(query: dict[str, str], name: str) -> int:
    word = query.get(name, "")
    if not word.isdecimal() or len(word) > 18:
        raise UsageError(f"{name} is {word[:40]!r}; expected a non-negative whole number")
    return int(word)


def _as_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
