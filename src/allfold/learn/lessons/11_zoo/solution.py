import numpy as np


def mean(comm, samples):
    """The mean of all samples of all ranks."""
    total = np.array([samples.sum(), len(samples)])
    comm.all_reduce(total)
    return total[0] / total[1]


def softmax(comm, part):
    """This rank's part of the softmax of the whole vector."""
    largest = np.array([part.max(initial=-np.inf)])
    comm.all_reduce(largest, op="max")
    powers = np.exp(part - largest[0])
    total = np.array([powers.sum()])
    comm.all_reduce(total)
    return powers / total[0]


def argmax(comm, value):
    """The largest value of all ranks, and the lowest rank that has it."""
    best = np.array([value])
    comm.all_reduce(best, op="max")
    who = np.array([comm.rank if value == best[0] else comm.size])
    comm.all_reduce(who, op="min")
    return best[0], who[0]
