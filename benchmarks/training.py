"""Step time of a 25-million-parameter transformer, trained by several ranks in turns: torch's DDP, or FSDP2, on gloo and on
allfold; beside them the same step without any communication.

    python benchmarks/training.py                                     # 2 and 4 ranks, few tokens and more
    python benchmarks/training.py --ranks 2 --tokens 4
    python benchmarks/training.py --ranks 4 --hosts 2 --by DDP,FSDP2  # on two simulated hosts, which TCP connects

All take their turns in the same processes, round after round, one thread a rank; the best round of each counts, by the
time of the slowest rank; "× gloo" is how many times faster than on gloo that is, and beside it stands the median of
that ratio over the rounds. Processor time is the mean of the ranks, with all their threads; it changes
less with what else the machine does. In the end both must have the same parameters. "Communication" is what the step takes
longer than without any. The optimizer is plain SGD.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import allfold as af
from allfold.bench.environment import describe_environment, environment_lines

WITHOUT, GLOO, OURS = "no communication", "gloo", "allfold"
WIDTH, LAYERS = 512, 8
STEPS = 3  # per turn


@dataclass
class Contender:
    module: Any
    forward: Callable[[Any], Any]
    optimizer: Any

    def step(self, inputs: Any, targets: Any) -> None:
        (self.forward(inputs) - targets).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4", help="how many, separated by commas (default: 2,4)")
    parser.add_argument("--tokens", default="4,64", help="for each rank in each step (default: 4,64)")
    parser.add_argument("--by", default="DDP", help="DDP, FSDP2 or both, separated by a comma (default: DDP)")
    parser.add_argument("--hosts", type=int, help="divide the ranks into this many simulated hosts")
    parser.add_argument("--rounds", type=int, default=8, help=f"turns of {STEPS} steps for each (default: 8)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    tables = []
    facts = describe_environment(max(_numbers(arguments.ranks)), {"torch": _torch_version()})
    if not arguments.json:
        print("\n".join(environment_lines(facts)).replace(" bench,", " training,"), flush=True)
    every = product(arguments.by.split(","), _numbers(arguments.ranks), _numbers(arguments.tokens))
    for by, ranks, tokens in every:
        table = af.spawn(train, ranks, args=(by, tokens, arguments.rounds), hosts=arguments.hosts, timeout=1800)[0]
        tables.append(table)
        if not arguments.json:
            _print(table)
    if arguments.json:
        print(json.dumps({"environment": facts, "tables": tables}, indent=1))
    return 0 if all(table["same parameters"] for table in tables) else 1


# On every rank --------------------------------------------------------------------------------------------------------


def train(comm: Any, by: str, tokens: int, rounds: int) -> dict[str, Any]:
    """All contenders in turns; returns the table."""
    import numpy as np
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    contenders = {name: _contender(name, by) for name in (WITHOUT, GLOO, OURS)}
    size = sum(parameter.numel() for parameter in contenders[WITHOUT].module.parameters())
    torch.manual_seed(1 + comm.rank)
    data = [(torch.randn(1, tokens, WIDTH), torch.randn(1, tokens, WIDTH)) for _ in range(STEPS)]

    def turn(contender: Contender) -> tuple[float, float]:
        """Seconds per step of the slowest rank, and CPU time per step, averaged over the ranks."""
        comm.barrier()
        began, busy = time.perf_counter(), time.process_time()
        for inputs, targets in data:
            contender.step(inputs, targets)
        seconds, processor = (
            np.array([end - start]) / STEPS
            for start, end in ((began, time.perf_counter()), (busy, time.process_time()))
        )
        comm.all_reduce(seconds, op="max")
        comm.all_reduce(processor, op="avg")
        return float(seconds[0]), float(processor[0])

    for contender in contenders.values():
        turn(contender)  # not counted: first touch of memory, and DDP rearranges buckets
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            turns[name].append(turn(contender))
    worst = _largest_difference(comm, contenders)
    best = {name: min(seconds for seconds, _ in times) for name, times in turns.items()}
    rows = [
        {
            "name": name if name == WITHOUT else f"{by} on {name}",
            "seconds": best[name],
            "turns": [seconds for seconds, _ in turns[name]],
            "processor": min(processor for _, processor in turns[name]),
            "times faster than gloo": best[GLOO] / best[name],
            "median": statistics.median(
                theirs / own for (theirs, _), (own, _) in zip(turns[GLOO], turns[name], strict=True)
            ),
            "communication": max(0.0, 1 - best[WITHOUT] / best[name]),
        }
        for name in turns
    ]
    table = {
        "by": by,
        "hosts": len(comm.engine.hosts()),
        "ranks": comm.size,
        "tokens": tokens,
        "parameters": size,
        "rows": rows,
        "largest difference": worst,
        "same parameters": worst < 1e-4,
    }
    dist.destroy_process_group()
    return table


def _contender(name: str, by: str) -> Contender:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        *(torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS))
    )
    forward: Any = module
    if name != WITHOUT:
        group = dist.new_group(backend=name)
        if by == "DDP":
            forward = DistributedDataParallel(
                module, process_group=group, gradient_as_bucket_view=True
            )  # its faster mode
        else:
            mesh = DeviceMesh.from_group(group, "cpu")
            for layer in module:
                fully_shard(layer, mesh=mesh)
            forward = fully_shard(module, mesh=mesh)
    return Contender(module, forward, torch.optim.SGD(module.parameters(), lr=0.01))


def _largest_difference(comm: Any, contenders: dict[str, Contender]) -> float:
    """The largest difference between the parameters of any two contenders, on any rank and between ranks."""
    import numpy as np
    import torch

    flat = [
        torch.cat([_whole(parameter).flatten() for parameter in contender.module.parameters()])
        for name, contender in contenders.items()
        if name != WITHOUT
    ]
    first = flat[0].clone()
    comm.broadcast(first)
    worst = np.array([max(float((one - first).abs().max()) for one in flat)])
    comm.all_reduce(worst, op="max")
    return float(worst[0])


def _whole(parameter: Any) -> Any:
    """The values of a parameter of which every rank may have a part."""
    from torch.distributed.tensor import DTensor

    return (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach()


# What is printed ------------------------------------------------------------------------------------------------------


def _print(table: dict[str, Any]) -> None:
    hosts = f" on {table['hosts']} hosts" if table["hosts"] > 1 else ""
    work = f"{table['tokens']} tokens a rank and step, {table['parameters']:,} parameters"
    print(f"\n{table['by']}: {table['ranks']} ranks{hosts}, {work}")
    heads = ("ms a step", "× gloo", "median", "processor ms", "communication")
    print(" " * 21 + "".join(f"{head:>{len(head) + 2}}" for head in heads))
    for row in table["rows"]:
        cells = [f"{row['seconds'] * 1e3:.1f}", "", "", f"{row['processor'] * 1e3:.1f}"]
        if row["name"] != WITHOUT:
            cells[1:3] = [f"{row['times faster than gloo']:.2f}", f"{row['median']:.2f}"]
            cells.append(f"{row['communication']:.0%}")
        figures = "".join(f"{cell:>{len(head) + 2}}" for cell, head in zip(cells, heads, strict=False))
        print(f"{row['name']:21}{figures}".rstrip())
    verdict = "the same" if table["same parameters"] else "NOT the same"
    print(f"parameters are {verdict} in the end: largest difference {table['largest difference']:.1e}", flush=True)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


if __name__ == "__main__":
    sys.exit(main())
