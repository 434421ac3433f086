"""A schedule as a film in the terminal: one grid that fills, step by step."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator

from rich.text import Text

from ...schedules import Schedule
from ...view.text import draw
from ..terminal import write_lines

_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor


def play(schedule: Schedule, width: int, seconds: float, color: bool | None) -> None:
    """Draw each frame over the one before; the last one stays, also after Ctrl-C."""
    sys.stdout.write(_HIDE)
    above = 0
    try:
        for place, frame in enumerate(frames(draw(schedule, width, full=True))):
            if place:
                sys.stdout.flush()
                time.sleep(seconds)
            # Frames higher than the window cannot be drawn over each other; they are printed one after the other.
            if 0 < above < shutil.get_terminal_size().lines:
                sys.stdout.write(f"\x1b[{above}A\x1b[J")
            write_lines(frame, color)
            above = len(frame)
    finally:
        sys.stdout.write(_SHOW)
        sys.stdout.flush()


def frames(lines: Iterable[Text]) -> Iterator[list[Text]]:
    """The output of `draw`, split at empty lines; every frame begins with the title and the legend."""
    head: list[Text] | None = None
    frame: list[Text] = []
    for line in lines:
        if line.plain:
            frame.append(line)
        elif head is None:
            head, frame = [*frame, line], []
        else:
            yield [*head, *frame]
            frame = []
    yield [*(head or []), *frame]
