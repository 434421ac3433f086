"""Supervision of a run's processes: start them, pass on their output, end all when one fails, leave none behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TextIO

from allfold.launch.kept import RepeatedTemplate
from allfold.launch.template import WORKER, Template

# After a failure the other ranks get some time to finish by themselves (they have errors of their own to write), then
# they are asked to end, then they are killed.
SECONDS_TO_FINISH = 1.0
SECONDS_TO_OBEY = 1.0

_REQUESTS_AHEAD = 8
_READ_BYTES = 64 * 1024
_LONGEST_LINE = 1024 * 1024
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
# Without pidfds (an old kernel, a strict sandbox) we have to poll for the ends of processes.
_LOOK_AGAIN_SECONDS = 0.02
# Python runs its signal handlers between two instructions. A signal that comes after the last of them and before the
# kernel has put us to sleep wakes nobody: if the sleep had no limit, nobody would ever notice the signal.
_LONGEST_SLEEP_SECONDS = 0.5


@dataclass
class Child:
    """One rank's process, and its known state."""

    rank: int
    command: subprocess.Popen[bytes] | None = None  # None: it does work, and is forked from the template
    process: int | None = None  # its id; None until the template has forked it
    found: int | None = None  # the status that the template saw it end with
    report: bytearray = field(default_factory=bytearray)
    sources: dict[int, Callable[[bytes], None]] = field(default_factory=dict)
    end_descriptor: int | None = None
    status: int | None = None  # of the ended process; negative for a signal, as in subprocess
    ended_at: float = 0.0
    was_told_to_end: bool = False
    was_meant_to_die: bool = False

    def has_reported(self, kind: bytes) -> bool:
        """True if a whole report of this kind has arrived: R, a result, or E, an error."""
        return self.report[8:9] == kind and len(self.report) == 8 + int.from_bytes(self.report[:8], "big")

    @property
    def message(self) -> memoryview:
        """The report without its length and kind."""
        return memoryview(self.report)[9:]

    @property
    def has_failed(self) -> bool:
        if self.has_reported(b"E"):
            return True
        if self.was_meant_to_die:
            return False
        return self.status is not None and (self.status != 0 or (self.command is None and not self.has_reported(b"R")))

    @property
    def has_returned(self) -> bool:
        return self.status == 0 and self.has_reported(b"R")

    @property
    def shell_status(self) -> int:
        """The exit status as a shell would give it."""
        assert self.status is not None
        return 128 - self.status if self.status < 0 else self.status

    def __str__(self) -> str:
        return f"rank {self.rank}" + (f" (process {self.process})" if self.process is not None else "")

    @property
    def end(self) -> str:
        assert self.status is not None
        if self.status >= 0:
            return f"exited with status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = f"signal {-self.status}"
        return f"was killed by {name}"

    def how_it_ended(self) -> str:
        return f"{self} {self.end}"


class Supervisor:
    """The processes of one run. Leaving the context ends whatever is left of them."""

    still_running: Mapping[int, str] = {}  # they are killed

    def __init__(
        self,
        prefix_output: bool,
        survive: bool = False,
        terminal: int = 0,
        is_debugging: bool = False,
        tolerates_death: bool = False,
        was_meant_to_die: Callable[[Child], bool] = lambda _: False,
        make_template: Callable[..., Template] | None = None,
        seconds_to_obey: float = SECONDS_TO_OBEY,
    ) -> None:
        self.prefix_output = prefix_output
        # Ranks write to file descriptors. If this process writes elsewhere (a notebook, a test), it passes on what they write.
        self.passes_on = prefix_output or _is_elsewhere(sys.stdout, 1) or _is_elsewhere(sys.stderr, 2)
        self.terminal = terminal  # the rank of a command that has our input
        self.is_debugging = is_debugging  # it also has our output, unchanged
        self.survive = survive  # a rank that fails does not end the others
        self.tolerates_death = tolerates_death  # one that raises does, and one that exits or is killed does not
        self.was_meant_to_die = was_meant_to_die  # asked when a rank is found dead: then it has not failed
        self.make_template = make_template or RepeatedTemplate  # not a default argument: tests replace it
        self.seconds_to_obey = seconds_to_obey
        self.children: list[Child] = []
        self.ended: list[Child] = []  # in the order in which they ended
        self.interrupted: int | None = None
        self.late: list[int] = []  # the ranks that the timeout cut off
        self.selector = selectors.DefaultSelector()
        self.signals_due: list[tuple[float, signal.Signals]] = []
        self.template: Template | None = None
        self.requests: list[Mapping[str, str]] = []  # the variables of the ranks, by rank

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._running():
                self.end_at_once()
                self.watch(None)
        finally:
            # Also reached after a second interrupt: kill at once, and pass on no more output.
            for child in self._running():
                self._kill_group(child, signal.SIGKILL)
            if self.template is not None:
                self.template.finish(all(child.has_returned for child in self.children), self.seconds_to_obey)
            for child in self.children:
                if child.command is not None:
                    child.command.wait()
                for descriptor in child.sources:
                    os.close(descriptor)
                if child.end_descriptor is not None:
                    os.close(child.end_descriptor)
            self.selector.close()

    def start_command(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # Isolated and without site: this interpreter lives only a few milliseconds, until it becomes the command.
        bootstrap = [sys.executable, "-I", "-S", WORKER, "exec", str(os.getpid()), *command]
        child = Child(rank)
        with self._outputs(child, self.prefix_output) as (stdout, stderr):
            child.command = subprocess.Popen(
                bootstrap,
                env=environment,
                # Input goes to one rank, to rank 0 as with other launchers: shared among all it would be torn to pieces.
                stdin=None if rank == self.terminal else subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                # A session of its own: Ctrl-C reaches the launcher alone, which then ends all ranks in one way,
                # together with the processes that they started themselves.
                start_new_session=True,
            )
            child.process = child.command.pid
            self.children.append(child)
        with contextlib.suppress(OSError):
            child.end_descriptor = os.pidfd_open(child.process)
            self.selector.register(child.end_descriptor, selectors.EVENT_READ)

    def start_work(
        self, work: int, modules: Sequence[str], common: Mapping[str, str], own: Sequence[Mapping[str, str]]
    ) -> None:
        """Start ranks that do the pickled work in descriptor `work` and report the outcome.

        `modules` are what all of them are going to import; `common` and `own` are their environment variables.
        """
        self.requests = list(own)
        self.template = self.make_template(work, modules, common, len(own), has_output=not self.passes_on)
        self.children = [Child(rank) for rank in range(len(own))]
        self.selector.register(self.template.connection, selectors.EVENT_READ, self._hear_template)
        if self.template.end_descriptor is not None:
            self.selector.register(self.template.end_descriptor, selectors.EVENT_READ)
        for child in self.children[: len(own) if self.template.keeps_ranks else _REQUESTS_AHEAD]:
            self._request(child)

    def _request(self, child: Child) -> None:
        """Have the template fork a rank. Few at a time, so that its answers are awaited in `watch`, with all else."""
        assert self.template is not None
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self._listen_to(child, reading, child.report.extend)
        try:
            with self._outputs(child, self.passes_on) as outputs:
                descriptors = [writing, *(one for one in outputs if one is not None)]
                child.process = self.template.request(child.rank, self.requests[child.rank], descriptors)
        finally:
            os.close(writing)

    @contextlib.contextmanager
    def _outputs(self, child: Child, passes_on: bool) -> Iterator[tuple[int | None, int | None]]:
        """The pipes for a rank's output and errors, if this process passes them on."""
        if not passes_on or (self.is_debugging and child.rank == self.terminal):
            yield None, None
            return
        writings = []
        try:
            for stream in (sys.stdout, sys.stderr):
                reading, writing = os.pipe2(os.O_CLOEXEC)
                writings.append(writing)
                lines = None if stream is None else _Lines(child.rank if self.prefix_output else None, stream)
                self._listen_to(child, reading, (lambda _: None) if lines is None else lines.feed)  # None: it is closed
            yield writings[0], writings[1]
        except BaseException:
            for reading in list(child.sources):
                self._stop_listening(child, reading)
            raise
        finally:
            for writing in writings:
                os.close(writing)

    def _hear_template(self) -> None:
        assert self.template is not None
        for message in self.template.messages():
            if "error" in message:
                raise OSError(*message["error"])
            if "started" in message:
                child = self.children[message["rank"]]
                child.process = message["started"]
                if child.was_told_to_end:
                    self._kill_group(child, signal.SIGTERM)
                for following in self.children[child.rank + _REQUESTS_AHEAD :][:1]:
                    self._request(following)
            for rank, status in message.get("ended", []):
                self.children[rank].found = status

    def watch(self, timeout: float | None, interrupts: int | None = None) -> None:
        """Watch until all have ended. A byte read from `interrupts` is the number of a signal that ends them."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if interrupts is not None:
            self.selector.register(interrupts, selectors.EVENT_READ, lambda: self._interrupt(os.read(interrupts, 1)[0]))
        while self._running():
            for selected, _ in self.selector.select(self._patience(deadline)):
                if selected.data is not None:
                    selected.data()
            self._collect_ended()
            now = time.monotonic()
            if not self.survive and not self.signals_due and any(map(self._ends_the_run, self.children)):
                due = now + SECONDS_TO_FINISH
                self.signals_due = [(due, signal.SIGTERM), (due + self.seconds_to_obey, signal.SIGKILL)]
            if deadline is not None and now >= deadline and not self.late and self._running():
                self.late = [child.rank for child in self._running()]
                self.end_at_once()
            self._send_due_signals(now)

    def _ends_the_run(self, child: Child) -> bool:
        return child.has_reported(b"E") if self.tolerates_death else child.has_failed

    @property
    def failed(self) -> list[Child]:
        return [child for child in self.children if child.has_failed]

    def end_at_once(self) -> None:
        now = time.monotonic()
        self.signals_due = [(now, signal.SIGTERM), (now + self.seconds_to_obey, signal.SIGKILL)]
        self._send_due_signals(now)

    def _interrupt(self, number: int) -> None:
        if self.interrupted is None:
            self.interrupted = number
            self.end_at_once()
        else:  # a second signal: the user does not want to wait
            self.signals_due = [(time.monotonic(), signal.SIGKILL)]

    def _running(self) -> list[Child]:
        return [child for child in self.children if child.status is None]

    def _patience(self, deadline: float | None) -> float:
        """Seconds to sleep if nothing happens."""
        moments = [when for when, _ in self.signals_due[:1]]
        if deadline is not None and not self.late:
            moments.append(deadline)
        waits = [max(0.0, moment - time.monotonic()) for moment in moments]
        own_processes = self._running() if self.template is None else [self.template]
        if any(one.end_descriptor is None for one in own_processes):
            waits.append(_LOOK_AGAIN_SECONDS)
        return min([_LONGEST_SLEEP_SECONDS, *waits])

    def _send_due_signals(self, now: float) -> None:
        while self.signals_due and self.signals_due[0][0] <= now:
            _, number = self.signals_due.pop(0)
            for child in self._running():
                child.was_told_to_end = True
                self._kill_group(child, number)
            if number == signal.SIGKILL and self.template is not None:
                self.template.wake()
        if not self.signals_due and any(child.was_told_to_end for child in self._running()):
            # SIGKILL was sent and cannot be refused, but a rank that is inside the kernel may take a while to end.
            self.signals_due = [(now + self.seconds_to_obey, signal.SIGKILL)]

    def _collect_ended(self) -> None:
        if self.template is not None and self.template.has_ended():
            self._lose_template()
        ended = [child for child in self._running() if self._has_ended(child)]
        for child in ended:
            # Until the process has been waited for, its process id cannot be reused.
            if child.command is None and child.found is None:
                child.found = 0  # it has done its work, and goes on
            else:
                self._kill_group(child, signal.SIGKILL)
            child.status = child.found if child.command is None else child.command.wait()
            child.was_meant_to_die = child.status == -signal.SIGKILL and self.was_meant_to_die(child)
            child.ended_at = time.monotonic()
            if child.end_descriptor is not None:
                self.selector.unregister(child.end_descriptor)
                os.close(child.end_descriptor)
                child.end_descriptor = None
            for descriptor in list(child.sources):
                while self._pass_on(child, descriptor):
                    pass
                if descriptor in child.sources:  # somebody outside the session still holds the other end
                    self._stop_listening(child, descriptor)
        if ended and self.template is not None:
            self.template.allow_waiting()
        # Of those that were found at the same moment, killed ranks go first: a rank that was killed may be why others
        # exited, never the other way round, since this launcher has not signalled anybody yet.
        self.ended += sorted(
            ended, key=lambda child: (child.was_told_to_end, child.status is not None and child.status >= 0)
        )

    def _lose_template(self) -> None:
        """The template has ended: after its ranks, as it should, or before them, and then they die with it."""
        assert self.template is not None
        self._hear_template()
        for child in self._running():
            if child.found is None:
                child.found = self.template.status if child.process is None else -signal.SIGKILL

    def _has_ended(self, child: Child) -> bool:
        if child.command is None:
            keeps_ranks = self.template is not None and self.template.keeps_ranks
            return child.found is not None or (keeps_ranks and child.has_reported(b"R"))
        return os.waitid(os.P_PID, child.command.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _kill_group(self, child: Child, number: signal.Signals) -> None:
        if self.template is not None:
            if self.template.has_ended():
                return  # whoever took over its ranks may have waited for them: their ids may be others' now
            if child.process is None:
                # It gets its SIGTERM when it has started. Killing the template kills all its ranks.
                if number == signal.SIGKILL or self.children[0].process is None:
                    self.template.kill()
                return
        assert child.process is not None
        # A command may have switched to another user, whose processes we may not signal.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process, number)

    def _listen_to(self, child: Child, descriptor: int, sink: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        child.sources[descriptor] = sink
        self.selector.register(descriptor, selectors.EVENT_READ, lambda: self._pass_on(child, descriptor))

    def _pass_on(self, child: Child, descriptor: int) -> bool:
        """Forward all available data; False if nothing more can be read now."""
        if descriptor not in child.sources:
            return False
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            child.sources[descriptor](data)
        else:
            self._stop_listening(child, descriptor)
        return bool(data)

    def _stop_listening(self, child: Child, descriptor: int) -> None:
        self.selector.unregister(descriptor)
        os.close(descriptor)
        child.sources.pop(descriptor)(b"")


def _is_elsewhere(stream: TextIO | None, descriptor: int) -> bool:
    """True if a stream of this process does not write to this file descriptor."""
    if stream is None or getattr(stream, "closed", False):
        return False
    try:
        return not os.path.sameopenfile(stream.fileno(), descriptor)
    except (
        AttributeError,
        OSError,
        ValueError,
    ):  # it has no descriptor: pytest's capsys, a notebook's stream, a StringIO
        return True


class _Lines:
    """Puts `[rank] ` in front of every line and passes on only whole lines, so that those of ranks never mix.

    Without a rank, lines are passed on as they are.
    """

    def __init__(self, rank: int | None, stream: TextIO) -> None:
        self.stream = stream
        self.rest = b""
        self.is_plain = rank is None
        prefix = "" if rank is None else f"[{rank}] "
        if rank is not None and stream.isatty() and "NO_COLOR" not in os.environ:
            prefix = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{prefix}\x1b[0m"
        self.prefix = prefix.encode()

    def feed(self, data: bytes) -> None:
        """Take more data. Empty `data` means the end: an unfinished line then gets its line break."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if self.is_plain and not data:
            self._write(self.rest)
            return
        if self.rest and (not data or len(self.rest) > _LONGEST_LINE):
            lines.append(self.rest)
            self.rest = b""
        if lines:
            self._write(b"".join(self.prefix + line + b"\n" for line in lines))

    def _write(self, data: bytes) -> None:
        buffer = getattr(self.stream, "buffer", None)
        if buffer is None:  # a notebook's stream takes only text
            self.stream.write(data.decode(errors="replace"))
        else:
            self.stream.flush()
            buffer.write(data)
        self.stream.flush()
