"""A rank gives up, and its array belongs to the caller again (`Communicator::let_go`), while a peer is about to write into
the array (`Communicator::Writing`) or to read from it (`confirm` in `perform`)."""

from __future__ import annotations

from dataclasses import dataclass

from protocol import Instruction, Rules, World, try_programs

STANDING, MARK, ARRAY = range(3)  # of the owner, of the peer, of the owner
OWNER, PEER = range(2)
CHANGED, WRITTEN = 9, 2


@dataclass(frozen=True)
class ArrayRules:
    """Variants of the protocol. The defaults are the engine's; a test changes one and expects an error."""

    order: str = "tso"  # or "weak"
    fenced_by_owner: bool = False  # membarrier
    owner_fences: bool = True
    owner_fences_for_all: bool = True
    owner_waits: bool = True
    peer_fences: bool = True  # unless fenced_by_owner
    peer_marks: bool = True
    looks_after_reading: bool = True


def try_arrays(peer: str, rules: ArrayRules) -> int:
    """All orders in which a `writer` or a `reader` can meet an owner that gives up; the number of states."""
    owner: list[Instruction] = [("store", STANDING, 1)]
    owner += [("fence", 0, 0)] if rules.owner_fences else []
    owner += [("fence for", PEER, 0)] if rules.fenced_by_owner and rules.owner_fences_for_all else []
    owner += [("look", MARK, 0), ("go if odd", len(owner), 0)] if rules.owner_waits else []
    owner += [("store", ARRAY, CHANGED)]

    program: list[Instruction] = []
    if peer == "writer":
        program += [("store", MARK, 1)] if rules.peer_marks else []
        program += [("fence", 0, 0)] if rules.peer_fences and not rules.fenced_by_owner else []
        program += [
            ("look", STANDING, 0),
            ("go if", len(program) + 3, 1),
            ("store", ARRAY, WRITTEN),
            ("release", MARK, 2),
        ]
    elif rules.looks_after_reading:
        program += [("read", ARRAY, 0), ("look", STANDING, 0), ("go if", 4, 1), ("believe", ARRAY, CHANGED)]
    else:
        program += [("look", STANDING, 0), ("go if", 4, 1), ("read", ARRAY, 0), ("believe", ARRAY, CHANGED)]

    def keeps_its_array(world: World) -> bool:
        return world.memory[ARRAY] == CHANGED

    return try_programs([owner, program], Rules(rules.order), keeps_its_array)
