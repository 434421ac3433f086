"""Algorithms, numbers of ranks and hosts, as a command line names them."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..collectives import COLLECTIVES, find_collective
from ..division import Lengths
from ..errors import UsageError, raised_by_handler
from ..launch.sandbox import line_of, sentence
from ..registry import Algorithm, Steps, algorithms, find_algorithm, schedule
from ..schedules import Schedule, load
from ..wording import one_rank_count, suggest

if TYPE_CHECKING:
    from ..programs.messages import MessagePrograms
    from ..programs.two_level import Islands


@dataclass(frozen=True)
class Choice:
    """One algorithm as the user named it; plain strings only, so that another process can find it again."""

    collective: str
    name: str
    """An algorithm's name, FILE.py:function, or a schedule in FILE.xml (MSCCL) or FILE.json."""
    parameters: str = "{}"
    """The algorithm's parameters besides the ranks and the root, as JSON."""

    @property
    def title(self) -> str:
        return self.name.rpartition(":")[2]

    @property
    def file(self) -> Schedule | None:
        """The schedule, if a file holds one; None if one can be made for any number of ranks."""
        return read_schedule(self.name) if is_schedule(self.name) else None

    def schedule(self, ranks: int, root: int | None = None) -> Schedule:
        found = self.file
        if found is not None:
            if (ranks, found.root if root is None else root) != (found.ranks, found.root):
                rooted = "" if found.root is None else f" and the root {found.root}"
                raise UsageError(
                    f"{self.name} is a schedule for {found.ranks} ranks{rooted}: pass --ranks {found.ranks}"
                )
            return found
        return schedule(self.collective, self._algorithm, ranks, root, **json.loads(self.parameters))

    def two_level(self, root: int | None, islands: Islands) -> MessagePrograms:
        """The programs that the ranks of these islands run, proved."""
        from ..proved import two_level_programs_of

        by = tuple((key, value) for key, value in json.loads(self.parameters).items() if key != "groups")
        return two_level_programs_of(self.collective, self._algorithm, root, islands, by, None).programs

    def on(self, islands: Islands) -> Choice:
        """With the islands as groups, and the parameters of calls between such hosts where it is what they follow."""
        if not islands:
            return self
        from ..engines.islands.crossing import BUILT_IN

        groups = [list(island) for island in islands]
        followed = dict(BUILT_IN.schedule(self.collective, groups, bytes) for bytes in (2**30, 0))
        given = {"groups": groups, **followed.get(self.name, {}), **json.loads(self.parameters)}
        return replace(self, parameters=json.dumps(given))

    @property
    def _algorithm(self) -> Callable[..., Steps] | Algorithm | str:
        return function_of(self.name) if is_file(self.name) else self.name


def check(arguments: argparse.Namespace) -> None:
    """Raise for unusable names; a command checks them again when it uses them."""
    if arguments.collective is not None:
        find_collective(arguments.collective)
    if hasattr(arguments, "parameters"):
        for name in getattr(arguments, "names", None) or [getattr(arguments, "name", None)]:
            if name is not None:
                choose(name, arguments.collective, arguments.parameters)


def choose(name: str, collective: str | None, parameters: list[str]) -> Choice:
    """The algorithm of that name; if several collectives have one, the first's: all_reduce's, where it has one."""
    given = json.dumps(dict(_parameter(word) for word in parameters))
    if collective is not None:
        find_collective(collective)
    if is_schedule(name):
        found_there = read_schedule(name).collective
        if collective not in (None, found_there) or parameters:
            raise UsageError(f"{name} is a schedule for {found_there}; it takes no other collective and no --with")
        return Choice(found_there, name)
    if is_file(name):
        function = function_of(name)
        return Choice(collective or _own_collective(name, function), name, given)
    if collective is not None:
        return Choice(collective, find_algorithm(collective, name).name, given)
    found = [one for one in COLLECTIVES if name in algorithms(one)]
    if not found:
        known = dict.fromkeys(known for one in COLLECTIVES for known in algorithms(one))
        raise UsageError(f"there is no algorithm {name!r}; {suggest(name, known)}; one of your own is FILE.py:function")
    return Choice(found[0], name, given)


def choose_all(collective: str | None) -> list[Choice]:
    wanted = COLLECTIVES if collective is None else [find_collective(collective).name]
    return [Choice(one, name) for one in wanted for name in algorithms(one)]


def choose_some(words: Sequence[str], collective: str | None) -> tuple[str, list[str] | None, list[Schedule]]:
    """The collective; the algorithms of it that the words name (None: they name none at all); schedules in files."""
    words = list(dict.fromkeys(word.strip() for word in words))
    made = [read_schedule(word) for word in words if is_schedule(word)]
    chosen = find_collective(collective or (made[0].collective if made else "all_reduce")).name
    names = [find_algorithm(chosen, word).name for word in words if not is_schedule(word)]
    return chosen, names if words else None, made


def ranks_of(choice: Choice, text: str | None) -> int:
    """The number of ranks that was asked for; otherwise those of the file, or 4."""
    if text is not None:
        return one_rank_count(text)
    return 4 if choice.file is None else choice.file.ranks


def parse_hosts(text: str) -> int | list[int]:
    """`2` is a number of hosts, `1,3` the number of ranks on each."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) <= 6 for part in parts):
        raise UsageError(f"--hosts {text}: expected a number of hosts, or the number of ranks on each (1,3)")
    return int(parts[0]) if len(parts) == 1 else [int(part) for part in parts]


def ranks_on_hosts(hosts: str, ranks: str | None) -> list[list[int]]:
    """The ranks of each host, from `--hosts` and `--ranks`."""
    from ..launch.spawn import ranks_per_host
    from ..price.cost.plan import MOST_COUNTED

    wanted = parse_hosts(hosts)
    if ranks is None and isinstance(wanted, int):
        raise UsageError(
            f"--hosts {hosts}: give the number of ranks on each host (--hosts 4,4), or the total with --ranks"
        )
    total = one_rank_count(ranks) if ranks is not None else sum(wanted)  # type: ignore[arg-type]
    counts = ranks_per_host(total, wanted)
    if len(counts) < 2 or total > MOST_COUNTED:
        raise UsageError(f"--hosts {hosts}: expected at least two hosts, and at most {MOST_COUNTED:,} ranks")
    ends = list(accumulate(counts))
    return [list(range(end - count, end)) for end, count in zip(ends, counts, strict=True)]


def take_hosts(arguments: argparse.Namespace) -> Islands:
    """With `--hosts`, the ranks of each host; `--ranks` becomes how many they are."""
    if arguments.hosts is None:
        return ()
    islands = ranks_on_hosts(arguments.hosts, arguments.ranks)
    arguments.ranks = str(sum(map(len, islands)))
    return tuple(map(tuple, islands))


def refuse_plan_options(arguments: argparse.Namespace, because: str, *more: str) -> None:
    for option in ("topology", "segments", "svg", "sweep", *more):
        if getattr(arguments, option) not in (None, False):
            raise UsageError(f"--{option} is for a plan; {because}")


def _parameter(word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    if not key.isidentifier() or not equals:
        raise UsageError(f"--with {word}: expected KEY=VALUE, as in --with across=tree or --with groups=[[0,1],[2]]")
    try:
        return key, json.loads(value)
    except ValueError as error:
        if value.lstrip()[:1] in ("[", "{", '"'):  # meant as JSON, not as a word
            raise UsageError(f"--with {word}: the value is not JSON: {error}") from None
        return key, value


# FILE.xml and FILE.json ----------------------------------------------------------------------------------------------


def is_schedule(name: str) -> bool:
    return name.endswith((".xml", ".json"))


def read_schedule(path: str) -> Schedule:
    """A schedule as `allfold export` or `allfold show --json` wrote it, or from any MSCCL XML file."""
    if path.endswith(".xml"):
        from ..export.msccl.msccl import read

        return read(Path(path))
    return load(path)


# FILE.py:function ----------------------------------------------------------------------------------------------------


def is_file(name: str) -> bool:
    return name.endswith(".py") or ".py:" in name


def function_of(name: str) -> Callable[..., Steps] | Algorithm:
    path, _, function = name.rpartition(":") if not name.endswith(".py") else (name, "", "")
    module = _load_module(str(Path(path).absolute()), path)
    found = getattr(module, function, None) if function else None
    if callable(found):
        return found  # type: ignore[no-any-return]
    there = [
        one
        for one, value in vars(module).items()
        if inspect.isgeneratorfunction(value) and value.__module__ == module.__name__
    ]
    listing = f"its generator functions: {', '.join(there)}" if there else "it has no generator functions"
    if not function:
        raise UsageError(f"{path} must be followed by :function; {listing}")
    what = "is not a function" if hasattr(module, function) else "does not exist"
    raise UsageError(f"{function!r} of {path} {what}; {listing}")


@cache
def _load_module(absolute: str, path: str) -> ModuleType:
    """Run the user's file as a module, once. Any error becomes a sentence that names the line."""
    if not Path(absolute).is_file():
        raise UsageError(f"there is no file {path}")
    name = f"allfold_file_{Path(absolute).stem}"
    spec = importlib.util.spec_from_file_location(name, absolute)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(Path(absolute).parent) not in sys.path:
        sys.path.insert(0, str(Path(absolute).parent))  # as for a script: it may import files next to it
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = "" if error.lineno is None else f" (line {error.lineno})"  # it has none if a byte is zero
        raise UsageError(f"{path} is not Python: {error.msg}{where}") from error
    except (Exception, SystemExit) as error:
        if raised_by_handler(error):
            raise
        where = f"line {line_of(error, absolute) or '?'}"
        raise UsageError(f"{path} raised when it was loaded: {sentence(error)} ({where})") from error
    return module


def _own_collective(name: str, function: Callable[..., Steps] | Algorithm) -> str:
    """The collective that the function's own @algorithm names."""
    for collective in COLLECTIVES:
        if any(find_algorithm(collective, known).function is function for known in algorithms(collective)):
            return collective
    raise UsageError(f"{name} does not name its collective; add --collective or put @algorithm(…) before the function")


def counts_of(collective: str, ranks: int, text: str | None) -> Lengths | None:
    """The lengths of slices that `--counts` gives."""
    if text is None:
        return None
    rows = [row.split(",") for row in text.split("/")]
    if not all(word.strip().isdecimal() for row in rows for word in row):
        raise UsageError(f"--counts {text}: expected lengths as in 3,0,5, for all_to_all one row per rank: 1,2/3,0")
    numbers = [[int(word) for word in row] for row in rows]
    promise = find_collective(collective)
    return Lengths(promise, ranks, numbers if promise.exchanges or len(numbers) > 1 else numbers[0])
