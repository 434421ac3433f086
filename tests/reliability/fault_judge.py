"""The expected outcome of a fault trial: which rank should have heard what about whom, and when."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from fault_plans import Plan
from fault_ranks import STATUS

TYPED = (None, "RankLost", "CollectiveTimeout", "MismatchError", "SharedMemoryError")
MARGIN = (
    5.0  # seconds in which the process could run: a machine that is shared may keep it waiting for a core for longer
)

Line = dict[str, Any]


@dataclass
class Told:
    """What one rank reported: its lines, its process, and how and when that ended."""

    process: int
    lines: list[Line] = field(default_factory=list)
    died: float | None = None  # when it was seen to have ended
    stopped: float | None = None
    status: int | None = None
    was_killed: bool = False  # by the runner, at the end

    def last(self, event: str) -> Line | None:
        return next((line for line in reversed(self.lines) if line["event"] == event), None)


@dataclass
class Verdict:
    """Complaints, none if all is well; and how long after the fault the survivors heard of it, in seconds."""

    complaints: list[str] = field(default_factory=list)
    heard: list[float] = field(default_factory=list)
    able: list[float] = field(default_factory=list)  # the same, without the time in which they had to wait for a core
    happened: bool = True  # a timed fault may come when the victim has already finished everything


def judge(plan: Plan, told: list[Told]) -> Verdict:
    verdict = Verdict()
    victim = told[plan.victim]
    if plan.family == "slow" or plan.fault == "arena":
        everyone = range(plan.ranks)
    else:
        everyone = [rank for rank in range(plan.ranks) if rank != plan.victim]
    ends = {rank: told[rank].last("end") for rank in everyone}
    for rank, end in ends.items():
        if end is None:
            verdict.complaints.append(f"rank {rank} never said how it ended (status {told[rank].status})")
        elif end["error"] not in TYPED:
            verdict.complaints.append(f"rank {rank}: {end['error']}: {end['text']}")
        elif told[rank].status != 0:
            verdict.complaints.append(f"rank {rank} ended with status {told[rank].status}")
    if verdict.complaints:
        return verdict
    rules = {"death": _death, "stuck": _stuck, "mismatch": _mismatch, "memory": _memory, "slow": _nothing}
    rules["memory"] = _nothing if plan.fault == "arena" else _memory
    rules[plan.family](plan, told, victim, {rank: end for rank, end in ends.items() if end}, verdict)
    if plan.afterwards == "shrink" and verdict.happened:
        _going_on(plan, told, ends, verdict)
    return verdict


def _death(plan: Plan, told: list[Told], victim: Told, ends: dict[int, Line], verdict: Verdict) -> None:
    through = _is_in_its_last_call(plan, victim) or victim.last("end") is not None
    if through and any(end["error"] is None for end in ends.values()):
        verdict.happened = False
    if victim.died is None:
        verdict.complaints.append("the victim did not die")
        return
    for rank, end in ends.items():
        if end["error"] is None:
            if not through:
                verdict.complaints.append(f"rank {rank} heard nothing, and came to a good end")
            continue
        later = end["time"] - max(victim.died, _entered(told[rank]))
        if end["error"] == "CollectiveTimeout" and end["text"].startswith("rendezvous:"):
            # Nobody can know of a process that died before it sent anything.
            _must_name(plan, rank, end, verdict)
            if victim.last("met") or "did not come" not in end["text"]:
                verdict.complaints.append(f"rank {rank} ran out of time, and the victim had come: {end['text']}")
            if end["time"] - _entered(told[rank]) - _queued(told[rank], end) > plan.timeout + MARGIN:
                verdict.complaints.append(
                    f"rank {rank} waited {end['time'] - _entered(told[rank]):.1f} s for its timeout"
                )
            continue
        if end["error"] != "RankLost":
            verdict.complaints.append(f"rank {rank}: {end['error']}: {end['text']}")
            continue
        verdict.heard.append(max(0.0, later))
        verdict.able.append(max(0.0, later - _queued(told[rank], end)))
        if verdict.able[-1] > MARGIN:
            verdict.complaints.append(f"rank {rank} heard of it after {later:.1f} s: {end['text']}")
        _must_name(plan, rank, end, verdict)
    # Sends and receives do not say how a rank died.
    said = [end["text"] for end in ends.values() if end["error"] == "RankLost" and not _is_of_a_message(end)]
    gone = [text for text in said if f"rank {plan.victim} (process" in text and _label(text) == 0]
    if gone and not any(f"(process {victim.process})" in text for text in gone):
        verdict.complaints.append(f"the victim's process {victim.process} is not named: {gone[0]}")
    how = {"kill": "killed by signal 9", "segfault": "killed by signal 11", "exit": f"status {STATUS}"}.get(plan.fault)
    seen = [text for text in gone if f"(process {victim.process}) is gone" in text]
    if how and not plan.buried and seen and not any(how in text for text in seen):
        verdict.complaints.append(f"how it died is not said, though that could be seen: {seen[0]}")


def _stuck(plan: Plan, told: list[Told], victim: Told, ends: dict[int, Line], verdict: Verdict) -> None:
    through = _is_in_its_last_call(plan, victim) or victim.last("end") is not None
    if through and any(end["error"] is None for end in ends.values()):
        verdict.happened = False
    for rank, end in ends.items():
        if end["error"] is None:
            if not through:
                verdict.complaints.append(f"rank {rank} heard nothing, and came to a good end")
            continue
        waited = end["time"] - _entered(told[rank])
        follows = end["error"] == "RankLost" and (_follows(plan, told, end) or _is_of_a_message(end))
        if end["error"] != "CollectiveTimeout" and not follows:
            verdict.complaints.append(f"rank {rank}: {end['error']}: {end['text']}")
            continue
        if waited - _queued(told[rank], end) > plan.timeout + MARGIN:
            verdict.complaints.append(f"rank {rank} waited {waited:.1f} s, with a timeout of {plan.timeout} s")
        verdict.heard.append(max(0.0, waited))
        if not follows and not _is_of_a_message(end):  # it names the awaited rank, which may wait for others
            _must_name(plan, rank, end, verdict)
        described = re.search(rf"; rank {plan.victim} \(process {victim.process}\)([^;]*;[^;]*)", end["text"])
        if described and _communicator(plan, end["text"]) == tuple(range(plan.ranks)):
            words = {
                "stop": "it is stopped",
                "sleep": "it is at ",
                "hold the interpreter": "it does not say where it is",
            }
            if words[plan.fault] not in described[1]:
                verdict.complaints.append(f"rank {rank} is not told what the victim does: {end['text']}")


def _mismatch(plan: Plan, told: list[Told], victim: Told, ends: dict[int, Line], verdict: Verdict) -> None:
    where = plan.calls[plan.at].where
    members = plan.members(where)
    own = victim.last("end")
    if own is None:
        verdict.complaints.append("the rank that differed never said how it ended")
        return
    everyone = {**ends, plan.victim: own}
    for rank, end in everyone.items():
        if rank not in members and end["error"] in (None, "RankLost"):
            continue
        if end["error"] == "RankLost" and (_label(end["text"]) != where or _is_of_a_message(end)):
            continue  # second-hand: about a rank that has given up there
        if end["error"] != "MismatchError":
            verdict.complaints.append(f"rank {rank}: {end['error']}: {end.get('text')}")
            continue
        communicator = _communicator(plan, end["text"])
        named = {communicator[number] for number in _ranks_in(end["text"]) if number < len(communicator)}
        if named != set(communicator) and plan.fault != "group":
            verdict.complaints.append(f"rank {rank} is not told of every rank: {end['text']}")
        if plan.victim not in named:
            verdict.complaints.append(f"rank {rank} is not told of rank {plan.victim}: {end['text']}")
    if not any(one["error"] == "MismatchError" for one in everyone.values()):
        verdict.complaints.append("nobody heard of the mismatch")


def _memory(plan: Plan, told: list[Told], victim: Told, ends: dict[int, Line], verdict: Verdict) -> None:
    end = victim.last("end")
    if end is None:
        verdict.complaints.append(f"the rank without memory never said how it ended (status {victim.status})")
        return
    if end["error"] is None and all(other["error"] is None for other in ends.values()):
        verdict.happened = False  # there was just enough memory
        return
    wanted = {"address space": "ulimit -v", "file size": "no room for", "descriptors": ""}[plan.fault]
    kinds = ("SharedMemoryError", "AllfoldError") if plan.fault == "descriptors" else ("SharedMemoryError",)
    if end["error"] not in kinds or wanted not in end["text"]:
        verdict.complaints.append(f"the rank without memory: {end['error']}: {end.get('text')}")
    for rank, other in ends.items():
        if other["error"] not in ("RankLost", "CollectiveTimeout"):
            verdict.complaints.append(f"rank {rank}: {other['error']}: {other.get('text')}")
            continue
        _must_name(plan, rank, other, verdict)
        if victim.last("met") or not other["text"].startswith("rendezvous:"):
            if other["error"] != "RankLost":
                verdict.complaints.append(f"rank {rank} waited in vain for one that had gone: {other['text']}")
            elif victim.died is not None:
                verdict.heard.append(max(0.0, other["time"] - max(victim.died, _entered(told[rank]))))


def _nothing(plan: Plan, told: list[Told], victim: Told, ends: dict[int, Line], verdict: Verdict) -> None:
    for rank, end in ends.items():
        if end["error"] is not None:
            verdict.complaints.append(f"rank {rank}: {end['error']}: {end['text']}")


def _going_on(plan: Plan, told: list[Told], ends: dict[int, Line | None], verdict: Verdict) -> None:
    heard = sorted(rank for rank, end in ends.items() if end and end["error"])
    if plan.family == "mismatch":
        heard = list(range(plan.ranks))
    # A rank that heard of it while closing, after its calls had ended, has closed the world and cannot go on with it.
    for rank in [rank for rank in heard if told[rank].last("closes")]:
        heard.remove(rank)
        went, end = told[rank].last("went on"), told[rank].last("end")
        if end and end["error"] and (went is None or "shrink: this communicator is closed" not in went.get("text", "")):
            verdict.complaints.append(f"rank {rank} was to be refused to go on with what it has closed: {went}")
    for number, rank in enumerate(heard):
        went = told[rank].last("went on")
        if went is None or (went["size"], went.get("rank")) != (len(heard), number):
            verdict.complaints.append(f"rank {rank} did not go on as {number} of {len(heard)}: {went}")


# Sentences ------------------------------------------------------------------------------------------------------------


def _must_name(plan: Plan, rank: int, end: Line, verdict: Verdict) -> None:
    communicator = _communicator(plan, end["text"])
    named = {communicator[number] for number in _ranks_in(end["text"]) if number < len(communicator)}
    if "every other rank" in end["text"]:
        named = set(communicator)
    if plan.victim in communicator and plan.victim not in named:
        verdict.complaints.append(f"rank {rank} is told of somebody else than rank {plan.victim}: {end['text']}")
    elif not named - {rank}:
        verdict.complaints.append(f"rank {rank} is told of nobody: {end['text']}")


def _follows(plan: Plan, told: list[Told], end: Line) -> bool:
    """Whether a rank that it names had itself heard of the fault before, in another communicator or a message."""
    for number in _ranks_in(end["text"]):
        other = told[plan.members(_label(end["text"]))[number]].last("end")
        heard_before = other and other["error"] and other["time"] < end["time"]
        if heard_before and (_label(other["text"]) != _label(end["text"]) or _is_of_a_message(other)):
            return True
    return False


def _is_of_a_message(end: Line) -> bool:
    return bool(re.match(r"(send|recv|isend|irecv): ", end["text"]))


def _ranks_in(text: str) -> set[int]:
    """The ranks that a sentence names, numbered as in its communicator; without the label, which lists members."""
    sentence = re.sub(r"\((call \d+ of )?(group \d+ of )?the world[^)]*\)", "", text)
    lists = re.findall(r"\branks? (\d+(?:(?:, | and )\d+)*)", sentence) + re.findall(r"group: .*", text)
    return {int(number) for one in lists for number in re.findall(r"\d+", one)}


def _communicator(plan: Plan, text: str) -> tuple[int, ...]:
    return plan.members(_label(text))


def _label(text: str) -> int:
    group = re.search(r"group (\d+) of the world", text)
    return int(group[1]) if group else 0


def _entered(told: Told) -> float:
    line = told.last("calls") or told.last("meets")
    return float(line["time"]) if line else 0.0


def _queued(told: Told, end: Line) -> float:
    """For how long a rank had to wait for a core in its last call, by its busiest thread."""
    line = told.last("calls") or told.last("meets")
    return float(end.get("queued", 0.0) - line.get("queued", 0.0)) if line else 0.0


def _is_in_its_last_call(plan: Plan, victim: Told) -> bool:
    line = victim.last("calls")
    return line is not None and line["call"] == len(plan.calls) - 1
