"""What every rank gives, and what must come of it: small whole numbers, exact in every type, so that results compare equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

Values = np.ndarray[Any, Any]
Pairs = Sequence[tuple[torch.Tensor, Values]]

# How backends say that they do not have something. It is the same on every rank, and nothing was sent.
_REFUSALS = ("support", "not implemented", "invalid scalar type", "unhandled", "only works with", "cannot use reduceop")


@dataclass
class Tally:
    """The cases of a section: how many, which were wrong, and what the backend refused."""

    cases: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def run(self, name: str, case: Callable[[], Pairs]) -> None:
        """Compare what a case got with what it wanted. An error that is not a refusal goes on to the caller."""
        self.cases += 1
        try:
            pairs = case()
        except Exception as error:
            if not any(words in str(error).lower() for words in _REFUSALS):
                raise type(error)(f"{name}: {error}") from error
            self.refused.append(name)
            return
        for number, (got, wanted) in enumerate(pairs):
            if difference := _difference(got, wanted):
                self.wrong.append(f"{name}, result {number}: {difference}")


def values(case: int, rank: int, count: int) -> Values:
    """From 1 to 3: products fit into a byte for five ranks, and sums into bfloat16 for eighty."""
    return np.random.default_rng([case, rank]).integers(1, 4, count)


def tensor(numbers: Values, dtype: str) -> torch.Tensor:
    return torch.tensor(kept(numbers, dtype), dtype=getattr(torch, dtype))


def kept(numbers: Values, dtype: str) -> Values:
    """What a type makes of the numbers."""
    made: Values = numbers % 2 == 0 if dtype == "bool" else numbers
    return made * (1 + 1j) if dtype.startswith("complex") else made


def zeros(count: int, dtype: str) -> torch.Tensor:
    return torch.zeros(count, dtype=getattr(torch, dtype))


def _difference(got: torch.Tensor, wanted: Values) -> str:
    wide = torch.complex128 if got.is_complex() else torch.float64
    found, expected = got.detach().to(wide).numpy(), np.asarray(wanted)
    if found.shape != expected.shape:
        return f"{found.shape} instead of {expected.shape}"
    bad = np.flatnonzero(~np.isclose(found, expected, rtol=1e-6, atol=0))
    if not bad.size:
        return ""
    first = bad[0]
    return f"{bad.size} of {found.size} differ; at {first} {found.flat[first]} instead of {expected.flat[first]}"
