"""`allfold completion`: what a shell needs to complete commands, options and names, made from the parsers themselves."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SUMMARY = """\
Print a script that makes a shell complete the commands of allfold, their options, and the names of algorithms, collectives and
topologies. It is made from this version: make it again after an upgrade."""

_EPILOG = """\
example:
  $ allfold completion bash > ~/.local/share/bash-completion/completions/allfold
  $ allfold completion zsh  > ~/.zfunc/_allfold          # with fpath+=~/.zfunc before compinit in ~/.zshrc
  $ allfold completion fish > ~/.config/fish/completions/allfold.fish"""

_WITH_ALGORITHMS = ("show", "verify", "compare", "simulate", "export")  # their first argument is one


@dataclass(frozen=True)
class _Option:
    names: tuple[str, ...]
    help: str
    takes_value: bool
    values: tuple[str, ...]


@dataclass(frozen=True)
class _Command:
    name: str
    help: str
    options: tuple[_Option, ...]
    words: tuple[str, ...]  # what its arguments may be, besides files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=[*_SHELLS], help="the shell to complete in")


def run(arguments: argparse.Namespace) -> int:
    sys.stdout.write(_SHELLS[arguments.shell](list(_commands())))
    return 0


def _commands() -> Iterator[_Command]:
    from ..collectives import COLLECTIVES
    from ..price.topology.machines import CONSTRUCTORS
    from ..registry import algorithms
    from . import COMMANDS, parser_of

    parsers = next(
        action.choices
        for action in parser_of(COMMANDS)._actions
        if isinstance(action, argparse._SubParsersAction) and action.choices
    )
    names = tuple(sorted({name for collective in COLLECTIVES for name in algorithms(collective)}))
    values = {"--collective": tuple(COLLECTIVES), "--topology": tuple(CONSTRUCTORS), "--algorithm": names}
    for name, parser in parsers.items():
        options, words = [], [*names] if name in _WITH_ALGORITHMS else [*COLLECTIVES] if name == "list" else []
        for action in parser._actions:
            choices = tuple(map(str, action.choices or ()))
            if action.option_strings:
                known = choices or next((values[one] for one in action.option_strings if one in values), ())
                options.append(_Option(tuple(action.option_strings), _plain(action), action.nargs != 0, known))
            else:
                words += choices
        yield _Command(name, COMMANDS[name], tuple(options), tuple(words))


def _plain(action: argparse.Action) -> str:
    """The help of an option, up to its first sentence or bracket: it stands in one line beside others."""
    text = (action.help or "").replace("%%", "%").replace("%(default)s", str(action.default))
    for end in (" (", "; ", ". ", ": "):
        text = text.partition(end)[0]
    return text


def _bash(commands: list[_Command]) -> str:
    cases, values = [], []
    for command in commands:
        options = " ".join(name for option in command.options for name in option.names)
        cases.append(
            f"    {command.name}) options={shlex.quote(options)} words={shlex.quote(' '.join(command.words))} ;;"
        )
        for option in command.options:
            if option.takes_value:
                patterns = "|".join(f"'{command.name} {name}'" for name in option.names)
                values.append(f"    {patterns}) words={shlex.quote(' '.join(option.values))} options= ;;")
    top = " ".join([*(command.name for command in commands), "--help", "--version"])
    return f"""\
# Completion of allfold for bash.
_allfold() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}} options= words=
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=( $(compgen -W {shlex.quote(top)} -- "$current") )
    return
  fi
  case "$command" in
{chr(10).join(cases)}
  esac
  case "$command $before" in
{chr(10).join(values)}
  esac
  if [[ $current == -* ]]; then words=$options; fi
  COMPREPLY=( $(compgen -W "$words" -- "$current") )
}}
complete -o bashdefault -o default -F _allfold allfold
"""


def _zsh(commands: list[_Command]) -> str:
    listed = "\n".join(f"    {_quoted(f'{command.name}:{command.help}')}" for command in commands)
    cases = []
    for command in commands:
        specs = []
        for option in command.options:
            what = option.help.replace("[", "(").replace("]", ")").replace(":", " ")
            value = f":value:({' '.join(option.values)})" if option.values else ":value:_files"
            specs += [_quoted(f"{name}[{what}]{value if option.takes_value else ''}") for name in option.names]
        words = f"_alternative {_quoted(f'names:name:({chr(32).join(command.words)})')} 'files:file:_files'"
        rest = _quoted(f"*:argument:{{{words}}}") if command.words else "'*:argument:_files'"
        cases.append(f"    {command.name})\n      _arguments {' '.join([*specs, rest])} ;;")
    return f"""\
#compdef allfold
# Completion of allfold for zsh.
_allfold() {{
  local -a commands
  commands=(
{listed}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    _arguments '--help[explain the commands]' '--version[versions, and how the engine was built]'
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{chr(10).join(cases)}
  esac
}}
if [[ $funcstack[1] == _allfold ]]; then _allfold "$@"; else compdef _allfold allfold; fi
"""


def _fish(commands: list[_Command]) -> str:
    lines = ["# Completion of allfold for fish.", "complete -c allfold -n __fish_use_subcommand -f"]
    lines += [
        f"complete -c allfold -n __fish_use_subcommand -a {command.name} -d {_quoted(command.help)}"
        for command in commands
    ]
    lines += ["complete -c allfold -n __fish_use_subcommand -l version", "complete -c allfold -s h -l help"]
    for command in commands:
        begin = f"complete -c allfold -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            lines.append(f"{begin} -a {_quoted(' '.join(command.words))}")
        for option in command.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            value = (
                (f" -x -a {_quoted(' '.join(option.values))}" if option.values else " -r") if option.takes_value else ""
            )
            lines.append(f"{begin} {names} -d {_quoted(option.help)}{value}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """In single quotes, for zsh and fish alike."""
    return "'" + text.replace("\\", "").replace("'", "’") + "'"


_SHELLS: dict[str, Callable[[list[_Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
