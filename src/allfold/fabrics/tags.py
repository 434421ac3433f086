"""The tags of all messages that a fabric carries. They are dealt here and nowhere else, so that no two uses share one.

The messages of collectives have tags that depend on the call; these lie below `FIRST_FREE`. Everything else that goes
beside them has a fixed tag from there on. Frames and letters have connections of their own, and may use any tag there.
"""

from __future__ import annotations

MOST_TAG = 2**31 - 1

_INDEX_BITS = 11  # of a collective's tag: the number of the message in its call; the other 20 bits stand for the call
FIRST_FREE = MOST_TAG + 1 - (1 << _INDEX_BITS)
"""The lowest tag that no collective has."""

CLOCK = FIRST_FREE  # a leader asks rank 0 for its time
PROBE = FIRST_FREE + 1  # measuring a wire
LONG = FIRST_FREE + 3  # data that follow a front
JOIN = FIRST_FREE + 4  # the barrier in which the ranks of a new group wait for each other
SECRET = MOST_TAG - 2  # challenges and answers
CUT = MOST_TAG - 1  # nobody sends it: a receive of it that times out closes the connections of gloo
FRONT = MOST_TAG  # the front of every call

FRAME = 1
_LETTERS = 2**30


def of_call(hash: int, number: int, index: int) -> int:
    """The tag of a message of a collective: `index` counts the messages of call `number`, `hash` is its signature's.

    Calls of the same kind with different numbers have different tags, and calls of different kinds rarely have the same
    one: the number is added to the hash. Equal tags do no harm to calls that follow each other in the same order on both
    ranks, as messages with the same tag arrive in order.
    """
    call = (hash + number) % (FIRST_FREE >> _INDEX_BITS)
    return call << _INDEX_BITS | index & (1 << _INDEX_BITS) - 1


def of_letter(number: int) -> int:
    """The tag of the data of a rank's long letter with this number."""
    return _LETTERS + number % _LETTERS
