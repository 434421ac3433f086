"""Chakra execution traces: one file per rank, to be simulated by ASTRA-sim as a custom collective.

A rank sends (COMM_SEND_NODE), receives (COMM_RECV_NODE) and combines (COMP_NODE). A node depends on the nodes of its
own rank that made what it reads, and on those that still read what it replaces; nothing else orders them. What one rank
sends another within one step is one message. Every message has its own tag, so that a receive can only match its own
send.

In addition to what ASTRA-sim reads, nodes say which chunks they handle: `chunks` is `chunk:into` for each chunk of a
message, `operands` is `rank:chunk` for each operand of a fold, in order. So a set of traces can be read back and
proved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np

from ...division import chunk_bounds
from ...errors import ScheduleError, UsageError
from ...proof import verify
from ...schedules import Schedule
from ..equivalence import check_equivalent
from ..folds import ChunkFold, folds_of
from ..timed import TimedMove, assemble, cells_after_chunks, laid_out
from .wire import COMP, RECEIVE, SEND, Node, Value, decode, encode

_MOST_TAG = 2**31 - 1
_MOST_BYTES = 2**56  # leaves room for the operands of a fold in 64 bits


def write(schedule: Schedule, size: int) -> list[bytes]:
    """The trace of every rank, for a buffer of `size` bytes, read back and proved to do what the schedule does."""
    if not schedule.promise.carries_data:
        raise UsageError(f"{schedule.collective} carries no data, so there is nothing to simulate")
    if not 1 <= size <= _MOST_BYTES:
        raise UsageError(f"size must be at least 1 byte and at most 2**56, which a trace can count, not {size}")
    verify(schedule, programs=False)
    about: dict[str, Value] = {
        "collective": schedule.collective,
        "algorithm": schedule.algorithm,
        "ranks": schedule.ranks,
        "chunks": schedule.chunks,
    }
    if schedule.root is not None:
        about["root"] = schedule.root
    files = [encode(about, trace) for trace in _traces(schedule, size)]
    check_equivalent(schedule, read(files))
    return files


def _traces(schedule: Schedule, size: int) -> list[list[Node]]:
    ranks = [_Trace() for _ in range(schedule.ranks)]
    lengths = np.diff(chunk_bounds(size, schedule.chunks)).tolist()

    def length(*chunks: int) -> int:
        """Bytes of what is in one of these chunks, the first that is not scratch; what passes through scratch only is even."""
        return next((lengths[chunk] for chunk in chunks if chunk < schedule.chunks), -(-size // schedule.chunks))

    tag = 0
    for step, folds in enumerate(folds_of(schedule)):
        messages: dict[tuple[int, int], list[tuple[int, ChunkFold]]] = defaultdict(list)
        written = {(fold.rank, fold.chunk) for fold in folds}
        for fold in folds:
            for source, chunk in fold.operands:
                if source != fold.rank:
                    messages[source, fold.rank].append((chunk, fold))
        shared: dict[tuple[int, int], dict[str, Value]] = {}
        for (source, destination), parts in sorted(messages.items()):
            shared[source, destination] = {
                "is_cpu_op": False,
                "comm_size": max(1, sum(length(chunk, fold.chunk) for chunk, fold in parts)),
                "comm_src": source,
                "comm_dst": destination,
                "comm_tag": tag,
                "chunks": ",".join(f"{chunk}:{fold.chunk}" for chunk, fold in parts),
            }
            name = f"send to {destination}, step {step}"
            ranks[source].add(name, SEND, shared[source, destination], reads=[chunk for chunk, _ in parts])
            tag += 1
        for fold in folds:
            for source, chunk in fold.operands:
                if source == fold.rank and chunk != fold.chunk and (source, chunk) in written:
                    ranks[source].keep(chunk, step, length(chunk))
        arrived = {}
        for (source, destination), parts in sorted(messages.items()):
            # A copy is written where it belongs; data to be combined stays with the message until then.
            writes = [fold.chunk for _, fold in parts if len(fold.operands) == 1]
            name = f"receive from {source}, step {step}"
            arrived[source, destination] = ranks[destination].add(
                name, RECEIVE, shared[source, destination], (), writes
            )
        for fold in folds:
            if len(fold.operands) > 1 or fold.operands[0][0] == fold.rank:
                needs = {arrived[source, fold.rank] for source, _ in fold.operands if source != fold.rank}
                ranks[fold.rank].fold(fold, step, length(fold.chunk), needs)
        for rank in ranks:
            rank.settle()
    if tag > _MOST_TAG:
        raise UsageError(f"{schedule.title} has {tag} messages; a Chakra trace can number {_MOST_TAG}")
    return [rank.nodes for rank in ranks]


class _Trace:
    """The nodes of one rank, under construction: which node wrote each chunk last, and which have read it since."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._writer: dict[int, int] = {}
        self._readers: dict[int, set[int]] = defaultdict(set)
        self._new: dict[int, int] = {}
        self._kept: dict[int, int] = {}

    def add(
        self,
        name: str,
        type: int,
        attributes: dict[str, Value],
        reads: Iterable[int] = (),
        writes: Iterable[int] = (),
        needs: Iterable[int] = (),
    ) -> int:
        number = len(self.nodes)
        wanted = set(needs)
        for chunk in reads:
            wanted |= {self._writer[chunk]} if chunk in self._writer else set()
        for chunk in writes:
            wanted |= self._readers[chunk] | ({self._writer[chunk]} if chunk in self._writer else set())
            self._new[chunk] = number
        for chunk in reads:
            self._readers[chunk].add(number)
        self.nodes.append(Node(number, name, type, tuple(sorted(wanted)), dict(attributes)))
        return number

    def keep(self, chunk: int, step: int, length: int) -> None:
        """Save what a chunk holds for another chunk of this rank, because it is replaced in the same step."""
        if chunk not in self._kept:
            attributes: dict[str, Value] = {"is_cpu_op": False, "num_ops": 0, "tensor_size": length, "keeps": chunk}
            self._kept[chunk] = self.add(f"keep chunk {chunk}, step {step}", COMP, attributes, reads=[chunk])

    def fold(self, fold: ChunkFold, step: int, length: int, needs: set[int]) -> None:
        words, reads = [], []
        for source, chunk in fold.operands:
            kept = chunk != fold.chunk and source == fold.rank and chunk in self._kept
            words.append(f"{source}:{chunk}" + (f"@{self._kept[chunk]}" if kept else ""))
            if kept:
                needs.add(self._kept[chunk])
            elif source == fold.rank:
                reads.append(chunk)
        attributes: dict[str, Value] = {
            "is_cpu_op": False,
            "num_ops": (len(fold.operands) - 1) * length,
            "tensor_size": len(fold.operands) * length,
            "into": fold.chunk,
            "operands": ",".join(words),
        }
        verb = "fold" if len(words) > 1 else "copy"
        self.add(f"{verb} chunk {fold.chunk}, step {step}", COMP, attributes, reads, [fold.chunk], needs)

    def settle(self) -> None:
        for chunk, node in self._new.items():
            self._writer[chunk] = node
            self._readers[chunk] = set()
        self._new.clear()
        self._kept.clear()


# Reading them back ----------------------------------------------------------------------------------------------------


def read(files: Sequence[bytes]) -> Schedule:
    """The schedule of a set of traces, one per rank, as `write` makes them.

    Raises `ScheduleError` if nodes wait forever or messages do not match, and `UsageError` if this is no such set.
    """
    parsed = [decode(data) for data in files]
    if not parsed or any(about != parsed[0][0] for about, _ in parsed) or parsed[0][0].get("ranks") != len(files):
        raise UsageError("these are not the traces of all ranks of one algorithm")
    about, traces = parsed[0][0], [nodes for _, nodes in parsed]
    try:
        chunks, root = int(about["chunks"]), int(about["root"]) if "root" in about else None
        moves = _moves(traces, _order(traces))
        steps, cells = laid_out(moves, lambda moves: cells_after_chunks(moves, chunks))
        name, collective = str(about["algorithm"]), str(about["collective"])
        return assemble(collective, name, len(files), root, chunks, ((step, cells) for step in steps))
    except (KeyError, ValueError, IndexError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"these are not Chakra traces as they are written here: {error!r}") from None


_Id = tuple[int, int]
"""A rank, and a node of its trace."""


def _order(traces: Sequence[Sequence[Node]]) -> list[_Id]:
    """An order in which the nodes can run: after the nodes they need, and a receive after its send."""
    needs: dict[_Id, set[_Id]] = {}
    sends: dict[tuple[Value, ...], _Id] = {}
    receives: dict[tuple[Value, ...], _Id] = {}
    for rank, nodes in enumerate(traces):
        for place, node in enumerate(nodes):
            if node.id != place or any(not 0 <= need < len(nodes) for need in node.needs):
                raise UsageError(f"the nodes of rank {rank}'s trace are not numbered 0, 1, 2, …")
            needs[rank, place] = {(rank, need) for need in node.needs}
            for type, ends in ((SEND, sends), (RECEIVE, receives)):
                if node.type == type:
                    words = ("comm_src", "comm_dst", "comm_tag", "comm_size", "chunks")
                    key = tuple(node.attributes[word] for word in words)
                    if key in ends or key[0 if type == SEND else 1] != rank:
                        raise ScheduleError(
                            f"node {place} of rank {rank}, {node.name}, repeats a tag or names another rank"
                        )
                    ends[key] = rank, place
    for key in {*sends, *receives}:
        if key not in sends or key not in receives:
            what = "is never received" if key in sends else "was never sent"
            raise ScheduleError(f"message {key[2]} of {key[3]} bytes from rank {key[0]} to rank {key[1]} {what}")
        needs[receives[key]].add(sends[key])
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        rank, place = error.args[1][0]
        raise ScheduleError(
            f"node {place} of rank {rank}, {traces[rank][place].name}, waits forever", rank=rank
        ) from None


def _moves(traces: Sequence[Sequence[Node]], order: list[_Id]) -> list[TimedMove]:
    sent: dict[tuple[Value, Value, Value], int] = {}
    read_at: dict[_Id, int] = {}  # by receive: when its data was read at the sender
    folded = set()  # receives whose data goes into a fold, and which write nothing themselves
    for rank, nodes in enumerate(traces):
        for node in nodes:
            for source, chunk, _ in _operands(node):
                if source != rank:
                    folded.add((rank, _bringing(nodes, node, source, chunk), chunk, int(node.attributes["into"])))
    moves = []
    for time, (rank, place) in enumerate(order):
        node = traces[rank][place]
        if node.type in (SEND, RECEIVE):
            key = (node.attributes["comm_src"], node.attributes["comm_dst"], node.attributes["comm_tag"])
            if node.type == SEND:
                sent[key] = time
                continue
            source = int(node.attributes["comm_src"])
            read_at[rank, place] = sent[key]
            for word in str(node.attributes["chunks"]).split(","):
                chunk, into = map(int, word.split(":"))
                if (rank, place, chunk, into) not in folded:
                    ends = (source, "row", chunk), (rank, "row", into)
                    moves.append(TimedMove(False, *ends, sent[key], time, f"rank {rank} node {place}"))
        elif "keeps" in node.attributes:
            ends = (rank, "row", int(node.attributes["keeps"])), (rank, "t", place)
            moves.append(TimedMove(False, *ends, time, time, f"rank {rank} node {place}"))
        else:
            into, operands = int(node.attributes["into"]), _operands(node)
            for source, chunk, kept in operands:
                if (source, chunk) == (rank, into) and kept < 0:
                    continue
                read = time
                if source != rank:
                    read = read_at[rank, _bringing(traces[rank], node, source, chunk)]
                start = (rank, "t", kept) if kept >= 0 else (source, "row", chunk)
                site = f"rank {rank} node {place}"
                moves.append(TimedMove(len(operands) > 1, start, (rank, "row", into), read, time, site, group=time))
    return moves


def _operands(node: Node) -> list[tuple[int, int, int]]:
    """Rank and chunk of every operand, and the node that saved it, or −1."""
    found = []
    for word in str(node.attributes.get("operands", "")).split(",") if node.type == COMP else ():
        if word:
            operand, _, kept = word.partition("@")
            source, chunk = map(int, operand.split(":"))
            found.append((source, chunk, int(kept or -1)))
    return found


def _bringing(nodes: Sequence[Node], node: Node, source: int, chunk: int) -> int:
    part = f"{chunk}:{node.attributes['into']}"
    for need in reversed(node.needs):  # the last: an earlier one may have brought what the chunk held before
        other = nodes[need].attributes
        if nodes[need].type == RECEIVE and other["comm_src"] == source and part in str(other["chunks"]).split(","):
            return need
    raise ScheduleError(f"{node.name} combines chunk {chunk} of rank {source} before it was received")
