"""A model of ranks that end while another one waits in the same call: `Communicator::check_peers`.

What is modelled is native/collectives/communicator_wait.cpp. A rank does its part of a call, closes its communicator, and its
process ends; or it is killed at any moment. A rank that waits reads the other one's post, and then asks the system whether
its process lives. It must not call a rank lost that has done its part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from protocol import Broken, explore


@dataclass(frozen=True)
class EndRules:
    """What the engine does; a test changes one rule and expects an error."""

    reads_the_standing_first: bool = True
    reads_again_after_death: bool = True


class Peer(NamedTuple):
    is_done: bool = False
    has_left: bool = False
    is_dead: bool = False


class World(NamedTuple):
    peer: Peer = Peer()
    step: int = 0  # of the rank that waits
    saw_left: bool = False
    saw_done: bool = False
    verdict: str = ""


def try_ends(rules: EndRules = EndRules()) -> int:  # noqa: B008 - it is frozen
    """Try all orders of what both ranks do; returns the number of states."""
    looks = ["left", "done"] if rules.reads_the_standing_first else ["done", "left"]

    def judged(world: World) -> World:
        """What the rank that waits decides when it has asked the system, and perhaps has read again."""
        peer = world.peer
        is_lost = (world.saw_left or peer.is_dead) and not world.saw_done
        if is_lost and not world.saw_left and rules.reads_again_after_death:
            is_lost = not peer.is_done
        if is_lost and peer.is_done:
            raise Broken("a rank that has done its part is called lost")
        return world._replace(step=3, verdict="lost" if is_lost else "waits on")

    def moves(world: World) -> Iterable[tuple[str, World]]:
        peer = world.peer
        if not peer.is_dead:
            if not peer.is_done:
                yield "does its part", world._replace(peer=peer._replace(is_done=True))
            elif not peer.has_left:
                yield "closes", world._replace(peer=peer._replace(has_left=True))
            yield "ends", world._replace(peer=peer._replace(is_dead=True))
        if world.step < 2:
            if looks[world.step] == "left":
                yield "reads the standing", world._replace(step=world.step + 1, saw_left=peer.has_left)
            else:
                yield "reads what is done", world._replace(step=world.step + 1, saw_done=peer.is_done)
        elif world.step == 2:
            yield "asks the system", judged(world)

    return explore(World(), moves, lambda world: world.step == 3 and world.peer.is_dead)
