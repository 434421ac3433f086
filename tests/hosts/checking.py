"""What checks are made of: a name and a function that returns what was seen, or fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import Lab
from processes import Result

# What tells a backend which interface to use.
INTERFACE = "GLOO_SOCKET_IFNAME"
RANKS = Path(__file__).parent / "ranks"
WORDS = 240  # letters of an error text that a line shows
SHOWN = 2  # complaints that a line shows


@dataclass(frozen=True)
class Setting:
    """What the checks are about: a backend of torch."""

    backend: str

    def environment(self, interface: str | None = "eth0") -> Mapping[str, str]:
        """Unless it is told, gloo finds no other host without names. allfold is told only if a check is about that."""
        return {INTERFACE: interface} if interface and self.backend == "gloo" else {}


class Failed(Exception):
    def __init__(self, complaints: Sequence[str], output: str = "") -> None:
        shown = list(dict.fromkeys(filter(None, map(one_line, complaints))))
        more = [f"and {len(shown) - SHOWN} more"] if len(shown) > SHOWN else []
        super().__init__("; ".join([*shown[:SHOWN], *more]))
        self.output = "\n".join([*complaints, output])


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[Setting], str]


def must_have_left_nothing(lab: Lab) -> None:
    if left := lab.leftovers():
        raise Failed(left)


def outputs(result: Result) -> str:
    return "\n".join(f"--- {part.label}, status {part.status}\n{part.output}" for part in result.parts)


def one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WORDS else line[: WORDS - 1] + "…"
