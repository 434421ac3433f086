"""When a rank dies, stops or differs, or a cable is pulled: who hears what about whom, and how soon?"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from signal import SIGCONT, SIGKILL, SIGSTOP

import launchers
from checking import RANKS, Check, Failed, Setting, must_have_left_nothing, one_line, outputs
from lab import Lab
from processes import Host, Line, Result, Run

RANKS_PER_HOST = (2, 2)
EVERYBODY = range(sum(RANKS_PER_HOST))
LAST = EVERYBODY[-1]  # on another host than rank 0
START_SECONDS = 240.0  # importing torch takes long where all cores are busy
UNDER_WAY = 0.3  # seconds of calls before anything happens
LONG = 60.0  # a timeout that must not be what ends the waiting
SOON, LINK, GRACE = 2.0, 10.0, 8.0
PAUSE = 1.0

Strike = Callable[[Lab, Run], float]


@dataclass(frozen=True)
class Fault:
    """What the ranks do, what is done to them, and who has to hear of whom within how many seconds."""

    work: str
    strike: Strike
    about: Sequence[int] = (LAST,)  # whom the others hear of
    all_hear: bool = False  # also those whom it is about
    names_host: bool = True
    within: float = SOON
    timeout: float = LONG
    rate: str = "1gbit"
    parts: bool = False  # the hosts lose each other, and each hears of the other


def kill(*ranks: int) -> Strike:
    def strike(_: Lab, run: Run) -> float:
        return max(run.signal(rank, SIGKILL) for rank in ranks)

    return strike


def stop(_: Lab, run: Run) -> float:
    return run.signal(LAST, SIGSTOP)


def pull(silently: bool) -> Strike:
    def strike(lab: Lab, _: Run) -> float:
        lab.link_down(1, silently=silently)
        return time.monotonic()

    return strike


def nothing(_: Lab, __: Run) -> float:
    """The ranks do it to themselves; the time is that of their last report."""
    return 0.0


def _mismatch(work: str) -> Fault:
    return Fault(work, nothing, all_hear=True, names_host=False)


def heard(fault: Fault) -> Callable[[Setting], str]:
    """Everybody else raises in time, and the error names a rank that it was about, and its host."""

    def run(setting: Setting) -> str:
        with Lab(rate=fault.rate) as lab:
            hosts = [host for host, count in zip(lab.members, RANKS_PER_HOST, strict=True) for _ in range(count)]
            arguments = [setting.backend, fault.work, str(LAST), str(fault.timeout), "1000"]
            hearing = [rank for rank in EVERYBODY if rank not in fault.about or fault.all_hear]
            environment = setting.environment()
            with lab.start(launchers.ranks, RANKS / "endless.py", RANKS_PER_HOST, environment, arguments) as running:
                _must_be_ready(running)
                struck = fault.strike(lab, running)
                running.until(lambda: _have_ended(running, hearing), fault.within + GRACE)
                reports = running.reports()
                with contextlib.suppress(LookupError):
                    running.signal(LAST, SIGKILL)  # it may be stopped
                result = running.wait(GRACE)
            struck = struck or max((line["time"] for line in _lines(reports, "differs")), default=0.0)
            complaints, seconds, said = [], [], []
            for rank in hearing:
                end = next((line for line in reports.get(rank, ()) if line["event"] == "end"), None)
                others = [one for one in EVERYBODY if hosts[one] is not hosts[rank]] if fault.parts else fault.about
                complaints += _wrong(setting, fault, rank, end, struck, {one: hosts[one] for one in others})
                if end and end["error"]:
                    seconds.append(end["time"] - struck)
                    said.append(f"{end['error']}: {one_line(end['text'])}")
            if result.timed_out:
                complaints.append(f"not all had ended {GRACE:g} s after that")
            if complaints:
                raise Failed(complaints, outputs(result))
            must_have_left_nothing(lab)
            return f"heard after {min(seconds):.2f}–{max(seconds):.2f} s: {said[0]}"

    return run


def _wrong(
    setting: Setting, fault: Fault, rank: int, end: Line | None, struck: float, about: dict[int, Host]
) -> list[str]:
    if end is None:
        return [f"rank {rank} heard nothing within {fault.within + GRACE:g} s"]
    if end["error"] is None:
        return [f"rank {rank} heard nothing, and came to a good end"]
    found, text = [], one_line(end["text"])
    if end["time"] - struck > fault.within:
        found.append(f"rank {rank} heard after {end['time'] - struck:.1f} s, not within {fault.within:g}")
    named = [one for one in about if re.search(rf"\branks? (\d+(, | and |–|-))*{one}\b", end["text"])]
    if not named:
        ranks = " or ".join(map(str, about))
        found.append(f"rank {rank} is not told of rank {ranks}: {end['error']}: {text}")
    is_by_name = any(host.name in end["text"] or host.addresses[0] in end["text"] for host in about.values())
    if fault.names_host and not is_by_name:
        found.append(f"rank {rank} is not told of {next(iter(about.values())).name}: {end['error']}: {text}")
    if setting.backend == "allfold" and not end["ours"]:
        found.append(f"rank {rank}: {end['error']} is not one of allfold's errors: {text}")
    return found


def goes_on(
    work: str, pause: Callable[[Lab, Run], None], rate: str = "1gbit", silence: str = ""
) -> Callable[[Setting], str]:
    """Something happens that passes: nobody may raise. `silence`: for how many seconds a host may not be heard."""

    def run(setting: Setting) -> str:
        with Lab(rate=rate) as lab:
            arguments = [setting.backend, work, str(LAST), str(LONG), str(PAUSE + 4.0)]
            environment = {**setting.environment(), **({"ALLFOLD_HOST_SECONDS": silence} if silence else {})}
            with lab.start(launchers.ranks, RANKS / "endless.py", RANKS_PER_HOST, environment, arguments) as running:
                _must_be_ready(running)
                pause(lab, running)
                result = running.wait(30.0)
            ends = _lines(result.reports, "end")
            complaints = [f"{end['error']}: {one_line(end['text'])}" for end in ends if end["error"]]
            if complaints or not result.good:
                raise Failed([*complaints, result.complaint], outputs(result))
            must_have_left_nothing(lab)
            return f"{ends[0]['calls']} calls"

    return run


def _brief_outage(lab: Lab, _: Run) -> None:
    lab.link_down(1)
    time.sleep(PAUSE)
    lab.link_up(1)


def _brief_stop(_: Lab, run: Run) -> None:
    run.signal(LAST, SIGSTOP)
    time.sleep(PAUSE)
    run.signal(LAST, SIGCONT)


def _nothing_at_all(_: Lab, __: Run) -> None: ...


def _under_torchrun(setting: Setting) -> str:
    with Lab(rate="1gbit") as lab:
        arguments = [setting.backend, "small", str(LAST), str(LONG), "1000"]
        with _torchrun(lab, setting, arguments) as running:
            _must_be_ready(running)
            struck = running.signal(LAST, SIGKILL)
            result = running.wait(30.0)
        ended = time.monotonic()
        # The agent of the victim's host ends the other ranks there.
        hearing = [range(RANKS_PER_HOST[0])]
        said = _some_hear(setting, Fault("small", nothing), result, hearing, {LAST: lab.members[1]}, struck)
        must_have_left_nothing(lab)
        return f"all had ended {ended - struck:.1f} s later; {said}"


def _never_comes(setting: Setting) -> str:
    """Under torchrun, whose agents keep the store: otherwise it ends with rank 0, before others have looked into it."""
    timeout = 5.0
    with Lab(rate="1gbit") as lab:
        arguments = [setting.backend, "absent", str(LAST), str(timeout), "1000"]
        with _torchrun(lab, setting, arguments) as running:
            result = running.wait(START_SECONDS)
        began = max((line["time"] for line in _lines(result.reports, "meets")), default=0.0)
        hearing = [range(RANKS_PER_HOST[0]), range(RANKS_PER_HOST[0], LAST)]
        fault = Fault("absent", nothing, names_host=False, within=timeout + 2 * SOON)
        said = _some_hear(setting, fault, result, hearing, {LAST: lab.members[1]}, began)
        must_have_left_nothing(lab)
        return said


def _torchrun(lab: Lab, setting: Setting, arguments: Sequence[str]) -> contextlib.AbstractContextManager[Run]:
    return lab.start(launchers.torchrun(), RANKS / "endless.py", RANKS_PER_HOST, setting.environment(), arguments)


def _some_hear(
    setting: Setting,
    fault: Fault,
    result: Result,
    hosts: Sequence[Sequence[int]],
    about: dict[int, Host],
    struck: float,
) -> str:
    """On each of these hosts a rank hears of it. As soon as one has, torchrun ends the others there."""
    complaints = ["not all had ended"] if result.timed_out else []
    complaints += [f"{part.label} ended with status 0" for part in result.parts if part.status == 0]
    said = []
    for ranks in hosts:
        ends = {rank: end for rank in ranks for end in result.reports.get(rank, ()) if end["event"] == "end"}
        if not ends:
            complaints.append(f"rank {ranks[0]} and its host heard nothing")
        for rank, end in ends.items():
            complaints += _wrong(setting, fault, rank, end, struck, about)
            said.append(f"heard after {end['time'] - struck:.2f} s: {end['error']}: {one_line(end['text'])}")
    if complaints:
        raise Failed(complaints, outputs(result))
    return said[0]


def _must_be_ready(run: Run) -> None:
    if not run.until_ranks_say("ready", EVERYBODY, START_SECONDS):
        result = run.wait(0.0)
        ends = [f"{end['error']}: {one_line(end['text'])}" for end in _lines(result.reports, "end") if end["error"]]
        raise Failed(["the ranks did not get ready", *(ends[:1] or [result.complaint])], outputs(result))
    time.sleep(UNDER_WAY)


def _have_ended(run: Run, ranks: Sequence[int]) -> bool:
    reports = run.reports()
    return all(any(line["event"] == "end" for line in reports.get(rank, ())) for rank in ranks)


def _lines(reports: dict[int, list[Line]], event: str) -> list[Line]:
    return [line for lines in reports.values() for line in lines if line["event"] == event]


CHECKS = (
    Check("kill -9, small all_reduces", heard(Fault("small", kill(LAST)))),
    Check("kill -9, in the middle of large all_reduces", heard(Fault("large", kill(LAST)))),
    Check("kill -9, everybody waits for it in all_reduce", heard(Fault("waiting", kill(LAST)))),
    Check("kill -9, everybody waits for it in barrier", heard(Fault("barrier", kill(LAST)))),
    Check("kill -9, everybody waits for it in recv", heard(Fault("recv", kill(LAST)))),
    Check("kill -9, rank 0, which keeps the store", heard(Fault("small", kill(0), about=(0,)))),
    Check("kill -9, all ranks of a host", heard(Fault("small", kill(2, 3), about=(2, 3)))),
    Check("kill -9 under torchrun", _under_torchrun),
    Check("a rank raises", heard(Fault("raises", nothing))),
    Check("a rank leaves with status 0", heard(Fault("leaves", nothing))),
    Check("link down", heard(Fault("small", pull(False), (), within=LINK, parts=True))),
    Check(
        "link down, in the middle of large all_reduces", heard(Fault("large", pull(False), (), within=LINK, parts=True))
    ),
    Check("link down behind the switch", heard(Fault("small", pull(True), (), within=LINK, parts=True))),
    Check("SIGSTOP, with a timeout of 5 s", heard(Fault("small", stop, within=5.0 + SOON, timeout=5.0))),
    Check("another count", heard(_mismatch("another count"))),
    Check("another type", heard(_mismatch("another type"))),
    Check("another operation", heard(_mismatch("another operation"))),
    Check("another collective", heard(_mismatch("another collective"))),
    Check("a rank that never comes", _never_comes),
    Check("a link that is down for a second", goes_on("small", _brief_outage)),
    Check("a link that is down for a second, large all_reduces", goes_on("large", _brief_outage)),
    Check("a rank that is stopped for a second", goes_on("small", _brief_stop)),
    Check("a rank that comes 3 s late", goes_on("late", _nothing_at_all)),
    # 64 MiB take 5.4 s.
    Check("a long message over a slow wire", goes_on("message", _nothing_at_all, "100mbit", "2")),
)
