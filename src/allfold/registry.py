"""The registry of algorithms, and how a name and a number of ranks become a schedule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from threading import RLock
from types import MethodType
from typing import Any, TypeVar

from .collectives import COLLECTIVES, find_collective
from .errors import ScheduleError, UsageError, raised_by_handler
from .patterns import Patterns
from .schedules import MOST_RANKS, Move, Schedule, build
from .wording import suggest

Steps = Iterable[Iterable[Move]]
Generator = TypeVar("Generator", bound=Callable[..., Steps])
Formula = Callable[[int], int | Fraction | None]


@dataclass(frozen=True)
class Phase:
    """A part of an algorithm: what it is called, what happens in each of its steps, and how many steps it has.

    Without a sentence, each step gets one that says who sends to whom. `steps` is a function of the number of ranks (and
    of `groups`, where it takes them), or None for all that are left.

    >>> phase = af.Phase("add up", "every rank adds what came from the left", lambda ranks: ranks - 1)
    >>> phase.name, phase.steps(4)
    ('add up', 3)
    """

    name: str
    sentence: str = ""
    steps: Callable[..., int] | None = None


@dataclass(frozen=True, eq=False)
class Algorithm:
    """A generator function, how many chunks it divides the buffer into, and the cost it declares."""

    collective: str
    name: str
    function: Callable[..., Steps]
    chunks: int | Callable[..., int] | None
    steps: Formula | None = None
    port: Formula | None = None
    patterns: Callable[..., Patterns | None] | None = None
    phases: tuple[Phase, ...] = ()
    made: Schedule | None = None
    """The schedule itself, where there is nothing to generate: one that was found, or read from a file."""

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, on one line."""
        return " ".join((inspect.getdoc(self.function) or "").split("\n\n")[0].split())

    @property
    def source(self) -> str:
        return inspect.getsource(self.function)

    @property
    def takes_groups(self) -> bool:
        """True if it has two levels, and takes the groups of ranks as a parameter."""
        return "groups" in inspect.signature(self.function).parameters


AnyAlgorithm = str | Callable[..., Steps] | Algorithm | Schedule
"""An algorithm as calls take it: by its name, as a generator function, as one that is registered, or as a schedule
for just these ranks."""

_REGISTERED_AS = "__allfold_algorithms__"  # on a function: name and chunks by collective, which travel with it
_BUILT_IN = f"{__package__}.algorithms"


class Registry:
    """Algorithms by collective and name: those that ship with allfold, and those that users register.

    The built-in ones are loaded when somebody first asks. Their own modules import this one, so it cannot load them
    while it is imported itself.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Algorithm]] = {name: {} for name in COLLECTIVES}
        self._loaded = False
        self._loading = RLock()
        self._replacements: list[Algorithm] | None = None
        self.on_replacement: list[Callable[[], None]] = []
        """Called when a name gets a new function: whatever was made from the old one is stale."""

    def of(self, collective: str) -> dict[str, Algorithm]:
        """The algorithms of a collective by name, in the order in which they are listed."""
        if not self._loaded:
            self._load()
        return self._known[collective] if collective in self._known else _between_neighbours(collective)

    def all(self) -> list[Algorithm]:
        return [one for collective in COLLECTIVES for one in self.of(collective).values()]

    def add(self, new: Algorithm) -> None:
        """Register an algorithm. A name that another one has is refused, except inside `replacing`."""
        # The names of built-in algorithms are taken, so these are loaded before anything else is added.
        if new.collective not in self._known:
            label = find_collective(new.collective).label
            raise UsageError(
                f"{label}: algorithms between neighbours are not registered; pass the function instead of a name"
            )
        is_built_in = (new.function.__module__ or "").startswith(f"{_BUILT_IN}.")
        names = self._known[new.collective] if is_built_in else self.of(new.collective)
        known = names.get(new.name)
        if self._replacements is not None:
            self._replacements.append(new)
        elif known is not None and not _is_again(known, new):
            raise UsageError(f"{new.collective} already has an algorithm {new.name!r}, in {known.function.__module__}")
        names[new.name] = new
        if known is not None and (new.made is None or known.made != new.made):
            for stale in self.on_replacement:
                stale()

    @contextmanager
    def replacing(self) -> Iterator[list[Algorithm]]:
        """Inside, any name may be registered again. Yields the list of those that are registered inside."""
        self._replacements = []
        try:
            yield self._replacements
        finally:
            self._replacements = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget at the end what is registered inside."""
        before = {collective: dict(self.of(collective)) for collective in COLLECTIVES}
        try:
            yield
        finally:
            self._known = before

    def _load(self) -> None:
        with self._loading:
            families = import_module(f"{_BUILT_IN}.table").FAMILIES
            # A family may have been imported by itself, before the others.
            places = {f"{_BUILT_IN}.{family}": place for place, family in enumerate(families)}
            for collective, known in self._known.items():
                in_order = sorted(known.values(), key=lambda one: places.get(one.function.__module__, len(places)))
                self._known[collective] = {one.name: one for one in in_order}
            self._loaded = True


def _between_neighbours(collective: str) -> dict[str, Algorithm]:
    """The algorithms of a collective between the neighbours of a graph: the same for every graph, so none is kept."""
    made = import_module(f"{_BUILT_IN}.between_neighbours")
    return {one.__name__: algorithm_of(collective, one) for one in (made.direct, made.rounds)}


def _is_again(known: Algorithm, new: Algorithm) -> bool:
    """Tell a notebook cell or a module that is run again, and a schedule that replaces a schedule, from a clash."""
    if known.made is not None or new.made is not None:
        return known.made is not None and new.made is not None
    old, function = known.function, new.function
    return (old.__module__, old.__qualname__) == (function.__module__, function.__qualname__)


REGISTRY = Registry()


def algorithm(
    collective: str,
    name: str | None = None,
    *,
    chunks: int | Callable[..., int] | None = None,
    steps: Formula | None = None,
    port: Formula | None = None,
    patterns: Callable[..., Patterns | None] | None = None,
    phases: Iterable[Phase] = (),
) -> Callable[[Generator], Generator]:
    """Register a generator function of the number of ranks (and the root, where there is one) as an algorithm.

    The function itself stays plain and importable. `name` is the function's own unless given. `chunks` says how many
    chunks the buffer has when that does not follow from the highest chunk named; chunks beyond that are scratch.
    Processes that `allfold.spawn` starts know what a script or a notebook has registered.

    Its cost can be counted from its schedule. Declared here, it is known for any number of ranks: `steps` and `port`
    (the bytes through its busiest port, as a multiple of S) are functions of the number of ranks; `patterns` takes what
    the generator takes. They are called for two or more ranks, and return None where they do not know. `phases` are
    what pictures call its parts; without them, they follow from the schedule.

    >>> @af.algorithm("all_reduce", "star")
    ... def star(ranks):
    ...     yield [af.reduce(chunk=0, source=r, destination=0) for r in range(1, ranks)]
    ...     yield [af.copy(chunk=0, source=0, destination=r) for r in range(1, ranks)]
    >>> print(af.schedule("all_reduce", "star", ranks=3))
    all_reduce by star: 3 ranks, 1 chunk, 2 steps, 4 messages
    step 1  +0:1→0  +0:2→0
    step 2  0:0→1  0:0→2
    """
    named = tuple(phases)
    for phase in named:
        if not isinstance(phase, Phase):
            raise UsageError(f"phases must be Phase(name, sentence, steps), not {phase!r}")
    find_collective(collective)
    for what, formula in (("steps", steps), ("port", port), ("patterns", patterns)):
        if formula is not None and not callable(formula):
            raise UsageError(f"{what} must be a function of the number of ranks, not {formula!r}")

    def register(function: Generator) -> Generator:
        key = name or getattr(function, "__name__", None)
        if not callable(function) or not key:
            raise UsageError(f"@algorithm goes before a generator function, not before {function!r}")
        try:
            # A new dictionary: a function made by functools.wraps shares that of the function it wraps.
            marks = {**getattr(function, _REGISTERED_AS, {}), collective: (key, chunks)}
            setattr(function, _REGISTERED_AS, marks)
        except AttributeError:
            raise UsageError(f"@algorithm goes before a function of a module or a notebook, not {function!r}") from None
        REGISTRY.add(Algorithm(collective, key, function, chunks, steps, port, patterns, named))
        return function

    return register


def register(made: Schedule, name: str | None = None) -> Algorithm:
    """Give a schedule that was found or read a name, by which calls, `plan` and `verify` know it from then on.

    It serves the number of ranks (and the root) that it was made for, on any topology. `name` is the schedule's own
    unless given. Registered again, the name means the new schedule. Processes that `allfold.spawn` starts know it.

    >>> algorithm = af.register(af.schedule("all_gather", "ring", ranks=8), "ring_of_8")
    >>> "ring_of_8" in af.algorithms("all_gather", ranks=8), "ring_of_8" in af.algorithms("all_gather", ranks=4)
    (True, False)
    """
    if not isinstance(made, Schedule):
        raise UsageError(f"register: expected a schedule, as of allfold.find(…).schedule; got {made!r:.80}")
    key = made.algorithm if name is None else name
    if not isinstance(key, str) or not key.isidentifier():
        raise UsageError(f"register: {key!r:.80} cannot be the name of an algorithm; expected letters, digits and _")
    new = algorithm_of(made.collective, made if made.algorithm == key else replace(made, algorithm=key))
    REGISTRY.add(new)
    return new


def algorithms_of_script() -> list[Algorithm]:
    """The algorithms that the script or notebook itself has registered: other processes cannot import it from any module."""
    return [one for one in REGISTRY.all() if one.made is not None or one.function.__module__ == "__main__"]


def algorithms(collective: str, ranks: int | None = None, root: int | None = None) -> list[str]:
    """The names of a collective's algorithms; with `ranks`, without registered schedules for other ranks or roots.

    >>> af.algorithms("barrier")
    ['dissemination', 'direct', 'tree', 'hierarchical']
    """
    known = REGISTRY.of(find_collective(collective).name).values()
    asked = ranks, root or 0
    return [
        one.name for one in known if one.made is None or ranks is None or (one.made.ranks, one.made.root or 0) == asked
    ]


def find_algorithm(collective: str, name: str) -> Algorithm:
    known = REGISTRY.of(find_collective(collective).name)
    if name not in known:
        raise UsageError(f"{collective} has no algorithm {name!r}; {suggest(name, known)}")
    return known[name]


def schedule(
    collective: str,
    algorithm: AnyAlgorithm,
    ranks: int,
    root: int | None = None,
    **parameters: Any,
) -> Schedule:
    """The schedule of an algorithm, by its name or as a generator function, for `ranks` ranks.

    `root` is for the rooted collectives (0 unless given); further parameters go to the algorithm
    (`schedule("all_reduce", "hierarchical", 8, groups=[[0, 1, 2], [3, 4, 5, 6, 7]])`).

    >>> print(af.schedule("broadcast", "tree", ranks=4, root=1))
    broadcast by tree: 4 ranks, root 1, 1 chunk, 2 steps, 3 messages
    step 1  0:1→3
    step 2  0:1→2  0:3→0
    """
    promise = find_collective(collective)
    ranks = _whole("ranks", ranks, 1, None)
    if ranks > MOST_RANKS:
        raise UsageError(f"ranks must be at most {MOST_RANKS:,}, not {ranks}")
    if promise.rooted:
        root = _whole("root", 0 if root is None else root, 0, ranks - 1)
    elif root is not None:
        raise UsageError(f"{collective} has no root, but root={root} was given")
    chosen = algorithm_of(collective, algorithm)
    if chosen.made is not None:
        return _fitting(chosen.made, ranks, root)
    arguments = promise.arguments(ranks, root)
    try:
        inspect.signature(chosen.function).bind(*arguments, **parameters)
    except (TypeError, ValueError) as error:  # ValueError: it has no signature
        wanted = "(ranks, root)" if promise.rooted else "(ranks)" if len(arguments) == 1 else "(ranks, wanted)"
        raise UsageError(f"{chosen.name} cannot be called for {collective} with {wanted}: {error}") from None
    chunks = _declared_chunks(chosen, ranks, parameters)
    if chunks is not None and chunks % promise.slices(ranks):
        raise UsageError(f"{chosen.name} declares {chunks} chunks for {collective} with {ranks} ranks")
    try:
        steps = chosen.function(*arguments, **parameters)
    except (UsageError, ScheduleError):
        raise
    except (Exception, SystemExit) as error:
        if raised_by_handler(error):
            raise
        title = f"{chosen.name}(ranks={ranks})"
        raise ScheduleError(f"{title}: raised {type(error).__name__} before its first step: {error}") from error
    return build(collective, chosen.name, ranks, root, steps, chunks)


def _fitting(made: Schedule, ranks: int, root: int | None) -> Schedule:
    if (made.ranks, made.root) != (ranks, root):
        asked = f"{ranks} ranks" + ("" if root is None else f" and the root {root}")
        raise UsageError(f"{made.title} works for that number of ranks only; you asked for {asked}")
    return made


def _declared_chunks(chosen: Algorithm, ranks: int, parameters: dict[str, Any]) -> int | None:
    if not callable(chosen.chunks):
        return None if chosen.chunks is None else _whole(f"{chosen.name}: chunks", chosen.chunks, 1, None)
    try:
        chunks = chosen.chunks(ranks, **parameters)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        if raised_by_handler(error):
            raise
        raise UsageError(f"{chosen.name}: chunks(ranks={ranks}) raised {type(error).__name__}: {error}") from None
    return _whole(f"{chosen.name}: chunks", chunks, 1, None)


def algorithm_of(collective: str, algorithm: AnyAlgorithm) -> Algorithm:
    """The algorithm of a name, or of a generator function, registered or not."""
    if isinstance(algorithm, str):
        return find_algorithm(collective, algorithm)
    if isinstance(algorithm, Algorithm):
        if algorithm.collective != collective:
            raise UsageError(f"{algorithm.name!r} is an algorithm for {algorithm.collective}, not for {collective}")
        return algorithm
    if isinstance(algorithm, Schedule):
        if algorithm.collective != collective:
            raise UsageError(f"{algorithm.title} is a schedule for {algorithm.collective}, not for {collective}")
        # It stays with the schedule, so that what is proved of it once is remembered.
        known: Algorithm = algorithm.__dict__.setdefault(
            "as_algorithm", Algorithm(collective, algorithm.algorithm, _no_generator, None, made=algorithm)
        )
        return known
    if not callable(algorithm):
        raise UsageError(f"an algorithm is a name, a generator function or a schedule, not {algorithm!r}")
    marks = getattr(algorithm, _REGISTERED_AS, {})
    return _of_function(collective, _Same(algorithm), _Same(marks.get(collective)))


class _Same:
    """An object as a key of a dictionary, by its identity. Every access to a method makes a new object of it."""

    __slots__ = ("_identity", "kept")

    def __init__(self, kept: Any) -> None:
        self.kept = kept  # so that nothing else gets its address
        is_method = isinstance(kept, MethodType)
        self._identity = (id(kept.__self__), id(kept.__func__)) if is_method else (id(kept),)

    def __hash__(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._identity == other._identity


# The same object for the same function, so that what is made and proved of it once is remembered. Few: a function that
# is made for one call only is soon forgotten.
@lru_cache(maxsize=64)
def _of_function(collective: str, function: _Same, mark: _Same) -> Algorithm:
    name, chunks = mark.kept or (getattr(function.kept, "__name__", "algorithm"), None)
    return Algorithm(collective, name, function.kept, chunks)


def _no_generator(ranks: int, root: int = 0) -> Steps:
    """A schedule that was found for a network, or read from a file."""
    raise UsageError("a schedule that was found or read has no generator")


def _whole(what: str, value: object, least: int, most: int | None) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UsageError(f"{what} must be a whole number, not {value!r}")
    try:
        number = int(value.__index__())
    except TypeError:  # an array
        raise UsageError(f"{what} must be a whole number, not {value!r}") from None
    if number < least or (most is not None and number > most):
        limits = f"at least {least}" if most is None else f"between {least} and {most}"
        raise UsageError(f"{what} must be {limits}, not {number}")
    return number
