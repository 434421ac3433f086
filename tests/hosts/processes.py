"""What runs on the hosts of a laboratory: started, watched, signalled, and ended with everything that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOOK_AGAIN = 0.02  # seconds
# Of launchers that this process may itself run under, and settings that would change what is tested.
_FOREIGN = ("ALLFOLD_", "GLOO_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "TORCH", "NCCL_", "MASTER_")
_FOREIGN_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "PYTHONPATH")

Line = dict[str, Any]


@dataclass(frozen=True)
class Host:
    index: int
    name: str
    addresses: tuple[str, ...]  # one per interface
    process: int  # its first process, as seen from outside


@dataclass(frozen=True)
class Ended:
    """How one of the started processes ended; `status` is negative for a signal, as in subprocess."""

    label: str
    status: int
    output: str


@dataclass(frozen=True)
class Result:
    parts: list[Ended]
    reports: dict[int, list[Line]]  # by rank
    seconds: float
    timed_out: bool

    @property
    def good(self) -> bool:
        return not self.timed_out and all(part.status == 0 for part in self.parts)

    @property
    def complaint(self) -> str:
        """Why it is not good, in one line; the last lines of the first output that has any."""
        if self.good:
            return ""
        bad = [part for part in self.parts if part.status]
        states = ", ".join(f"{part.label} {part.status}" for part in bad)
        said = next((part.output.strip() for part in bad if part.output.strip()), "")
        after = f"stopped after {self.seconds:.0f} s; " if self.timed_out else ""
        return f"{after}status: {states}: {' | '.join(said.splitlines()[-3:])}"


@dataclass
class _Part:
    label: str
    process: subprocess.Popen[bytes]
    output: Path


@dataclass
class Run:
    """Processes that were started together. Ranks report in lines of JSON, one file per rank (`report.py`)."""

    folder: Path
    hosts: Sequence[Host]
    parts: list[_Part] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def begin(self, label: str, host: Host | None, command: Sequence[str], environment: Mapping[str, str]) -> None:
        entered = [*inside(host), *command] if host else command
        output = self.folder / f"{label.replace(' ', '-')}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                entered,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.parts.append(_Part(label, process, output))

    def wait(self, timeout: float) -> Result:
        """Their end; what still runs after that many seconds is killed."""
        timed_out = not self.until(lambda: all(part.process.poll() is not None for part in self.parts), timeout)
        seconds = time.monotonic() - self.began
        self.kill()
        ended = [Ended(part.label, part.process.wait(), part.output.read_text(errors="replace")) for part in self.parts]
        return Result(ended, self.reports(), seconds, timed_out)

    def until(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Whether something comes to hold within that many seconds."""
        deadline = time.monotonic() + timeout
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_AGAIN)
        return True

    def until_ranks_say(self, event: str, ranks: Iterable[int], timeout: float) -> bool:
        """Whether these ranks report it in time, before any of the processes ends with an error."""
        ranks = list(ranks)

        def said() -> bool:
            reports = self.reports()
            return all(any(line["event"] == event for line in reports.get(rank, ())) for rank in ranks)

        self.until(lambda: said() or any(part.process.poll() for part in self.parts), timeout)
        return said()

    def reports(self) -> dict[int, list[Line]]:
        found = {}
        for path in self.folder.glob("*.jsonl"):
            whole = path.read_text().rpartition("\n")[0]  # the last line may be half written
            found[int(path.stem)] = [json.loads(line) for line in whole.splitlines()]
        return dict(sorted(found.items()))

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Send a signal to a rank; the time at which that was done, by the clock of reports."""
        here = next(line for line in self.reports()[rank] if line["event"] == "here")
        host = next(host for host in self.hosts if host.name == here["host"])
        for process in processes_of(host):
            if _numbers_of(process)[-1:] == [here["process"]]:
                os.kill(process, number)
                struck = time.monotonic()
                # nsenter stops when what it has started is stopped, and has to be woken by itself.
                if number != signal.SIGSTOP:
                    for part in self.parts:
                        part.process.send_signal(signal.SIGCONT)
                return struck
        raise LookupError(f"rank {rank} is not there any more")

    def kill(self) -> None:
        """The process groups, and whatever else runs on the hosts: torchrun and mpirun put ranks in groups of their own."""
        for part in self.parts:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(part.process.pid, signal.SIGKILL)
        if any(part.process.poll() is None for part in self.parts):
            for host in self.hosts:
                kill_all(processes_of(host))
        for part in self.parts:
            part.process.wait()


def inside(host: Host) -> list[str]:
    """The words that put a command into the namespaces of a host."""
    return ["nsenter", "--target", str(host.process), "--net", "--uts", "--ipc", "--pid", "--mount", "--"]


def kill_all(processes: Iterable[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def processes_of(host: Host) -> list[int]:
    """The processes of a host, without its first."""
    try:
        own = os.stat(f"/proc/{host.process}/ns/pid").st_ino
    except OSError:
        return []
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.stat(path / "ns/pid").st_ino == own and int(path.name) != host.process:
                found.append(int(path.name))
    return found


def _numbers_of(process: int) -> list[int]:
    """Its number here, and in the namespaces below."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[1:]]
    return []


def untouched(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without what launchers and settings of this process have put there."""
    return {
        name: value for name, value in environ.items() if not name.startswith(_FOREIGN) and name not in _FOREIGN_NAMES
    }
