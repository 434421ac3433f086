"""Runs one step of the Makefile: says what it does and how long it may take, shows progress, keeps the output in a log.

On a terminal one line shows the time and ninja's counter; elsewhere (CI) there is a line now and then. A step that
fails shows the end of its log, where the log is, and what may help.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build" / "log"
LAST_LINES = 30
SECONDS_BETWEEN_LINES = 30  # where no terminal shows the time


@dataclass
class Progress:
    """The latest output of a step, in a few words."""

    counter: str = ""  # "[12/49]" of ninja, or the percentage of pytest

    def see(self, line: str) -> None:
        if found := re.match(r"\s*(\[\d+/\d+\])|.*(\[ *\d+%\])$", line):
            self.counter = found[1] or found[2]


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def run(title: str, command: list[str], log: Path) -> tuple[int, float]:
    """The exit status of the command and how many seconds it took. Its output goes into the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    progress = Progress()
    ended = threading.Event()
    with log.open("w") as file:
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
        except OSError as error:
            file.write(f"{command[0]}: {error.strerror}\n")
            return 127, 0.0
        assert process.stdout
        teller = threading.Thread(target=tell, args=(title, progress, begun, ended), daemon=True)
        teller.start()
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                progress.see(line.rstrip())
            status = process.wait()
        except KeyboardInterrupt:  # the command got it as well
            status = process.wait() or 130
        finally:
            ended.set()
            teller.join()
    return status, time.monotonic() - begun


def tell(title: str, progress: Progress, begun: float, ended: threading.Event) -> None:
    """Shows the time and the counter until the step ends."""
    terminal = sys.stdout.isatty()
    while not ended.wait(0.5 if terminal else SECONDS_BETWEEN_LINES):
        line = f"  {title} {progress.counter} {clock(time.monotonic() - begun)}".replace("  ", " ")
        print(f"\r {line}\033[K" if terminal else f" {line}", end="" if terminal else "\n", flush=True)
    if terminal:
        print("\r\033[K", end="", flush=True)


def show_end(log: Path) -> None:
    """The last lines of a log, and where it is."""
    lines = log.read_text(errors="replace").splitlines()
    for line in without_advice(lines)[-LAST_LINES:]:
        print(f"  | {line}", file=sys.stderr)
    print(f"the whole output ({len(lines)} lines) is in {log.relative_to(ROOT)}", file=sys.stderr)


def without_advice(lines: list[str]) -> list[str]:
    """The lines without empty ones, and without what pip says after the output of a compiler that failed."""
    end = len(lines)
    if any("See above for output." in line for line in lines):
        end = next((at for at, line in enumerate(lines) if line.strip() == "error: subprocess-exited-with-error"), end)
    return [line for line in lines[:end] if line.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("title", help="what the step does")
    parser.add_argument("--takes", default="", help="how long it may take")
    parser.add_argument("--help-with", default="", help="what to do when it fails")
    parser.add_argument("command", nargs="+", help="after --")
    arguments = parser.parse_args()
    title: str = arguments.title
    print(f"{title}{f' ({arguments.takes})' if arguments.takes else ''} …", flush=True)
    log = LOGS / (re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40] + ".log")
    status, seconds = run(title, arguments.command, log)
    if status == 0:
        if seconds >= 1:
            print(f"  done in {clock(seconds)}", flush=True)
        return
    print(f"{title}: failed after {clock(seconds)} (exit status {status})", file=sys.stderr)
    show_end(log)
    if arguments.help_with:
        print(arguments.help_with, file=sys.stderr)
    sys.exit(status if 0 < status < 128 else 1)


if __name__ == "__main__":
    main()
