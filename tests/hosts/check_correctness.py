"""Are the results right, however ranks are spread over hosts?"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals

import launchers
from checking import RANKS, Check, Failed, Setting, must_have_left_nothing, outputs
from lab import SETTLE_SECONDS, Lab, remains, sweep
from processes import Result

SECTIONS = ("collectives", "messages", "groups", "training")
GROUP_SECONDS, RUN_SECONDS = 30.0, 600.0

# A laboratory with something running in it, which goes on until it is ended.
_BUSY = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # even if this process is in the background
sys.path.insert(0, {folder!r})
from lab import Lab
with Lab() as lab:
    for host in lab.members:
        lab.call(host.index, ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"])
    print("busy", flush=True)
    time.sleep(1000)
"""


def judged(result: Result, sections: Sequence[str], backend: str) -> str:
    """What the ranks found out about their sections, in a few words; fails if that is not what it should be."""
    complaints = []
    for rank, lines in result.reports.items():
        complaints += [f"rank {rank}: {wrong}" for line in lines for wrong in line.get("wrong", ())]
        if backend == "allfold":
            complaints += [f"rank {rank}: refused {one}" for line in lines for one in line.get("refused", ())]
        complaints += [f"rank {rank}: {line['error']}: {line['text']}" for line in lines if line["event"] == "refused"]
        absent = [section for section in sections if all(line["event"] != section for line in lines)]
        complaints += [f"rank {rank} reported nothing of {', '.join(absent)}"] if absent else []
    if not result.reports:
        complaints.append("no rank reported anything")
    if not result.good:
        complaints.append(result.complaint)
    if complaints:
        raise Failed(complaints, outputs(result))
    told = result.reports[0]
    refused = sum(len(line.get("refused", ())) for line in told)
    cases = ", ".join(f"{line['cases']} {section}" for section in sections for line in told if line["event"] == section)
    return f"{len(result.reports)} ranks; cases: {cases}" + (f"; {refused} refused" if refused else "")


def _everything(ranks: Sequence[int], sections: Sequence[str], rendezvous: launchers.Rendezvous = "static") -> Check:
    def run(setting: Setting) -> str:
        with Lab(hosts=len(ranks)) as lab:
            arguments = [setting.backend, str(GROUP_SECONDS), *sections]
            launcher = launchers.torchrun(rendezvous)
            result = lab.run(launcher, RANKS / "correct.py", ranks, setting.environment(), RUN_SECONDS, arguments)
            seen = judged(result, sections, setting.backend)
            must_have_left_nothing(lab)
            return seen

    spread = " + ".join(map(str, ranks))
    return Check(f"{', '.join(sections)} on {spread} ranks, torchrun {rendezvous}", run)


def _communicator(setting: Setting) -> str:
    if setting.backend != "allfold":
        return "only allfold has it"
    with Lab(hosts=2) as lab:
        result = lab.run(launchers.torchrun(), RANKS / "communicator.py", [2, 1], timeout=RUN_SECONDS)
        seen = judged(result, ["communicator"], "allfold")
        must_have_left_nothing(lab)
        return seen


def _removal(number: Signals) -> Check:
    """Whatever ends the process that holds a laboratory, nothing of it stays; after SIGKILL, only until the next one."""

    def run(setting: Setting) -> str:
        script = textwrap.dedent(_BUSY).format(folder=str(Path(__file__).parent))
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "busy\n":
                raise Failed(["the laboratory did not start"])
            name = f"allfold-{process.pid}-"
            before = remains(name)
            process.send_signal(number)
            process.wait(20)
        finally:
            process.kill()
            process.wait()
        if len(before) < 6:  # two hosts with a process each, and a switch
            raise Failed([f"there was not much to remove: {before}"])
        deadline = time.monotonic() + SETTLE_SECONDS
        while any(one.startswith("process") for one in remains(name)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if number == SIGKILL:
            sweep()
        if left := remains(name):
            raise Failed(left)
        return f"{len(before)} processes, namespaces and folders, all gone; status {process.returncode}"

    return Check(f"the laboratory is removed after {number.name}", run)


CHECKS = (
    *(_removal(number) for number in (SIGINT, SIGTERM, SIGKILL)),
    _everything([2, 2], SECTIONS),
    _everything([1, 1], ["collectives"]),
    _everything([1, 3], ["collectives", "messages", "groups"]),
    _everything([2, 1, 1], ["collectives", "groups", "training"], "c10d"),
    _everything([1, 1, 1, 1], ["messages", "groups"]),
    Check("af.init() on 2 + 1 ranks, torchrun", _communicator),
)
