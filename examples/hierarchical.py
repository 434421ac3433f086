"""A hierarchical all_reduce: reduce inside each group, all_reduce across the leaders, broadcast back.

Groups stand for machines: links inside a group are fast, links between groups are slow. This file does it in two ways: with
groups, leaders and three collectives, and as a built-in schedule.

A common mistake is to create the leaders' group on the leaders only. *Every* rank must take part in creating *every* group,
also the ranks outside it; otherwise the leaders would wait for the others forever. The end of this file shows how allfold
reports that.
"""

import argparse

import numpy as np

import allfold as af
from allfold.algorithms.hierarchical import hierarchical


def groups_of(ranks):
    """Two machines with half of the ranks each; the first has one more if they are odd in number."""
    half = (ranks + 1) // 2
    return [group for group in (list(range(half)), list(range(half, ranks))) if group]


def make_groups(comm):
    """This rank's own group, and the leaders' group (None on ranks that do not lead)."""
    groups = groups_of(comm.size)
    own = comm.group(next(group for group in groups if comm.rank in group))  # different ranks name different groups
    leaders = comm.group([group[0] for group in groups])  # everyone takes part, and non-leaders get None
    return own, leaders


def by_leaders(own, leaders, array):
    own.reduce(array, root=0)  # a leader is rank 0 of its group
    if leaders is not None:
        leaders.all_reduce(array)
    own.broadcast(array, root=0)


def by_schedule(ranks):
    """The same as one schedule, for these groups: proved as a whole, compiled, and run in one call."""
    yield from hierarchical(ranks, groups_of(ranks))


def bytes_between(schedule, groups):
    """How much crosses from one group to another, in multiples of S: what the slow links carry."""
    home = {rank: number for number, group in enumerate(groups) for rank in group}
    crossing = sum(home[move.source] != home[move.destination] for step in schedule for move in step)
    return crossing / schedule.chunks


def leaders_alone(comm):
    """The mistake: only the leaders create their group, the others go on to the broadcast. Returns the error."""
    spare = comm.group(range(comm.size))  # a communicator that may break
    leads = comm.rank in [group[0] for group in groups_of(comm.size)]
    try:
        if leads:
            spare.group([group[0] for group in groups_of(comm.size)], timeout=10)
        else:
            spare.broadcast(np.zeros(10), timeout=10)
    except af.AllfoldError as error:
        return error
    return None


def main(comm):
    say = print if comm.rank == 0 else lambda *_: None
    groups = groups_of(comm.size)
    inputs = [np.random.default_rng(rank).standard_normal(1003) for rank in range(comm.size)]
    expected = np.sum(inputs, axis=0)

    own, leaders = make_groups(comm)
    array = inputs[comm.rank].copy()
    by_leaders(own, leaders, array)
    assert np.allclose(array, expected, rtol=1e-12, atol=1e-12), f"rank {comm.rank}: groups and leaders"

    for algorithm in (by_schedule, "hierarchical", "two_level"):
        array = inputs[comm.rank].copy()
        comm.all_reduce(array, algorithm=algorithm)
        assert np.allclose(array, expected, rtol=1e-12, atol=1e-12), f"rank {comm.rank}: {algorithm}"

    af.verify(af.schedule("all_reduce", by_schedule, comm.size))
    say(f"groups {groups}, leaders {[group[0] for group in groups]}")
    say("the sum is right on every rank, by groups and leaders and by schedule")
    say(f"\n{'algorithm':14s}{'steps':>6s}{'busiest port':>14s}{'between the groups':>20s}")
    for name, parameters in (("ring", {}), ("hierarchical", {"groups": groups}), ("two_level", {"groups": groups})):
        schedule = af.schedule("all_reduce", name, comm.size, **parameters)
        port, between = float(schedule.counts.busiest_port_bytes), bytes_between(schedule, groups)
        say(f"{name:14s}{schedule.steps:6d}{port:12.4g} S{between:18.4g} S")

    if comm.size > len(groups):
        error = leaders_alone(comm)
        assert isinstance(error, af.MismatchError), f"rank {comm.rank}: {error!r}"
        say(
            f"\nleaders' group made by the leaders alone: {type(error).__name__} on every rank, and nobody hangs\n  {error}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks to start without a launcher")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks)
