"""Random schedules, the same ones every time: correct ones are accepted and run correctly, wrong ones are refused.

`make fuzz` takes fresh ones, for an hour.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from fuzz import try_schedule
from random_runs import try_seeds
from random_schedules import COLLECTIVES, draw

import allfold
from allfold.launch.threads import run_threads


@pytest.mark.parametrize("seeds", [60, pytest.param(250, marks=pytest.mark.exhaustive)])
def test_verify_and_check_agree_with_oracles_that_share_no_code_with_them(seeds: int) -> None:
    counts = Counter[str]()
    for seed in range(seeds):
        counts += try_schedule(seed)
    # Both kinds occurred often enough to be meaningful.
    assert counts["wrong"] > 0.6 * seeds and counts["spoiled"] - counts["wrong"] > 0.08 * seeds
    assert counts["refused"] > 0.8 * seeds and counts["crippled"] - counts["refused"] > 0.2 * seeds


def test_the_generator_draws_what_is_hard() -> None:
    """Exchanges, self copies, several reduces into one chunk, other places, scratch, several chunks per slice."""
    seen = Counter[str]()
    for seed in range(200):
        rng = random.Random(seed)
        drawn = draw(rng, rng.choice(COLLECTIVES), rng.randint(2, 6))
        for step in drawn.steps:
            targets = Counter((move[3], move[4]) for move in step)
            sources = {(move[2], move[1]) for move in step}
            for reduces, chunk, source, destination, into in step:
                seen["self copy"] += source == destination
                seen["elsewhere"] += chunk != into and into < drawn.chunks
                seen["scratch"] += into >= drawn.chunks
                seen["many reduces"] += reduces and targets[destination, into] > 1
                seen["overwritten while read"] += (destination, into) in sources
        seen["several chunks per slice"] += drawn.chunks > drawn.ranks and drawn.collective.endswith("gather")
    assert all(seen[what] > 10 for what in seen) and len(seen) == 6, seen


@pytest.mark.parametrize(
    ("ranks", "seeds"),
    [(2, 24), (3, 24), (5, 12), *(pytest.param(ranks, 60, marks=pytest.mark.exhaustive) for ranks in (2, 3, 5))],
)
def test_the_engine_gives_the_right_result(ranks: int, seeds: int) -> None:
    """Ordinary and shared arrays, some of each, blocking and not, odd lengths, many segments, all kinds of types."""
    wrong = [line for lines in allfold.spawn(try_seeds, ranks, args=(range(seeds),), timeout=250) for line in lines]
    assert not wrong, "\n".join(wrong[:5])


def test_the_engine_gives_the_right_result_between_threads() -> None:
    """The same in one process, for ThreadSanitizer to watch (`make sanitize`)."""
    wrong = [line for lines in run_threads(try_seeds, 3, args=(range(100, 130),)) for line in lines]
    assert not wrong, "\n".join(wrong[:5])
