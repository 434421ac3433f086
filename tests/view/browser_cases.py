"""Questions of the page and CPython's answers, for `web/python/parity.mjs`: built-in algorithms, mutated ones, and lessons.

python tests/view/browser_cases.py FILE [--mutants N] [--seed S]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allfold.collectives import COLLECTIVES, find_collective
from allfold.learn import course, worker
from allfold.learn.lesson import lessons
from allfold.registry import algorithms, schedule
from allfold.schedules import Schedule
from allfold.studio.in_browser import Page
from allfold.view import TOPOLOGY

RANKS = (2, 3, 4, 5, 6, 8, 12)


def case(collective: str, ranks: int, code: str, topology: str = "none") -> dict[str, Any]:
    root = ranks // 2 if find_collective(collective).rooted else None
    body = {"collective": collective, "algorithm": None, "ranks": ranks, "root": root, "size": 2**20, "code": code}
    return {"path": "/api/edit", "body": {**body, "topology": topology, "file": "mutant.py"}}


def as_code(made: Schedule, steps: list[list[list[int]]]) -> str:
    """A generator of just these moves: a line per step."""
    lines = [
        "from allfold import algorithm, copy, reduce",
        "",
        f"@algorithm({made.collective!r}, 'mutant', chunks={made.chunks})",
    ]
    lines.append(f"def mutant(ranks{'' if made.root is None else ', root'}):")
    for step in steps:
        moves = [
            f"{'reduce' if reduces else 'copy'}(chunk={chunk}, source={source}, destination={destination}, into={into})"
            for reduces, chunk, source, destination, into in step
        ]
        lines.append(f"    yield [{', '.join(moves)}]")
    return "\n".join([*lines, "    yield []", ""])


def mutant(rng: random.Random) -> dict[str, Any]:
    """A built-in schedule with a few moves changed, left out, doubled or put into another step."""
    collective = rng.choice(list(COLLECTIVES))
    ranks = rng.choice(RANKS)
    root = ranks // 2 if find_collective(collective).rooted else None
    while True:
        try:
            made = schedule(collective, rng.choice(list(algorithms(collective))), ranks, root)
            break
        except Exception:
            ranks = rng.choice(RANKS)  # this algorithm takes other numbers of ranks
            root = ranks // 2 if root is not None else None
    steps = [[list(map(int, move[:5])) for move in step] for step in made.to_json()["steps"]]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        full = [step for step in steps if step]
        if not full:
            break
        step = rng.choice(full)
        move = rng.choice(step)
        kind = rng.randrange(6)
        if kind == 0:
            step.remove(move)
        elif kind == 1:
            step.append(list(move))
        elif kind == 2:
            rng.choice(steps).append(list(move))
        elif kind == 3:
            move[0] = 1 - move[0]
        elif kind == 4:
            move[rng.choice((2, 3))] = rng.randrange(ranks)
        else:
            move[rng.choice((1, 4))] = rng.randrange(made.chunks)
    return case(collective, ranks, as_code(made, steps))


def questions(mutants: int, seed: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(seed)
    for collective in COLLECTIVES:
        for place, name in enumerate(algorithms(collective)):
            ranks, root = (4, 8)[place % 2], "&root=1" if find_collective(collective).rooted else ""
            words = f"collective={collective}&algorithm={name}&ranks={ranks}{root}&size=1048576"
            yield {"path": f"/api/entry?{words}&topology={(TOPOLOGY, 'torus', 'dgx1')[place % 3]}"}
            made = schedule(collective, name, ranks, 1 if root else None)
            yield {"path": "/api/msccl", "body": {"schedule": made.to_json()}}
    for ranks in ("2,3,4", "8"):
        yield {"path": f"/api/table?collective=all_reduce&topology={TOPOLOGY}&ranks={ranks}"}
    for lesson in lessons():
        file = f"{lesson.label}/{lesson.name}.py"
        for text in (lesson.first_file(), lesson.read("solution.py")):
            yield {"path": "/api/learn", "body": {"lesson": lesson.name, "do": "check"}, "files": {file: text}}
        for one in lesson.exercises:
            if one.collective is not None:
                body = case(one.collective, 4, lesson.read("solution.py"))["body"]
                yield {"path": "/api/prove", "body": {**body, "algorithm": one.function, "many": [1, 2, 3, 5]}}
    for code in (
        "1 +",
        "raise ValueError('no')",
        "def f(ranks):\n    yield 3\n",
        "x = 1",
        "def f(ranks):\n    return 1\n",
    ):
        yield case("all_reduce", 4, code)
    for _ in range(mutants):
        yield mutant(rng)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    # As in a browser.
    worker.HAS_THREADS = course.WRITES_TEXTS = False
    asked = list(questions(given.mutants, given.seed))
    with given.file.open("w", encoding="utf-8") as file:
        for question in asked:
            with tempfile.TemporaryDirectory() as folder:
                answer = Page(Path(folder) / "course").answer(json.dumps(question))
                expected = json.loads(answer.replace(f"{folder}/course", "/course"))
            file.write(json.dumps({"question": question, "expected": expected}) + "\n")
    print(f"{len(asked)} questions are in {given.file}", file=sys.stderr)


if __name__ == "__main__":
    main()
