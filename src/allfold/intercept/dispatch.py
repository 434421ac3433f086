"""Kernels that see every call of every process group written in C++, whatever its backend.

The operators have kernels for kinds of devices, and none for the key `BackendSelect`, which comes before them. A kernel
there sees the calls of Python, of DDP's reducer and of functional collectives, in all threads. It is registered once and
stays, because removing it is unsafe while models are alive; without a watcher it only forwards calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .operations import METHODS, Go, Made, Method, Operator, Watcher, all_operators

_library: Any = None
_watchers: dict[str, Watcher] = {}
_watcher: Watcher | None = None  # all of them, nested
_waits: Any = None
_waiter: Callable[[torch.Tensor, Go], Any] | None = None
_ORDER = ("check", "record", "replay", "delays")  # from the innermost


class _InThread(threading.local):
    inside = False  # True while a call makes other calls


_here = _InThread()


def watch(name: str, watcher: Watcher | None) -> None:
    """Send every call through this watcher; None removes the watcher of this name."""
    global _library, _watcher
    if watcher is not None and _library is None:
        _library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        for operator in all_operators():
            _library.impl(operator.name, _kernel(operator, below), "BackendSelect", with_keyset=True)
    if watcher is None:
        _watchers.pop(name, None)
    else:
        _watchers[name] = watcher
    _watcher = None
    for inner in _ORDER:
        if inner in _watchers:
            _watcher = _watchers[inner] if _watcher is None else partial(_nested, _watchers[inner], _watcher)


def watch_waits(waiter: Callable[[torch.Tensor, Go], Any] | None) -> None:
    """Send the waits for the tensors of functional collectives, which torch makes in C++, through this function."""
    global _waits, _waiter
    if waiter is not None and _waits is None:
        _waits = torch.library.Library("_c10d_functional", "IMPL")  # type: ignore[no-untyped-call]
        redispatch = torch.ops._c10d_functional.wait_tensor.default._handle.redispatch_boxed
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

        def kernel(keys: Any, tensor: torch.Tensor) -> Any:
            if _waiter is None:
                return redispatch(keys & below, tensor)
            return _waiter(tensor, partial(redispatch, keys & below, tensor))

        _waits.impl("wait_tensor", kernel, "BackendSelect", with_keyset=True)
    _waiter = waiter


def _nested(outer: Watcher, inner: Watcher, made: Made, go: Go) -> Any:
    return outer(made, partial(inner, made, go))


def _kernel(operator: Operator, below: Any) -> Any:
    redispatch = operator.overload._handle.redispatch_boxed
    made = operator.made

    def kernel(keys: Any, *arguments: Any) -> Any:
        watcher = _watcher
        if watcher is None or _here.inside:
            return redispatch(keys & below, *arguments)
        return watcher(made(arguments), partial(redispatch, keys & below, *arguments))

    return kernel


def watch_class(group: type) -> None:
    """Send the calls of a process group written in Python through the watcher: they do not reach the kernels."""
    if "is_watched" in vars(group):
        return
    group.is_watched = True  # type: ignore[attr-defined]
    ours = {id(getattr(group, name)): method for name, method in METHODS.items() if hasattr(group, name)}
    for name, function in list(vars(group).items()):
        method = ours.get(id(function))
        if method is not None:
            setattr(group, name, _method(function, method))


def _method(function: Any, method: Method) -> Any:
    def call(self: Any, *arguments: Any, **given: Any) -> Any:
        watcher = _watcher
        if watcher is None or _here.inside:
            return function(self, *arguments, **given)
        return watcher(method.made(self, arguments, given), partial(_inside, function, self, *arguments, **given))

    call.__name__, call.__doc__ = function.__name__, function.__doc__
    return call


def _inside(function: Any, *arguments: Any, **given: Any) -> Any:
    _here.inside = True
    try:
        return function(*arguments, **given)
    finally:
        _here.inside = False
