"""Tests of pytest that have the mark `ranks`: reading the mark, and running the test's function in ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NoReturn

import cloudpickle  # type: ignore[import-untyped]
import pytest

from allfold.errors import CollectiveTimeout, RankFailed, UsageError
from allfold.launch.kept import warm_up
from allfold.launch.spawn import check_ranks, check_work, ranks_per_host
from allfold.testing.in_pytest import LOCAL, Placeholder, call_test
from allfold.testing.report import without_traceback
from allfold.testing.runs import Options, by_value, run_ranks
from allfold.wording import suggest

_COUNT = "ranks of the test"  # the name under which the number of ranks is a parameter; not a name that users can have


def options_of(mark: pytest.Mark, delays: int | None = None) -> Options:
    """The options of a mark; `delays` is from the command line."""
    known = [one.name for one in fields(Options)]
    for name in mark.kwargs:
        if name not in known:
            raise UsageError(f"there is no option {name!r}; {suggest(name, known)}")
    if not mark.args:
        raise UsageError("expected the number of ranks, as in @pytest.mark.ranks(4)")
    options = Options(**{"delays": delays, **mark.kwargs})
    for number in mark.args:
        check_ranks(number)
        if options.hosts is not None:
            ranks_per_host(number, options.hosts)
    if len(set(mark.args)) < len(mark.args):
        raise UsageError(f"the numbers of ranks must differ, not {', '.join(map(str, mark.args))}")
    return options


def parametrize(metafunc: pytest.Metafunc, mark: pytest.Mark) -> None:
    """Check the mark; a test with several numbers of ranks is one test for each."""
    with _failing(UsageError, sentence=f"{metafunc.definition.nodeid}: @pytest.mark.ranks: "):
        options_of(mark)
        check_work(metafunc.definition.name, metafunc.function, ())
    if len(mark.args) > 1:
        metafunc.fixturenames.append(_COUNT)
        metafunc.parametrize(_COUNT, mark.args, ids=[f"{number}ranks" for number in mark.args])


def prepare(marked: Sequence[tuple[pytest.Item, pytest.Mark]]) -> None:
    """Start the process that ranks are forked from, while pytest goes on; ranks that are threads need none."""
    for item, _ in marked:
        if not isinstance(item, pytest.Function) or hasattr(item, "_testcase"):
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.ranks works with functions and methods that pytest calls; "
                "in a unittest.TestCase, call allfold.testing.run"
            )
    options = [options_of(mark) for _, mark in marked]
    for with_torch in {one.needs_torch for one in options if not one.threads}:
        warm_up(with_torch)


def placeholder(request: pytest.FixtureRequest, name: str, mark: pytest.Mark | None) -> Any:
    """The object that a fixture of ranks has for its value in pytest's own process."""
    if mark is None:
        _fail(f"the fixture {name!r} is for tests that run in ranks: mark the test with @pytest.mark.ranks(4)")
    if name == "world_size":
        return _count(request.node, mark)
    if name == "process_group" and options_of(mark).backend is None:
        _fail("the fixture 'process_group' needs a backend, as in @pytest.mark.ranks(4, backend=\"gloo\")")
    return Placeholder(name)


def call(item: pytest.Function, mark: pytest.Mark) -> None:
    """Run a test's function in ranks."""
    __tracebackhide__ = True
    options = options_of(mark, item.config.option.rank_delays)
    values = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    if options.threads:
        _call_in_threads(item, _count(item, mark), options, values)
        return
    wanted = {one.name for one in values.values() if isinstance(one, Placeholder)}
    sent = {name: Placeholder(name) if name in LOCAL else value for name, value in values.items()}
    with by_value(item.obj):
        _check_fixtures(sent)
    with _failing(RankFailed, CollectiveTimeout, UsageError, pytest.fail.Exception):
        outcomes = run_ranks(
            partial(call_test, item.obj),
            _count(item, mark),
            options,
            args=(sent, max(0, item.config.option.verbose)),
            connects="comm" in wanted,
            end_of=_unusual_end,
        )
    _take_outcomes([outcome for outcome in outcomes if outcome is not None])  # None: the test has killed the rank


def _call_in_threads(item: pytest.Function, ranks: int, options: Options, values: Mapping[str, Any]) -> None:
    """All ranks share pytest's own fixtures. The lines about all ranks are a note in pytest's report of the exception."""
    __tracebackhide__ = True
    cause: BaseException | None = None
    with _failing(RankFailed, CollectiveTimeout, UsageError):
        try:
            work = partial(call_test, item.obj)
            outcomes = run_ranks(work, ranks, options, args=(values, None), connects=True, end_of=_unusual_end)
        except RankFailed as error:
            cause = error.__cause__
            if not isinstance(cause, (Exception, pytest.fail.Exception)):
                raise
            cause.add_note(without_traceback(error))
    if cause is not None:
        raise cause
    _take_outcomes(outcomes)


def _check_fixtures(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        sentence = f"the fixture {name!r} ({type(value).__name__}) cannot be sent to the ranks; create it in the test: "
        with _failing(Exception, sentence=sentence):
            cloudpickle.dumps(value)


def _count(item: Any, mark: pytest.Mark) -> int:
    return int(item.callspec.params[_COUNT] if len(mark.args) > 1 else mark.args[0])


def _unusual_end(outcome: tuple[str, str]) -> str:
    kind, why = outcome
    return "" if kind == "passed" else f"was {kind} ({why})"


def _take_outcomes(outcomes: Sequence[tuple[str, str]]) -> None:
    """Skip the test if all its ranks did; fail it if only some of them did."""
    __tracebackhide__ = True
    unusual: dict[str, Callable[[str], NoReturn]] = {"skipped": pytest.skip, "expected to fail": pytest.xfail}
    for kind, stop in unusual.items():
        which = [rank for rank, (outcome, _) in enumerate(outcomes) if outcome == kind]
        if len(which) == len(outcomes):
            stop(outcomes[0][1])
        if which:
            _fail(f"rank {which[0]} of {len(outcomes)} {_unusual_end(outcomes[which[0]])}, but other ranks were not")


@contextlib.contextmanager
def _failing(*kinds: type[BaseException], sentence: str = "") -> Iterator[None]:
    """Turn these errors into failures of the test, with their text alone."""
    __tracebackhide__ = True
    try:
        yield
    except kinds as error:
        _fail("\n".join([f"{sentence}{error}", *getattr(error, "__notes__", [])]))


def _fail(text: str) -> NoReturn:
    __tracebackhide__ = True
    raise pytest.fail.Exception(text, pytrace=False) from None
