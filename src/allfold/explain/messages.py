"""Point-to-point calls: matches sends with receives, and finds those without a match."""

from __future__ import annotations

from collections import defaultdict

from .align import Trouble, differences
from .calls import CallFacts, RunFacts


def unmatched_messages(run: RunFacts) -> list[Trouble]:
    """A trouble per pair of ranks with a send or a receive that the other side has not made, or made differently.

    Calls are matched in order. If a record has lost earlier calls, or a rank receives from any rank, the order is not
    known, so pairs with such a rank are skipped.
    """
    sent: dict[tuple[str, int, int], list[CallFacts]] = defaultdict(list)
    received: dict[tuple[str, int, int], list[CallFacts]] = defaultdict(list)
    vague: set[int] = set()
    for rank, facts in run.ranks.items():
        if not facts.has_record or "" in facts.starts:
            vague.add(rank)
        for call in facts.calls:
            if call.operation == "send" and call.peer is not None:
                sent[call.group, rank, call.peer].append(call)
            elif call.operation == "recv":
                if call.peer is None:
                    vague.add(rank)
                else:
                    received[call.group, call.peer, rank].append(call)
    found = []
    for key in sorted({*sent, *received}):
        group, source, target = key
        if source in vague or target in vague or source not in run.ranks or target not in run.ranks:
            continue
        ours, theirs = sent[key], received[key]
        for place in range(min(len(ours), len(theirs))):
            pair = ours[place], theirs[place]
            if differences_of_messages(*pair):
                made = {source: pair[0], target: pair[1]}
                found.append(Trouble(group, pair[0].number, made, classes=[[source], [target]]))
                break
        else:
            longer, rank, peer = (ours, source, target) if len(ours) > len(theirs) else (theirs, target, source)
            extra = longer[min(len(ours), len(theirs)) :]
            if extra and not extra[0].done:
                found.append(Trouble(group, extra[0].number, {rank: extra[0]}, [peer], classes=[[rank]]))
    return found


def differences_of_messages(sent: CallFacts, received: CallFacts) -> list[str]:
    """The aspects (`shape`, `type`) in which a send and its receive differ."""
    return differences(*(CallFacts(call.group, 0, "message", 0, call.tensors) for call in (sent, received)))
