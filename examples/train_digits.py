"""Data-parallel training: a small convolutional network on scikit-learn's handwritten digits.

Every rank has the whole network and a part of every batch. After the backward pass one all_reduce adds up the ranks'
gradients; then all ranks take the same step and stay equal. This is done three times, by 1, by 2 and by 4 of the ranks, and
must give the same result: the same losses up to rounding, the same accuracy. torch's DistributedDataParallel does the same
in buckets, during the backward pass: see torch/gradient_buckets.py.

Needs torch and scikit-learn; with matplotlib the loss curve is also drawn as a PNG file.
"""

import argparse
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import allfold as af

EPOCHS, BATCH, TEST = 6, 60, 360


def load_digits(comm):
    """1797 images of 8 × 8. Rank 0 loads them and everyone gets them: the others need no scikit-learn."""
    images, labels = np.empty((1797, 1, 8, 8)), np.empty(1797, np.int64)
    if comm.rank == 0:
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(0).permutation(1797)  # the last ones, for the test, are of all writers
        images[:], labels[:] = digits.images[order, None] / 16.0, digits.target[order]
    comm.broadcast(images)
    comm.broadcast(labels)
    return images, labels


def make_network(torch):
    torch.manual_seed(0)  # the same weights on every rank
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    ).double()  # float64, so that another order of additions differs by 1e-16 and not by 1e-7, and no digit flips


def gradients_in_one_bucket(comm, torch, parameters):
    """One flat array in shared memory; every parameter's .grad is a view of its part. It is reduced without a copy."""
    bucket = comm.empty(sum(parameter.numel() for parameter in parameters), np.float64)
    end = 0
    for parameter in parameters:
        begin, end = end, end + parameter.numel()
        parameter.grad = torch.from_numpy(bucket[begin:end]).view_as(parameter)
    return bucket


def train(comm, images, labels):
    """Losses by step, how many test images are right, seconds in all and in all_reduce."""
    import torch

    torch.set_num_threads(1)  # the ranks are the parallelism
    images, labels = torch.from_numpy(images), torch.from_numpy(labels)
    network = make_network(torch)
    parameters = list(network.parameters())
    bucket = gradients_in_one_bucket(comm, torch, parameters)
    speeds = [torch.zeros_like(parameter) for parameter in parameters]
    random = np.random.default_rng(0)  # the same order of the images on every rank
    losses, reducing, start = [], 0.0, time.perf_counter()
    for _ in range(EPOCHS):
        order = random.permutation(len(images) - TEST)
        for begin in range(0, len(order), BATCH):
            batch = order[begin : begin + BATCH]
            mine = batch[len(batch) * comm.rank // comm.size : len(batch) * (comm.rank + 1) // comm.size]
            network.zero_grad(set_to_none=False)  # in place: the gradients are views of the bucket
            # Divided by the whole batch: then the *sum* over the ranks is the mean over the batch, also where one rank
            # has an image more than another. (The mean of the ranks' means would not be.)
            loss = torch.nn.functional.cross_entropy(network(images[mine]), labels[mine], reduction="sum") / len(batch)
            loss.backward()
            before = time.perf_counter()
            comm.all_reduce(bucket)
            reducing += time.perf_counter() - before
            # What torch.optim.SGD(lr=0.1, momentum=0.9) does; by hand, because loading torch.optim takes seconds.
            with torch.no_grad():
                for parameter, speed in zip(parameters, speeds, strict=True):
                    speed.mul_(0.9).add_(parameter.grad)
                    parameter.sub_(speed, alpha=0.1)
            losses.append(loss.item())
    losses = np.array(losses)
    comm.all_reduce(losses)  # every rank had its part of the loss
    with torch.no_grad():
        right = int((network(images[-TEST:]).argmax(dim=1) == labels[-TEST:]).sum())
    weights = np.concatenate([parameter.detach().numpy().reshape(-1) for parameter in parameters])
    assert_everywhere_the_same(comm, weights)
    return losses, right, weights, time.perf_counter() - start, reducing


def assert_everywhere_the_same(comm, weights):
    """Not nearly the same: bit by bit. The same start, the same gradients, the same steps."""
    least, most = weights.copy(), weights.copy()
    comm.all_reduce(least, op="min")
    comm.all_reduce(most, op="max")
    assert least.tobytes() == most.tobytes(), f"rank {comm.rank}: the ranks' networks have drifted apart"


def draw_as_text(losses, height=10, width=72):
    """The loss curve on a logarithmic scale, each column the mean of a few steps."""
    columns = np.array([part.mean() for part in np.array_split(losses, width)])
    logs = np.log10(columns)
    rows = np.round((logs.max() - logs) / (logs.max() - logs.min()) * (height - 1)).astype(int)
    for row in range(height):
        level = 10 ** (logs.max() - row / (height - 1) * (logs.max() - logs.min()))
        print(f"{level:8.3f} │" + "".join("•" if at == row else " " for at in rows).rstrip())
    print(f"{'':9s}└{'─' * width}\n{'':10s}step 0{f'step {len(losses)}':>{width - 6}s}")


def draw_as_picture(path, curves):
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: no picture")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for number, (ranks, losses) in enumerate(curves.items()):  # thinner and thinner, since they lie on each other
        axes.semilogy(losses, linewidth=6 / (number + 1), label=str(ranks), alpha=0.7)
    axes.set(xlabel="step", ylabel="loss of the batch", title="The same curve, whatever the number of ranks")
    axes.legend(title="ranks")
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"loss curves drawn into {path}")


def main(comm, picture):
    import torch  # noqa: F401  (on all ranks at once, and not first when somebody is waiting)

    images, labels = load_digits(comm)
    results = {}
    for ranks in sorted({1, 2, 4, comm.size}):
        if ranks <= comm.size:
            team = comm.group(range(ranks))  # the first `ranks` ranks; every rank takes part in creating the group
            if team is not None:
                results[ranks] = train(team, images, labels)
    comm.barrier()
    if comm.rank != 0:
        return
    losses, right, weights, *_ = results[1]
    print(f"{len(weights)} parameters, {len(losses)} steps of {BATCH} images\n")
    print(
        "ranks   first loss   last loss   accuracy        largest difference from 1 rank    time   reducing and waiting"
    )
    for ranks, (its_losses, its_right, its_weights, seconds, reducing) in results.items():
        in_losses, in_weights = np.abs(its_losses - losses).max(), np.abs(its_weights - weights).max()
        print(
            f"{ranks:5d}{its_losses[0]:13.6f}{its_losses[-1]:12.6f}{its_right:6d}/{TEST} = {its_right / TEST:.1%}"
            f"   loss {in_losses:.0e}, weight {in_weights:.0e}{seconds:7.2f} s"
            f"{reducing:21.2f} s"
        )
        assert in_losses < 1e-9 and in_weights < 1e-9, f"{ranks} ranks learn something else than 1"
        assert its_right == right, f"{ranks} ranks: {its_right} right, 1 rank: {right}"
    assert right / TEST > 0.93, f"only {right} of {TEST} are right: that is not learning"
    print()
    draw_as_text(losses)
    draw_as_picture(picture, {ranks: result[0] for ranks, result in results.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks to start without a launcher")
    default = Path(tempfile.gettempdir()) / "train_digits.png"
    parser.add_argument("--picture", type=Path, default=default, metavar="FILE", help=f"the curve (default: {default})")
    options = parser.parse_args()
    for module, package in (("torch", "torch"), ("sklearn", "scikit-learn")):
        if find_spec(module) is None:
            parser.error(f"{package} is not installed: pip install {package}")
    if options.picture.suffix != ".png" or not options.picture.resolve().parent.is_dir():
        parser.error(f"--picture {options.picture}: expected a .png file in a folder that exists")
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks, args=(options.picture,))
