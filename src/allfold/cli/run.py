"""`allfold run`: start a script, a module or any command once per rank on this machine."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from ..errors import UsageError
from ..intercept import CHECK
from . import drop_output, options_of, unknown_option


def run(arguments: argparse.Namespace) -> int:
    try:
        command = _command(arguments.module, arguments.command, arguments.ranks)
        if arguments.timeout is not None and not 0 < arguments.timeout < float("inf"):
            raise UsageError(f"--timeout {arguments.timeout:g}: expected a number of seconds above 0")
        if arguments.threads:
            return _run_threads(arguments, command)
        if arguments.check:
            os.environ[CHECK] = "1"  # the ranks inherit it
        # After what is cheap to check: they load NumPy.
        from ..launch.spawn import launch
        from .choose import parse_hosts

        status = launch(
            command,
            arguments.ranks,
            prefix_output=arguments.prefix,
            timeout=arguments.timeout,
            survive=arguments.survive,
            pdb=arguments.pdb,
            engine=arguments.engine,
            hosts=None if arguments.hosts is None else parse_hosts(arguments.hosts),
        )
    except UsageError as error:
        sys.stderr.write(f"allfold run: {error}\n")
        return 2
    if status and arguments.module is None and (line := _line_of_spawn(command[1:2])) is not None:
        script = command[1]
        sys.stderr.write(
            f"allfold run: line {line} of {script} starts processes of its own, and {script} was started once per rank; "
            f"start it once: python {script}\n"
        )
    if status == 128 + signal.SIGPIPE:
        drop_output()
    return status


def _run_threads(arguments: argparse.Namespace, command: list[str]) -> int:
    for given, why in (
        (arguments.command[:1] == ["--"], "-- and a command, which is a process"),
        (arguments.pdb is not None, "--pdb: breakpoint() works in every rank, as in any program with threads"),
        (arguments.prefix, "--prefix: ranks that are threads share one output"),
        (arguments.check, "--check, which looks at torch.distributed: its groups need processes"),
        (arguments.hosts is not None, "--hosts: simulated hosts share no memory, and threads do"),
    ):
        if given:
            raise UsageError(f"--threads does not work with {why}")
    from ..launch.script import launch_threads

    is_module = arguments.module is not None
    return launch_threads(
        command[2:] if is_module else command[1:],  # without the interpreter
        arguments.ranks,
        is_module=is_module,
        timeout=arguments.timeout,
        survive=arguments.survive,
        engine=arguments.engine,
    )


def _command(module: list[str] | None, command: list[str], ranks: int | None) -> list[str]:
    given = command if module is None else ["-m", *module]
    if ranks is None:
        after = next((place for place, word in enumerate(given) if word in ("-n", "--ranks")), None)
        if after:
            count = "".join(given[after + 1 : after + 2]) or "RANKS"
            raise UsageError(f"{given[after]} goes before the script: allfold run -n {count} {' '.join(given[:after])}")
        raise UsageError("expected -n RANKS: how many processes to start (see allfold run --help)")
    if ranks < 1:
        from ..launch.spawn import check_ranks

        check_ranks(ranks)
    return command_of("run", module, command)


def command_of(name: str, module: list[str] | None, command: list[str]) -> list[str]:
    """The command line of the script, module or command that the user gave to `allfold NAME`."""
    if module is not None:
        if not module:
            raise UsageError("-m: expected the name of a module after it")
        return [sys.executable, "-m", *module]
    if command[:1] == ["--"]:
        if len(command) == 1:
            raise UsageError("expected a command after --")
        return command[1:]
    if not command:
        raise UsageError("expected a script, -m and a module, or -- and a command")
    if command[0].startswith("-") and not Path(command[0]).is_file():
        raise UsageError(unknown_option(command[0].partition("=")[0], options_of(name)))
    if not Path(command[0]).is_file():
        raise UsageError(f"there is no script {command[0]!r}; to run an executable, write -- in front of it")
    return [sys.executable, *command]


def _line_of_spawn(script: list[str]) -> int | None:
    """The line where a script calls `torch.multiprocessing.spawn` or `start_processes`, if it does."""
    import ast

    try:
        parsed = ast.parse(Path(script[0]).read_bytes())
    except (IndexError, OSError, SyntaxError, ValueError):  # a command that is not Python
        return None
    imported = {
        name.name if isinstance(node, ast.Import) else f"{node.module}.{name.name}"
        for node in ast.walk(parsed)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    if not any(name.startswith("torch.multiprocessing") for name in imported):
        return None
    for node in ast.walk(parsed):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("spawn", "start_processes"):
                return node.lineno
    return None
