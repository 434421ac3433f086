"""Judges of lesson 3."""

from allfold import schedule
from allfold.learn.checks import Wrong
from allfold.learn.figures import show

CASES = (
    *(("all_reduce", name) for name in ("driver", "naive", "ring", "tree", "halving_doubling", "direct")),
    ("reduce", "driver"),  # much is received, little is sent
    ("scatter", "driver"),  # the other way round
)


def check_count(count):
    for ranks in range(1, 18):
        for collective, name in CASES:
            made = schedule(collective, name, ranks)
            steps = [[(move.source, move.destination, move.chunk) for move in step] for step in made]
            found = count(steps, ranks, made.chunks)
            if not isinstance(found, tuple) or len(found) != 3:
                raise Wrong(
                    f"count returns {found!r:.60}; expected three numbers: messages, bytes in all, busiest port"
                )
            real = made.counts
            for what, said, is_so in zip(
                ("messages", "S as the bytes in all", "S through the busiest port"),
                found,
                (real.messages, real.bytes, real.busiest_port_bytes),
                strict=True,
            ):
                if not isinstance(said, int | float) or abs(said - is_so) > 1e-9:
                    counted = show(said) if isinstance(said, int | float) else repr(said)
                    raise Wrong(
                        f"count finds {counted} {what} in {collective} by {name} with {ranks} ranks; there are {show(is_so)}"
                    )
    return f"the same counts as those of {len(CASES)} algorithms with 1 to 17 ranks"
