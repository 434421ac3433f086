"""Calls a pytest test's function in a rank, with fixtures of the rank's own and pytest's text for assertions."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.assertion import util
from _pytest.capture import CaptureFixture, FDCapture, FDCaptureBinary, SysCapture, SysCaptureBinary
from _pytest.config import default_plugins, get_config
from _pytest.logging import LogCaptureHandler, caplog_handler_key, caplog_records_key, catching_logs

from allfold.testing.rank import RankOfTest

for _name in default_plugins:  # now, in the template: a rank that imports an extension module for them ends slowly
    import_module(f"_pytest.{_name}")


@dataclass(frozen=True)
class Placeholder:
    """A fixture that has a value in ranks only."""

    name: str

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        sentence = (
            f"{self.name!r} exists in the ranks only, and fixtures run in pytest's own process; use it in the test"
        )
        raise pytest.fail.Exception(sentence, pytrace=False)


@contextlib.contextmanager
def _captured(kind: Any) -> Iterator[Any]:
    fixture = CaptureFixture(kind, None, _ispytest=True)  # type: ignore[arg-type]
    fixture._start()
    try:
        yield fixture
    finally:
        left = fixture.readouterr()
        fixture.close()
        for stream, text in zip((sys.stdout, sys.stderr), left, strict=True):
            stream.write(text.decode(errors="replace") if isinstance(text, bytes) else text)


@contextlib.contextmanager
def _logged() -> Iterator[pytest.LogCaptureFixture]:
    with catching_logs(LogCaptureHandler()) as handler:
        stash = pytest.Stash()
        stash[caplog_handler_key], stash[caplog_records_key] = handler, {"call": handler.records}
        fixture = pytest.LogCaptureFixture(SimpleNamespace(stash=stash), _ispytest=True)  # type: ignore[arg-type]
        yield fixture
        fixture._finalize()


@contextlib.contextmanager
def _warned() -> Iterator[pytest.WarningsRecorder]:
    with pytest.WarningsRecorder(_ispytest=True) as fixture:
        warnings.simplefilter("default")
        yield fixture


LOCAL: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "monkeypatch": pytest.MonkeyPatch.context,
    "capsys": lambda: _captured(SysCapture),
    "capfd": lambda: _captured(FDCapture),
    "capsysbinary": lambda: _captured(SysCaptureBinary),
    "capfdbinary": lambda: _captured(FDCaptureBinary),
    "caplog": _logged,
    "recwarn": _warned,
}
"""Fixtures of pytest that every rank has for itself."""


def call_test(
    test: Callable[..., Any], rank: RankOfTest, values: Mapping[str, Any], verbosity: int | None
) -> tuple[str, str]:
    """Call the test's function; returns how it ended, and why. `verbosity`: None in pytest's own process."""
    __tracebackhide__ = True
    if verbosity is not None:
        util._reprcompare = partial(_explain, verbosity)
    with contextlib.ExitStack() as fixtures:
        filled = dict(values)
        for name, value in values.items():
            if isinstance(value, Placeholder):
                filled[name] = fixtures.enter_context(LOCAL[name]()) if name in LOCAL else getattr(rank, value.name)
        try:
            test(**filled)
        except pytest.skip.Exception as error:
            return "skipped", str(error)
        except pytest.xfail.Exception as error:
            return "expected to fail", str(error)
    return "passed", ""


def _explain(verbosity: int, operator: str, left: Any, right: Any) -> str | None:
    """The differences that pytest shows below a comparison, in the form that its rewritten assertions take."""
    with contextlib.suppress(Exception):  # then the assertion itself is shown
        config = _plain_config(verbosity)
        for lines in config.hook.pytest_assertrepr_compare(config=config, op=operator, left=left, right=right):
            return "\n~".join(line.replace("\n", "\\n") for line in lines).replace("%", "%%")
    return None


@cache
def _plain_config(verbosity: int) -> pytest.Config:
    """pytest's configuration without files and plugins of users; made when the first comparison fails."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    config = get_config()
    config.parse(["-c", os.devnull, "--noconftest", *["-v"] * verbosity])
    return config
