"""Recordings of real runs: which call of a trace is shown beside the simulation of a schedule."""

from __future__ import annotations

from os import PathLike
from typing import Any

from ..documents import DocumentError, head_of, list_at, object_at, parse, read_plain, text_at, whole_at
from ..errors import UsageError
from ..schedules import Schedule
from ..wording import counted

_MOST_BYTES = 2**28  # of a file
_LARGEST = 2**62
_WHOLE = {
    "rank": 0,
    "call": 0,
    "step": -1,
    "segment": 0,
    "instruction": -1,
    "bytes": 0,
    "start": 0,
    "waited": 0,
    "worked": 0,
}
"""The fields of an event that are whole numbers, each with its least value."""
_TEXT = ("collective", "algorithm", "memory", "what")
_UNEVEN = 64  # bytes by which the chunks of a buffer may differ


def read_recording(path: str | PathLike[str], schedule: Schedule, size: int) -> dict[str, Any]:
    """The fastest recorded call of this schedule in a file that `Trace.save` wrote; `size` is that of its buffer."""
    try:
        document = head_of(parse(read_plain(path, _MOST_BYTES)), "allfold-trace", 1)
        events = [_event(one, f"events[{i}]") for i, one in enumerate(list_at(document.get("events"), "events"))]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except DocumentError as error:
        raise UsageError(f"{path} is not a trace as trace.save(…) writes it: {error}") from None
    found = fastest_call(events, schedule)
    if not found:
        wanted = _call_in_words(schedule.collective, schedule.algorithm, schedule.ranks)
        raise UsageError(f"{path} has no call of {wanted}; it has {_calls_of(events)}")
    for event in found:
        if any(peer >= schedule.ranks for peer in event["peers"]):
            raise UsageError(
                f"{path}: rank {event['rank']} reads from {event['peers']}; there are {schedule.ranks} ranks"
            )
    _check_size(found, schedule, size, str(path))
    return {"format": "allfold-trace", "version": 1, "events": found}


def fastest_call(events: list[dict[str, Any]], schedule: Schedule) -> list[dict[str, Any]]:
    """The events of one call: the fastest of those that ran this schedule's algorithm between its number of ranks."""
    calls: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        algorithm = event["algorithm"].removesuffix("()")  # of a function, not of a registered name
        if (event["collective"], algorithm) == (schedule.collective, schedule.algorithm):
            calls.setdefault(event["call"], []).append(event)
    ranks = set(range(schedule.ranks))

    def took(events: list[dict[str, Any]]) -> int:
        end = max(event["start"] + event["waited"] + event["worked"] for event in events)
        return int(end - min(event["start"] for event in events))

    fitting = [found for found in calls.values() if {event["rank"] for event in found} == ranks]
    return min(fitting, key=took, default=[])


def _event(value: object, where: str) -> dict[str, Any]:
    given = object_at(value, where)
    event: dict[str, Any] = {
        name: whole_at(given.get(name), f"{where}: {name}", least, _LARGEST) for name, least in _WHOLE.items()
    }
    event |= {name: text_at(given.get(name), f"{where}: {name}", 200) for name in _TEXT}
    peers = list_at(given.get("peers"), f"{where}: peers")
    return {**event, "peers": [whole_at(peer, f"{where}: peers", 0, _LARGEST) for peer in peers]}


def _calls_of(events: list[dict[str, Any]]) -> str:
    ranks: dict[tuple[int, str, str], set[int]] = {}
    for event in events:
        ranks.setdefault((event["call"], event["collective"], event["algorithm"]), set()).add(event["rank"])
    kinds = {_call_in_words(collective, algorithm, len(found)) for (_, collective, algorithm), found in ranks.items()}
    return ", ".join(sorted(kinds)[:8]) or "no calls"


def _call_in_words(collective: str, algorithm: str, ranks: int) -> str:
    return f"{collective} by {algorithm} with {counted(ranks, 'rank')}"


def _check_size(events: list[dict[str, Any]], schedule: Schedule, size: int, path: str) -> None:
    """Times of a run are only comparable with a simulation of the same number of bytes.

    In shared memory, an instruction moves one chunk, segment by segment.
    """
    moved: dict[tuple[int, int], int] = {}
    for event in events:
        if event["memory"] != "wire":
            at = event["rank"], event["instruction"]
            moved[at] = moved.get(at, 0) + event["bytes"]
    recorded = schedule.chunks * max(moved.values(), default=0)
    if recorded and abs(recorded - size) > schedule.chunks * _UNEVEN:
        raise UsageError(
            f"{path} records a buffer of {recorded} bytes, and --size {size} is simulated; they must agree"
        )
