"""Many small cases in one test: pytest itself takes milliseconds for every test, in every process that collects it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, but one test for all cases; the one that fails is named below the error.

    Cases that are marked as exhaustive are a second test. The cases share the fixtures of the test.
    """
    own = (names,) if isinstance(names, str) else names
    listed = [
        one if hasattr(one, "marks") else pytest.param(*([one] if isinstance(names, str) else one)) for one in cases
    ]
    some, more = ([one.values for one in listed if bool(one.marks) == marked] for marked in (False, True))

    def decorate(test: Test) -> Test:
        def run(given: list[tuple[Any, ...]], fixtures: dict[str, Any]) -> None:
            for case in given:
                arguments = dict(zip(own, case, strict=True))
                try:
                    test(**fixtures, **arguments)
                except BaseException as error:
                    error.add_note(f"with {', '.join(f'{name} = {value!r}' for name, value in arguments.items())}")
                    raise

        @functools.wraps(test)
        def of_all(**fixtures: Any) -> None:
            run(fixtures.pop("cases") if more else some, fixtures)

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name not in own]
        if more:
            kept.append(inspect.Parameter("cases", inspect.Parameter.KEYWORD_ONLY))
        of_all.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        if not more:
            return of_all
        parts = [pytest.param(some, id="some"), pytest.param(more, id="more", marks=pytest.mark.exhaustive)]
        return pytest.mark.parametrize("cases", parts)(of_all)  # type: ignore[no-any-return]

    assert some, "there are no cases"
    return decorate
