"""Writing to the terminal: styled on a terminal, plain in a pipe."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..files import write_whole
from ..view import WIDTH
from . import PLAIN

_ENDLESS = 10_000  # in a pipe a row of a table stays one line, however long
_LEAST_LAST = 24  # the least width of a table's last column on a terminal, if it needs it
_MOMENT = 0.4  # seconds; what takes longer says that it is under way


def width() -> int:
    return shutil.get_terminal_size(fallback=(WIDTH, 24)).columns


def write_json(document: Any, path: str | os.PathLike[str] | None = None) -> None:
    """To the file, or to stdout without one."""
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if path is None:
        sys.stdout.write(text)
    else:
        write_whole(path, text)


def write_lines(lines: Iterable[Text | str], color: bool | None) -> None:
    console = _console(color)
    for line in lines:
        # Captured and written here, because a rich console exits the program by itself when the pipe is closed.
        with console.capture() as captured:
            console.print(line, soft_wrap=True, highlight=False, markup=False)
        sys.stdout.write(captured.get())


def write_markdown(text: str, color: bool | None) -> None:
    """Rendered on a terminal; in a pipe, the Markdown itself."""
    console = _console(color)
    if not console.is_terminal:
        sys.stdout.write(text + "\n")
        return
    from rich.markdown import Markdown  # it takes long to load

    console.width = min(console.width, WIDTH)
    with console.capture() as captured:
        console.print(Markdown(text, code_theme="ansi_dark"))
    sys.stdout.write(captured.get())


def write_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str] | None],
    color: bool | None,
    left: int = 1,
    narrow: Mapping[str, str | None] | None = None,
) -> None:
    """Aligned columns: words (the first `left` columns and `_TEXT_COLUMNS`) to the left, numbers to the right.

    A row of None is an empty line. On a terminal the last column is wrapped; in a pipe a row stays one line. If a
    terminal is too narrow for the other columns, those in `narrow` get the shorter name there, or are left out where
    there is none, one after the other until it fits. What still does not fit is wrapped by the terminal.
    """
    lines = [list(row or [""] * len(head)) for row in rows]
    console = _console(color)
    head = list(head)
    for name, shorter in (narrow or {}).items():
        if console.width >= _widest(head, lines):
            break
        place = head.index(name)
        if shorter is not None:
            head[place] = shorter
        else:
            for line in (head, *lines):
                del line[place]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for position, name in enumerate(head):
        is_text = position < left or name in _TEXT_COLUMNS
        table.add_column(name, justify="left" if is_text else "right", no_wrap=position < len(head) - 1)
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    console.width = max(console.width, _widest(head, lines))
    with console.capture() as captured:
        console.print(table)
    sys.stdout.writelines(line.rstrip() + "\n" for line in captured.get().splitlines())


def _widest(head: Sequence[str], lines: Sequence[Sequence[str]]) -> int:
    """The width of a table, with its last column as narrow as it may be."""
    widths = [max(map(cell_len, column)) for column in zip(head, *lines, strict=True)]
    return sum(widths[:-1]) + 2 * (len(head) - 1) + min(widths[-1], _LEAST_LAST)


_TEXT_COLUMNS = (
    "what it does",
    "what it is about",
    "meaning",
    "progress",
    "same bits",
    "rank order",
    "any length",
    "result",
)


def times(value: Fraction) -> str:
    """Bytes as a multiple of S: `1.75`, `2`, `0.667`."""
    return str(int(value)) if value.denominator == 1 else f"{float(value):.4g}"


def wants_color(color: bool | None) -> bool:
    """True with --color; without the option, on a terminal unless NO_COLOR is set (no-color.org)."""
    if color is not None:
        return color
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None]]:
    """On a terminal, what is being done and for how long, once that takes more than a moment; calls change the words.

    Nothing may be written to stdout meanwhile.
    """
    is_paging = isinstance(sys.stdout, _ToPager) and sys.stdout.used  # the screen is the pager's
    if not sys.stderr.isatty() or is_paging:
        yield lambda _: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    task = bar.add_task(doing, total=None)
    start = threading.Timer(_MOMENT, bar.start)
    start.daemon = True
    start.start()
    try:
        yield lambda words: bar.update(task, description=words)
    finally:
        start.cancel()
        start.join()
        if bar.live.is_started:
            bar.stop()


@contextmanager
def bar(doing: str, total: float | None = None) -> Iterator[Callable[..., None]]:
    """A progress bar on the terminal; calls change it: `advance`, `completed`, `total`, `description`."""
    from rich.progress import Progress

    shown = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with shown:
        task = shown.add_task(doing, total=total)
        yield partial(shown.update, task)


class _ToPager(io.TextIOWrapper):
    """It ends up on the terminal, so it is written as for one."""

    used = False

    def write(self, text: str) -> int:
        self.used = True
        return super().write(text)

    def isatty(self) -> bool:
        return True


@contextmanager
def through_pager() -> Iterator[None]:
    """On a terminal, hand what is written to the program that PAGER names, if it names one."""
    command = shlex.split(os.environ.get("PAGER", "")) if sys.stdout.isatty() else []
    found = shutil.which(command[0]) if command else None
    if found is None or command == ["cat"]:
        yield
        return
    # As git does: less then ends by itself if all fits on the screen, shows styles, and leaves the text there.
    environment = {"LESS": "FRX", **os.environ}
    pager = subprocess.Popen([found, *command[1:]], stdin=subprocess.PIPE, env=environment)
    assert pager.stdin is not None
    direct, sys.stdout = sys.stdout, _ToPager(pager.stdin, encoding=sys.stdout.encoding, errors=PLAIN)
    try:
        with contextlib.suppress(BrokenPipeError):  # its user has seen enough
            yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.close()
        sys.stdout = direct
        while True:
            try:
                pager.wait()
                break
            except KeyboardInterrupt:  # meant for the pager, which decides what it does
                continue


class _RaisingConsole(Console):
    def on_broken_pipe(self) -> None:
        raise  # rich would end the program


def _console(color: bool | None) -> Console:
    terminal, color = sys.stdout.isatty(), wants_color(color)
    return _RaisingConsole(
        file=sys.stdout,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        width=width() if terminal else _ENDLESS,
        highlight=False,
        legacy_windows=False,
    )
