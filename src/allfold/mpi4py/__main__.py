"""`python -m allfold.mpi4py program.py`: in the program, `import mpi4py` is allfold's."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from importlib import import_module


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m allfold.mpi4py",
        description="Run a program for mpi4py on allfold: in it and in all modules that it imports, `import mpi4py` "
        "gives allfold's. Start several ranks with: allfold run -n 4 -- python -m allfold.mpi4py program.py",
    )
    parser.add_argument("-m", action="store_true", dest="is_module", help="PROGRAM is a module, not a file")
    parser.add_argument("program", metavar="PROGRAM", help="a Python file, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="the program's own arguments")
    options = parser.parse_args(arguments)
    if not options.is_module and not os.path.exists(options.program):
        parser.error(f"{options.program}: no such file")
    stand_in()
    sys.argv = [options.program, *options.arguments]
    if options.is_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0:0] = [os.path.dirname(os.path.abspath(options.program))]
        runpy.run_path(options.program, run_name="__main__")


def stand_in() -> None:
    """Make `import mpi4py` give allfold's from now on."""
    package = import_module("allfold.mpi4py")
    sys.modules["mpi4py"] = package
    sys.modules["mpi4py.rc"] = package.rc
    sys.modules["mpi4py.MPI"] = import_module("allfold.mpi4py.MPI")


if __name__ == "__main__":
    main(sys.argv[1:])
