"""The command line: `allfold COMMAND …`, one file per command.

A command is a module with `run(arguments)`, which returns the exit status: 0 for success, 1 if what was checked is wrong,
2 for wrong usage. Its options and its help are in `usage/`, so that a wrong option is refused before anything is loaded.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import gc
import importlib
import os
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from typing import Any, NoReturn

from ..errors import AllfoldError, UsageError
from ..wording import suggest

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
    "explain": "why a run hangs, from the records and logs of its ranks: who did what instead of what, and where",
    "record": "run a program of torch.distributed and record every call of every rank",
    "diverge": "where two recorded runs, or the ranks of one, begin to differ: rank, call, line and tensor",
    "replay": "one rank of a recorded run alone, in one process: without the other ranks, in the debugger",
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
    _prepare_streams()
    is_ours = argv is None and hasattr(os, "fork")  # a process of our own, which may have children
    return _run_command_apart(words) if is_ours and _runs_a_file(words) else _run_command(words)


def _run_command(words: Sequence[str]) -> int:
    # A command makes millions of small objects and hardly any garbage: looking for it each time 700 are new takes long.
    gc.set_threshold(1_000_000, 20, 20)
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
        drop_output()
        return _BROKEN_PIPE
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            drop_output()
            _complain(words, f"cannot write output: {error.strerror}")
        elif _folder_is_gone():
            _complain(words, "the current folder no longer exists; cd to one that does")
        else:
            raise
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _runs_a_file(words: Sequence[str]) -> bool:
    return bool(words) and words[0] in _RUN_FILES and any(word.endswith(".py") or ".py:" in word for word in words)


def _run_command_apart(words: Sequence[str]) -> int:
    """Run the command in a child: the user's file may end its process at any moment, with any status.

    The command has ended well only if the child says so after it. Exit status 0 must mean that something was proved.
    """
    reading, writing = os.pipe()
    launcher = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reading)
        from ..launch.worker import die_with

        die_with(launcher)
        own, status = os.getpid(), _run_command(words)
        if os.getpid() == own:  # not a process that the file has forked
            os.write(writing, bytes([status]))
        os._exit(status)  # does not wait for threads of the file
    os.close(writing)
    # Ctrl-C reaches both; the child decides what it means. Other signals to this process are meant for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
    _, ended = os.waitpid(child, 0)
    os.set_blocking(reading, False)  # what the file has started may still hold the other end
    try:
        said = os.read(reading, 1)
    except BlockingIOError:
        said = b""
    if said:
        return said[0]
    code = os.waitstatus_to_exitcode(ended)
    how = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exited with status {code}"
    _complain(words, f"the process {how} while running the file: nothing was {_RUN_FILES[words[0]]}")
    return 1


def _pager(words: Sequence[str]) -> AbstractContextManager[None]:
    """For help, and for commands that print at once what may be longer than a screen."""
    asks_help = not words or {"-h", "--help"} & set(words[:2])
    if os.environ.get("PAGER") and (asks_help or (words[0] in _LONG_OUTPUT and "--animate" not in words)):
        from .terminal import through_pager  # it loads rich

        return through_pager()
    return nullcontext()


# They take FILE.py:function.
_RUN_FILES = {"show": "shown", "verify": "proved", "export": "written", "simulate": "simulated"}
_TAKE_NAMES = (*_RUN_FILES, "list", "compare", "plan", "find")
_LONG_OUTPUT = ("list", "show", "compare", "topo")
_MODULES = {"diverge": "record.diverge", "replay": "record.replay"}  # beside the command that writes what they read
_USAGES = {"check-bound": "find.check_bound", **_MODULES}
_STARTS_A_PROGRAM = ("run", "record")
_PROGRAM_AT_END = ("replay",)  # after --, and after its own options
_BROKEN_PIPE = 128 + 13  # SIGPIPE, which Windows does not name
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _prepare_streams() -> None:
    """A terminal that cannot show → or ✓ gets plain letters, not a traceback; and a stream may be closed (`>&-`)."""
    codecs.register_error(PLAIN, _plainly)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, it is open to the end
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=PLAIN)


PLAIN = "allfold.plain"
# Of the same width, because columns are aligned before they are written.
_PLAIN_LETTERS = str.maketrans(
    "→←↔✓✗·–—−×÷µμαβγ≤≥≈“”’█▀▄▌▐│─┌┐└┘├┤┬┴┼", '><|vx.---x/uuabg<>~""\'#^_##|-+++++++++', ""
) | {ord("…"): "..."}


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks with ASCII, or with a question mark if there is no equivalent."""
    assert isinstance(error, UnicodeEncodeError)
    plain = error.object[error.start : error.end].translate(_PLAIN_LETTERS)
    return "".join(letter if letter.isascii() else "?" for letter in plain), error.end


def _folder_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _complain(words: Sequence[str], message: str) -> None:
    sys.stderr.write(f"allfold{f' {words[0]}' if words and words[0] in COMMANDS else ''}: {message}\n")


def drop_output() -> None:
    """Nobody reads our output any more; without this, the interpreter would report it again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: Sequence[str]) -> int:
    chosen = words[0] if words else None
    parser = parser_of((chosen,) if chosen in COMMANDS else ())
    if chosen is None:
        parser.print_help()
        return 0
    if not chosen.startswith("-") and chosen not in COMMANDS:
        raise UsageError(f"unknown command {chosen!r}; {suggest(chosen, COMMANDS)}")
    options = _options(parser, chosen)
    program: Sequence[str] = ()
    if chosen in _PROGRAM_AT_END and "--" in words:
        end = words.index("--")
        words, program = words[:end], words[end:]
    try:
        arguments, unknown = parser.parse_known_args(words)
    except SystemExit as end:  # after --help and --version
        return end.code if isinstance(end.code, int) else 0
    except UsageError:
        # What is missing may be there, and misspelled. What follows the script is the script's own.
        unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in (*options, "--")]
        if not unknown or chosen in _STARTS_A_PROGRAM:
            raise
    if unknown:
        where = f"allfold {chosen}" if chosen in COMMANDS else "allfold"
        raise UsageError(f"{_unknown(unknown, options)} (see {where} --help)")
    if chosen not in COMMANDS:
        return 0
    if chosen in _TAKE_NAMES:
        from .choose import check

        check(arguments)  # before all that the command itself loads
    if chosen in _PROGRAM_AT_END:
        arguments.program = program
    module = _MODULES.get(chosen, chosen.replace("-", "_"))
    return int(importlib.import_module(f".{module}", __name__).run(arguments))


def options_of(command: str) -> Sequence[str]:
    return _options(parser_of((command,)), command)


def _options(parser: argparse.ArgumentParser, chosen: str) -> Sequence[str]:
    """The options of a command, and of its own commands."""

    def below(one: argparse.ArgumentParser) -> Iterator[str]:
        for action in one._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for name, command in action.choices.items():
                    if one is not parser or name == chosen:
                        yield from below(command)

    return [*dict.fromkeys(below(parser))]


def _unknown(unknown: Sequence[str], options: Sequence[str]) -> str:
    """The error about words that no option and no argument takes."""
    option = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
    if option is None:
        return f"unexpected arguments: {' '.join(unknown)}"
    return unknown_option(option, options)


def unknown_option(option: str, options: Sequence[str]) -> str:
    """The error about an option that is not there, with the one that is most like it."""
    # Without the dashes, in which all are alike.
    near = get_close_matches(option.lstrip("-"), [one[2:] for one in options if one.startswith("--")], n=1, cutoff=0.6)
    return f"unknown option {option}" + (f"; did you mean --{near[0]}?" if near else "")


def parser_of(loaded: Collection[str]) -> argparse.ArgumentParser:
    """The parser of all commands, with the options of those that are to be loaded; loading one may take long."""
    parser = _Parser(
        prog="allfold",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-V", "--version", action=_Version, nargs=0, help="versions, and what the engine was built with"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, allow_abbrev=False)
        if name in loaded:
            home = __name__ if name == "completion" else f"{__name__}.usage"  # it has hardly any options
            module = importlib.import_module(f"{home}.{_USAGES.get(name, name.replace('-', '_'))}")
            command.formatter_class = argparse.RawDescriptionHelpFormatter
            command.description = module.SUMMARY
            module.add_arguments(command)
    return parser
