"""`allfold doctor`: what the ranks of a live run are doing, seen from outside."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ... import _native
from ...engines.shared_memory.flight import read
from ...engines.signature import Signature
from ...errors import UsageError
from ...launch.environment import ancestry
from ...price.topology.gpus import gpus_of_processes, mps_runs
from ...wording import name_ranks
from ..terminal import write_json, write_lines, write_table
from .flight import export_calls, write_calls

_ANSWER_SECONDS = 0.5
_LONG = 1.0  # seconds in one call after which a missing rank counts as waited for, not just on its way


def run(arguments: argparse.Namespace) -> int:
    if (arguments.to is None) != (arguments.output is None):
        raise UsageError("--to and --output go together: the format, and where to write it")
    if arguments.read is not None:
        return _show_files(arguments)
    _native.require_engine("looking at a live run")
    if (arguments.process is None) != arguments.all:
        raise UsageError("expected the number of a process, or --all")
    processes = None if arguments.all else _family(arguments.process)
    # An open descriptor keeps the memory of a run that has ended, and whoever called this may live on.
    with ExitStack() as opened:
        groups = _groups(_arenas(processes, opened))
        if not groups:
            where = (
                "this user has no run"
                if arguments.all
                else f"process {arguments.process} is not a rank and has no ranks below it"
            )
            raise UsageError(f"{where}: it does not use allfold")
        gpus = gpus_of_processes({member["process"] for group in groups for member in group["members"]})
        for group in groups:
            for member in group["members"]:
                member["stacks"] = _stacks(member.pop("descriptor"))
                member["gpus"] = gpus.get(member["process"], [])
    if arguments.dump is not None:
        write_json(groups, arguments.dump)
    if arguments.to is not None:
        write_lines([export_calls(groups, arguments.to, arguments.output)], arguments.color)
    if arguments.json:
        write_json(groups)
    elif arguments.dump is None and arguments.to is None:
        for number, group in enumerate(groups):
            write_lines([""] if number else [], arguments.color)
            _write(group, arguments)
    return int(any(_is_in_trouble(group) for group in groups))


def _show_files(arguments: argparse.Namespace) -> int:
    if arguments.process is not None or arguments.all:
        raise UsageError("--read shows files; leave out the process and --all")
    if arguments.last < 1:
        raise UsageError(f"--last {arguments.last}: expected at least 1")
    groups = read(arguments.read)
    if not groups:
        files = "this file holds" if len(arguments.read) == 1 else "these files hold"
        raise UsageError(f"--read: {files} no calls of any rank")
    if arguments.to is not None:
        write_lines([export_calls(groups, arguments.to, arguments.output)], arguments.color)
        return 0
    if arguments.json:
        write_json(groups)
        return 0
    return int(write_calls(groups, arguments.last, arguments.color))


# Looking --------------------------------------------------------------------------------------------------------------


def _family(process: int) -> set[int]:
    """A process and its descendants: the user may name the launcher."""
    if not Path(f"/proc/{process}").exists():
        raise UsageError(f"there is no process {process}")
    children: dict[int, list[int]] = {}
    for number in _processes():
        children.setdefault(ancestry(number)[1], []).append(number)
    family, waiting = set(), [process]
    while waiting:
        family.add(one := waiting.pop())
        waiting += children.get(one, [])
    return family


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _arenas(processes: set[int] | None, opened: ExitStack) -> Iterator[dict[str, Any]]:
    """The arenas of those processes and of all their peers, whose arenas they have mapped too; each once. `opened` closes
    their descriptors."""
    seen: set[tuple[int, int]] = set()
    for process in sorted(_processes() if processes is None else processes):
        try:
            links = list(Path(f"/proc/{process}/fd").iterdir())
        except OSError:  # it is gone, or belongs to another user
            continue
        for link in links:
            try:
                if not os.readlink(link).startswith("/memfd:allfold "):
                    continue
                descriptor = os.open(link, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                continue
            facts = os.fstat(descriptor)
            foreign = (
                processes is None and facts.st_uid != os.geteuid()
            )  # root could open them all, but looks at others' only if asked to
            if foreign or (facts.st_dev, facts.st_ino) in seen:
                os.close(descriptor)
                continue
            seen.add((facts.st_dev, facts.st_ino))
            try:
                found = _native.inspect(descriptor)
            except ValueError:  # another version, or not yet initialised
                os.close(descriptor)
                continue
            opened.callback(os.close, descriptor)
            yield {**found, "descriptor": descriptor}


def _groups(arenas: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[int, dict[str, Any]] = {}
    for arena in arenas:
        for member in arena["communicators"]:
            # root may be looking at another user's process: its text must not control the terminal.
            label = "".join(c if c.isprintable() else "?" for c in member.pop("label").decode(errors="replace"))
            number, size = member.pop("group"), member.pop("size")
            group = groups.setdefault(number, {"label": label, "group": number, "size": size, "members": []})
            group["members"].append({**member, "alive": arena["alive"], "descriptor": arena["descriptor"]})
    for group in groups.values():
        group["members"].sort(key=lambda member: member["rank"])
    return sorted(groups.values(), key=lambda group: (group["members"][0]["process"], group["label"]))


def _stacks(descriptor: int) -> dict[str, Any] | None:
    text = _native.ask(descriptor, _ANSWER_SECONDS).decode(errors="replace")
    first, _, rest = text.partition("\n")
    if not first:
        return None
    try:
        return {"at": first, "threads": json.loads(rest)}
    except ValueError:  # truncated, or two asked at once
        return {"at": first, "threads": []}


# Saying ---------------------------------------------------------------------------------------------------------------


def _write(group: dict[str, Any], arguments: argparse.Namespace) -> None:
    members = group["members"]
    write_lines([f"{group['label']}: {group['size']} ranks"], arguments.color)
    rows: list[list[str] | None] = []
    for member in members:
        now, since = _doing(member)
        waits = "" if member["waiting_for"] is None else f"rank {member['waiting_for']}"
        rows.append([str(member["rank"]), str(member["process"]), str(member["last_done"]), now, since, waits])
    write_table(("rank", "process", "calls", "now", "since", "waits for"), rows, arguments.color, left=4)
    there = {member["rank"] for member in members}
    lines = [f"rank {rank}: not seen, its process is gone" for rank in range(group["size"]) if rank not in there]
    for member in members:
        who = f"rank {member['rank']} (process {member['process']})"
        if not member["alive"]:
            lines.append(f"{who} is gone")
        elif member["stacks"] is None:
            lines.append(f"{who} does not answer: it is stopped, or its interpreter is busy or stuck")
        elif arguments.stacks:
            lines.append(f"{who}:")
            for thread in member["stacks"]["threads"]:
                lines += [f"  {thread['thread']}", *(f"    {frame}" for frame in thread["stack"])]
        else:
            lines.append(f"{who} is at {member['stacks']['at']}")
    write_lines([*lines, *_on_gpus(members)], arguments.color)


def _on_gpus(members: list[dict[str, Any]]) -> Iterator[str]:
    """The ranks that use each GPU, one line per GPU."""
    ranks: dict[int, list[int]] = {}
    for member in members:
        for gpu in member["gpus"]:
            ranks.setdefault(gpu, []).append(member["rank"])
    for gpu, those in sorted(ranks.items()):
        turns = "" if len(those) == 1 else "; MPS runs" if mps_runs() else "; MPS does not run, so they take turns"
        yield f"{name_ranks(those)} {'uses' if len(those) == 1 else 'use'} GPU {gpu}{turns}"


def _doing(member: dict[str, Any]) -> tuple[str, str]:
    last = member["calls"][-1] if member["calls"] else None
    if member["standing"] != "open":
        how = {"mismatch": "broken: ranks made different calls", "aborted": "broken: aborted", "left": "closed"}
        how["late"] = "broken: somebody did not arrive"
        return how[member["standing"]], ""
    if last is None:
        return "nothing: no call yet", ""
    what = describe_call(last)
    if member["last_done"] >= last["call"]:
        return f"nothing: {what} ended {_seconds(last['ended'])} ago", ""
    return what, _seconds(last["begun"])


def describe_call(call: dict[str, Any]) -> str:
    return Signature(**{name: call[name] for name in Signature._fields if name in call}).words


def _seconds(moment: float | None) -> str:
    return "?" if moment is None else f"{max(0.0, time.time() - moment):.1f} s"


def _is_in_trouble(group: dict[str, Any]) -> bool:
    """A rank is gone, or has waited long for a rank that has not come."""
    members = group["members"]
    if len(members) < group["size"] or any(not member["alive"] for member in members):
        return True
    now = time.time()
    return any(
        member["waiting_for"] is not None and now - (member["calls"][-1]["begun"] or now) > _LONG for member in members
    )
