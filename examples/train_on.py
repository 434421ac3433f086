"""Training continues after a rank is killed: the others shrink the communicator, take over its data and lose no step.

A linear regression with full gradients. Every rank has a share of the samples, and there is one all_reduce per step, of the
sums over all shares. The result does not depend on the number of ranks, so the losses do not change when one dies.

Start it with `python`, or with `allfold run --survive`. torchrun ends all ranks when one fails.
"""

import argparse
import os
import signal
import time

import numpy as np

import allfold as af

SAMPLES, FEATURES = 4000, 16
STEPS, KILLED_AT = 60, 30
RATE = 0.03


def data():
    """All samples: every rank can read them, and takes its share."""
    chance = np.random.default_rng(7)
    inputs = chance.normal(size=(SAMPLES, FEATURES))
    return inputs, inputs @ np.arange(1.0, FEATURES + 1) + chance.normal(scale=0.5, size=SAMPLES)


def sums(inputs, targets, weights):
    """The gradient's sum over some samples, and after it the sum of their squared errors."""
    errors = inputs @ weights - targets
    return np.append(2 * inputs.T @ errors, errors @ errors)


def share(comm):
    return np.array_split(np.arange(SAMPLES), comm.size)[comm.rank]


def go_on(comm, weights, step):
    """A communicator of the surviving ranks; all of them continue with the weights and the step of its first rank."""
    left = comm.shrink()
    # The failed call may have completed on some ranks: those a step ahead go back, or those behind catch up.
    state = np.append(weights, step)
    left.broadcast(state)
    return left, state[:-1], int(state[-1])


def main(comm):
    inputs, targets = data()
    weights, step, mine = np.zeros(FEATURES), 0, share(comm)
    victim = comm.size // 2 if comm.size > 1 else None
    world = np.array([comm.rank])  # the rank that this process began with
    if comm.rank == 0:
        print(f"{comm.size} ranks, {SAMPLES} samples, {len(mine)} of them on rank 0")
    while step < STEPS:
        if step == KILLED_AT and world[0] == victim:
            os.kill(os.getpid(), signal.SIGKILL)  # no exception, no clean-up: as when memory runs out
        total = sums(inputs[mine], targets[mine], weights)
        try:
            comm.all_reduce(total)
        except af.RankLost:
            noticed = time.perf_counter()
            before = comm.size
            comm, weights, step = go_on(comm, weights, step)
            mine = share(comm)
            left = np.empty(comm.size, np.int64)
            comm.all_gather(world, left)
            if comm.rank == 0:
                lost = sorted({*range(before)} - {*left.tolist()})
                print(
                    f"step {step:2d}: rank {', '.join(map(str, lost))} is lost, {comm.size} go on: {left.tolist()},",
                    end=" ",
                )
                print(f"{len(mine)} samples on rank 0; after {(time.perf_counter() - noticed) * 1e3:.0f} ms")
            continue
        if comm.rank == 0 and step % 10 == 0:
            print(f"step {step:2d}: loss {total[-1] / SAMPLES:12.6f} by {comm.size} rank{'s' if comm.size > 1 else ''}")
        weights = weights - RATE * total[:-1] / SAMPLES
        step += 1

    # The same in one undisturbed process: equal except for the order of the additions.
    alone = np.zeros(FEATURES)
    for _ in range(STEPS):
        alone -= RATE * sums(inputs, targets, alone)[:-1] / SAMPLES
    difference = np.abs(weights - alone).max()
    assert difference < 1e-9, difference
    if comm.rank == 0:
        loss = sums(inputs, targets, weights)[-1] / SAMPLES
        print(f"step {step:2d}: loss {loss:12.6f}; the weights are those of one process that was not disturbed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks to start without a launcher")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks, survive=True)
