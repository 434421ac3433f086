"""`allfold demo`: every all_reduce on four real processes, from the arithmetic to the picture."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from .. import _native
from ..communicator.communicator import Communicator
from ..engines.reference.replay import replay
from ..errors import ScheduleError
from ..launch.spawn import spawn
from ..price.cost.plan import duration
from ..proof import Proof, verify
from ..registry import algorithms, schedule
from ..view.text import draw
from .compare import count, write_comparison
from .terminal import times, width, write_json, write_lines, write_table

_RANKS = 4
_ODD_LENGTH = 1003  # not divisible by any of the numbers of chunks
_TIMED = {"4 KiB": 1024, "16 MiB": 4 * 2**20}  # float32 elements
_ROUNDS = 5


def run(arguments: argparse.Namespace) -> int:
    names = algorithms("all_reduce")
    answers = spawn(_on_a_rank, _RANKS, args=(names, _TIMED)) if _native.MISSING is None else _replayed(names)
    proofs = {name: _checked(name, [answer[name]["result"] for answer in answers]) for name in names}
    # A collective is as slow as its slowest rank.
    timed = [*_TIMED] if _native.MISSING is None else []
    timings = {name: {size: max(answer[name][size] for answer in answers) for size in timed} for name in names}
    if arguments.json:
        write_json([proof.to_json() | {"seconds": timings[name]} for name, proof in proofs.items()])
        return 0
    if _native.MISSING is None:
        sentence = (
            f"all_reduce between {_RANKS} processes: every algorithm, on every rank, gives NumPy's sum and the reference "
            "engine's bits"
        )
    else:
        sentence = (
            f"all_reduce on {_RANKS} ranks by the reference engine, since the one for processes runs on Linux and "
            f"{_native.MISSING}: every algorithm, on every rank, gives NumPy's sum"
        )
    write_lines([sentence, ""], arguments.color)
    head = ("algorithm", *timed, "steps", "busiest port", "same bits", "rank order", "any length", "result")
    write_table(head, [_row(name, proofs[name], timings[name]) for name in names], arguments.color)
    write_lines(["", "What they send, for 8 buffers of S bytes:", ""], arguments.color)
    write_comparison("all_reduce", count("all_reduce", names, [8]), arguments.color)
    write_lines(["", "The ring, step by step:", ""], arguments.color)
    write_lines(draw(schedule("all_reduce", "ring", _RANKS), width()), arguments.color)
    return 0


def _inputs() -> list[Any]:
    """Fractions, so that the order of additions is visible in the bits."""
    random = np.random.default_rng(0)
    return [random.standard_normal(_ODD_LENGTH).astype(np.float32) for _ in range(_RANKS)]


def _on_a_rank(communicator: Communicator, names: list[str], sizes: dict[str, int]) -> dict[str, dict[str, Any]]:
    answers: dict[str, dict[str, Any]] = {}
    for name in names:
        array = _inputs()[communicator.rank]
        communicator.all_reduce(array, algorithm=name)
        answers[name] = {"result": array}
        for size, elements in sizes.items():
            data = np.zeros(elements, np.float32)
            answers[name][size] = _best_time(communicator, data, name)
    return answers


def _replayed(names: list[str]) -> list[dict[str, dict[str, Any]]]:
    """The answers of all ranks, computed in this process and without times, where there is no engine."""
    results = {name: replay(schedule("all_reduce", name, _RANKS), _inputs()) for name in names}
    return [{name: {"result": results[name][rank]} for name in names} for rank in range(_RANKS)]


def _best_time(communicator: Communicator, data: Any, name: str) -> float:
    best = float("inf")
    repeats = max(1, 200_000 // data.nbytes)
    for _ in range(_ROUNDS):
        communicator.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            communicator.all_reduce(data, algorithm=name)
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def _checked(name: str, results: list[Any]) -> Proof:
    """Check: close to NumPy's sum, equal to the reference engine's result bit for bit, and proved."""
    inputs = _inputs()
    plan = schedule("all_reduce", name, _RANKS)
    expected = np.sum(np.asarray(inputs, np.float64), axis=0)
    for rank, (result, reference) in enumerate(zip(results, replay(plan, inputs), strict=True)):
        if not np.allclose(result, expected, rtol=1e-5, atol=1e-5):
            raise ScheduleError(f"{plan.title}: rank {rank} does not have NumPy's sum", rank=rank)
        if reference is None or result.tobytes() != reference.tobytes():
            raise ScheduleError(f"{plan.title}: rank {rank} has different bits from the reference engine", rank=rank)
    return verify(plan)


def _row(name: str, proof: Proof, seconds: dict[str, float]) -> list[str]:
    facts = ["yes" if fact else "no" for fact in (proof.same_bits, proof.rank_order, proof.uniform)]
    port = f"{times(proof.counts.busiest_port_bytes)} S"
    timing = [duration(one) for one in seconds.values()]
    return [name, *timing, str(proof.counts.steps), port, *facts, "checked, proved"]
