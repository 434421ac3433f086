"""Records that were damaged on purpose: each is read up to the damage, or refused with a sentence, and nothing hangs."""

from __future__ import annotations

import contextlib
import json
import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launched import command
from test_explained import Written

from allfold.errors import UsageError
from allfold.explain.findings import findings
from allfold.record.diverge import compare_ranks, compare_runs
from allfold.record.facts import facts_of_files
from allfold.record.format import BLOCK, FIRST_LINE, WORLD
from allfold.record.read import read_rank, why_no_replay

_VALUES = (None, True, -1, 0, 1, 2**70, 1e308, "", "0", [], [[]], {}, "\0", [None], {"": 1}, float("inf"))


def _blocks(content: bytes) -> Iterator[tuple[bytes, Any]]:
    at = len(FIRST_LINE)
    while at < len(content):
        kind, _, length = BLOCK.unpack(content[at : at + BLOCK.size])
        yield kind, json.loads(content[at + BLOCK.size : at + BLOCK.size + length])
        at += BLOCK.size + length


def _changed(value: Any, draw: random.Random) -> Any:
    """The same document with one value replaced, left out or doubled."""
    if not value or not isinstance(value, dict | list) or draw.random() < 0.2:
        return draw.choice(_VALUES)
    places = [*value] if isinstance(value, dict) else [*range(len(value))]
    place = draw.choice(places)
    changed: Any = value.copy()
    if draw.random() < 0.2:
        del changed[place]
    else:
        changed[place] = _changed(value[place], draw)
    return changed


def test_documents_with_one_wrong_value(tmp_path: Path) -> None:
    for rank in range(2):
        one = Written(tmp_path, rank, size=2)
        one.call("all_reduce", 8, reduction="sum")
        one.call("broadcast", 9, root=0)
        one.call("all_reduce", 10, done=False)
        one.fail("RuntimeError", "it failed")
    path = tmp_path / "rank-1.allfold"
    blocks = [*_blocks(path.read_bytes())]
    other = read_rank(tmp_path / "rank-0.allfold")
    draw = random.Random(1)
    read = 0
    for _ in range(600):
        place = draw.randrange(len(blocks))
        content = FIRST_LINE
        for number, (kind, document) in enumerate(blocks):
            text = json.dumps(_changed(document, draw) if number == place else document).encode()
            content += BLOCK.pack(kind, zlib.crc32(text), len(text)) + text
        path.write_bytes(content)
        with contextlib.suppress(UsageError):
            record = read_rank(path)
            read += 1
            why_no_replay(record)
            compare_runs({1: record}, {1: other})
            compare_ranks({0: other, 1: record})
            findings(facts_of_files([tmp_path / "rank-0.allfold", path]))
    assert read > 300


def test_bytes_that_were_changed_or_cut_off(tmp_path: Path) -> None:
    one = Written(tmp_path, 0, size=1)
    for line in range(20):
        one.call("all_reduce", line + 1)
    path = tmp_path / "rank-0.allfold"
    whole = path.read_bytes()
    draw = random.Random(2)
    for _ in range(300):
        content = bytearray(whole[: draw.randrange(len(whole))] if draw.random() < 0.5 else whole)
        for _ in range(draw.randrange(3)):
            content[draw.randrange(len(content) or 1) : 0] = draw.randbytes(draw.randrange(4))
        path.write_bytes(content)
        with contextlib.suppress(UsageError):
            assert len(read_rank(path).calls) <= 20


@pytest.mark.parametrize("words", [("explain",), ("diverge",), ("replay", "--rank", "0")])
def test_a_pipe_in_place_of_a_record(tmp_path: Path, words: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "rank-0.allfold")
    if words[0] == "explain":
        words = ("explain", str(tmp_path / "rank-0.allfold"))
        status, _, err = command(None, *words)
    else:
        status, _, err = command(None, words[0], str(tmp_path), *words[1:])
    assert status == 2 and "is not a regular file" in err


def test_a_run_of_more_ranks_than_memory(tmp_path: Path) -> None:
    one = Written(tmp_path, 0, size=1)
    one.call("all_reduce", 8)
    one.file.write(WORLD, {"rank": 0, "size": 10**15, "backend": "gloo", "state": {}})
    status, out, err = command(None, "explain", str(tmp_path))
    assert "is damaged" in out and not err and status in (0, 1)
