import numpy as np


def mean(comm, samples):
    """The mean of all samples of all ranks. This is the mean of the means: repair it."""
    result = np.array([samples.mean()])
    comm.all_reduce(result, op="avg")
    return result[0]


def softmax(comm, part):
    """This rank's part of the softmax of the whole vector."""
    powers = np.exp(part)
    return powers / powers.sum()


def argmax(comm, value):
    """The largest value of all ranks, and the lowest rank that has it."""
    return value, comm.rank
