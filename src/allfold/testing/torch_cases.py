"""Drop-ins for torch's base classes of multi-process tests, whose ranks are forked from a process that is kept.

torch's own classes spawn the ranks, and each imports torch and torch's test library. Everything else stays as in torch: the
method `_run` of the class is called in every rank, a rank that exits with one of torch's codes skips the test, and of ranks
that end without an exception, only rank 0's exit code counts.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from allfold.errors import UsageError
from allfold.launch.environment import Place
from allfold.launch.kept import KeptTemplate
from allfold.launch.lines import is_installed
from allfold.launch.outcome import result_of
from allfold.launch.spawn import supervised
from allfold.launch.supervise import Supervisor
from allfold.testing.coverage_of_ranks import collect, measured, settings
from allfold.testing.rank import record_stacks
from allfold.testing.report import failure, place_in
from allfold.testing.runs import SECONDS_TO_OBEY, by_value

try:
    from torch.testing._internal import common_distributed
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "allfold.testing.MultiProcessTestCase needs torch and what torch's test library imports, "
        f"and there is no module {str(error.name).partition('.')[0]!r}: pip install torch expecttest numpy",
        name=error.name,
    ) from None


class Ended:
    """A rank that has ended, with the attributes that tests use of a process of multiprocessing."""

    def __init__(self, rank: int, pid: int | None, exitcode: int | None) -> None:
        self.name = f"process {rank}"
        self.pid = pid
        self.exitcode = exitcode

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float | None = None) -> None: ...

    def terminate(self) -> None: ...

    kill = terminate


class Forked:
    """Starts the ranks of a test at the point where torch's class waits for them, and waits for them."""

    def _start_processes(self, proc: object) -> None:
        self._wants_ranks = True

    def _spawn_processes(self) -> None:
        self._start_processes(None)

    def _join_processes(self: Any, fn: Callable[..., Any]) -> None:
        __tracebackhide__ = True
        begin = time.time()
        if not self.__dict__.pop("_wants_ranks", False):
            self._check_return_codes(fn, 0.0)
            return
        timeout = common_distributed.get_timeout(self.id())
        options = {"fake_pg": getattr(self, "fake_pg", False)}
        work = partial(_run_test, type(self), self._current_test_name(), self.file_name, options)
        with tempfile.TemporaryDirectory(prefix="allfold-test-", ignore_cleanup_errors=True) as folder:
            supervisor = _supervised(work, int(self.world_size), folder, timeout, _installed_bases(type(self)))
            collect(folder)
            error = failure(supervisor, partial(place_in, Path(folder)), timeout)
        if error is not None and (supervisor.late or any(child.has_reported(b"E") for child in supervisor.children)):
            raise error
        self.processes = [
            Ended(child.rank, child.process, result_of(child) if child.has_reported(b"R") else child.status)
            for child in supervisor.children
        ]
        try:
            self._check_return_codes(fn, time.time() - begin)
        except AssertionError:
            if error is None:
                raise
            raise error from None  # it says more than the exit code


def _installed_bases(case: type[Any]) -> list[str]:
    """The modules of the base classes that ranks import rather than get by value."""
    modules = [sys.modules[base.__module__] for base in case.__mro__ if base.__module__ in sys.modules]
    return [one.__name__ for one in modules if is_installed(getattr(one, "__file__", None) or "")]


def _supervised(
    work: Callable[..., Any], ranks: int, folder: str, timeout: float, modules: Sequence[str]
) -> Supervisor:
    run = partial(
        supervised,
        partial(_entered, folder, dict(os.environ), settings()),
        work,
        ranks,
        args=(),
        timeout=timeout,
        prefix_output=True,
        hosts=None,
        call="MultiProcessTestCase",
        modules=["torch", __name__, *modules],
        make_template=KeptTemplate,
        seconds_to_obey=SECONDS_TO_OBEY,
        tolerates_death=True,
    )
    try:
        with by_value(work):
            return run()
    except UsageError:
        return run()  # something in the test's module cannot be pickled; ranks may be able to import it, as torch's do


@contextmanager
def _entered(folder: str, environment: Mapping[str, str], coverage: str | None, place: Place) -> Iterator[Place]:
    record_stacks(folder, place.rank)
    # Tests may look for variables that launchers set, and torch's processes have those of their parent.
    os.environ.clear()
    os.environ.update(environment)
    # The report of this run has the exception already.
    common_distributed.logger.addFilter(lambda record: not record.msg.startswith("Caught exception"))
    with measured(coverage, folder, place.rank):
        yield place


def _run_test(case: type[Any], name: str, file_name: str, options: Mapping[str, Any], place: Place) -> int:
    """Run a test as torch's processes do; returns the exit code. Exceptions of the test are raised here."""
    __tracebackhide__ = True
    ours, theirs = multiprocessing.Pipe()
    try:
        case._run(place.rank, name, file_name, theirs, **options)
    except SystemExit as end:
        if end.code == case.TEST_ERROR_EXIT_CODE and isinstance(end.__context__, Exception):
            raise _shortened(end.__context__) from None
        return end.code & 0xFF if isinstance(end.code, int) else int(end.code is not None)
    finally:
        ours.close()
    return 0


def _shortened(error: Exception) -> Exception:
    """The error without the frames of torch's classes that come before the test's."""
    trace = error.__traceback__
    while trace is not None and is_installed(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


class MultiProcessTestCase(Forked, common_distributed.MultiProcessTestCase):
    """torch's `MultiProcessTestCase`, with ranks that are forked from a process that is kept."""


class DistributedTestBase(Forked, common_distributed.DistributedTestBase):
    """torch's `DistributedTestBase`, with ranks that are forked from a process that is kept."""

    def setUp(self) -> None:
        # torch's sets it, and leaves it set for all tests that follow.
        self.addCleanup(_set_variable, "WORLD_SIZE", os.environ.get("WORLD_SIZE"))
        super().setUp()  # type: ignore[no-untyped-call]


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
