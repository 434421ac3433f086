"""Step time of a 25-million-parameter transformer, trained by several ranks in turns: torch's DDP on gloo, torch's DDP on
allfold, and allfold's own DataParallel; beside them the same step without any communication.

    python benchmarks/training.py                                     # 2 and 4 ranks, few tokens and more
    python benchmarks/training.py --ranks 2 --tokens 4 --svg step.svg --perfetto step.json

All take their turns in the same processes, round after round, one thread a rank; the best round of each counts, by the
time of the slowest rank; "× gloo" is how many times faster than DDP on gloo that is, and beside it stands the median of
that ratio over the rounds. Processor time is the mean of the ranks, with all their threads; it changes
less with what else the machine does. In the end all three must have the same parameters.

"Communication" is what the step takes longer than without any; "overlapped" is the part of the time of the reductions,
recorded in a step of its own, that lies before the last gradient was computed. DDP's reductions are recorded from the launch
of a bucket until its future is done, waiting for the other ranks included; ours by the engine, without waiting. The
optimizer is plain SGD.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import allfold as af
from allfold.bench.environment import describe_environment, environment_lines

WITHOUT, GLOO, BACKEND, OURS = "no communication", "DDP on gloo", "DDP on allfold", "allfold DataParallel"
WIDTH, LAYERS = 512, 8
STEPS = 3  # per turn


@dataclass
class Contender:
    module: Any
    forward: Callable[[Any], Any]
    optimizer: Any
    remove: Callable[[], None] = lambda: None

    def step(self, inputs: Any, targets: Any, span: Callable[[str], Any]) -> None:
        with span("forward"):
            loss = (self.forward(inputs) - targets).square().mean()
        with span("backward"):
            loss.backward()
        with span("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4", help="how many, separated by commas (default: 2,4)")
    parser.add_argument("--tokens", default="4,64", help="for each rank in each step (default: 4,64)")
    parser.add_argument("--rounds", type=int, default=8, help=f"turns of {STEPS} steps for each (default: 8)")
    parser.add_argument("--bucket-bytes", type=int, help="of DataParallel; torch's DDP keeps its own 25 MiB")
    parser.add_argument("--svg", metavar="FILE", help="draw the recorded steps of the first of ranks and tokens")
    parser.add_argument("--perfetto", metavar="FILE", help="the same for Perfetto and chrome://tracing")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    tables, timelines = [], None
    facts = describe_environment(max(_numbers(arguments.ranks)), {"torch": _torch_version()})
    if not arguments.json:
        print("\n".join(environment_lines(facts)).replace(" bench,", " training,"), flush=True)
    for ranks in _numbers(arguments.ranks):
        for tokens in _numbers(arguments.tokens):
            work = (tokens, arguments.rounds, arguments.bucket_bytes)
            table, recorded = af.spawn(train, ranks, args=work, timeout=1800)[0]
            tables.append(table)
            timelines = timelines or recorded
            if not arguments.json:
                _print(table)
    if arguments.json:
        print(json.dumps({"environment": facts, "tables": tables}, indent=1))
    from allfold.torch.training.timeline import save

    for path in filter(None, (arguments.svg, arguments.perfetto)):
        save(timelines, path)
    return 0 if all(table["same parameters"] for table in tables) else 1


# On every rank --------------------------------------------------------------------------------------------------------


def train(comm: Any, tokens: int, rounds: int, bucket_bytes: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """All contenders in turns; returns the table, and the timelines of one step of each."""
    import numpy as np
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    contenders = {WITHOUT: _contender(comm, WITHOUT, bucket_bytes), GLOO: _contender(comm, GLOO, bucket_bytes)}
    missing = _missing_backend()
    if not missing:
        contenders[BACKEND] = _contender(comm, BACKEND, bucket_bytes)
    contenders[OURS] = _contender(comm, OURS, bucket_bytes)
    size = sum(parameter.numel() for parameter in contenders[OURS].module.parameters())
    torch.manual_seed(1 + comm.rank)
    data = [(torch.randn(1, tokens, WIDTH), torch.randn(1, tokens, WIDTH)) for _ in range(STEPS)]

    def turn(contender: Contender) -> tuple[float, float]:
        """Seconds per step of the slowest rank, and CPU time per step, averaged over the ranks."""
        comm.barrier()
        began, busy = time.perf_counter(), time.process_time()
        for inputs, targets in data:
            contender.step(inputs, targets, _untimed)
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
    contenders.clear()
    timelines = {name: _recorded(comm, name, data, bucket_bytes) for name in turns if name != WITHOUT}
    best = {name: min(seconds for seconds, _ in times) for name, times in turns.items()}
    rows = [
        {
            "name": name,
            "seconds": best[name],
            "turns": [seconds for seconds, _ in turns[name]],
            "processor": min(processor for _, processor in turns[name]),
            "times faster than gloo": best[GLOO] / best[name],
            "median": statistics.median(
                theirs / own for (theirs, _), (own, _) in zip(turns[GLOO], turns[name], strict=True)
            ),
            "communication": max(0.0, 1 - best[WITHOUT] / best[name]),
            "reducing": timelines[name].reducing if name in timelines else None,
            "overlapped": timelines[name].overlapped if name in timelines else None,
        }
        for name in turns
    ]
    table = {
        "ranks": comm.size,
        "tokens": tokens,
        "parameters": size,
        "rows": rows,
        "missing": missing,
        "largest difference": worst,
        "same parameters": worst < 1e-4,
    }
    dist.destroy_process_group()
    return table, timelines


def _contender(comm: Any, name: str, bucket_bytes: int | None, timeline: Any = None) -> Contender:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from allfold.torch import DataParallel

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        *(torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS))
    )
    if name == WITHOUT:
        forward: Any = module
    elif name == OURS:
        forward = DataParallel(module, comm, **({"bucket_bytes": bucket_bytes} if bucket_bytes else {}))
    else:
        group = None if name == GLOO else dist.new_group(backend="allfold")
        # The faster of its two modes, and the one that is like ours.
        forward = DistributedDataParallel(module, process_group=group, gradient_as_bucket_view=True)
        if timeline is not None:
            # A function with string annotations is refused.
            forward.register_comm_hook((timeline, group), lambda state, bucket: _timed_reduction(state, bucket))
    return Contender(module, forward, torch.optim.SGD(module.parameters(), lr=0.01))


def _timed_reduction(state: Any, bucket: Any) -> Any:
    """What DDP does by itself, with the times of every bucket: from its launch until its future is done."""
    import torch.distributed as dist

    from allfold.torch.training.timeline import REDUCE, Span

    (timeline, group), buffer, start = state, bucket.buffer(), time.monotonic_ns()
    buffer.div_(dist.get_world_size(group))
    work = dist.all_reduce(buffer, group=group, async_op=True)

    def done(future: Any) -> Any:
        timeline.spans.append(Span(timeline.rank, REDUCE, f"bucket {bucket.index()}", start, time.monotonic_ns()))
        value = future.value()
        return value[0] if isinstance(value, list) else value

    return work.get_future().then(done)


def _recorded(comm: Any, name: str, data: Any, bucket_bytes: int | None) -> Any:
    """One step of a new model, after two that warm up."""
    from contextlib import ExitStack

    from allfold.torch.training.timeline import Timeline, gather, record, watch

    timeline = Timeline(rank=comm.rank)
    contender = _contender(comm, name, bucket_bytes, timeline)
    for inputs, targets in data[:2]:
        contender.step(inputs, targets, _untimed)
    timeline.spans.clear()
    comm.barrier()
    with ExitStack() as stack:
        if name == OURS:
            timeline = stack.enter_context(record(contender.forward))
        else:
            stack.enter_context(watch(timeline, contender.module))
        contender.step(*data[0], timeline.span)
    if name != OURS:
        gather(timeline, comm)
    return timeline


def _largest_difference(comm: Any, contenders: dict[str, Contender]) -> float:
    """The largest difference between the parameters of any two contenders, on any rank and between ranks."""
    import numpy as np
    import torch

    flat = [
        torch.cat([parameter.detach().flatten() for parameter in contender.module.parameters()])
        for name, contender in contenders.items()
        if name != WITHOUT
    ]
    first = flat[0].clone()
    comm.broadcast(first)
    worst = np.array([max(float((one - first).abs().max()) for one in flat)])
    comm.all_reduce(worst, op="max")
    return float(worst[0])


def _missing_backend() -> str:
    """Why torch cannot use allfold as a backend here; nothing if it can."""
    import torch.distributed as dist

    try:
        import allfold.torch  # noqa: F401 - registers it

        dist.destroy_process_group(dist.new_group(backend="allfold"))
    except Exception as error:  # any error is printed, and the others are measured
        return f"not there ({type(error).__name__}: {error})"
    return ""


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _untimed(_: str) -> _Nothing:
    return _Nothing()


# What is printed ------------------------------------------------------------------------------------------------------


def _print(table: dict[str, Any]) -> None:
    print(f"\n{table['ranks']} ranks, {table['tokens']} tokens a rank and step, {table['parameters']:,} parameters")
    heads = ("ms a step", "× gloo", "median", "processor ms", "communication", "reducing ms", "overlapped")
    print(" " * 21 + "".join(f"{head:>{len(head) + 2}}" for head in heads))
    for row in table["rows"]:
        cells = [f"{row['seconds'] * 1e3:.1f}", "", "", f"{row['processor'] * 1e3:.1f}"]
        if row["reducing"] is not None:
            cells[1:3] = [f"{row['times faster than gloo']:.2f}", f"{row['median']:.2f}"]
            cells += [f"{row['communication']:.0%}", f"{row['reducing'] * 1e3:.1f}", f"{row['overlapped']:.0%}"]
        figures = "".join(f"{cell:>{len(head) + 2}}" for cell, head in zip(cells, heads, strict=False))
        print(f"{row['name']:21}{figures}".rstrip())
    if table["missing"]:
        print(f"{BACKEND:21}  {table['missing']}")
    verdict = "the same" if table["same parameters"] else "NOT the same"
    print(f"parameters are {verdict} in the end: largest difference {table['largest difference']:.1e}", flush=True)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


if __name__ == "__main__":
    sys.exit(main())
