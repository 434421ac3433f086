"""The command line: `allfold COMMAND …`, one file per command.

A command is a module with a `SUMMARY`, `add_arguments(parser)` and `run(arguments)`, which returns the exit status: 0
for success, 1 if what was checked is wrong, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import signal
import sys
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from ..errors import AllfoldError, UsageError

COMMANDS = {
    "list": "which algorithms there are, with their steps and bytes",
    "show": "an algorithm step by step: its moves, and who holds what after each",
    "verify": "prove algorithms, ours or yours, for given numbers of ranks",
    "compare": "steps, messages and bytes of algorithms side by side",
    "export": "a schedule for the MSCCL runtimes, ASTRA-sim or Perfetto",
    "plan": "which algorithm for this size on this topology, how long it takes and what limits it",
    "find": "the best schedule for your network, and what proves that nothing is much better",
    "check-bound": "whether a certificate proves the time that nothing can beat on a network",
    "simulate": "who sends what when on a topology: busy and idle ranks, the critical path",
    "topo": "the hardware of this machine: cores, caches, memory nodes, GPUs, network cards; and what it means",
    "studio": "the interactive page, served on this machine: every algorithm, topology and size; edit and prove",
    "run": "start a script once per rank on this machine",
    "tune": "measure which algorithm is fastest here at which size; calls that name none then use it",
    "bench": "how fast collectives are here, compared with gloo, Open MPI, MPICH and memcpy",
    "doctor": "what the ranks of a live run are doing, and who waits for whom",
    "completion": "completes commands and options in bash, zsh and fish",
    "learn": "a course on collectives in short lessons, which checks your work",
    "demo": "every all_reduce on four ranks: run, checked, proved, compared, drawn",
}

_DESCRIPTION = (
    "Write a collective algorithm once, as a few readable lines of Python. Then prove it, price it, see it, run it."
)
_EPILOG = """\
`allfold COMMAND --help` explains a command with an example.
exit status: 0 good, 1 the thing checked is wrong, 2 wrong usage.
environment: NO_COLOR=1 turns styles off; PAGER=less shows help, list, show, compare and topo in less.

example:
  $ allfold show ring --ranks 4 --moves-only
  all_reduce by ring: 4 ranks, 4 chunks, 6 steps, 24 messages
  step 1  +3:0→1  +0:1→2  +1:2→3  +2:3→0
  step 2  +2:0→1  +3:1→2  +0:2→3  +1:3→0
  step 3  +1:0→1  +2:1→2  +3:2→3  +0:3→0
  step 4  0:0→1  1:1→2  2:2→3  3:3→0
  …"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from ..version import facts

        first, *others = facts().items()
        sys.stdout.write(" ".join(first) + "\n")
        sys.stdout.writelines(f"{name:<7} {value}\n" for name, value in others)
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    words = tuple(sys.argv[1:] if argv is None else argv)  # `list` is the command of that name here
    # A command makes millions of small objects and hardly any garbage: looking for it each time 700 are new takes long.
    gc.set_threshold(1_000_000, 20, 20)
    _prepare_streams()
    try:
        try:
            status = 0  # of a pager that ends early
            with _pager(words):
                status = _dispatch(words)
        except AllfoldError as error:
            sys.stdout.flush()
            _complain(words, str(error))
            status = 2 if isinstance(error, UsageError) else 1
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _drop_output()
        return _BROKEN_PIPE
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        _drop_output()
        _complain(words, f"what it says cannot be written: {error.strerror}")
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _pager(words: Sequence[str]) -> AbstractContextManager[None]:
    """For help, and for commands that print at once what may be longer than a screen."""
    asks_help = not words or {"-h", "--help"} & set(words[:2])
    if os.environ.get("PAGER") and (asks_help or (words[0] in _LONG_OUTPUT and "--animate" not in words)):
        from .terminal import through_pager  # it loads rich

        return through_pager()
    return nullcontext()


_LONG_OUTPUT = ("list", "show", "compare", "topo")
_BROKEN_PIPE = 128 + 13  # SIGPIPE, which Windows does not name
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _prepare_streams() -> None:
    """A terminal that cannot show → or ✓ gets a question mark, not a traceback; and a stream may be closed (`>&-`)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, it is open to the end
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _complain(words: Sequence[str], message: str) -> None:
    sys.stderr.write(f"allfold{f' {words[0]}' if words and words[0] in COMMANDS else ''}: {message}\n")


def _drop_output() -> None:
    """Nobody reads our output any more; without this, the interpreter would report it again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: Sequence[str]) -> int:
    chosen = words[0] if words else None
    parser = parser_of((chosen,) if chosen in COMMANDS else ())
    if chosen is None:
        parser.print_help()
        return 0
    if not chosen.startswith("-") and chosen not in COMMANDS:
        from ..collectives import suggest  # with NumPy, which takes longer to load than all that --help needs

        raise UsageError(f"unknown command {chosen!r}; {suggest(chosen, COMMANDS)}")
    try:
        arguments = parser.parse_args(words)
    except SystemExit as end:  # after --help and --version
        return end.code if isinstance(end.code, int) else 0
    status = arguments.run(arguments) if hasattr(arguments, "run") else 0
    return int(status)


def parser_of(loaded: Collection[str]) -> argparse.ArgumentParser:
    """The parser of all commands, with the options of those that are to be loaded; loading one may take long."""
    parser = _Parser(
        prog="allfold",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="versions, and what the engine was built with")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, allow_abbrev=False)
        if name in loaded:
            module = importlib.import_module(f".{name.replace('-', '_')}", __name__)
            command.formatter_class = argparse.RawDescriptionHelpFormatter
            command.description = getattr(module, "SUMMARY", summary)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
