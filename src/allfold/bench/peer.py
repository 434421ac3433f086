"""One rank of one library: connects to the benchmark, and runs its commands until the benchmark is gone.

    python -m allfold.bench.peer LIBRARY ADDRESS ARGUMENTS     in our own environment
    python …/allfold/bench/peer.py LIBRARY ADDRESS ARGUMENTS   in an environment that has only NumPy and the library

ARGUMENTS are those of the library as JSON. Between commands a rank waits in a blocking read of its socket, never in its
library, which may spin while it waits: a library that is not being timed must leave the cores to the one that is.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import traceback
import types
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allfold.bench.libraries import Library

Command = dict[str, Any]


def main(arguments: list[str]) -> None:
    library, address, given = arguments
    if not __package__:
        _borrow_package()
    from allfold.bench import libraries

    kinds: dict[str, Callable[..., Library]] = {
        "allfold": libraries.Allfold,
        "mpi": libraries.Mpi4py,
        "torch": libraries.Torch,
        "cuda": libraries.TorchOnGpu,
    }
    opened = kinds[library](**json.loads(given))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        # Linux has abstract addresses, without a file: they begin with a zero byte and leave nothing behind.
        channel.connect("\0" + address)
        with channel.makefile("rw", encoding="utf-8") as lines:
            _say(lines, {"rank": opened.rank, "version": opened.version})
            _serve(Bench(opened), lines)
    opened.close()


def _borrow_package() -> None:
    """Make allfold's modules importable without its `__init__`, which needs more than this environment has.

    Nothing is added to the path: other packages next to allfold belong to another environment.
    """
    sys.path.pop(0)
    package = types.ModuleType("allfold")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["allfold"] = package


def _serve(bench: Bench, lines: Any) -> None:
    gc.collect()
    gc.freeze()  # objects made while loading the libraries need not be scanned again
    for line in lines:
        command = json.loads(line)
        _say(lines, answer(getattr(bench, command.pop("do")), **command))


def answer(act: Callable[..., Command], **given: Any) -> Command:
    """The answer to a command; an error of a library is an answer too."""
    try:
        return act(**given)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def _say(lines: Any, said: Command) -> None:
    lines.write(json.dumps(said) + "\n")
    lines.flush()


def _on_fresh_data(array: Any, call: Callable[[], object]) -> None:
    array.fill(0)
    call()


class Bench:
    """The arrays and calls prepared in this rank, by the label of the subject, and the commands on them."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.prepared: dict[str, tuple[Any, Any, Any, Callable[[], object], Command]] = {}

    def prepare(self, label: str, case: Command, options: Command) -> Command:
        """Allocate the arrays; return the reason if the library has no such call."""
        from allfold.bench.case import Case, lengths
        from allfold.errors import UsageError

        self.prepared.pop(label, None)
        wanted = Case(**case)
        source, target = (
            None if length is None or options.get("memcpy") else self._array(wanted, length, options)
            for length in lengths(wanted, self.library.rank)
        )
        try:
            call = self.library.call(wanted, source, target, options)
        except UsageError as error:
            return {"unsupported": str(error)}
        self.prepared[label] = (wanted, source, target, call, options)
        return {}

    def _array(self, case: Any, length: int, options: Command) -> Any:
        array = self.library.empty(length, case.element.carrier, options)
        array[...] = 0  # touches the pages, so that they exist from now on
        self.library.put(array)
        return array

    def check(self, label: str) -> Command:
        """Call it on data with a known result, several times in a row if the result stays known, and compare."""
        from allfold.bench.case import count_wrong, fill, repeats, settle

        case, source, target, call, options = self.prepared[label]
        self.library.take_turn(case, options)
        fill(case, self.library.rank, source, target)
        self.library.put(source)
        self.library.put(target)
        self.library.barrier()  # the root of a rooted call may write to a rank that is still filling
        calls = repeats(case)
        for _ in range(calls):
            call()
        self.library.fetch(target)
        wrong = count_wrong(case, self.library.rank, target, calls)
        self.library.barrier()
        settle(case, target)
        self.library.put(target)
        return {"wrong": wrong}

    def batch(self, label: str, iterations: int, warmup: int, fresh: bool) -> Command:
        """The seconds that a number of calls take on this rank, after all ranks started together."""
        from allfold.bench.case import written_by

        case, source, target, call, options = self.prepared[label]
        array = written_by(case, self.library.rank, source, target) if fresh else None
        if array is not None:
            call = partial(_on_fresh_data, array, call)
        self.library.take_turn(case, options)
        gc.disable()
        try:
            for _ in repeat(None, warmup):
                call()
            self.library.barrier()
            seconds = self.library.stopwatch()
            for _ in repeat(None, iterations):
                call()
            return {"seconds": seconds()}
        finally:
            gc.enable()

    def release(self, label: str) -> Command:
        self.prepared.pop(label, None)
        return {}


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception:
        os.write(2, traceback.format_exc().encode())  # at once: all ranks write into the same file
        sys.exit(1)
