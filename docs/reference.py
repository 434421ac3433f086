"""Writes docs/reference.md: every public name with its docstring, in which there is an example. `make reference` runs this.

`tests/cli/test_api_reference.py` runs all examples, and fails where a name has none or where the page is not up to date.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from pathlib import Path
from typing import Any, NamedTuple

import allfold
import allfold.testing
import allfold.torch
from allfold import price
from allfold.communicator.communicator import Communicator
from allfold.communicator.handle import Handle

PAGE = Path(__file__).with_name("reference.md")
WIDTH = 90

# Those of allfold, by what one does with them. Names that are not here are a failure of the test.
SECTIONS = {
    "Schedules": [
        "schedule", "algorithms", "algorithm", "copy", "reduce", "Move", "Phase", "Schedule", "load", "register",
        "verify", "Proof",
    ],
    "Running them": ["spawn", "start", "init", "op", "Op", "Message", "ANY_TAG", "replay", "Replay"],
    "Finding them": ["find", "Found", "FoundTogether"],
    "Errors": [
        "AllfoldError", "UsageError", "ScheduleError", "BoundError", "MismatchError", "CollectiveTimeout", "RankLost",
        "RankFailed", "SharedMemoryError", "DeviceError",
    ],
    "Version": ["__version__"],
}  # fmt: skip

# Constants have no docstrings.
CONSTANTS = {
    "ANY_TAG": """In `Communicator.recv`: take a message with whatever tag.

>>> def work(comm):
...     if comm.rank == 0:
...         comm.send(np.ones(3), destination=1, tag=7)
...         return None
...     return comm.recv(np.empty(3), source=0, tag=af.ANY_TAG).tag
>>> af.spawn(work, ranks=2)
[None, 7]
""",
    "__version__": """The version, as `allfold --version` prints it.

>>> af.__version__.count(".")
2
""",
}

HEAD = """\
# API reference

Every public name, with an example. This page is made from the docstrings, so `help(af.spawn)` says the same. The examples are
run by the tests. They begin with

```python
import allfold as af
import numpy as np
from allfold import price
```

Modules and names that are not on this page, or that begin with an underscore, may change at any time
([CONTRIBUTING](../CONTRIBUTING.md#conventions)).
"""
ON_TWO_RANKS = (
    "The examples run on two ranks, as the function that `af.spawn` is given; what is shown is what rank 0 prints."
)
TORCH = (
    'Importing it registers the backend for `dist.init_process_group("allfold")`. ' + ON_TWO_RANKS + " They begin with "
    "`import torch, torch.distributed as dist`, and the group is there."
)


class Name(NamedTuple):
    """One entry of the page."""

    title: str
    value: Any
    text: str
    """Its docstring."""
    ranks: int
    """On how many ranks its example runs."""


def names() -> dict[str, list[Name]]:
    """All entries, by section."""
    found: dict[str, list[Name]] = {}
    for section, listed in SECTIONS.items():
        found[section] = [_entry(f"af.{name}", getattr(allfold, name), CONSTANTS.get(name)) for name in listed]
        if section == "Running them":
            methods = [name for name in dir(Communicator) if not name.startswith("_")]
            found["Communicator"] = [
                _entry("Communicator", Communicator, ranks=2),
                *(_entry(f"comm.{name}", getattr(Communicator, name), ranks=2) for name in methods),
                _entry("Handle", Handle, ranks=2),
            ]
    found["allfold.price"] = [_entry(f"price.{name}", getattr(price, name)) for name in price.__all__]
    found["allfold.torch"] = [
        _entry(f"allfold.torch.{name}", getattr(allfold.torch, name), ranks=2) for name in allfold.torch.__all__
    ]
    found["allfold.testing"] = [_entry("allfold.testing.run", allfold.testing.run)]
    return found


def _entry(title: str, value: Any, text: str | None = None, ranks: int = 1) -> Name:
    # Not inherited ones: those of int, of Exception, of tuple.
    own = text if text is not None else inspect.cleandoc(value.__doc__) if value.__doc__ else ""
    return Name(title, value, own, ranks)


def _signature(title: str, value: Any) -> str:
    """How it is called; of classes that are only read, their fields."""
    fields = getattr(value, "_fields", None) or (
        [one.name for one in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    )
    if fields:
        return f"Fields: {', '.join(f'`{name}`' for name in fields)}.\n\n"
    if not callable(value) or (inspect.isclass(value) and "__init__" not in vars(value)):
        return ""
    signature = inspect.signature(value)
    taken = [one for one in signature.parameters.values() if one.name != "self"]
    parts = [_parameter(one) for one in taken]
    kinds = [one.kind for one in taken]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    gives = (
        ""
        if inspect.isclass(value) or signature.return_annotation in ("None", None)
        else f" -> {signature.return_annotation}"
    )
    line = f"{title}({', '.join(parts)}){gives}"
    if len(line) > WIDTH:
        line = f"{title}(\n" + "".join(f"    {part},\n" for part in parts) + f"){gives}"
    return f"```python\n{line}\n```\n\n"


def _parameter(one: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(one.kind, "")
    text = f"{stars}{one.name}" + ("" if one.annotation is one.empty else f": {one.annotation}")
    if one.default is one.empty:
        return text
    default = f"{one.default.__module__}.{one.default.__name__}" if inspect.isclass(one.default) else repr(one.default)
    return f"{text} = {default}"


def _members(value: Any) -> str:
    """What else a class has, in a sentence each; a communicator's methods have entries of their own."""
    if not inspect.isclass(value) or value is Communicator or issubclass(value, Exception):
        return ""
    lines = []
    for name, member in sorted(vars(value).items()):
        member = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        documented = inspect.isfunction(member) or isinstance(member, (property, functools.cached_property))
        if name.startswith("_") or not documented or not member.__doc__:
            continue
        said = " ".join(inspect.cleandoc(member.__doc__).partition("\n\n")[0].split())
        lines.append(f"- `{name}{'()' if inspect.isfunction(member) else ''}`: {said}")
    return "\n\n" + "\n".join(lines) if lines else ""


def _markdown(text: str) -> str:
    """A docstring, with its example as a block of code."""
    said, _, example = text.partition("\n\n>>>")
    return said + (f"\n\n```pycon\n>>>{example.rstrip()}\n```" if example else "")


def page() -> str:
    parts = [HEAD]
    for section, entries in names().items():
        parts.append(f"## {section}\n")
        if section == "Communicator":
            given = "What `af.init`, `af.spawn`, `af.start` and `comm.group` give; for annotations it is"
            home = "`allfold.communicator.communicator.Communicator`"
            parts.append(f"{given} {home}. {ON_TWO_RANKS}\n")
        elif section == "allfold.torch":
            parts.append(TORCH + "\n")
        for one in entries:
            parts.append(
                f"### `{one.title}`\n\n{_signature(one.title, one.value)}{_markdown(one.text)}{_members(one.value)}\n"
            )
    parts.append("---\n\n[Documentation index](index.md)\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{sum(map(len, names().values()))} names are in {PAGE.name}")
