"""Finds what went wrong in a run, as sentences: which rank did what instead, where, and the last call that all made.

`findings` is the whole interface. It takes `RunFacts` from any reader and returns what it found, the cause first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..wording import counted, name_ranks
from .align import Trouble, by_place, differences, first_trouble, last_common, line_of, since, verdict
from .calls import CallFacts, CodeLine, RunFacts
from .messages import differences_of_messages, unmatched_messages

_NAMES_THE_CAUSE = re.compile(r"(allfold\.errors\.|allfold\.)?(MismatchError|RankLost|CollectiveTimeout): ")
_IS_AT = re.compile(
    r"\brank (\d{1,7}) \(process \d+\)[^;]{0,300}; it is at ([^\s:]{1,300}):(\d{1,9}) in ([^\s,;]{1,200})"
)
_WORDS = {
    "shape": "size",
    "type": "type",
    "reduction": "reduction",
    "root": "root",
    "details": "arguments",
    "operation": "operation",
}


@dataclass(slots=True)
class Finding:
    """One thing that is wrong.

    `kind` is one of `left out`, `one more`, `shape`, `type`, `operation`, `reduction`, `root`, `arguments`, `circle`,
    `late`, `dead`, `missing`, `absent`, `message`, `stuck` and `reported`. `ranks` did it, `waiting` wait for them.
    `calls` has what each rank called as call `number`, the first that differs. `circle` has the ranks of a circular wait,
    if there is one.
    """

    kind: str
    sentence: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...] = ()
    group: str = ""
    number: int = 0
    place: str = ""
    calls: dict[int, CallFacts] = field(default_factory=dict)
    last_common: CallFacts | None = None
    details: list[str] = field(default_factory=list)
    circle: tuple[int, ...] = ()


def findings(run: RunFacts) -> list[Finding]:
    """Everything that is wrong in a run, the cause first; an empty list if nothing is."""
    troubles = [trouble for group in run.groups.values() if (trouble := first_trouble(run, group))]
    troubles += unmatched_messages(run)
    found = _causes(run, sorted(troubles, key=lambda one: (one.begun, one.group)))
    if not found:
        found = [*_late(run), *_stuck(run), *_reported(run)][:1]
    known = {finding.ranks for finding in found}
    lost = [rank for rank in run.missing() if not any(rank in ranks for ranks in known)]
    if lost and not found and run.groups:
        found.append(_without_record(run, lost, None))
    for finding in found[:1]:
        finding.details += _about(run, finding)
    return found


# From troubles to causes -----------------------------------------------------------------------------------------------


def _causes(run: RunFacts, troubles: Sequence[Trouble]) -> list[Finding]:
    mismatches = [trouble for trouble in troubles if trouble.differs]
    if mismatches:
        for trouble in mismatches:
            _break_tie(trouble, troubles)
        return [_differing(run, trouble) for trouble in mismatches]
    waits = dict(_waits(run, troubles))
    circle = _circle(waits)
    if circle:
        return [_in_a_circle(run, circle, waits)]
    # A rank without a record is missing from all its groups; what matters is the call in which the others wait.
    awaited = [trouble for trouble in troubles if trouble.absent or any(one is trouble for one in waits.values())]
    causes: dict[tuple[str, int], Finding] = {}
    for trouble in awaited or troubles:
        while True:  # follow the absent to what they wait for themselves: without a circle, that ends
            waiting = [rank for rank in trouble.absent if rank in waits]
            if trouble.unrecorded or len(waiting) < len(trouble.absent) or not waiting:
                break
            trouble = waits[waiting[0]]
        free = [rank for rank in trouble.absent if rank not in waits]
        finding = (
            _without_record(run, trouble.unrecorded, trouble) if trouble.unrecorded else _absent(run, trouble, free)
        )
        causes.setdefault((trouble.group, trouble.number), finding)
    return list(causes.values())


def _break_tie(trouble: Trouble, troubles: Sequence[Trouble]) -> None:
    """Of two parties of the same size, the one that ranks wait for in another group is the odd one."""
    if len(trouble.classes[0]) == len(trouble.classes[1]):
        awaited = {rank for one in troubles if one is not trouble and not one.differs for rank in one.absent}
        trouble.classes.sort(key=lambda ranks: (-len(ranks), not awaited.isdisjoint(ranks), ranks[0]))


def _waits(run: RunFacts, troubles: Sequence[Trouble]) -> Iterator[tuple[int, Trouble]]:
    """The ranks that wait in a call, each with the trouble of that call. A rank waits in the last call that it made."""
    for trouble in troubles:
        for rank, call in trouble.made.items():
            newest = max(run.ranks[rank].calls, key=lambda one: one.order)
            if newest is call or (newest.group == call.group and newest.order >= call.order):
                yield rank, trouble


def _circle(waits: Mapping[int, Trouble]) -> list[int]:
    """A circular wait: each rank waits for the next, and the last for the first. The shortest of those that are found."""
    best: list[int] = []
    for start in waits:
        path, seen = [start], {start}
        while path[-1] in waits:
            following = next((rank for rank in waits[path[-1]].absent if rank in waits), None)
            if following is None:
                break
            if following in seen:
                circle = path[path.index(following) :]
                if not best or len(circle) < len(best):
                    best = circle
                break
            path.append(following)
            seen.add(following)
    return best


# Sentences -------------------------------------------------------------------------------------------------------------


def _differing(run: RunFacts, trouble: Trouble) -> Finding:
    usual, *others = trouble.classes
    if trouble.made[usual[0]].is_point_to_point:
        return _differing_message(trouble)
    reference, culprit = usual[0], others[0][0]
    calls = [run.ranks[rank].of(trouble.group) for rank in (culprit, reference)]
    kind, begin = verdict(calls[0], calls[1], trouble.number)
    own, theirs = calls[0].get(begin), calls[1].get(begin)
    mine = trouble.made[culprit]
    made = {rank: call for rank in trouble.made if (call := run.ranks[rank].of(trouble.group).get(begin))}
    common = last_common(run, Trouble(trouble.group, begin, trouble.made))
    where = _which(run, trouble.group, begin)
    who, rest = name_ranks(others[0]), name_ranks(usual)
    if kind == "left out" and theirs is not None and own is not None:
        sentence = (
            f"{who} left out {theirs.what}{theirs.where} ({where}), which {rest} made; "
            f"{_it(others[0])} went on to {own.what}{own.where}"
        )
    elif kind == "one more" and own is not None and theirs is not None:
        sentence = (
            f"{who} made an extra call, {own.what}{own.where} ({where}), where {rest} made {theirs.what}{theirs.where}"
        )
    else:
        theirs = trouble.made[reference]
        aspects = differences(mine, theirs)
        kind = aspects[0]
        other = " and ".join(_WORDS[aspect] for aspect in aspects)
        sentence = (
            f"{who} made {mine.what}{mine.where} ({where}), where {rest} made {theirs.what}{theirs.where}: "
            f"different {other}"
        )
    for ranks in others[1:]:
        sentence += f"; {name_ranks(ranks)} made {trouble.made[ranks[0]].what}{trouble.made[ranks[0]].where}"
    culprits = tuple(rank for ranks in others for rank in ranks)
    waiting = tuple([*usual, *trouble.absent])
    first = theirs if kind == "left out" else own or mine
    # allfold's records have the line of a failed call only; another rank's line is better than none.
    place = next((call.place for call in (first, *made.values()) if call is not None and call.stack), "")
    if not place:
        later = [call for number, call in sorted(calls[0].items()) if number > begin and call.stack]
        if later:
            place = later[0].place
            sentence += f"; that line is not recorded: {name_ranks(others[0])} made call {later[0].number} at {place}"
    return Finding(
        "arguments" if kind == "details" else kind,
        sentence + _after(common),
        culprits,
        waiting,
        trouble.group,
        begin,
        place,
        made,
        common,
    )


def _differing_message(trouble: Trouble) -> Finding:
    (source, sent), (target, received) = trouble.made.items()
    what = " and ".join(
        _WORDS[aspect] for aspect in ("shape", "type") if aspect in differences_of_messages(sent, received)
    )
    sentence = (
        f"rank {source} made {sent.what}{sent.where}, and rank {target} receives it with {received.what}{received.where}: "
        f"different {what}"
    )
    number, place = received.number, received.place or sent.place
    return Finding("message", sentence, (target, source), (), trouble.group, number, place, dict(trouble.made))


def _absent(run: RunFacts, trouble: Trouble, free: Sequence[int]) -> Finding:
    """Some ranks did not make a call in which others wait."""
    who = list(free) or trouble.absent
    rank, waiting = who[0], sorted(trouble.made)
    reference = run.ranks[waiting[0]].of(trouble.group)
    call = trouble.made[waiting[0]]
    common = last_common(run, trouble)
    if call.is_point_to_point:
        return _message(run, trouble)
    kind, begin = verdict(run.ranks[rank].of(trouble.group), reference, trouble.number)
    if kind == "left out":
        left, own = reference[begin], run.ranks[rank].of(trouble.group)[begin]
        common = last_common(run, Trouble(trouble.group, begin, trouble.made, trouble.absent))
        sentence = (
            f"{name_ranks(who)} left out {left.what}{left.where} ({_which(run, trouble.group, begin)}), which "
            f"{name_ranks(waiting)} made; {_it(who)} went on to {own.what}{own.where}"
        )
        made = {one: reference[begin] for one in waiting} | {rank: own}
        return Finding(
            "left out",
            sentence + _after(common),
            tuple(who),
            tuple(waiting),
            trouble.group,
            begin,
            left.place,
            made,
            common,
        )
    facts = run.ranks[rank]
    if finding := _gave_up(run, who) or _unfinished(run, trouble, who):
        return finding
    wait = f"{call.what}{call.where} ({_which(run, trouble.group, trouble.number)}), in which {_wait(waiting)}"
    if facts.ended == "ended" and len(waiting) < len(who) and all(run.ranks[one].ended == "ended" for one in who):
        return Finding(
            "one more",
            f"{name_ranks(waiting)} made an extra call, {call.what}{call.where} "
            f"({_which(run, trouble.group, trouble.number)}); {name_ranks(who)} ended without it" + _after(common),
            tuple(waiting),
            tuple(who),
            trouble.group,
            trouble.number,
            call.place,
            dict(trouble.made),
            common,
        )
    if gone := [one for one in who if one in run.ranks and run.ranks[one].ended]:
        who, facts = gone, run.ranks[gone[0]]  # the others may still come
    if facts.ended:
        kind = "left out" if facts.ended.startswith("ended") else "dead"
        fates = [run.ranks[one].ended for one in who]
        said = _fate(who, facts.ended) if len({*fates}) == 1 else ", ".join(map(_fate, ([one] for one in who), fates))
        sentence = f"{said} and never made {wait}"
    elif facts.at and not facts.in_call:
        kind = "late"
        are, have = ("is", "has") if len(who) == 1 else ("are", "have")
        sentence = f"{name_ranks(who)} {are} late: {_it(who)} {are} at {_at(facts.at)}, and {have} not made {wait}"
    else:
        kind = "absent"
        own_last = max(facts.calls, key=lambda one: one.order, default=None)
        after = (
            f"; {'its' if len(who) == 1 else 'their'} last call is {own_last.what}{own_last.where}" if own_last else ""
        )
        has = "has" if len(who) == 1 else "have"
        sentence = f"{name_ranks(who)} {has} not made {wait}{after}"
    return Finding(
        kind,
        sentence + _after(common),
        tuple(who),
        tuple(waiting),
        trouble.group,
        trouble.number,
        facts.at[0].place if facts.at else call.place,
        dict(trouble.made),
        common,
    )


def _unfinished(run: RunFacts, trouble: Trouble, who: Sequence[int]) -> Finding | None:
    """The absent ranks are still in their last call, or failed in it, although all made the same; others returned from it."""
    lasts = [max(run.ranks[rank].calls, key=lambda one: one.order, default=None) for rank in who]
    for rank, last in zip(who, lasts, strict=True):
        facts = run.ranks[rank]
        failed = facts.in_call or facts.ended.startswith(("raised", "was aborted"))
        if last is None or not (failed and last.stack and facts.at[:1] == last.stack[:1]):
            return None
    call = lasts[0]
    assert call is not None
    others = sorted(trouble.made)
    lacks = f", but these records do not contain {' or '.join(run.lacks)}" if run.lacks else ""
    common = last_common(run, Trouble(call.group, call.number, trouble.made, trouble.absent))
    sentence = (
        f"{name_ranks(who)} did not return from {call.what}{call.where} ({_which(run, call.group, call.number)}), and "
        f"{name_ranks(others)} did: as far as the records show, all made the same call{lacks}"
    )
    made = {rank: last for rank, last in zip(who, lasts, strict=True) if last is not None}
    return Finding(
        "stuck", sentence + _after(common), (), tuple(who), call.group, call.number, call.place, made, common
    )  # fmt: skip


def _message(run: RunFacts, trouble: Trouble) -> Finding:
    (rank, call), peer = next(iter(trouble.made.items())), trouble.absent[0]
    other = "recv" if call.operation == "send" else "send"
    newest = max(run.ranks[peer].calls, key=lambda one: one.order, default=None)
    last = f"; the last call of rank {peer} is {newest.what}{newest.where}" if newest else ""
    verb = "sends to" if call.operation == "send" else "receives from"
    sentence = f"rank {rank} {verb} rank {peer}{call.where}, and rank {peer} has made no matching {other}{last}"
    return Finding("message", sentence, (peer,), (rank,), call.group, call.number, call.place, dict(trouble.made))


def _without_record(run: RunFacts, ranks: Sequence[int], trouble: Trouble | None) -> Finding:
    ended = [rank for rank in ranks if rank in run.ranks and run.ranks[rank].ended and not run.ranks[rank].said]
    if ended:
        ranks, kind = ended, "dead"
        facts = run.ranks[ranks[0]]
        sentence = _fate(ranks, facts.ended) + (f" at {_at(facts.at)}" if facts.at else "")
    else:
        kind = "missing"
        sentence = f"there is no record of {name_ranks(ranks)}: dead, or its file is elsewhere"
        if len(ranks) > 1:
            sentence = sentence.replace("its file is", "their files are")
    if trouble is None:
        return Finding(kind, sentence, tuple(ranks))
    call = trouble.made[min(trouble.made)]
    waiting = sorted(trouble.made)
    common = last_common(run, trouble)
    sentence += (
        f"; the last call of {name_ranks(waiting)} is {call.what}{call.where} "
        f"({_which(run, trouble.group, trouble.number)})"
    )
    return Finding(
        kind,
        sentence + _after(common),
        tuple(ranks),
        tuple(waiting),
        trouble.group,
        trouble.number,
        call.place,
        dict(trouble.made),
        common,
    )


def _in_a_circle(run: RunFacts, circle: Sequence[int], waits: Mapping[int, Trouble]) -> Finding:
    # Begin with the rank whose call the fewest ranks made.
    crowd = {rank: len(waits[rank].made) for rank in circle}
    begin = min(range(len(circle)), key=lambda place: (crowd[circle[place]], circle[place]))
    ordered = [*circle[begin:], *circle[:begin]]
    if (found := _past_the_other(run, ordered, waits)) is not None:
        return found
    parts = []
    for rank in ordered:
        trouble = waits[rank]
        call = trouble.made[rank]
        others = [one for one in trouble.made if one != rank and one not in circle]
        beside = f" (as {'is' if len(others) == 1 else 'are'} {name_ranks(others)})" if others else ""
        which = "" if call.is_point_to_point else f"{_which(run, trouble.group, trouble.number)}, "
        parts.append(f"rank {rank} is in {which}{call.what}{call.where}{beside}")
    groups = {waits[rank].group for rank in ordered}
    is_of_messages = all(waits[rank].made[rank].is_point_to_point for rank in ordered)
    what = " between groups" if len(groups) > 1 else " of messages" if is_of_messages else ""
    other = "other" if len(ordered) == 2 else "next"
    sentence = f"circular wait{what}: {', and '.join(parts)}; each waits for the {other}"
    first = ordered[0]
    trouble = waits[first]
    return Finding(
        "circle",
        sentence,
        tuple(ordered),
        tuple(sorted({rank for one in waits.values() for rank in one.made} - set(ordered))),
        trouble.group,
        trouble.number,
        trouble.made[first].place,
        {rank: waits[rank].made[rank] for rank in ordered},
        last_common(run, trouble),
        circle=tuple(ordered),
    )


def _past_the_other(run: RunFacts, circle: Sequence[int], waits: Mapping[int, Trouble]) -> Finding | None:
    """Two ranks that wait for each other in different groups, after the same call: if the line of one comes after that of the
    other, it left out a call, or made one more, rather than both in another order."""
    if len(circle) != 2:
        return None
    own, others = (waits[rank] for rank in circle)
    mine, theirs = own.made[circle[0]], others.made[circle[1]]
    if mine.is_point_to_point or theirs.is_point_to_point or own.group == others.group:
        return None
    before = [_before(run, rank, call) for rank, call in ((circle[0], mine), (circle[1], theirs))]
    if before[0] != before[1] or (kind := by_place(mine, theirs)) == "instead":
        return None
    who, rest = tuple(sorted(own.made)), tuple(sorted(others.made))
    # It may have begun earlier, with calls that look the same but come from other lines.
    trouble = others if kind == "left out" else own
    calls = [run.ranks[rank].of(trouble.group) for rank in circle]
    begin = since(calls[0], calls[1], trouble.number, kind == "left out")
    if begin < trouble.number:
        trouble = Trouble(trouble.group, begin, trouble.made, trouble.absent)
    if kind == "left out":
        theirs = calls[1][begin]
        place = theirs.place
        sentence = (
            f"{name_ranks(who)} left out {theirs.what}{theirs.where} ({_which(run, others.group, begin)}), which "
            f"{name_ranks(rest)} made; {_it(who)} went on to {mine.what}{mine.where} "
            f"({_which(run, own.group, own.number)}), and {'waits' if len(who) == 1 else 'wait'} there"
        )
    else:
        extra = calls[0][begin]
        place = extra.place
        sentence = (
            f"{name_ranks(who)} made an extra call, {extra.what}{extra.where} ({_which(run, own.group, begin)}), and "
            f"{'waits' if len(who) == 1 else 'wait'}{mine.where}; {_wait(rest)} in {theirs.what}{theirs.where} "
            f"({_which(run, others.group, others.number)})"
        )
    made = dict.fromkeys(who, mine) | dict.fromkeys(rest, theirs)
    common = last_common(run, trouble)
    return Finding(
        kind, sentence + _after(common), who, rest, trouble.group, trouble.number, place, made, common, circle=tuple(circle)
    )  # fmt: skip


def _before(run: RunFacts, rank: int, call: CallFacts) -> tuple[str, int] | None:
    """The call that a rank made before this one, in any group."""
    earlier = [one for one in run.ranks[rank].calls if one.order < call.order and not one.is_point_to_point]
    last = max(earlier, key=lambda one: one.order, default=None)
    return None if last is None else (last.group, last.number)


def _late(run: RunFacts) -> Iterator[Finding]:
    """A rank made its last call of a group after the others had given up waiting for it."""
    for group in run.groups.values():
        held = [set(calls) for rank in group.ranks if rank in run.ranks and (calls := run.ranks[rank].of(group.key))]
        common = set.intersection(*held) if len(held) > 1 else set()
        if common and (found := _late_in(run, group.key, max(common))) is not None:
            yield found


def _gave_up(run: RunFacts, who: Sequence[int]) -> Finding | None:
    """The last call of these ranks, if another rank made it after they had given up, and went on."""
    lasts = [max(run.ranks[rank].calls, key=lambda one: one.order, default=None) for rank in who]
    calls = {None if one is None else (one.group, one.number) for one in lasts}
    if len(calls) > 1 or (call := calls.pop()) is None:
        return None
    return _late_in(run, *call)


def _late_in(run: RunFacts, group: str, number: int) -> Finding | None:
    held = {
        rank: calls for rank in run.groups[group].ranks if rank in run.ranks and (calls := run.ranks[rank].of(group))
    }
    made = {rank: calls[number] for rank, calls in held.items() if number in calls and calls[number].begun is not None}
    if len(made) < 2:
        return None
    by_time = sorted(made, key=lambda rank: made[rank].begun or 0.0)
    first, last = made[by_time[0]], made[by_time[-1]]
    delay = (last.begun or 0.0) - (first.begun or 0.0)
    if first.timeout is None or delay < first.timeout:
        return None
    rank = by_time[-1]
    sentence = (
        f"rank {rank} was late: it made {last.what}{last.where} ({_which(run, group, number)}) "
        f"{delay:.1f} s after rank {by_time[0]}, which waits for {first.timeout:g} s"
    )
    if stalled := run.ranks[rank].stalled or _seen_at(run, rank):
        sentence += f"; before that, it was at {_at(stalled)}"
    before = last_common(run, Trouble(group, number, made))
    return Finding(
        "late", sentence + _after(before), (rank,), tuple(by_time[:-1]), group, number,
        (stalled[0] if stalled else last).place, made, before,
    )  # fmt: skip


def _seen_at(run: RunFacts, rank: int) -> tuple[CodeLine, ...]:
    """Where a rank was when others gave up waiting for it: allfold's errors say so."""
    for facts in run.ranks.values():
        for said in facts.said:
            for found in _IS_AT.finditer(said):
                if int(found[1]) == rank:
                    return (CodeLine(found[2], int(found[3]), found[4]),)
    return ()


def _stuck(run: RunFacts) -> Iterator[Finding]:
    """All ranks made the same calls, but something shows that they hang."""
    for group in run.groups.values():
        held = {rank: calls for rank in group.ranks if rank in run.ranks and (calls := run.ranks[rank].of(group.key))}
        if len(held) < 2:
            continue
        number = max(max(calls) for calls in held.values())
        made = {rank: calls[number] for rank, calls in held.items() if number in calls}
        inside = [rank for rank in made if run.ranks[rank].in_call or run.ranks[rank].said or made[rank].done is False]
        if not inside:
            continue
        call = made[min(made)]
        common = last_common(run, Trouble(group.key, number, made))
        alike = [rank for rank in made if made[rank].stack == call.stack]
        odd = [rank for rank in made if rank not in alike]
        if odd and len(odd) > len(alike):
            alike, odd = odd, alike
        where = _which(run, group.key, number)
        lacks = f"; these records do not contain {' or '.join(run.lacks)}" if run.lacks else ""
        if odd:
            mine, theirs = made[odd[0]], made[alike[0]]
            sentence = (
                f"as far as the records show, {where} is the same on all ranks, but {name_ranks(odd)} made {mine.what}"
                f"{mine.where} and {name_ranks(alike)} made {theirs.what}{theirs.where}{lacks}"
            )
        else:
            sentence = f"{name_ranks(sorted(made))} are all in {where}, {call.what}{call.where}{lacks}"
        yield Finding(
            "stuck", sentence + _after(common), tuple(odd), tuple(inside), group.key, number, made[(odd or alike)[0]].place,
            made, common,
        )  # fmt: skip


def _reported(run: RunFacts) -> Iterator[Finding]:
    """The errors that ranks reported, if nothing else is known: from logs alone."""
    killed = [rank for rank, facts in run.ranks.items() if facts.ended.startswith(("was killed", "crashed"))]
    telling = {rank: facts for rank, facts in sorted(run.ranks.items()) if facts.said}
    if killed:
        yield Finding("dead", _fate(killed, run.ranks[killed[0]].ended), tuple(killed), tuple(telling))
    elif telling:
        places: dict[str, list[int]] = {}
        for rank, facts in telling.items():
            places.setdefault(f"at {facts.at[0].place}" if facts.at else "at an unknown line", []).append(rank)
        where = ", ".join(f"{name_ranks(ranks)} {place}" for place, ranks in places.items())
        why = "logs alone do not say why; with ALLFOLD_FLIGHT_DIR set, the next run keeps records"
        sentence = f"calls failed on {where}, and {why}"
        own = next((said for facts in telling.values() for said in facts.said if _NAMES_THE_CAUSE.match(said)), "")
        first = next(iter(telling))
        yield Finding(
            "reported",
            own or sentence,
            (),
            tuple(telling),
            place=telling[first].at[0].place if telling[first].at else "",
        )


# Words -----------------------------------------------------------------------------------------------------------------


def _about(run: RunFacts, finding: Finding) -> Iterator[str]:
    """Details: each rank's call and line, where it was when its record was written, and the errors that it reported."""
    for rank, call in sorted(finding.calls.items()):
        text = line_of(call.stack[0]) if call.stack else ""
        yield f"rank {rank}: {call.what}{call.where}" + (f": {text}" if text else "")
    for rank in sorted({*finding.ranks, *finding.waiting}):
        facts, made = run.ranks.get(rank), finding.calls.get(rank)
        if facts is None:
            continue
        if facts.at and (made is None or facts.at[:1] != made.stack[:1]):
            yield f"rank {rank} was at {_at(facts.at)} when its record was written"
        for said in facts.said[:2]:
            yield f"rank {rank} reported: {said}"
    for rank, facts in sorted(run.ranks.items()):
        if facts.ended.startswith(("crashed", "was killed")) and rank not in finding.ranks:
            yield f"rank {rank} {facts.ended}" + (f" at {_at(facts.at)}" if facts.at else "")


def _which(run: RunFacts, group: str, number: int) -> str:
    label = run.groups[group].label if group in run.groups else group
    return f"call {number} of {label}"


def _after(common: CallFacts | None) -> str:
    if common is None:
        return ""
    return f"; the last call that all made is call {common.number}, {common.what}{common.where}"


def _at(stack: Sequence[object]) -> str:
    frame = stack[0]
    return f"{frame.place} in {frame.function}" if frame.function else frame.place  # type: ignore[attr-defined]


def _it(ranks: Sequence[int]) -> str:
    return "it" if len(ranks) == 1 else "they"


def _fate(ranks: Sequence[int], ended: str) -> str:
    """Ranks and their end, such as `ranks 1 and 2 were killed by signal 9`."""
    return f"{name_ranks(ranks)} {ended if len(ranks) == 1 else re.sub('^was ', 'were ', ended)}"


def _wait(ranks: Sequence[int]) -> str:
    return f"{name_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"


def summary(run: RunFacts) -> str:
    """The size of a run in which nothing is wrong."""
    calls = sum(len(rank.calls) for rank in run.ranks.values())
    return f"{counted(len(run.ranks), 'rank')}, {counted(calls, 'call')} in {counted(len(run.groups), 'group')}"
