import numpy as np


def average_in_buckets(comm, array, elements):
    """Average `array` over all ranks, in place, in buckets of at most `elements`. It forgets something: repair it."""
    for number in range(len(array) // elements):
        bucket = array[number * elements : (number + 1) * elements]
        comm.all_reduce(bucket, op="avg")


def training_step(comm, weights, x, y, rate):
    """The weights after one step of gradient descent on the samples of all ranks."""
    gradient = 2 / len(y) * x.T @ (x @ weights - y)  # of this rank's samples only
    return weights - rate * gradient
