"""The options of `allfold learn`, and its help."""

from __future__ import annotations

import argparse

from . import add_color, add_json
from .studio import add_serving

SUMMARY = """\
A course on collective communication, in lessons of about ten minutes, for people who know Python. A lesson is a short text,
predictions to commit to before anything is computed, and functions to write, to repair or to improve. Algorithms are proved
for all numbers of ranks up to 17, and mistakes are reported with their line. The lessons are a folder of plain Python files:
./allfold-learn, or the one that --folder names, or the one that you are in. Without a command, the lessons are listed with
your progress."""

_EPILOG = """\
LESSON is a number or a name; without it, the first lesson that is started and not passed is meant, or the next one.
Your file runs in a process of its own, with a limit of 20 s of processor time and 4 GiB of memory. It is stopped with
everything that it started. That guards against mistakes; it is not a sandbox.

files:
  allfold-learn/progress.json                    what you predicted and solved
  allfold-learn/01_four_numbers/lesson.md        the text, with pictures
  allfold-learn/01_four_numbers/four_numbers.py  your file

example:
  $ allfold learn
  lesson  name          minutes  progress     what it is about
  1       four_numbers       10  not started  Everybody has a number and wants the sum: everyone t …
  2       ring               12  not started  Cut the data into pieces and let all ranks work all …
  …

  $ allfold learn start             # then open allfold-learn/01_four_numbers/four_numbers.py
  $ allfold learn check --watch
  $ allfold learn hint
  $ allfold learn studio            # the same lessons in your browser, with the same files and progress

exit status: 0 good (check: the lesson is passed), 1 something is missing or wrong, 2 wrong usage."""

COMMANDS = {
    "start": "write the lesson's files into the folder and print its text; files that are there are kept",
    "check": "judge your predictions and prove your code; --watch does so whenever you save the file",
    "hint": "one more hint, chosen by what is wrong in your file now; `hint softmax` for one function",
    "solution": "one solution; --write puts it beside your file",
    "reset": "the original file; your own is kept under another name",
    "studio": "the lessons in your browser, with the same files and the same progress",
    "words": "the words introduced so far, with their meaning",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    _add_common(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="what")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name != "words":
            command.add_argument(
                "lesson",
                nargs="?",
                metavar="LESSON",
                help="its number or name" + (", or a function of it" if name == "hint" else ""),
            )
        if name == "hint":
            command.add_argument("function", nargs="?", metavar="FUNCTION", help="for this function of the lesson")
        if name == "check":
            command.add_argument("--watch", action="store_true", help="check again whenever the file is saved")
            command.add_argument("--no-run", action="store_true", help="do not time it between real processes")
        if name == "studio":
            add_serving(command)
        if name == "solution":
            command.add_argument("--write", action="store_true", help="write it beside your file, as solution.py")
        _add_common(command, again=True)


def _add_common(parser: argparse.ArgumentParser, again: bool = False) -> None:
    default = argparse.SUPPRESS if again else None
    parser.add_argument(
        "--folder",
        metavar="F",
        default=default,
        help="the course's folder (default: the one you are in, or allfold-learn)",
    )
    add_json(parser)
    add_color(parser)
    if again:  # what was said before the command counts too
        for action in parser._actions:
            if action.dest in ("json", "color"):
                action.default = argparse.SUPPRESS
