"""allfold: write a collective algorithm once, then prove it, price it, see it, and run it."""

from importlib import import_module

# `allfold.algorithms` is a function and a package. Python binds a package's name when the package is first imported:
# here, and not again. From here on the name is the function's.
import_module(".algorithms", __name__)
del globals()["algorithms"]


def __getattr__(name: str) -> object:
    """A public name, from the module that defines it; all its modules together take longer to load than NumPy."""
    if name == "__all__":
        value: object = sorted(_homes())
    elif name in (homes := _homes()):
        value = getattr(import_module(homes[name], __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})


def _homes() -> dict[str, str]:
    """The module of each public name. They are listed once, in __init__.pyi, where type checkers find them too."""
    with open(f"{__file__}i", encoding="utf-8") as stub:
        lines = [line.split() for line in stub if line.startswith("from ")]
    return {name: home for _, home, _, name, _, _ in lines}
