"""How the programs of this folder start: by themselves, with torchrun, or with `allfold run`, on any backend.

    python examples/torch/all_reduce.py                      # starts 4 processes by mp.spawn; --ranks 8 for 8
    torchrun --nproc-per-node 4 examples/torch/all_reduce.py
    allfold run -n 4 examples/torch/all_reduce.py
    python examples/torch/all_reduce.py --backend gloo       # the same on gloo

Under a launcher the process is one of the ranks already. A script that called mp.spawn there would start all ranks once
per rank, and all of them would want the same port: "address already in use".
"""

import argparse
import os
import socket
from datetime import timedelta

import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = timedelta(seconds=60)


def start(main, doc, ranks=4):
    """Run `main(rank, size)` on every rank of a process group."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument(
        "--ranks", type=int, default=ranks, metavar="N", help="how many ranks to start without a launcher"
    )
    parser.add_argument("--backend", default="allfold", help="allfold (default), gloo, or both: allfold,gloo")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    if "WORLD_SIZE" in os.environ:
        run(main, options.backend)
        return
    with socket.socket() as free:  # a free port, so that two programs can run at once
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(one_rank, args=(main, options.backend, options.ranks, port), nprocs=options.ranks)


def one_rank(rank, main, backend, size, port):
    """The function that mp.spawn calls in every new process."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    run(main, backend)


def run(main, backend):
    """Connect, work, disconnect. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who we are and where to meet."""
    # One store for all groups. With one store for each, a rank may find the last one, which rank 0 is about to close.
    store, rank, size = next(dist.rendezvous("env://", timeout=TIMEOUT))
    for name in backend.split(","):
        if name == "allfold":
            import allfold.torch  # noqa: F401  (registers the backend)
        own = dist.PrefixStore(name, store)
        dist.init_process_group(name, store=own, rank=rank, world_size=size, timeout=TIMEOUT)
        say(f"{name}, {dist.get_world_size()} ranks")
        main(dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()


def say(text):
    """Print on rank 0 only."""
    if dist.get_rank() == 0:
        print(text, flush=True)
