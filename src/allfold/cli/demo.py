"""`allfold demo`: every all_reduce on four ranks, from the arithmetic to the picture."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from ..errors import ScheduleError
from ..registry import algorithms, schedule
from ..run.reference import replay
from ..schedule import Schedule
from ..verify import Proof, verify
from ..view.text import draw
from .compare import count, write_comparison
from .terminal import add_color, add_json, times, width, write_json, write_lines, write_table

SUMMARY = """\
Four ranks, every all_reduce algorithm: run on real numbers by the reference engine, checked against NumPy, proved for
all numbers there are, compared; and the ring drawn step by step."""

_EPILOG = """\
example:
  $ allfold demo
  all_reduce of 4 buffers of 1003 numbers: every algorithm, on every rank, gives NumPy's sum

  algorithm           steps  busiest port  same bits  rank order  any length  result
  tree                    4           2 S  yes        yes         yes         checked, proved
  ring                    6         1.5 S  yes        no          no          checked, proved
  rotate                  4           3 S  no         no          no          checked, proved
  …"""

_RANKS, _ELEMENTS = 4, 1003  # a length that no number of chunks divides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add_json(parser)
    add_color(parser)


def run(arguments: argparse.Namespace) -> int:
    random = np.random.default_rng(0)
    inputs = [random.integers(-1000, 1000, _ELEMENTS).astype(np.float64) for _ in range(_RANKS)]
    expected = np.sum(inputs, axis=0)
    names = algorithms("all_reduce")
    proofs = {name: _checked(schedule("all_reduce", name, _RANKS), inputs, expected) for name in names}
    if arguments.json:
        write_json([proof.to_json() for proof in proofs.values()])
        return 0
    write_lines(
        [
            f"all_reduce of {_RANKS} buffers of {_ELEMENTS} numbers: every algorithm, on every rank, gives NumPy's sum",
            "",
        ],
        arguments.color,
    )
    rows = [_row(name, proof) for name, proof in proofs.items()]
    head = ("algorithm", "steps", "busiest port", "same bits", "rank order", "any length", "result")
    write_table(head, rows, arguments.color)
    write_lines(["", "What they send, for 8 buffers of S bytes:", ""], arguments.color)
    write_comparison("all_reduce", count("all_reduce", names, [8]), arguments.color)
    write_lines(["", "The ring, step by step:", ""], arguments.color)
    write_lines(draw(schedule("all_reduce", "ring", _RANKS), width()), arguments.color)
    return 0


def _checked(plan: Schedule, inputs: list[Any], expected: Any) -> Proof:
    """Replayed and compared with NumPy, then proved. Whole numbers add up exactly, in whatever order."""
    for rank, result in enumerate(replay(plan, inputs)):
        if result is None or not np.array_equal(result, expected):
            raise ScheduleError(f"{plan.title}: rank {rank} does not have NumPy's sum", rank=rank)
    return verify(plan)


def _row(name: str, proof: Proof) -> list[str]:
    facts = ["yes" if fact else "no" for fact in (proof.same_bits, proof.rank_order, proof.uniform)]
    return [name, str(proof.counts.steps), f"{times(proof.counts.busiest_port_bytes)} S", *facts, "checked, proved"]
