"""Which algorithms there are, and how a name and a number of ranks become a schedule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from .collectives import COLLECTIVES, find_collective, suggest
from .errors import ScheduleError, UsageError
from .schedule import Move, Schedule, build

Steps = Iterable[Iterable[Move]]
Generator = TypeVar("Generator", bound=Callable[..., Steps])


@dataclass(frozen=True)
class Algorithm:
    """A registered generator function."""

    collective: str
    name: str
    function: Callable[..., Steps]
    chunks: int | Callable[..., int] | None

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, on one line."""
        return " ".join((inspect.getdoc(self.function) or "").split("\n\n")[0].split())

    @property
    def source(self) -> str:
        return inspect.getsource(self.function)


_registry: dict[str, dict[str, Algorithm]] = {name: {} for name in COLLECTIVES}


def algorithm(
    collective: str, name: str | None = None, *, chunks: int | Callable[..., int] | None = None
) -> Callable[[Generator], Generator]:
    """Register a generator function of the number of ranks (and the root, where there is one) as an algorithm.

    The function stays what it is: plain and importable. `name` is the function's own unless given. `chunks` says how
    many chunks the buffer has when that does not follow from the largest chunk named; chunks beyond are scratch.
    """
    find_collective(collective)

    def register(function: Generator) -> Generator:
        key = name or getattr(function, "__name__", None)
        if not callable(function) or not key:
            raise UsageError(f"@algorithm goes before a generator function, not before {function!r}")
        known = _registry[collective].get(key)
        if known is not None and _identity(known.function) != _identity(function):
            raise UsageError(f"{collective} already has an algorithm {key!r}, in {known.function.__module__}")
        _registry[collective][key] = Algorithm(collective, key, function, chunks)
        return function

    return register


def _identity(function: Callable[..., Steps]) -> tuple[str, str]:
    # A notebook cell or a module that is run again defines the same function anew; that replaces the old one.
    return function.__module__, function.__qualname__


def algorithms(collective: str) -> list[str]:
    """The names of a collective's algorithms."""
    return list(_registry[find_collective(collective).name])


def find_algorithm(collective: str, name: str) -> Algorithm:
    known = _registry[find_collective(collective).name]
    if name not in known:
        raise UsageError(f"{collective} has no algorithm {name!r}; {suggest(name, known)}")
    return known[name]


def schedule(
    collective: str,
    algorithm: str | Callable[..., Steps] | Algorithm,
    ranks: int,
    root: int | None = None,
    **parameters: Any,
) -> Schedule:
    """The schedule of an algorithm, by its name or as a generator function, for `ranks` ranks.

    `root` is for the rooted collectives (0 unless given); further parameters go to the algorithm
    (`schedule("all_reduce", "hierarchical", 8, inner="ring")`).
    """
    promise = find_collective(collective)
    ranks = _whole("ranks", ranks, 1, None)
    if promise.rooted:
        root = _whole("root", 0 if root is None else root, 0, ranks - 1)
    elif root is not None:
        raise UsageError(f"{collective} has no root, but root={root} was given")
    if isinstance(algorithm, str):
        chosen = find_algorithm(collective, algorithm)
    elif isinstance(algorithm, Algorithm):
        chosen = algorithm
    elif callable(algorithm):
        chosen = _registered(collective, algorithm)
    else:
        raise UsageError(f"an algorithm is a name or a generator function, not {algorithm!r}")
    if chosen.collective != collective:
        raise UsageError(f"{chosen.name!r} is an algorithm for {chosen.collective}, not for {collective}")
    arguments = (ranks, root) if promise.rooted else (ranks,)
    try:
        inspect.signature(chosen.function).bind(*arguments, **parameters)
    except TypeError as error:
        wanted = "(ranks, root)" if promise.rooted else "(ranks)"
        raise UsageError(f"{chosen.name} cannot be called for {collective} with {wanted}: {error}") from None
    chunks = chosen.chunks(ranks, **parameters) if callable(chosen.chunks) else chosen.chunks
    if chunks is not None and (chunks < 1 or chunks % promise.slices(ranks)):
        raise UsageError(f"{chosen.name} declares {chunks} chunks for {collective} with {ranks} ranks")
    try:
        steps = chosen.function(*arguments, **parameters)
    except (UsageError, ScheduleError):
        raise
    except Exception as error:
        title = f"{chosen.name}(ranks={ranks})"
        raise ScheduleError(f"{title}: raised {type(error).__name__} before its first step: {error}") from error
    return build(collective, chosen.name, ranks, root, steps, chunks)


def _registered(collective: str, function: Callable[..., Steps]) -> Algorithm:
    for known in _registry[collective].values():
        if known.function is function:
            return known
    return Algorithm(collective, getattr(function, "__name__", "algorithm"), function, None)


def _whole(what: str, value: object, least: int, most: int | None) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UsageError(f"{what} must be a whole number, not {value!r}")
    number = int(value.__index__())
    if number < least or (most is not None and number > most):
        limits = f"at least {least}" if most is None else f"between {least} and {most}"
        raise UsageError(f"{what} must be {limits}, not {number}")
    return number
