"""Evaluate formulas of docstrings and pages, such as `2(P−1)/P·S`, to compare what is written with what is counted."""

from __future__ import annotations

import re
from math import ceil, floor, isqrt, log2

NUMBER = r"(?<![^\s(])[\dPGg(⌈⌊l½][\dPGg()⌈⌉⌊⌋log₂·/+−½¼]*"
STEPS = re.compile(rf"({NUMBER}) steps?\b")
PORT = re.compile(
    rf"(at most |less than |about |)({NUMBER}·|(?<!\S))S through the busiest port|steps and (less than |)({NUMBER}·)S\b"
)


def value(formula: str, ranks: int, **symbols: float) -> float:
    """P is the number of ranks; they are in G groups of at most g unless told otherwise."""
    size = isqrt(ranks - 1) + 1
    for written, meant in (("log₂(", "L("), ("⌈", "U("), ("⌊", "D("), ("⌉", ")"), ("⌋", ")"), ("−", "-"), ("·", "*")):
        formula = formula.replace(written, meant)
    formula = re.sub(r"log₂(\w)", r"L(\1)", formula).replace("½", "0.5").replace("¼", ".25")
    formula = re.sub(r"(?<=[\d)PGg])(?=[(A-Za-z])", "*", formula)
    names = {"U": ceil, "D": floor, "L": log2, "P": ranks, "g": size, "G": -(-ranks // size), **symbols}
    return float(eval(formula, {"__builtins__": {}}, names))


def steps_written(text: str) -> list[str]:
    return STEPS.findall(text)


def port_written(text: str) -> list[tuple[str, str]]:
    """Each as (at most, less than, about or nothing; how many times S)."""
    found = [(a or c, b or d) for a, b, c, d in PORT.findall(text)]
    return [(word.strip(), times.removesuffix("·") or "1") for word, times in found]
