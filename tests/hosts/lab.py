"""Several hosts on one machine, for tests and measurements. Needs root.

    with Lab(hosts=2, rate="1gbit") as lab:
        result = lab.run(launchers.torchrun(), "script.py", ranks_per_host=[2, 1])

A host is a set of namespaces: its own network, name, processes, /dev/shm and boot id, kept alive by its first process.
Whatever runs on it dies with that process. Hosts are plugged into a switch, a bridge in a namespace of its own, by one
cable per interface (`eth0`, `eth1`, …), whose speed can be limited. Nothing outside can be reached from them. Unless
asked for, no host can resolve any name, not even its own.

Everything is removed on exit, also after an exception or a signal; what even a killed laboratory leaves, the names of its
namespaces, the next one removes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal

from launchers import Job, Launcher
from processes import Host, Result, Run, inside, kill_all, processes_of, untouched

MARK = "ALLFOLD_LAB"  # in the environment of every process on a host, so that leftovers can be found
FABRIC = "ALLFOLD_FABRIC"  # the only setting of this process that the hosts share: the fabric to test
FIRST_PORT = 29500
SETTLE_SECONDS = 3.0  # for processes that are ending, and memory that goes with them
_NAMESPACES = Path("/run/netns")
_TOOLS = ("ip", "tc", "nsenter", "unshare", "setpriv", "mount", "hostname")
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_serial = itertools.count()

# The first process of a host. Orphans become its children, and are reaped because it ignores their ends.
_HOST = """
set -e
hostname "$1"
mount -t tmpfs -o mode=1777 shm /dev/shm
mount --bind "$2" /etc/hosts
test -z "$3" || mount --bind "$3" /proc/sys/kernel/random/boot_id
echo ready
exec env --ignore-signal=CHLD sleep infinity
"""

Names = Literal["unknown", "loopback", "known"]


class LabError(RuntimeError):
    pass


def missing() -> str:
    """Why there can be no laboratory here; nothing if there can."""
    if os.geteuid() != 0:
        return "needs root (network namespaces)"
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"needs {', '.join(lacking)} (Debian: iproute2, util-linux, hostname)" if lacking else ""


@dataclass
class Lab:
    """`rate` limits every cable, in both directions, as tc writes it ("1gbit"); None does not limit.

    `names` says what a host knows of names: nothing ("unknown"); its own as 127.0.1.1, as Debian installs it
    ("loopback"); or everybody's ("known"). With `decoy` every host has an interface `docker0` with the same address
    everywhere, connected to nothing. With `one_machine` all hosts have this machine's boot id, as containers do.
    """

    hosts: int = 2
    rate: str | None = "10gbit"
    interfaces: int = 1
    ipv6_only: bool = False
    names: Names = "unknown"
    decoy: bool = False
    one_machine: bool = False

    def __post_init__(self) -> None:
        if reason := missing():
            raise LabError(f"a laboratory {reason}")
        self.name = f"allfold-{os.getpid()}-{next(_serial)}"
        self.switch = f"{self.name}-switch"
        self.members: list[Host] = []
        self.runs: list[Run] = []
        self._holders: list[subprocess.Popen[str]] = []
        self._handlers: dict[int, Any] = {}
        self._namespaces: list[str] = []
        self._folder = Path()

    def __enter__(self) -> Lab:
        sweep()
        self._handlers = {number: signal.getsignal(number) for number in _ENDING}
        for number in (signal.SIGTERM, signal.SIGHUP):
            if self._handlers[number] == signal.SIG_DFL:
                signal.signal(number, _leave)
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        left = self._remove()
        if left and error is None:
            raise LabError("the laboratory left something behind: " + "; ".join(left))

    # Starting ---------------------------------------------------------------------------------------------------------

    def run(
        self,
        launcher: Launcher,
        script: str | Path,
        ranks_per_host: Sequence[int],
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        arguments: Sequence[str] = (),
    ) -> Result:
        """A run with as many ranks as said for each host. Ends with them, or kills all when time is up."""
        with self.start(launcher, script, ranks_per_host, env, arguments) as run:
            return run.wait(timeout)

    @contextlib.contextmanager
    def start(
        self,
        launcher: Launcher,
        script: str | Path,
        ranks_per_host: Sequence[int],
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> Iterator[Run]:
        """A run that goes on while the caller does something to it; it is killed at the end of the context."""
        if len(ranks_per_host) != len(self.members):
            raise LabError(f"ranks for {len(ranks_per_host)} hosts were asked for, and there are {len(self.members)}")
        number = len(self.runs)
        name, folder, port = f"{self.name}-run-{number}", self._folder / f"run-{number}", FIRST_PORT + number
        folder.mkdir()
        run = Run(folder, list(self.members))
        self.runs.append(run)
        command = [sys.executable, str(Path(script).resolve()), *arguments]
        try:
            for one in launcher(Job(command, self.members, ranks_per_host, port, name, folder, self.switch)):
                run.begin(
                    one.label, one.host, one.command, {**self._environment(run), **one.environment, **(env or {})}
                )
            yield run
        finally:
            run.kill()

    def call(self, host: int, command: Sequence[str], timeout: float = 20.0) -> str:
        """What a command on a host printed."""
        entered = [*inside(self.members[host]), *command]
        return subprocess.run(entered, capture_output=True, text=True, timeout=timeout, check=True).stdout

    # Cables -----------------------------------------------------------------------------------------------------------

    def link_down(self, host: int, interface: int = 0, silently: bool = False) -> None:
        """Pull a cable; `silently` at the far side of the switch, so that the host still sees its link up."""
        port = f"port{host}-{interface}"
        words = ["nomaster"] if silently else ["down"]
        self._ip("-n", self.switch, "link", "set", port, *words)

    def link_up(self, host: int, interface: int = 0) -> None:
        self._ip("-n", self.switch, "link", "set", f"port{host}-{interface}", "up", "master", f"net{interface}")

    def sent(self, host: int, interface: str = "eth0") -> int:
        """The bytes that an interface of a host has sent so far."""
        return int(self.call(host, ["cat", f"/sys/class/net/{interface}/statistics/tx_bytes"]))

    # What is left -----------------------------------------------------------------------------------------------------

    def leftovers(self) -> list[str]:
        """What the runs so far have left on the hosts, in sentences: processes and shared memory. The processes are killed."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (found := self._on_the_hosts()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for host in self.members:
            kill_all(processes_of(host))
        return found

    def _on_the_hosts(self) -> list[str]:
        found = []
        for host in self.members:
            found += [f"{host.name} still runs process {number} ({_command(number)})" for number in processes_of(host)]
            shared = Path("/proc", str(host.process), "root", "dev", "shm")  # as it sees it
            found += [f"{host.name} has /dev/shm/{entry.name}" for entry in shared.iterdir()]
        return found

    # Building and removing --------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self._folder.chmod(0o755)
        self._add_namespace(self.switch)
        for interface in range(self.interfaces):
            net = f"net{interface}"
            self._ip("-n", self.switch, "link", "add", net, "type", "bridge")
            self._ip("-n", self.switch, "link", "set", net, "up")
            self._give_address(self.switch, net, self._address(interface, None))
        for index in range(self.hosts):
            self._add_host(index)

    def _add_host(self, index: int) -> None:
        name, namespace = f"host-{index}", f"{self.name}-{index}"
        addresses = tuple(self._address(interface, index) for interface in range(self.interfaces))
        self._add_namespace(namespace)
        for interface, address in enumerate(addresses):
            device, port = f"eth{interface}", f"port{index}-{interface}"
            words = ["type", "veth", "peer", "name", port, "netns", self.switch]
            self._ip("link", "add", device, "netns", namespace, *words)
            self._ip("-n", self.switch, "link", "set", port, "master", f"net{interface}", "up")
            self._give_address(namespace, device, address)
            self._ip("-n", namespace, "link", "set", device, "up")
            self._limit(namespace, device)
            self._limit(self.switch, port)
        if self.decoy:
            self._ip("-n", namespace, "link", "add", "docker0", "type", "bridge")
            self._ip("-n", namespace, "addr", "add", "172.17.0.1/16", "dev", "docker0")
            self._ip("-n", namespace, "link", "set", "docker0", "up")
        known, boot = self._folder / f"{name}.hosts", self._folder / f"{name}.boot_id"
        known.write_text(self._names_known_to(index))
        boot.write_text(f"{uuid.uuid4()}\n")
        command = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", namespace]
        command += ["unshare", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command += ["sh", "-c", _HOST, "sh", name, str(known), "" if self.one_machine else str(boot)]
        holder = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, MARK: f"{self.name}-lab"},
        )
        self._holders.append(holder)
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            raise LabError(f"{name} did not start: {holder.stderr.read().strip()}")
        first = int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text())
        self.members.append(Host(index, name, addresses, first))

    def _address(self, interface: int, host: int | None) -> str:
        """Of a host, or of the switch, where it is the head node's."""
        last = 254 if host is None else host + 1
        return f"fd77:{interface}::{last:x}" if self.ipv6_only else f"10.77.{interface}.{last}"

    def _names_known_to(self, index: int) -> str:
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        if self.names == "loopback":
            lines.append(f"127.0.1.1 host-{index}")
        if self.names == "known":
            lines += [f"{self._address(0, other)} host-{other}" for other in range(self.hosts)]
        return "\n".join(lines) + "\n"

    def _add_namespace(self, name: str) -> None:
        self._namespaces.append(name)
        self._ip("netns", "add", name)
        self._ip("-n", name, "link", "set", "lo", "up")

    def _give_address(self, namespace: str, device: str, address: str) -> None:
        # Without nodad an IPv6 address cannot be used for its first seconds.
        words = [f"{address}/64", "dev", device, "nodad"] if ":" in address else [f"{address}/24", "dev", device]
        self._ip("-n", namespace, "addr", "add", *words)

    def _limit(self, namespace: str, device: str) -> None:
        if self.rate is None:
            return
        # A millisecond's worth, and at least some packets as large as the kernel makes them before it cuts them up.
        burst = max(256 * 1024, int(bits_per_second(self.rate) / 8 / 1000))
        words = ["root", "tbf", "rate", self.rate, "burst", str(burst), "latency", "100ms"]
        _command_line("tc", "-n", namespace, "qdisc", "add", "dev", device, *words)

    def _ip(self, *words: str) -> None:
        _command_line("ip", *words)

    def _remove(self) -> list[str]:
        """Everything, whatever is there; what could not be removed."""
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            for run in self.runs:
                run.kill()
            for holder in self._holders:
                holder.kill()
                holder.communicate()
            # They die together with their host's first process, but not in the same moment.
            deadline = time.monotonic() + SETTLE_SECONDS
            while _marked(f"{self.name}-") and time.monotonic() < deadline:
                time.sleep(0.02)
            for namespace in self._namespaces:
                subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)
            if self._folder != Path():
                shutil.rmtree(self._folder, ignore_errors=True)
            left = remains(f"{self.name}-")
            self.members, self.runs, self._holders, self._namespaces = [], [], [], []
            return left
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)

    def _environment(self, run: Run) -> dict[str, str]:
        temporary = self._folder / "tmp"
        temporary.mkdir(exist_ok=True)
        fabric = os.environ.get(FABRIC)
        return {
            **untouched(os.environ),
            **({FABRIC: fabric} if fabric else {}),
            "TMPDIR": str(temporary),
            "OMP_NUM_THREADS": "1",
            "ALLFOLD_TUNING": "off",
            MARK: f"{self.name}-lab",
            f"{MARK}_REPORTS": str(run.folder),
        }


def sweep() -> None:
    """Remove the namespaces of laboratories whose process is gone."""
    for path in _NAMESPACES.glob("allfold-*") if _NAMESPACES.exists() else ():
        found = re.fullmatch(r"allfold-(\d+)-\d+-\w+", path.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            subprocess.run(["ip", "netns", "delete", path.name], capture_output=True, check=False)
            for folder in Path(tempfile.gettempdir()).glob(f"allfold-{found[1]}-*"):
                shutil.rmtree(folder, ignore_errors=True)


def remains(name: str) -> list[str]:
    """What there is of laboratories whose names begin so, in words: processes, namespaces, folders."""
    found = [f"process {number} ({_command(number)})" for number in _marked(name)]
    found += [f"the namespace {path.name}" for path in _NAMESPACES.glob(f"{name}*")]
    return found + [f"the folder {path}" for path in Path(tempfile.gettempdir()).glob(f"{name}*")]


def bits_per_second(rate: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", rate)
    if found is None:
        raise LabError(f"a rate is written like 10gbit or 100mbit, and {rate!r} is not")
    return float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[found[2]]


def _command_line(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(words)}: {done.stderr.strip()}")


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def _marked(name: str) -> list[int]:
    """The processes that have a laboratory in their environment whose name begins so."""
    mark, found = f"{MARK}={name}".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(word.startswith(mark) for word in (path / "environ").read_bytes().split(b"\0")):
                found.append(int(path.name))
    return found


def _command(number: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:120]
    return "it has just ended"
