"""`allfold verify`: prove algorithms, ours or yours."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from ..collectives import find_collective
from ..errors import AllfoldError, ScheduleError, UsageError
from ..programs.two_level import Islands
from ..proof import verify
from ..wording import ranges, rank_counts
from .choose import Choice, choose, choose_all, take_hosts
from .terminal import bar, progress, write_json, write_lines, write_table

_WORTH_A_POOL = 100_000  # estimated moves, about two seconds; below, starting processes is not worth it


@dataclass(frozen=True)
class _Task:
    """One algorithm for one number of ranks, with every requested root: the unit of work of one process."""

    choice: Choice
    ranks: int
    roots: tuple[int | None, ...]
    uneven: bool = False
    islands: Islands = ()
    """If any, its programs in two levels are proved too."""

    @property
    def size(self) -> int:
        return 2 * self.ranks * self.ranks * len(self.roots)


@dataclass(frozen=True)
class _Outcome:
    """The result for one schedule: the facts of its proof, or what is wrong with it."""

    ranks: int
    root: int | None
    proof: dict[str, Any] | None
    error: str | None = None
    place: dict[str, Any] | None = None
    text: str = ""


def run(arguments: argparse.Namespace) -> int:
    if arguments.hosts is not None and arguments.all:
        raise UsageError("--hosts is for algorithms that take groups, not for --all")
    islands = take_hosts(arguments)
    choices = [choice.on(islands) for choice in _choices(arguments)]
    jobs = _cores() if arguments.jobs is None else arguments.jobs
    if jobs < 1:
        raise UsageError(f"--jobs {jobs}: expected at least 1")
    if arguments.uneven and arguments.all:
        choices = [choice for choice in choices if find_collective(choice.collective).sliced]
    tasks = [
        replace(task, uneven=arguments.uneven, islands=islands)
        for choice in choices
        for task in _tasks(choice, arguments.ranks, arguments.roots)
    ]
    cases: dict[Choice, list[_Outcome]] = {choice: [] for choice in choices}
    for task, found in _proved_tasks(tasks, jobs):
        cases[task.choice] += found
    for found in cases.values():
        found.sort(key=lambda case: (case.ranks, case.root or 0))
    if arguments.json:
        write_json([_as_json(choice, found) for choice, found in cases.items()])
    elif len(choices) == 1 and len(cases[choices[0]]) == 1:
        write_lines((case.text for case in cases[choices[0]] if case.proof), arguments.color)
    else:
        _write_summary(cases, arguments.color)
    sys.stdout.flush()
    for choice, found in cases.items():
        wrong = [case for case in found if case.error]
        if wrong:
            more = f" ({len(wrong)} of {len(found)} cases are wrong; this is the first)" if len(wrong) > 1 else ""
            sys.stderr.write(f"allfold verify: {choice.collective} {wrong[0].error}{more}\n")
    return int(any(case.error for found in cases.values() for case in found))


def _choices(arguments: argparse.Namespace) -> list[Choice]:
    if arguments.all == bool(arguments.names):
        raise UsageError("expected the names of algorithms or --all, and not both; allfold list lists the names")
    if arguments.all and arguments.parameters:
        raise UsageError("--with is for one algorithm, not for --all")
    if arguments.all:
        return choose_all(arguments.collective)
    chosen = [choose(name, arguments.collective, arguments.parameters) for name in arguments.names]
    return list(dict.fromkeys(chosen))


def _tasks(choice: Choice, ranks_asked: str | None, roots: str) -> Iterator[_Task]:
    if choice.file is not None and ranks_asked is None:
        yield _Task(choice, choice.file.ranks, (choice.file.root,))
        return
    counts = rank_counts("1-16" if ranks_asked is None else ranks_asked)
    if not find_collective(choice.collective).rooted:
        yield from (_Task(choice, ranks, (None,)) for ranks in counts)
        return
    if roots == "all":
        yield from (_Task(choice, ranks, tuple(range(ranks))) for ranks in counts)
        return
    if not all(word.strip().isdecimal() for word in roots.split(",")):
        raise UsageError(f"--roots {roots}: expected all, or ranks as in 0,2")
    wanted = sorted({int(word) for word in roots.split(",")})
    if wanted[-1] >= counts[-1]:
        raise UsageError(f"--roots {roots}: there is no rank {wanted[-1]} among {counts[-1]}")
    for ranks in counts:
        there = tuple(root for root in wanted if root < ranks)
        if there:
            yield _Task(choice, ranks, there)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Proving -------------------------------------------------------------------------------------------------------------


def _proved_tasks(tasks: list[_Task], jobs: int) -> Iterator[tuple[_Task, list[_Outcome]]]:
    """All tasks with their results, with a progress bar on the terminal."""
    if len(tasks) == 1:
        with progress("proving"):
            yield tasks[0], _prove(tasks[0])
        return
    with bar("proving", sum(task.size for task in tasks)) as update:
        for task, found in _prove_all(tasks, jobs):
            update(advance=task.size)
            yield task, found


def _prove_all(tasks: list[_Task], jobs: int) -> Iterator[tuple[_Task, list[_Outcome]]]:
    jobs = min(jobs, len(tasks))
    if jobs < 2 or sum(task.size for task in tasks) < _WORTH_A_POOL:
        yield from ((task, _prove(task)) for task in tasks)
        return
    waiting = sorted(tasks, key=lambda task: task.size)  # the largest first: no process is left with it at the end
    provers = [_Prover() for _ in range(jobs)]
    try:
        proving = {prover: prover.ask(waiting.pop()) for prover in provers}
        while proving:
            signs: dict[Any, _Prover] = {
                sign: prover for prover in proving for sign in (prover.connection, prover.process.sentinel)
            }
            for prover in {signs[sign] for sign in wait([*signs])}:
                task = proving.pop(prover)
                yield task, prover.answer(task)
                if waiting:
                    proving[prover] = prover.ask(waiting.pop())
    finally:
        for prover in provers:
            prover.end()


class _Prover:
    """A process that proves one task after the other. Not one of an executor, which may stall when its process dies."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_answer, args=(theirs,), daemon=True)
        with _interrupts_later():
            self.process.start()
        theirs.close()

    def ask(self, task: _Task) -> _Task:
        with suppress(ConnectionError):  # it has died, as its missing answer says
            self.connection.send(task)
        return task

    def answer(self, task: _Task) -> list[_Outcome]:
        with suppress(EOFError, ConnectionError):
            if self.connection.poll():
                found = self.connection.recv()
                if isinstance(found, AllfoldError):
                    raise found
                return found  # type: ignore[no-any-return]
        raise AllfoldError(
            f"the process that proved {task.choice.title} for {task.ranks} ranks has died; "
            "if it ran out of memory, --jobs 1 may help"
        )

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C waits, here and in a process that is started here: while that imports, it would print where it was."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    from multiprocessing import resource_tracker  # not on Windows either

    resource_tracker.ensure_running()  # starting it ends the wait
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(connection: Connection) -> None:
    # Ctrl-C reaches every process of the terminal; only the main process reports it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with suppress(EOFError):  # nobody asks any more
        while True:
            task = connection.recv()
            try:
                found: list[_Outcome] | AllfoldError = _prove(task)
            except AllfoldError as error:
                found = error
            connection.send(found)


def _prove(task: _Task) -> list[_Outcome]:
    cases = []
    for root in task.roots:
        try:
            proof = verify(task.choice.schedule(task.ranks, root), uneven=task.uneven)
            found, text = proof.to_json(), str(proof)
            if task.islands:
                task.choice.two_level(root, task.islands)
                found["hosts"] = [len(island) for island in task.islands]
                on_hosts = " + ".join(map(str, found["hosts"]))
                text += f"\n  no deadlock, every message received in the two-level programs of {on_hosts} ranks"
            cases.append(_Outcome(task.ranks, root, found, text=text))
        except ScheduleError as error:
            place = {"rank": error.rank, "chunk": error.chunk, "step": error.step, "site": error.site}
            cases.append(_Outcome(task.ranks, root, None, str(error), place))
    return cases


# Saying what was proved ----------------------------------------------------------------------------------------------


def _write_summary(cases: dict[Choice, list[_Outcome]], color: bool | None) -> None:
    rows = []
    for choice, found in cases.items():
        wrong = sum(case.error is not None for case in found)
        facts = [summarize(found, fact) for fact in ("same_bits", "rank_order", "uniform")]
        result = f"{wrong} of {len(found)} wrong" if wrong else "proved"
        ranks = ranges([case.ranks for case in found])
        rows.append([choice.collective, choice.title, ranks, str(len(found)), *(["—"] * 3 if wrong else facts), result])
    head = ("collective", "algorithm", "ranks", "cases", "same bits", "rank order", "any length", "result")
    write_table(head, rows, color, left=3)


def summarize(cases: list[_Outcome], fact: str) -> str:
    """`yes`, `no`, or the shortest true description of the cases that have it: `root 0 only`, `powers of two only`."""
    values = [(case, case.proof[fact]) for case in cases if case.proof is not None]
    if not values or values[0][1] is None:
        return "—"
    if all(value for _, value in values):
        return "yes"
    # With one or two ranks there is hardly any other order; what matters is what holds for more.
    values = [(case, value) for case, value in values if case.ranks > 2] or values
    having = [case for case, value in values if value]
    if not having:
        return "no"
    largest = max(case.ranks for case in having)
    descriptions: dict[str, Callable[[_Outcome], bool]] = {
        "beyond 2 ranks": lambda case: True,
        "root 0 only": lambda case: case.root == 0,
        "first and last root only": lambda case: case.root in (0, case.ranks - 1),
        "powers of two only": lambda case: case.ranks & (case.ranks - 1) == 0,
        "even ranks only": lambda case: case.ranks % 2 == 0,
        "root 0 of powers of two": lambda case: case.root == 0 and case.ranks & (case.ranks - 1) == 0,
        f"up to {largest} ranks": lambda case: case.ranks <= largest,
        f"root 0, up to {largest} ranks": lambda case: case.root == 0 and case.ranks <= largest,
    }
    for description, holds in descriptions.items():
        if all(holds(case) == bool(value) for case, value in values):
            return description
    others = [case for case in having if case.root != 0]
    if len(having) - len(others) == sum(case.root == 0 for case, _ in values) > 0:
        return f"root 0, and {len(others)} of {len(values) - len(having) + len(others)} others"
    return f"{len(having)} of {len(values)} cases"


def _as_json(choice: Choice, cases: list[_Outcome]) -> dict[str, Any]:
    return {
        "collective": choice.collective,
        "algorithm": choice.title,
        "proved": all(case.error is None for case in cases),
        "proofs": [case.proof for case in cases if case.proof is not None],
        "errors": [
            {"ranks": case.ranks, "root": case.root, "message": case.error, "at": case.place}
            for case in cases
            if case.error is not None
        ],
    }
