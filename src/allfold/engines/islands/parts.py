"""The parts of one rank's end of a group, put together, and the news that each of them gets."""

from __future__ import annotations

from ...errors import AllfoldError, RankLost
from ...fabrics import tags
from ...fabrics.fabric import FOREVER, Disconnected, Fabric
from .agreement import Agreement
from .calls import Calls
from .crossing import BUILT_IN, Crossing
from .execution.executor import Executor
from .execution.levels import Levels
from .fronts import Fronts
from .letters import Letters
from .membership import Membership
from .post import Frame, News, Progress
from .roster import Roster, Shared
from .wire import PeerLinks
from .world import World


class Parts:
    """`membership`: who is there; `executor`, with `agreement` in it: how a call is carried out; `calls`: when, and for
    how long; `letters`: users' messages."""

    def __init__(self, world: World, roster: Roster, shared: Shared, fabric: Fabric) -> None:
        self.world, self.roster, self.shared, self.fabric = world, roster, shared, fabric
        self.number, self.ranks = roster.number, roster.ranks
        self.membership = Membership(world, roster, fabric, shared, self._end_all)
        links = PeerLinks(fabric, shared.collectives.messages, roster.local, FOREVER)
        agreement = Agreement(roster, shared, self._fronts(links))
        self.executor = Executor(Levels(roster, shared, links, agreement, self._crossing()))
        self.calls = Calls(roster, self.membership, self.executor.run)
        self.letters = Letters(roster, world.post, shared.messages.messages, self.membership, self.calls.check_open)

    @classmethod
    def join(cls, world: World, roster: Roster, shared: Shared, fabric: Fabric, within: float) -> Parts:
        """This rank's end of a new group; all of its ranks call it, and wait for each other, for this many seconds."""
        shared.collectives.native.sleep_early()
        group = cls(world, roster, shared, fabric)
        group.calls.start()
        world.add(group)
        world.patience = within
        # Nobody makes calls, or leaves, while another rank still connects: it would find the connection closed.
        try:
            fabric.barrier(tags.JOIN, within)
        except Disconnected as error:
            raise group.membership.explained(error) from None
        return group

    def _fronts(self, links: PeerLinks) -> Fronts | None:
        roster = self.roster
        if roster.rank != roster.mine[0]:
            return None
        try:
            return Fronts(links, [rank for rank in roster.leaders if rank != roster.rank])
        except Disconnected as error:
            raise self.world.gone(roster.ranks) or self.membership.unreachable(error) from None

    def _crossing(self) -> Crossing:
        """What was tuned for such hosts, or what is built in."""
        shape = tuple(map(len, self.roster.islands))
        tuned = (one.crossing for one in self.world.tuned if (one.hosts, one.fabric) == (shape, self.fabric.name))
        return next(tuned, BUILT_IN)

    # What the world has to say -----------------------------------------------------------------------------------------

    def made(self) -> int:
        return self.calls.made

    def take_in(self, source: int, frame: Frame) -> None:
        """A frame for this group has come from a rank of the world."""
        rank, number = self.ranks.index(source), frame.numbers[0]
        if frame.news == News.LETTER:
            self.letters.arrived(rank, frame)
        elif frame.news == News.ASKED:
            answer = Frame(News.ANSWER, frame.group, self.calls.progress(number), (number, 0, 0))
            self.world.post.send(source, answer)
        elif frame.news == News.ANSWER:
            self.calls.answered(number, rank, Progress(frame.detail))

    def fail(self, error: AllfoldError) -> None:
        self.membership.fail(error)

    def _end_all(self, error: AllfoldError) -> None:
        self.calls.fail(error)
        self.letters.fail(error)

    def note_left(self, who: int, calls: int) -> None:
        """A rank of the world has left this group, after this many calls."""
        self.membership.left_after[who] = calls

    def somebody_left(self, who: int) -> None:
        self.letters.fail_what_cannot_come()
        self.calls.somebody_left(who)

    def interrupt(self) -> None:
        self.calls.interrupt()

    def look(self, now: float) -> None:
        self.calls.look(now)

    # The end -----------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        self.membership.check_process("abort")
        self.membership.give_up(RankLost(f"rank {self.roster.rank} has aborted {self.roster.label}"))

    def close(self) -> None:
        if self.membership.is_closed or self.membership.is_forked:
            return
        self.membership.is_closed = True
        self.calls.close()
        self.letters.close()
        self.shared.close()
        if self.number == 0:
            self.world.end()
        else:
            self.world.leave(self)
