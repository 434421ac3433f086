"""The tags of all messages that a fabric carries. All are defined here, so that no two uses share one.

The messages of collectives have tags below `FIRST_FREE`, which depend on the call. Other messages on the same connections
have fixed tags from there up. Frames and users' messages have connections of their own, where they may use any tag.
"""

from __future__ import annotations

MOST_TAG = 2**31 - 1

INDICES = 1 << 11
"""The lower 11 bits of a collective's tag are the number of the message in its call; the other 20 bits identify the call."""
FIRST_FREE = MOST_TAG + 1 - INDICES
"""The lowest tag that no collective uses."""
CALLS = FIRST_FREE // INDICES

CLOCK = FIRST_FREE  # a leader asks rank 0 for its time
PROBE = FIRST_FREE + 1  # measuring a wire
LONG = FIRST_FREE + 3  # data that follow a header
JOIN = FIRST_FREE + 4  # the barrier in which the ranks of a new group wait for each other
HELLO = FIRST_FREE + 5  # the first message of a connection of UCX
FRONT = MOST_TAG  # the header of every call

FRAME = 1
_MESSAGES = 2**30


def of_call(hash: int, number: int, index: int) -> int:
    """The tag of message `index` of call `number`; `hash`: of the call's signature.

    Calls with the same signature and different numbers have different tags (fewer than `CALLS` apart), and calls with
    different signatures rarely have the same one. Equal tags are harmless as long as both ranks make the calls in the same
    order, because messages with the same tag arrive in order.
    """
    return (hash + number) % CALLS * INDICES + index % INDICES


def of_message(number: int) -> int:
    """The tag of the data of a rank's long message with this number."""
    return _MESSAGES + number % _MESSAGES
