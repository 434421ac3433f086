"""Judges of lesson 3."""

from collections import Counter

from allfold import schedule
from allfold.learn.checks import Wrong
from allfold.learn.figures import show

CASES = (
    *(("all_reduce", name) for name in ("driver", "naive", "ring", "tree", "halving_doubling", "direct")),
    ("reduce", "driver"),  # much is received, little is sent
    ("scatter", "driver"),  # the other way round
)


def check_count(count):
    for ranks in (3, 4, 2, *range(5, 18), 1):
        for collective, name in CASES:
            made = schedule(collective, name, ranks)
            steps = [[(move.source, move.destination, move.chunk) for move in step] for step in made]
            found = count(steps, ranks, made.chunks)
            if not isinstance(found, tuple) or len(found) != 3:
                expected = "expected three numbers: messages, bytes in all, busiest port"
                raise Wrong(f"count returns {found!r:.60}; {expected}", kind="shape")
            real = made.counts
            for kind, what, said, is_so in zip(
                ("messages", "bytes", "port"),
                ("messages", "S as the bytes in all", "S through the busiest port"),
                found,
                (real.messages, real.bytes, real.busiest_port_bytes),
                strict=True,
            ):
                if not isinstance(said, int | float) or abs(said - is_so) > 1e-9:
                    counted = show(said) if isinstance(said, int | float) else repr(said)
                    kind = "one_step" if kind == "port" and said == _of_one_step(steps, made.chunks) else kind
                    case = f"{collective} by {name} with {ranks} ranks"
                    raise Wrong(f"count finds {counted} {what} in {case}; there are {show(is_so)}", kind=kind)
    return f"the same counts as those of {len(CASES)} algorithms with 1 to 17 ranks"


def _of_one_step(steps, chunks):
    """The busiest port, if it were looked for in each step alone."""
    sides = [Counter(move[side] for move in step) for step in steps for side in (0, 1)]
    return max((max(side.values(), default=0) for side in sides), default=0) / chunks
