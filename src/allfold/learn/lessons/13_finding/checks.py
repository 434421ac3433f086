"""What lesson 13 counts: a circle of ranks, with a cable in each direction between neighbours."""

from collections import Counter


def count_strangers(schedule):
    """{} moves between ranks that are not neighbours"""
    near = (0, 1, schedule.ranks - 1)
    return sum((move.destination - move.source) % schedule.ranks not in near for step in schedule for move in step)


def count_per_cable(schedule):
    """{} slices through one cable in a step"""
    loads = [Counter((move.source, move.destination) for move in step) for step in schedule]
    return max((max(load.values(), default=0) for load in loads), default=0)
