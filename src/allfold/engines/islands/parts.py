"""Puts together the parts of one rank's end of a group, and passes news to them."""

from __future__ import annotations

import os

from ...errors import AllfoldError, RankLost
from ...fabrics import tags
from ...fabrics.fabric import FOREVER, Disconnected, Fabric
from .agreement import Agreement, Fronts
from .calls import Calls
from .crossing import BUILT_IN, Crossing
from .execution.executor import Executor
from .execution.levels import Levels
from .execution.native import NativeRuns
from .frames import Frame, News, Progress
from .membership import Membership
from .messages import GroupMessages
from .roster import Roster, Shared
from .wire import PeerLinks
from .world import World

# Before a rank sleeps until a message comes. Between two ranks that have a core each, an all_reduce of 2 KiB takes 0.77 of the
# time with it.
_LOOK_SECONDS = 20e-6


class Parts:
    """`membership`: which ranks are there; `executor`, with `agreement` in it: carries out calls; `calls`: their order and
    their time; `messages`: users' messages."""

    def __init__(self, world: World, roster: Roster, shared: Shared, fabric: Fabric) -> None:
        self.world, self.roster, self.shared, self.fabric = world, roster, shared, fabric
        self.number, self.ranks = roster.number, roster.ranks
        self.membership = Membership(world, roster, fabric, shared, self._end_all)
        if len(roster.mine) <= len(os.sched_getaffinity(0)):
            fabric.wire.look_first(_LOOK_SECONDS)
        links = PeerLinks(fabric, shared.collectives.messages, roster.local, FOREVER)
        native = NativeRuns(fabric.wire, roster, shared)
        agreement = Agreement(roster, shared, self._fronts(native))
        self.executor = Executor(Levels(roster, shared, links, native, agreement, self._crossing()))
        self.calls = Calls(roster, self.membership, self.executor.run, self.executor.explain_failure, native)
        self.messages = GroupMessages(
            roster, world.frames, shared.messages.messages, self.membership, self.calls.check_open
        )

    @classmethod
    def join(cls, world: World, roster: Roster, shared: Shared, fabric: Fabric, within: float) -> Parts:
        """This rank's end of a new group. Collective: its ranks wait for each other, for at most `within` seconds."""
        # Ranks of this host wait for the one that waits for another host. Where the host has no core to spare for each of them,
        # they soon sleep, and leave theirs to the threads that move data. Elsewhere that would cost a lot: to wake them up made
        # an all_reduce of 1 KiB between 2 × 4 ranks on 16 cores take 52 µs; it takes 12.
        if 2 * len(roster.mine) > len(os.sched_getaffinity(0)):
            shared.collectives.native.sleep_early()
        group = cls(world, roster, shared, fabric)
        group.calls.start()
        world.add(group)
        world.patience = within
        # No rank makes calls or leaves while another one is still connecting, which would find the connection closed.
        try:
            fabric.barrier(tags.JOIN, within)
        except Disconnected as error:
            raise group.membership.explained(error) from None
        return group

    def _fronts(self, native: NativeRuns) -> Fronts | None:
        roster = self.roster
        if roster.rank != roster.mine[0]:
            return None
        others = [rank for rank in roster.leaders if rank != roster.rank]
        try:
            return Fronts(native.links, others)
        except Disconnected as error:
            raise self.world.gone(roster.ranks) or self.membership.unreachable(error) from None

    def _crossing(self) -> Crossing:
        """The tuned rules for such hosts, or the built-in ones."""
        shape = tuple(map(len, self.roster.islands))
        tuned = (one.crossing for one in self.world.tuned if (one.hosts, one.fabric) == (shape, self.fabric.name))
        return next(tuned, BUILT_IN)

    # News (see world.GroupInWorld) -------------------------------------------------------------------------------------

    def made(self) -> int:
        return self.calls.direct.made()

    def take_in(self, source: int, frame: Frame) -> None:
        """Handle a frame for this group from a rank of the world."""
        rank, number = self.ranks.index(source), frame.numbers[0]
        if frame.news == News.MESSAGE:
            self.messages.arrived(rank, frame)
        elif frame.news == News.ASKED:
            answer = Frame(News.ANSWER, frame.group, self.calls.progress(number), (number, 0, 0))
            self.world.frames.send(source, answer)
        elif frame.news == News.ANSWER:
            self.calls.answered(number, rank, Progress(frame.detail))

    def fail(self, error: AllfoldError) -> None:
        self.membership.fail(self.calls.as_heard(error))

    def _end_all(self, error: AllfoldError) -> None:
        self.calls.fail(error)
        self.messages.fail(error)

    def note_left(self, who: int, calls: int) -> None:
        """Note that a rank of the world has left this group, after this many calls."""
        self.membership.left_after[who] = calls
        self.calls.direct.shut()

    def somebody_left(self, who: int) -> None:
        self.calls.direct.shut()
        self.messages.fail_what_cannot_come()
        self.calls.somebody_left(who)

    def interrupt(self) -> None:
        self.calls.interrupt()

    def look(self, now: float) -> None:
        self.calls.look(now)

    # The end -----------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        self.membership.check_process("abort")
        text = f"rank {self.roster.rank} has aborted {self.roster.label}"
        self.membership.give_up(self.membership.error or RankLost(self.world.with_cause(text)))

    def close(self) -> None:
        if self.membership.is_closed or self.membership.is_forked:
            return
        self.membership.is_closed = True
        self.calls.direct.shut()
        self.calls.close()
        try:
            if self.membership.error is None:
                self.executor.levels.native.settle(self.world.patience)
        finally:
            self.messages.close()
            self.shared.close()
            if self.number == 0:
                self.world.end()
            else:
                self.world.leave(self)
