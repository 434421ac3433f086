"""`python narrow.py FILE`: Python as where NumPy's index type has 32 bits (WebAssembly, 32-bit systems), without the engine.

There `arange`, `argsort`, `cumsum` and the like give int32, and `repeat`, `bincount`, `take` and `reduceat` refuse counts and
indices of int64. Calls of these functions and methods in allfold are rewritten as it is imported, to do the same here.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import runpy
import sys
from typing import Any

import numpy as np

REFUSING = {"repeat": 1, "bincount": 0, "take": 1, "reduceat": 1}
"""The place of the argument that must be of the index type, for the function in `np` or of a ufunc."""
INDICES = {"argsort", "nonzero", "flatnonzero", "argwhere", "searchsorted", "lexsort", "argmax", "argmin", "bincount"}
INTEGERS = {"arange", "asarray", "array", "full", "where", "diff", "unique", "unravel_index", "ravel_multi_index"}
SUMS = {"cumsum", "sum", "prod", "cumprod"}
NAMES = {*REFUSING, *INDICES, *INTEGERS, *SUMS}


class Narrow(importlib.abc.MetaPathFinder, importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        found = importlib.machinery.PathFinder.find_spec(name, path, target) if name.startswith("allfold.") else None
        if found is not None and type(found.loader) is importlib.machinery.SourceFileLoader:
            found.loader = Rewritten(found.loader.name, found.loader.path)
        return found


class Rewritten(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        tree = _Calls().visit(ast.parse(self.get_data(self.path), self.path))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: Any) -> None:
        module.__dict__["_narrow_call"] = call
        super().exec_module(module)


class _Calls(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = "int32" if node.attr == "intp" else node.attr
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Attribute) and node.func.attr in NAMES):
            return node
        words = [node.func.value, ast.Constant(node.func.attr), *node.args]
        return ast.copy_location(ast.Call(ast.Name("_narrow_call", ast.Load()), words, node.keywords), node)


def call(owner: Any, name: str, *args: Any, **how: Any) -> Any:
    function = getattr(owner, name)
    if not (owner is np or isinstance(owner, np.ndarray | np.generic | np.ufunc)):
        return function(*args, **how)
    if name in REFUSING:
        place = REFUSING[name] - isinstance(owner, np.ndarray)
        _refuse_wide(args[place] if place < len(args) else how["repeats"], name)
    if name == "searchsorted" and how.get("sorter") is not None:
        _refuse_wide(how["sorter"], "searchsorted(sorter=…)")
    if name in SUMS and "dtype" not in how and "out" not in how:
        summed = np.asarray(owner if owner is not np else args[0])
        if summed.dtype.kind in "bi" and summed.dtype.itemsize <= 4:
            how["dtype"] = np.int32
    found = function(*args, **how)
    # What is made of Python's numbers, and what is an index. Of arrays, their own type stays.
    if name in INDICES or (name in INTEGERS and "dtype" not in how):
        return _narrowed(found, args, name)
    return found


def _refuse_wide(given: Any, name: str) -> None:
    if not np.can_cast(_type_of(given), np.int32, "safe"):
        raise TypeError(
            f"{name}: Cannot cast array data from dtype('int64') to dtype('int32') according to the rule 'safe'"
        )


def _type_of(given: Any) -> Any:
    """As asarray would give it where Python's integers become int32."""
    if isinstance(given, np.ndarray | np.generic):
        return given.dtype
    if isinstance(given, list | tuple):
        return np.result_type(np.bool_, *{_type_of(one) for one in given})
    return np.int32 if isinstance(given, int) else np.asarray(given).dtype


def _narrowed(found: Any, args: tuple[Any, ...], name: str) -> Any:
    if name == "unique":
        return (found[0], *map(_to_int32, found[1:])) if isinstance(found, tuple) else found
    if isinstance(found, tuple):
        return tuple(map(_to_int32, found))
    if name in INTEGERS and _has_wide(args, name):
        return found
    return _to_int32(found)


def _has_wide(args: tuple[Any, ...], name: str) -> bool:
    """Whether an argument is an array of int64 (or a type, which decides): the result is as wide, then."""
    if name == "where" and len(args) == 1:
        return False
    given = args[1:] if name in ("where", "full") else args
    if name == "full" and len(args) > 2:
        return True
    if name in ("asarray", "array", "arange") and any(isinstance(one, type | np.dtype) for one in args):
        return True
    return any(np.asarray(one).dtype.itemsize > 4 and _type_of(one) != np.int32 for one in given)


def _to_int32(found: Any) -> Any:
    """Numbers that need 64 bits have them."""
    wide = isinstance(found, np.ndarray | np.generic) and found.dtype == np.int64
    return found.astype(np.int32) if wide and (np.asarray(found).astype(np.int32) == found).all() else found


if __name__ == "__main__":
    assert "allfold" not in sys.modules
    sys.modules["allfold._native._engine"] = None  # type: ignore[assignment]
    sys.meta_path.insert(0, Narrow)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
