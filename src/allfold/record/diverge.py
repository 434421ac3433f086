"""Finds where two runs, or the ranks of one run, begin to differ: the rank, the call, the line and the tensor.

A rank is an origin if the input of one of its calls differs, although everything that it had received before is the same.
A rank whose first difference is in something that it received is a follower. If a call gives different results from the
same inputs, the call itself is the origin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..wording import counted, name_ranks
from . import FACTS
from .read import CallForm, CallKey, RankRecord, Recorded

Records = Mapping[int, RankRecord]
_Calls = Mapping[int, Mapping[CallKey, Recorded]]
_AGREEING = (
    "all_reduce",
    "all_reduce_coalesced",
    "broadcast",
    "all_gather",
    "all_gather_single",
    "all_gather_coalesced",
    "all_gather_single_coalesced",
)
_RECEIVED = "although everything it had received before was the same"


@dataclass(frozen=True)
class Difference:
    """One rank's first difference. `kind`: "input", "call", "output", or "result" (of a call, from equal inputs)."""

    kind: str
    ranks: tuple[int, ...]
    number: int  # of the rank's calls
    sentence: str
    place: str = ""
    tensor: int | None = None
    key: CallKey | None = None

    @property
    def is_origin(self) -> bool:
        return self.kind in ("input", "call", "result")


@dataclass(frozen=True)
class Comparison:
    """The differences, origins first. `notes` name what is missing from the records."""

    found: list[Difference]
    notes: list[str]
    calls: int

    @property
    def origins(self) -> list[Difference]:
        return [one for one in self.found if one.is_origin]

    @property
    def followers(self) -> list[Difference]:
        return [one for one in self.found if not one.is_origin]

    def as_json(self) -> dict[str, Any]:
        def plain(one: Difference) -> dict[str, Any]:
            return asdict(one) | {"key": one.key and one.key._asdict()}

        return {
            "differs": bool(self.found),
            "origins": [plain(one) for one in self.origins],
            "followers": [plain(one) for one in self.followers],
            "calls": self.calls,
            "notes": self.notes,
        }


def compare_runs(first: Records, second: Records) -> Comparison:
    """Two runs of one program."""
    both = sorted(first.keys() & second.keys())
    found = [one for rank in both if (one := _first_difference(first[rank], second[rank])) is not None]
    calls = [{rank: {call.key: call for call in run[rank].calls} for rank in both} for run in (first, second)]
    found = [_as_result(one, calls[0], calls[1]) for one in found]
    found.sort(key=lambda one: (not one.is_origin, one.number, one.ranks))
    return Comparison(_merged(found), [*_notes(first, second)], sum(len(first[rank].calls) for rank in both))


def compare_ranks(run: Records) -> Comparison:
    """The ranks of one run: in the results of calls that give all ranks the same, and in what was sent and received."""
    notes = [*_whole(run, "")]
    by_key: dict[CallKey, dict[int, Recorded]] = {}
    for rank, record in run.items():
        for call in record.calls:
            if not call.form.is_message:
                by_key.setdefault(call.key, {})[rank] = call
    found = []
    for key, calls in by_key.items():
        if len(calls) > 1 and (one := _disagreement(key, calls)) is not None:
            found.append(one)
    found.sort(key=lambda one: one.number)
    return Comparison(found[:1], notes, sum(len(record.calls) for record in run.values()))


# Two runs ------------------------------------------------------------------------------------------------------------


def _first_difference(one: RankRecord, other: RankRecord) -> Difference | None:
    """The first difference between a rank's records of the two runs, in the order of events."""
    for is_call, before, after in _events(one.calls, other.calls):
        if is_call:
            difference = _call_difference(one.rank, before, after, _store_difference(one, before, other, after))
        else:
            difference = _result_difference(one.rank, before, after)
        if difference is not None:
            return difference
    return _length_difference(one, other)


def _events(ones: list[Recorded], others: list[Recorded]) -> Iterator[tuple[bool, Recorded, Recorded]]:
    """The calls that both runs have, and their results.

    Results of background calls arrive at different times in each run. A call certainly depends on a result only if that
    arrived before it in both runs; other results are compared after the call.
    """
    waiting: list[tuple[Recorded, Recorded]] = []
    without: list[tuple[Recorded, Recorded]] = []  # calls that did not end
    for pair in _pairs(ones, others):
        later = []
        for result in waiting:
            if all(before.ended < call.begun for before, call in zip(result, pair, strict=True)):  # type: ignore[operator]
                yield False, *result
            else:
                later.append(result)
        yield True, *pair
        has_ended = None not in (pair[0].ended, pair[1].ended)
        waiting = [*later, pair] if has_ended else later
        if not has_ended:
            without.append(pair)
    for result in (*waiting, *without):
        yield False, *result


def _pairs(ones: list[Recorded], others: list[Recorded]) -> Iterator[tuple[Recorded, Recorded]]:
    """The same calls of both runs: those of the main thread by their order, those of other threads by their place in the group.

    Threads that use different groups make their calls in another order in every run.
    """
    beside = {call.key: call for call in others if call.form.is_beside}
    main = (call for call in others if not call.form.is_beside)
    for one in ones:
        other = beside.get(one.key) if one.form.is_beside else next(main, None)
        if other is not None:
            yield one, other


def _store_difference(one: RankRecord, before: Recorded, other: RankRecord, after: Recorded) -> str:
    """A note if a store answered the rank differently before this call: addresses, for example, differ in every run."""
    pairs = zip(one.answers, other.answers, strict=False)
    for mine, theirs in pairs:
        if mine.at > before.begun or theirs.at > after.begun:
            break
        if mine[:4] != theirs[:4]:
            return f"; before that, the store answered {theirs.method}({theirs.key!r}) differently"
    return ""


def _call_difference(rank: int, before: Recorded, after: Recorded, store: str) -> Difference | None:
    if _shape(before.form) != _shape(after.form) or before.key != after.key:
        sentence = f"rank {rank} made {after.what} instead of {before.told}, {_RECEIVED}{store}"
        return Difference(
            "call", (rank,), before.number, sentence, before.form.where.removeprefix(" at "), None, before.key
        )
    if (tensor := _other(before.inputs, after.inputs)) is None:
        return None
    which = f"tensor {tensor + 1} of {len(before.inputs)} of the input" if len(before.inputs) > 1 else "the input"
    sentence = f"rank {rank} differs first: {which} of {before.told} differs, {_RECEIVED}{store}"
    return Difference(
        "input", (rank,), before.number, sentence, before.form.where.removeprefix(" at "), tensor, before.key
    )


def _result_difference(rank: int, before: Recorded, after: Recorded) -> Difference | None:
    where = before.form.where.removeprefix(" at ")
    if before.failure != after.failure or (before.ended is None) != (after.ended is None):
        sentence = f"rank {rank}: {before.told} {_end(after)}; in the first run it {_end(before)}"
        return Difference("output", (rank,), before.number, sentence, where, None, before.key)
    if before.source != after.source and before.form.operation == "recv":
        ranks = f"{after.source}, not {before.source}"
        sentence = f"rank {rank} received from a different rank of the group in {before.told}: {ranks}"
        return Difference("output", (rank,), before.number, sentence, where, None, before.key)
    if not _is_defined(before.form, rank) or (tensor := _other(before.outputs, after.outputs)) is None:
        return None
    sentence = f"rank {rank} follows: what it received in {before.told} differs"
    return Difference("output", (rank,), before.number, sentence, where, tensor, before.key)


def _length_difference(one: RankRecord, other: RankRecord) -> Difference | None:
    if len(one.calls) == len(other.calls):
        return None
    longer, shorter = (one, other) if len(one.calls) > len(other.calls) else (other, one)
    which = "second" if shorter is other else "first"
    known = {call.key for call in shorter.calls}
    extra = next((call for call in longer.calls if call.key not in known), longer.calls[len(shorter.calls)])
    after = counted(len(shorter.calls), "call")
    sentence = f"rank {one.rank} did not make {extra.told} in the {which} run, where it {shorter.end} after {after}"
    return Difference(
        "call", (one.rank,), extra.number, sentence, extra.form.where.removeprefix(" at "), None, extra.key
    )


def _as_result(one: Difference, first: _Calls, second: _Calls) -> Difference:
    """A result that differs although the inputs of all ranks are the same in both runs: the call itself is the origin."""
    if one.kind != "output" or one.key is None or one.key.is_message or one.tensor is None:
        return one
    call = first[one.ranks[0]][one.key]
    for rank in call.form.group.ranks:
        pair = [calls.get(rank, {}).get(one.key) for calls in (first, second)]
        if pair[0] is None or pair[1] is None or pair[0].inputs != pair[1].inputs:
            return one
    return Difference("result", one.ranks, one.number, call.told, one.place, one.tensor, one.key)


def _merged(found: list[Difference]) -> list[Difference]:
    """The differences, with one sentence for a call that gave several ranks a different result."""
    ranks: dict[CallKey | None, list[int]] = {}
    for one in found:
        if one.kind == "result":
            ranks.setdefault(one.key, []).extend(one.ranks)
    merged = []
    for one in found:
        if one.kind != "result":
            merged.append(one)
        elif one.key in ranks:
            those = ranks.pop(one.key)
            given = f"{one.sentence} gave {name_ranks(those)} a different result"
            sentence = f"{given}, although the inputs of all its ranks were the same"
            merged.append(Difference("result", tuple(those), one.number, sentence, one.place, one.tensor, one.key))
    return merged


# One run -------------------------------------------------------------------------------------------------------------


def _disagreement(key: CallKey, calls: dict[int, Recorded]) -> Difference | None:
    form = next(iter(calls.values())).form
    if form.operation not in _AGREEING:
        return None
    by_result: dict[tuple[Any, ...], list[int]] = {}
    for rank, call in calls.items():
        if call.ended is not None and call.failure is None and call.outputs and None not in call.outputs:
            by_result.setdefault(tuple(call.outputs), []).append(rank)
    if len(by_result) < 2:
        return None
    parties = sorted(by_result.values(), key=lambda ranks: (-len(ranks), ranks))
    minority = sorted(rank for ranks in parties[1:] for rank in ranks)
    call = calls[minority[0]]
    tensor = _other(calls[parties[0][0]].outputs, call.outputs)
    sentence = f"{name_ranks(minority)} got a different result from {name_ranks(parties[0])} in {call.told}"
    return Difference("result", tuple(minority), call.number, sentence, form.where.removeprefix(" at "), tensor, key)


# Words ---------------------------------------------------------------------------------------------------------------


def _shape(form: CallForm) -> tuple[Any, ...]:
    return form.operation, form.inputs, form.outputs, form.reduction, form.root, form.peer


def _is_defined(form: CallForm, rank: int) -> bool:
    """False for the target of a reduction on a rank that is not the root: backends may leave anything there."""
    if form.operation != "reduce" or form.root is None:
        return True
    return form.group.ranks[form.root] == rank


def _other(before: Sequence[int | None], after: Sequence[int | None]) -> int | None:
    pairs = zip(before, after, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other and None not in (one, other)), None)


def _end(call: Recorded) -> str:
    if call.ended is None:
        return "did not end"
    return f"failed with {': '.join(call.failure)}" if call.failure else "ended"


def _notes(first: Records, second: Records) -> Iterator[str]:
    for name, run, other in (("first", first, second), ("second", second, first)):
        if missing := sorted(other.keys() - run.keys()):
            yield f"the {name} run has no record of {name_ranks(missing)}"
        yield from _whole(run, f"the {name} run: ")
    seeded = [rank for rank in sorted(first.keys() & second.keys()) if first[rank].seeds != second[rank].seeds]
    if seeded:
        yield (
            f"{name_ranks(seeded)} seeded generators of NumPy from the operating system (default_rng() without a seed): "
            "their numbers differ in every run"
        )
    both = [(first[rank].head["facts"], second[rank].head["facts"]) for rank in sorted(first.keys() & second.keys())]
    for key, name in FACTS.items():
        if changed := next(((a.get(key), b.get(key)) for a, b in both if a.get(key) != b.get(key)), None):
            yield f"the runs differ in {name}: {changed[0]} and {changed[1]}"


def _whole(run: Records, prefix: str) -> Iterator[str]:
    size = max(record.size for record in run.values())
    if missing := sorted(set(range(size)) - run.keys()):
        yield f"{prefix}there is no record of {name_ranks(missing)}"
    for record in run.values():
        if record.note:
            yield f"{prefix}{record.path.name} {record.note}"
    unseen = sum(None in (*call.inputs, *call.outputs) for record in run.values() for call in record.calls)
    if unseen:
        yield f"{prefix}{counted(unseen, 'call')} had tensors outside of main memory, or sparse ones, which are not compared"
