"""The site's own page: an editor that proves what is typed, and the lessons, with Python in the page. `make site` runs this.

    python docs/site_page.py SITE PYTHON

SITE is the folder that mkdocs has built, PYTHON the folder of scripts that `web/python/build.mjs` has made.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from allfold.learn.lesson import lessons
from allfold.price.topology.parse import find_topology
from allfold.registry import schedule
from allfold.studio.answers import PROVED
from allfold.studio.in_browser import Page
from allfold.studio.lessons import Lessons, after_blocks, content
from allfold.symbolic import State
from allfold.view import TOPOLOGY
from allfold.view.html import page_as_html
from allfold.view.page import SIZE, TABLE_RANKS, document, entry, planned
from allfold.view.tokens import TOKENS
from allfold.view.wins import table

FIRST = """\
from allfold import copy, reduce


def around(ranks):
    \"\"\"Chunks go around a ring twice: added up, then handed out.\"\"\"
    for step in range(ranks - 1):
        yield [
            reduce(chunk=(r - step) % ranks, source=r, destination=(r + 1) % ranks)
            for r in range(ranks)
        ]
    for step in range(ranks - 1):
        yield [
            copy(chunk=(r + 1 - step) % ranks, source=r, destination=(r + 1) % ranks)
            for r in range(ranks)
        ]
"""
COLLECTIVE, BASE, RANKS = "all_reduce", "ring", 8
BESIDE = ("naive", "driver", "tree", "halving_doubling", "direct")  # that can be raced before Python is there
LINKS = {
    "take the lessons": "#lessons",
    "what allfold is": "about.html",
    "documentation": "docs/index.html",
    "gallery": "docs/gallery.html",
    "install": "docs/install.html",
}


_SHARED = '<meta property="og:image" content="share.png">\n<meta name="twitter:card" content="summary_large_image">'


def front_page(pieces: dict[str, dict[str, Any]], course: dict[str, Any]) -> str:
    topology = find_topology(TOPOLOGY, RANKS)
    entries = []
    for name in (BASE, *BESIDE):
        given = planned(COLLECTIVE, name, RANKS, None, topology)
        made = schedule(COLLECTIVE, name, RANKS, **given)
        entries.append(entry(made, topology, SIZE, topology_name=TOPOLOGY, parameters=given))
    cases = table(COLLECTIVE, TOPOLOGY, TABLE_RANKS)
    page = document(entries, mode="site", view="code", cases=cases, all_topologies=True)
    case = {
        "collective": COLLECTIVE,
        "algorithm": None,
        "ranks": RANKS,
        "root": None,
        "code": FIRST,
        "file": "around.py",
    }
    first = _answer("/api/edit", {**case, "topology": TOPOLOGY, "size": SIZE})
    verdicts = _answer("/api/prove", {**case, "many": list(range(1, PROVED + 1))})["verdicts"]
    if not first["proof"]["ok"] or not all(one["ok"] for one in verdicts):
        raise SystemExit(f"the code that the site begins with is wrong: {first['proof']['message']}")
    page["site"] = {"pieces": pieces, "course": course, "links": LINKS, "first": first, "verdicts": verdicts}
    return page_as_html(page)


def _answer(path: str, body: dict[str, Any]) -> Any:
    """As the page will get it."""
    found = json.loads(Page(Path(tempfile.mkdtemp())).answer(json.dumps({"path": path, "body": body})))
    return found["answer"]


def course() -> dict[str, Any]:
    """The lessons as every learner finds them: texts, and what the studio says before and after the start."""
    found: dict[str, dict[str, Any]] = {"lessons": {}, "after": {}, "untouched": {}, "started": {}, "files": {}}
    with tempfile.TemporaryDirectory() as folder:
        studio = Lessons(Path(folder))
        for lesson in lessons():
            name = lesson.name
            found["lessons"][name] = content(name)
            found["after"][name] = after_blocks(name)
            found["untouched"][name] = {**studio.work(name), "file": f"{name}.py"}
            studio.act({"lesson": name, "do": "start"})
            found["started"][name] = {**studio.work(name), "file": f"{name}.py"}
            found["files"][name] = f"{lesson.label}/{name}.py"
    return found


def piece(name: str, text: str, folder: Path) -> dict[str, Any]:
    """A script that brings `text`, as `web/src/site/pieces.ts` reads it."""
    packed = gzip.compress(text.encode(), 9, mtime=0)
    (folder / f"{name}.js").write_text(
        f'allfoldPiece("{name}","{base64.b64encode(packed).decode()}");\n', encoding="utf-8"
    )
    return {"file": f"python/{name}.js", "bytes": len(packed)}


def share_image() -> bytes:
    """The picture that other sites show for a link to this one, as a PNG: the cells of a ring, in the colours of its ranks."""
    wide, high, ranks = 1200, 630, 8
    light, colours = TOKENS["light"], TOKENS["ranks"]["light"]
    image = np.empty((high, wide, 3), np.uint8)

    def fill(x: float, y: float, width: float, height: float, colour: str, share: float = 1.0) -> None:
        part = image[round(y) : round(y + height), round(x) : round(x + width)]
        wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
        part[:] = np.round(wanted * share + part * (1 - share))

    fill(0, 0, wide, high, light["paper"])
    state = State(schedule(COLLECTIVE, BASE, ranks))
    for _ in range(ranks // 2):
        state.advance()
    across, down = wide / (ranks + 0.6), high / (ranks + 0.6)
    for rank in range(ranks):
        for chunk in range(ranks):
            x, y = (chunk + 0.42) * across, (rank + 0.42) * down
            cell, strip = (0.76 * across, 0.76 * down), 0.2 * down
            fill(x, y, *cell, light["cell"])
            for one in state.contributors(rank, chunk):
                left = x + one * cell[0] / ranks
                fill(left, y, cell[0] / ranks, cell[1], colours[one], 0.45)
                fill(left, y + cell[1] - strip, cell[0] / ranks, strip, colours[one])
    rows = b"".join(b"\0" + row.tobytes() for row in image)

    def chunk_of(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
    body = chunk_of(b"IHDR", head) + chunk_of(b"IDAT", zlib.compress(rows, 9)) + chunk_of(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def write(site: Path, python: Path) -> None:
    folder = site / "python"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(python, folder)
    listed = folder / "pieces.json"
    pieces = {name: {**one, "file": f"python/{one['file']}"} for name, one in json.loads(listed.read_text()).items()}
    listed.unlink()
    lessons_piece = piece("course", json.dumps(course(), ensure_ascii=False, separators=(",", ":")), folder)
    text = front_page(pieces, lessons_piece)
    (site / "index.html").write_text(text.replace("<link rel", f"{_SHARED}\n<link rel", 1), encoding="utf-8")
    (site / "share.png").write_bytes(share_image())
    python_size = sum(one["bytes"] for one in pieces.values()) / 1e6
    print(
        f"index.html {len(text) / 1e6:.2f} MB, Python {python_size:.1f} MB, lessons {lessons_piece['bytes'] / 1e6:.2f} MB"
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"expected: {sys.argv[0]} SITE PYTHON")
    write(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
