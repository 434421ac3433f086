"""The expected outcome of a fault trial: which rank should have raised what about whom, and when."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from fault_plans import MESSAGES, PATIENT, Plan
from fault_ranks import SHRINKING, STATUS

TYPED = (None, "RankLost", "CollectiveTimeout", "MismatchError", "SharedMemoryError")
OWN = {  # the errors of a victim that stays alive
    "interrupt": ("Trouble", "KeyboardInterrupt"),
    "operation raises": ("Trouble",),
    "generator raises": ("ScheduleError",),
    "descriptors": ("AllfoldError",),
}
MARGIN = (
    5.0  # seconds in which the process could run: a machine that is shared may keep it waiting for a core for longer
)

Line = dict[str, Any]


@dataclass
class Told:
    """One rank's report: its lines, its process, and how and when that ended."""

    process: int
    lines: list[Line] = field(default_factory=list)
    died: float | None = None  # when it was seen to have ended
    stopped: float | None = None
    status: int | None = None

    def last(self, event: str) -> Line | None:
        return next((line for line in reversed(self.lines) if line["event"] == event), None)


@dataclass
class Verdict:
    """Complaints, none if all is well; and how long after the fault the survivors raised, in seconds."""

    complaints: list[str] = field(default_factory=list)
    heard: list[float] = field(default_factory=list)
    able: list[float] = field(default_factory=list)  # the same, without the time in which they had to wait for a core
    happened: bool = True  # a timed fault may come when the victim has already finished everything


def judge(plan: Plan, told: list[Told]) -> Verdict:
    verdict = Verdict()
    victim = told[plan.victim]
    speechless = plan.family == "death" or (plan.family, plan.comes) == ("late", "never")
    ends: dict[int, Line] = {}
    for rank, one in enumerate(told):
        _own_complaints(plan, rank, one, verdict)
        if (end := one.last("end")) is not None:
            ends[rank] = end
        if rank == plan.victim and speechless and victim.last("settled") is None:
            continue
        if end is None:
            verdict.complaints.append(f"rank {rank} never said how it ended (status {one.status})")
        elif end["error"] not in (*TYPED, *(OWN.get(plan.fault, ()) if rank == plan.victim else ())):
            verdict.complaints.append(f"rank {rank}: {end['error']}: {end['text']}")
        elif one.status != 0 and not (rank == plan.victim and speechless):  # a death may come at the very end
            verdict.complaints.append(f"rank {rank} ended with status {one.status}")
        elif one.last("checked") is None:
            verdict.complaints.append(f"rank {rank} has not looked at its arrays")
    if verdict.complaints:
        return verdict
    others = {rank: end for rank, end in ends.items() if rank != plan.victim}
    rules = {
        "death": _death,
        "late": _late,
        "fails": _fails,
        "mismatch": _mismatch,
        "memory": _memory,
        "slow": _nothing,
    }
    rule = _nothing if plan.fault == "arena" else rules[plan.family]
    rule(plan, told, victim, ends if rule is _nothing else others, verdict)
    if plan.afterwards == "shrink" and verdict.happened:
        _going_on(plan, told, ends, verdict)
    return verdict


def _own_complaints(plan: Plan, rank: int, one: Told, verdict: Verdict) -> None:
    """Everything that a rank itself has found wrong."""
    verdict.complaints += [f"rank {rank}: {line['text']}" for line in one.lines if line["event"] == "wrong"]
    if (checked := one.last("checked")) is not None:
        verdict.complaints += [f"rank {rank} has mapped {file}" for file in checked["files"]]


def _death(plan: Plan, told: list[Told], victim: Told, ends: dict[int, Line], verdict: Verdict) -> None:
    through = _is_through(plan, victim)
    if through and any(end["error"] is None for end in ends.values()):
        verdict.happened = False
    if victim.died is None:
        verdict.complaints.append("the victim did not die")
        return
    for rank, end in ends.items():
        if end["error"] is None:
            if not through:
                verdict.complaints.append(f"rank {rank} raised nothing, and came to a good end")
            continue
        later = end["time"] - max(victim.died, _entered(told[rank]))
        if end["error"] == "CollectiveTimeout" and end["text"].startswith("rendezvous:"):
            # Nobody can know of a process that died before it sent anything.
            _must_name(plan, told, rank, end, verdict)
            if victim.last("met") or "did not arrive" not in end["text"]:
                verdict.complaints.append(f"rank {rank} ran out of time, and the victim had come: {end['text']}")
            if end["time"] - _entered(told[rank]) - _queued(told[rank], end) > plan.timeout + MARGIN:
                verdict.complaints.append(
                    f"rank {rank} waited {end['time'] - _entered(told[rank]):.1f} s for its timeout"
                )
            continue
        if end["error"] != "RankLost":
            verdict.complaints.append(f"rank {rank}: {end['error']}: {end['text']}")
            continue
        _in_time(rank, told[rank], end, later, verdict)
        _must_name(plan, told, rank, end, verdict)
    if plan.engine != "shared_memory":
        return
    # Sends and receives do not say how a rank died.
    said = [end["text"] for end in ends.values() if end["error"] == "RankLost" and not _is_of_a_message(end)]
    gone = [text for text in said if f"rank {plan.victim} (process" in text and not _is_of_a_group(text)]
    if gone and not any(f"(process {victim.process})" in text for text in gone):
        verdict.complaints.append(f"the victim's process {victim.process} is not named: {gone[0]}")
    how = {"kill": "killed by signal 9", "segfault": "killed by signal 11", "exit": f"status {STATUS}"}.get(plan.fault)
    seen = [text for text in gone if f"(process {victim.process}) is gone" in text]
    if how and not plan.buried and seen and not any(how in text for text in seen):
        verdict.complaints.append(f"how it died is not said, though that could be seen: {seen[0]}")


def _late(plan: Plan, told: list[Told], victim: Told, ends: dict[int, Line], verdict: Verdict) -> None:
    own = victim.last("end")
    if own is not None and own["error"] is None and all(end["error"] is None for end in ends.values()):
        verdict.happened = False  # it came in time after all, or had nothing left to do
        return
    racing = plan.comes == "racing"
    through = _is_through(plan, victim) and not (own is not None and own["error"])
    # Those that gave up had come to the barrier, which is all that it promises.
    through |= plan.calls[-1].kind == "barrier" and _is_in_its_last_call(plan, victim)
    # All ranks hear of the first that gives up; and nobody gives up before it is in a call itself.
    entered = max([_entered(one) for one in told if one is not victim])
    for rank, end in ends.items():
        if end["error"] is None:
            if not racing and not through:
                verdict.complaints.append(f"rank {rank} raised nothing, and came to a good end")
            continue
        if end["error"] not in ("CollectiveTimeout", "RankLost"):
            verdict.complaints.append(f"rank {rank}: {end['error']}: {end['text']}")
            continue
        waited = end["time"] - entered
        limit = plan.timeouts[rank] if _is_behind(plan, rank, ends) else plan.timeout
        if _has_calls_in_the_background(plan, rank):
            limit = PATIENT  # it may still wait for calls from before the fault, in which the victim was stopped
        if waited - _queued(told[rank], end) > limit + MARGIN:
            verdict.complaints.append(f"rank {rank} waited {waited:.1f} s, with a timeout of {limit} s: {end['text']}")
        verdict.heard.append(max(0.0, waited))
        if not racing and not _is_of_a_message(end):  # it names the awaited rank, which may wait for others
            _must_name(plan, told, rank, end, verdict)
        if plan.engine == "shared_memory":
            _must_describe(plan, victim, rank, end, verdict)
    if own is not None and own["error"] is None and not through and not racing:
        verdict.complaints.append("the late rank raised nothing, and came to a good end")
    if own is not None and own["error"] not in (None, "CollectiveTimeout", "RankLost"):
        verdict.complaints.append(f"the late rank: {own['error']}: {own['text']}")


_NOT_EVERY_RANK_WAITS = ("scan", "exscan", "reduce", "gather", "broadcast", "scatter")


def _is_behind(plan: Plan, rank: int, ends: dict[int, Line]) -> bool:
    """True if those that gave up first had done their part of this rank's call: only the victim is missing there, and the
    rank waits for it as long as it was told to."""

    def call_of(end: Line) -> int:
        found = re.search(r"\(call (\d+) of the world\)", end.get("text", ""))
        return int(found[1]) if found else 0

    impatient = [end for other, end in ends.items() if plan.timeouts[other] == plan.timeout and other != rank]
    return all(call_of(end) > call_of(ends[rank]) > 0 for end in impatient)


def _has_calls_in_the_background(plan: Plan, rank: int) -> bool:
    """True if it may not have waited for all of its calls when it comes to the one with the fault, or behind that one.

    In some collectives not every rank waits for the victim. The others go on, and give up in a later call, while the rank
    that waits still does so in the call with the fault: one behind the victim in a scan (seed 7100691), or the root of a
    reduce (seed 170936728 of the GPU).
    """
    pending = 0
    for number, call in plan.calls_of(rank):
        if number > plan.at or (number == plan.at and call.kind not in _NOT_EVERY_RANK_WAITS):
            break
        if call.kind != "group":
            pending = pending + 1 if call.background and pending < 2 else 0
    return pending > 0


def _must_describe(plan: Plan, victim: Told, rank: int, end: Line, verdict: Verdict) -> None:
    """A rank that is told what the victim does is told the truth."""
    described = re.search(rf"; rank {plan.victim} \(process {victim.process}\)([^;]*;[^;]*)", end["text"])
    words = {"stop": "it is stopped", "hold the interpreter": "it does not report where it is"}
    known = described is not None and plan.comes == "never" and not _is_of_a_group(end["text"])
    if known and words[plan.fault] not in described[1]:  # type: ignore[index]
        verdict.complaints.append(f"rank {rank} is not told what the victim does: {end['text']}")


def _fails(plan: Plan, told: list[Told], victim: Told, ends: dict[int, Line], verdict: Verdict) -> None:
    own = victim.last("end")
    assert own is not None
    through = _is_through(plan, victim) and own["error"] is None
    if own["error"] is None or any(end["error"] is None for end in ends.values()):
        # An abort may come when the victim has made its last call, and before the others have returned from theirs.
        verdict.happened = False
    for rank, end in ends.items():
        if end["error"] is None:
            if own["error"] is not None and not _is_in_its_last_call(plan, victim):
                verdict.complaints.append(f"rank {rank} raised nothing, and came to a good end")
            continue
        if own["error"] is None and not through:
            verdict.complaints.append(f"rank {rank} raised, and the victim did not: {end['text']}")
        if end["error"] != "RankLost":
            verdict.complaints.append(f"rank {rank}: {end['error']}: {end['text']}")
            continue
        _in_time(rank, told[rank], end, end["time"] - max(own["time"], _entered(told[rank])), verdict)
        _must_name(plan, told, rank, end, verdict)


def _mismatch(plan: Plan, told: list[Told], victim: Told, ends: dict[int, Line], verdict: Verdict) -> None:
    where = plan.calls[plan.at].where
    members = plan.members(where)
    own = victim.last("end")
    assert own is not None
    everyone = {**ends, plan.victim: own}
    for rank, end in everyone.items():
        if rank not in members and end["error"] in (None, "RankLost"):
            continue
        if end["error"] == "RankLost" and (_follows(plan, told, end) or _is_of_a_message(end)):
            continue  # second-hand: about a rank that has given up elsewhere
        if plan.fault == "group" and end["error"] == "RankLost":
            continue  # that breaks no communicator, so what another rank does next may be heard of first
        if end["error"] != "MismatchError":
            verdict.complaints.append(f"rank {rank}: {end['error']}: {end.get('text')}")
            continue
        named = _named(plan, end["text"])
        # Across hosts and on the GPU, two of the ranks that differ are named.
        if plan.engine == "shared_memory" and plan.fault != "group" and named != set(_communicator(plan, end["text"])):
            verdict.complaints.append(f"rank {rank} is not told of every rank: {end['text']}")
        if plan.victim not in named:
            verdict.complaints.append(f"rank {rank} is not told of rank {plan.victim}: {end['text']}")
    if not any(one["error"] == "MismatchError" for one in everyone.values()):
        verdict.complaints.append("nobody heard of the mismatch")


def _memory(plan: Plan, told: list[Told], victim: Told, ends: dict[int, Line], verdict: Verdict) -> None:
    end = victim.last("end")
    assert end is not None
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
        _must_name(plan, told, rank, other, verdict)
        if victim.last("met") or not other["text"].startswith("rendezvous:"):
            if other["error"] != "RankLost":
                verdict.complaints.append(f"rank {rank} waited in vain for one that had gone: {other['text']}")
            elif victim.died is not None:
                verdict.heard.append(max(0.0, other["time"] - max(victim.died, _entered(told[rank]))))


def _nothing(plan: Plan, told: list[Told], victim: Told, ends: dict[int, Line], verdict: Verdict) -> None:
    for rank, end in ends.items():
        if end["error"] is not None:
            verdict.complaints.append(f"rank {rank}: {end['error']}: {end['text']}")


def _going_on(plan: Plan, told: list[Told], ends: dict[int, Line], verdict: Verdict) -> None:
    """All that have raised go on together. One that was closing by then is refused: it has left."""
    heard = sorted(rank for rank, end in ends.items() if end["error"])
    if plan.family == "death" and plan.victim in heard:
        heard.remove(plan.victim)
    for rank in [rank for rank in heard if told[rank].last("closes")]:
        heard.remove(rank)
        went = told[rank].last("went on")
        if went is None or "shrink: this communicator is closed" not in went.get("text", ""):
            verdict.complaints.append(f"rank {rank} was to be refused to go on with what it has closed: {went}")
    for number, rank in enumerate(heard):
        went = told[rank].last("went on")
        if went is not None and went["size"] is None and went["queued"] > SHRINKING / 2:
            continue  # the machine had no core for it most of the time
        if went is None or (went["size"], went.get("rank")) != (len(heard), number):
            verdict.complaints.append(f"rank {rank} did not go on as {number} of {len(heard)}: {went}")


# Sentences ------------------------------------------------------------------------------------------------------------


def _in_time(rank: int, told: Told, end: Line, later: float, verdict: Verdict) -> None:
    verdict.heard.append(max(0.0, later))
    verdict.able.append(max(0.0, later - _queued(told, end)))
    if verdict.able[-1] > MARGIN:
        verdict.complaints.append(f"rank {rank} raised after {later:.1f} s: {end['text']}")


def _must_name(plan: Plan, told: list[Told], rank: int, end: Line, verdict: Verdict) -> None:
    named = _named(plan, end["text"])
    if plan.victim in _communicator(plan, end["text"]) and plan.victim not in named:
        if not _follows(plan, told, end):
            verdict.complaints.append(f"rank {rank} is told of somebody else than rank {plan.victim}: {end['text']}")
    elif not named - {rank}:
        verdict.complaints.append(f"rank {rank} is told of nobody: {end['text']}")


def _follows(plan: Plan, told: list[Told], end: Line) -> bool:
    """Whether a rank that it names had itself heard of the fault before, in another communicator or a message, or was
    held up when the first rank gave up: in a message, or by the victim in a call of another communicator."""
    ends = [line for one in told if (line := one.last("end")) is not None and line["error"]]
    first = min(line["time"] for line in ends)
    for rank in _named(plan, end["text"]):
        made = [line["call"] for line in told[rank].lines if line["event"] == "calls" and line["time"] < first]
        if made and plan.calls[made[-1]].kind in MESSAGES:
            return True
        elsewhere = plan.members(plan.calls[made[-1]].where) if made else ()
        if plan.victim in elsewhere and elsewhere != _communicator(plan, end["text"]):
            return True
        other = told[rank].last("end")
        heard_before = other and other["error"] and other["time"] < end["time"]
        if heard_before and (_label(other["text"]) != _label(end["text"]) or _is_of_a_message(other)):
            return True
    return False


def _is_of_a_message(end: Line) -> bool:
    return bool(re.match(r"(send|recv|isend|irecv): ", end["text"]))


_LABEL = r"(?:group \d+ of )*the world(?:: ranks? \d+(?:(?:, | and )\d+)*)*"


def _named(plan: Plan, text: str) -> set[int]:
    """The ranks that a sentence names, by their numbers in the world."""
    communicator = _communicator(plan, text)
    if "every other rank" in text:
        return set(communicator)
    sentence = re.sub(_LABEL, "", text)  # which lists members
    lists = re.findall(r"\branks? (\d+(?:(?:, | and )\d+)*)", sentence) + re.findall(r"group: .*", text)
    numbers = {int(number) for one in lists for number in re.findall(r"\d+", one)}
    return {communicator[number] for number in numbers if number < len(communicator)}


def _label(text: str) -> str:
    """The communicator that a sentence is about; the world if it names none."""
    found = re.search(_LABEL, text)
    return found[0] if found else "the world"


def _is_of_a_group(text: str) -> bool:
    return _label(text) != "the world"


def _communicator(plan: Plan, text: str) -> tuple[int, ...]:
    """Its members, by their numbers in the world: a group lists them by their numbers in the one that it was made from."""
    members = tuple(range(plan.ranks))
    for numbers in re.findall(r": ranks? ([\d, and]+)", _label(text)):
        members = tuple(members[int(number)] for number in re.findall(r"\d+", numbers))
    return members


def _entered(told: Told) -> float:
    line = told.last("calls") or told.last("meets")
    return float(line["time"]) if line else 0.0


def _queued(told: Told, end: Line) -> float:
    """For how long a rank had to wait for a core in its last call, by its busiest thread."""
    line = told.last("calls") or told.last("meets")
    return float(end.get("queued", 0.0) - line.get("queued", 0.0)) if line else 0.0


def _is_through(plan: Plan, victim: Told) -> bool:
    return _is_in_its_last_call(plan, victim) or victim.last("end") is not None


def _is_in_its_last_call(plan: Plan, victim: Told) -> bool:
    line = victim.last("calls")
    return line is not None and line["call"] == len(plan.calls) - 1
