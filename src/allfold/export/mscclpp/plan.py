"""MSCCL++ execution plans, as the executor treats them: its rules, and a run of the plan.

`check_plan` rejects what `execution_plan.cc` would reject, or what does not fit the tables of `execution_common.hpp`.
`read` follows a run of the plan: signals are counted, puts become visible when they are signalled, and
two unordered accesses to the same memory are a race.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ...collectives import find_collective
from ...documents import parse
from ...errors import ScheduleError, UsageError
from ...schedules import Schedule
from ..happens_before import Accesses, Happening, run_threads
from ..timed import Place, TimedMove, assemble, cells_after_chunks, laid_out

COLLECTIVES = {ours.replace("_", ""): ours for ours in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")}
"""The collectives of the MSCCL++ language: its names and ours."""

MOST_OPERATIONS = 64  # of a thread block
MOST_CHANNELS = 16  # per thread block, and as many remote buffers
MOST_PEERS = 8  # per operation
MOST_OPERANDS = 10  # per reduction
MOST_SEMAPHORES = 16

_NAMES = ("nop", "signal", "wait", "put", "copy", "re", "sem_acquire", "sem_release")
_HEAD = {
    "name": str,
    "collective": str,
    "protocol": str,
    "inplace": bool,
    "reuse_resources": bool,
    "gpus": list,
    "num_threads_per_block": int,
    "use_double_scratch_buffer": bool,
    "buffer_alignment": int,
    "min_message_size": int,
    "max_message_size": int,
}


def check_plan(plan: Any) -> None:
    """Raise `UsageError` if the executor would reject this plan, or if it uses features that are not supported here."""
    _need(isinstance(plan, dict), "it is not an object")
    for key, type in _HEAD.items():
        _need(isinstance(plan.get(key), type), f"{key} is {plan.get(key)!r}")
    _need(plan["collective"] in COLLECTIVES, f"its collective is {plan['collective']!r}")
    _need(plan["protocol"] == "Simple", f"its protocol is {plan['protocol']!r}; only Simple is read here")
    _need(bool(plan["gpus"]) and len(plan["gpus"]) < 2**16, "it has no gpus")
    for rank, gpu in enumerate(plan["gpus"]):
        _need(isinstance(gpu, dict) and gpu.get("id") == rank, f"gpu {rank} is not the {rank}th")
        for key in ("input_chunks", "output_chunks", "scratch_chunks"):
            least = 0 if key == "scratch_chunks" else 1
            _need(_is_count(gpu.get(key), least), f"{key} of gpu {rank} is {gpu.get(key)!r}")
        for key in ("threadblocks", "channels", "remote_buffers", "semaphores"):
            _need(isinstance(gpu.get(key), list), f"{key} of gpu {rank} is {gpu.get(key)!r}")
        _need(
            len(gpu["semaphores"]) <= MOST_SEMAPHORES,
            f"gpu {rank} needs {len(gpu['semaphores'])} semaphores, and there are {MOST_SEMAPHORES}",
        )
    # Blocks name chunks of all gpus, so they are checked after the gpus.
    for rank, gpu in enumerate(plan["gpus"]):
        for number, block in enumerate(gpu["threadblocks"]):
            try:
                _check_block(plan, rank, number, block)
            except (
                AttributeError,
                IndexError,
                KeyError,
                TypeError,
            ) as error:  # something is missing, or of the wrong type
                raise UsageError(
                    f"this is not an MSCCL++ plan: thread block {number} of gpu {rank}: {error!r}"
                ) from None


def _check_block(plan: dict[str, Any], rank: int, number: int, block: Any) -> None:
    where = f"thread block {number} of gpu {rank}"
    _need(isinstance(block, dict) and block.get("id") == number, f"{where} has another id")
    operations = block.get("ops")
    _need(isinstance(operations, list), f"{where} has no ops")
    _need(
        len(operations) <= MOST_OPERATIONS, f"{where} has {len(operations)} operations, and {MOST_OPERATIONS} are taken"
    )
    view = _View(plan, rank, block)
    _need(
        len(view.peers) <= MOST_CHANNELS, f"{where} has {len(view.peers)} peers, and a thread block has {MOST_CHANNELS}"
    )
    _need(
        len(view.buffers) <= MOST_CHANNELS,
        f"{where} writes to {len(view.buffers)} buffers of others, and a thread block has {MOST_CHANNELS}",
    )
    fresh = _Unsynchronised()
    for operation in operations:
        _need(
            isinstance(operation, dict) and operation.get("name") in _NAMES, f"{where} has the operation {operation!r}"
        )
        name = operation["name"]
        sources, local, remote, peers, semaphores = view.parts(operation, where)
        limits = {"put": (MOST_PEERS, MOST_PEERS), "re": (MOST_OPERANDS, 1), "copy": (1, 1)}
        most_in, most_out = limits.get(name, (0, 0))
        _need(
            len(sources) <= most_in and len(local) + len(remote) <= most_out, f"{name} in {where} has too many buffers"
        )
        _need(name != "put" or len({buffer for buffer, _ in sources}) == 1, f"put in {where} reads from two buffers")
        _need(name != "put" or (len(sources) == len(remote) > 0 and not local), f"put in {where} is not between ranks")
        _need(name not in ("copy", "re") or (bool(sources) and len(local) == 1), f"{name} in {where} is incomplete")
        _need((name in ("signal", "wait")) == bool(peers), f"{name} in {where} has the peers {peers}")
        _need(len(peers) <= MOST_PEERS, f"{name} in {where} has {len(peers)} peers, and at most {MOST_PEERS} are taken")
        _need(name.startswith("sem_") == bool(semaphores), f"{name} in {where} has the semaphores {semaphores}")
        fault = fresh.take(name, sources, local)
        _need(fault == "", f"{name} in {where} {fault} without a nop between, so its threads are not in step")


class _Unsynchronised:
    """The accesses of a thread block's threads since they were last synchronised, which a nop does."""

    def __init__(self) -> None:
        self.read: set[tuple[str, int]] = set()
        self.written: set[tuple[str, int]] = set()
        self.forget()

    def forget(self) -> None:
        self.waited = self.moved = False
        self.read.clear()
        self.written.clear()

    def take(self, name: str, sources: list[tuple[str, int]], local: list[tuple[str, int]]) -> str:
        """Record an operation; returns what is wrong with it."""
        if name == "nop":
            self.forget()
        elif name in ("wait", "sem_acquire"):
            self.waited = True
        elif name in ("signal", "sem_release"):
            return "follows what it tells of" if self.moved else ""
        else:
            fault = "follows a wait" if self.waited else ""
            if self.written & {*sources, *local} or self.read & {*local}:
                fault = "uses what was just moved"
            self.moved = True
            self.read |= {*sources}
            self.written |= {*local}
            return fault
        return ""


class _View:
    """Resolves the numbers in a thread block's operations."""

    def __init__(self, plan: dict[str, Any], rank: int, block: dict[str, Any]) -> None:
        self.gpus, self.rank = plan["gpus"], rank
        gpu = self.gpus[rank]
        try:
            connected = [peer for channel in gpu["channels"] for peer in channel["connected_to"]]
            self.peers = [connected[number] for channel in block["channels"] for number in channel["channel_ids"]]
            remote = [(buffer["rank"], buffer["type"]) for buffer in gpu["remote_buffers"]]
            self.buffers = [remote[one] for ref in block["remote_buffer_refs"] for one in ref["remote_buffer_ids"]]
            kinds = {channel["channel_type"] for channel in [*gpu["channels"], *block["channels"]]}
        except (KeyError, TypeError, IndexError) as error:
            raise UsageError(f"this is not an MSCCL++ plan: the channels of gpu {rank}: {error!r}") from None
        _need(kinds <= {"memory"}, f"gpu {rank} has channels of the kinds {kinds}; only memory is read here")
        ranks = range(len(self.gpus))
        _need(all(peer in ranks and peer != rank for peer in self.peers), f"gpu {rank} has the peers {self.peers}")
        _need(
            all(peer in ranks and buffer in ("i", "o", "s") for peer, buffer in self.buffers),
            f"gpu {rank} has the remote buffers {self.buffers}",
        )

    def parts(
        self, operation: dict[str, Any], where: str
    ) -> tuple[list[tuple[str, int]], list[tuple[str, int]], list[Place], list[int], list[int]]:
        """Local sources, local destinations, remote destinations, peers and semaphores."""
        try:
            sources = [(buffer["type"], buffer["index"]) for buffer in operation.get("src_buff", [])]
            targets = operation.get("dst_buff", [])
            local = [(buffer["type"], buffer["index"]) for buffer in targets if "type" in buffer]
            remote = [(*self.buffers[one["buffer_id"]], one["index"]) for one in targets if "buffer_id" in one]
            peers = [self.peers[number] for number in operation.get("channel_ids", [])]
            semaphores = list(operation.get("semaphore_ids", []))
            sizes = {buffer["size"] for buffer in [*operation.get("src_buff", []), *targets]}
        except (KeyError, TypeError, IndexError) as error:
            raise UsageError(f"this is not an MSCCL++ plan: {operation!r} in {where}: {error!r}") from None
        _need(sizes <= {1}, f"{where} handles several chunks at once, which is not read here")
        for rank, buffer, index in [*((self.rank, *place) for place in sources + local), *remote]:
            key = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}.get(buffer, "")
            _need(
                _is_count(index, 0) and key != "" and index < self.gpus[rank][key],
                f"{where} names chunk {index} of buffer {buffer} of gpu {rank}",
            )
        many = len(self.gpus[self.rank]["semaphores"])
        _need(all(_is_count(one, 0) and one < many for one in semaphores), f"{where} has the semaphores {semaphores}")
        return sources, local, remote, peers, semaphores


def _is_count(value: object, least: int) -> bool:
    return type(value) is int and least <= value < 2**31


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise UsageError(f"this is not an MSCCL++ plan that can be run: {what}")


# Running it -----------------------------------------------------------------------------------------------------------


def read(text: str | bytes) -> Schedule:
    """The schedule of a plan. `ScheduleError` if it deadlocks or races, `UsageError` if it is not a plan."""
    plan = parse(text)
    check_plan(plan)
    collective, ranks = COLLECTIVES[plan["collective"]], len(plan["gpus"])
    gpu = plan["gpus"][0]
    chunks = max(gpu["input_chunks"], gpu["output_chunks"])
    _need(chunks % find_collective(collective).slices(ranks) == 0, f"{chunks} chunks do not divide among {ranks} gpus")
    moves = _moves(plan, collective, chunks, *_run(plan))
    steps, cells = laid_out(moves, lambda moves: cells_after_chunks(moves, chunks))
    return assemble(collective, plan["name"], ranks, None, chunks, ((step, cells) for step in steps))


Actions = list[tuple[int, int, int, dict[str, Any]]]
"""Rank, thread block, position in it, and operation."""


def _run(plan: dict[str, Any]) -> tuple[Actions, Happening]:
    actions: Actions = []
    thread, position = [], []
    posted: dict[tuple[object, ...], list[int]] = defaultdict(list)
    awaited: dict[tuple[object, ...], list[int]] = defaultdict(list)
    threads = 0
    for rank, gpu in enumerate(plan["gpus"]):
        for number, block in enumerate(gpu["threadblocks"]):
            view = _View(plan, rank, block)
            for place, operation in enumerate(block["ops"]):
                *_, peers, semaphores = view.parts(operation, "")
                for peer in peers:
                    if operation["name"] == "signal":
                        posted["signal", rank, peer].append(len(actions))
                    else:
                        awaited["signal", peer, rank].append(len(actions))
                for semaphore in semaphores:
                    lists = posted if operation["name"] == "sem_release" else awaited
                    lists["semaphore", rank, semaphore].append(len(actions))
                actions.append((rank, number, place, operation))
                thread.append(threads)
                position.append(place)
            threads += 1
    needs: list[list[int]] = [[] for _ in actions]
    for action in range(1, len(actions)):
        if thread[action] == thread[action - 1]:
            needs[action].append(action - 1)
    for key in {*posted, *awaited}:
        if len(posted[key]) != len(awaited[key]):
            raise ScheduleError(
                f"{plan['name']}: {key[0]} {key[1:]} is posted {len(posted[key])} times and awaited otherwise"
            )
        for post, wait in zip(posted[key], awaited[key], strict=True):
            needs[wait].append(post)
    happening = run_threads(thread, position, needs, [[] for _ in actions])
    if happening.stuck >= 0:
        (rank, number, place, operation) = actions[happening.stuck]
        raise ScheduleError(
            f"{plan['name']}: deadlock: operation {place} ({operation['name']}) of thread block {number} of gpu {rank} "
            f"waits forever",
            rank=rank,
        )
    return actions, happening


def _moves(
    plan: dict[str, Any], collective: str, chunks: int, actions: Actions, happening: Happening
) -> list[TimedMove]:
    part, promise = chunks // len(plan["gpus"]), find_collective(collective)

    def row(rank: int, buffer: str, index: int) -> Place:
        """Input and output count as one memory, as in place: a plan for both modes must work in place too."""
        own = (buffer == "i" and promise.starts.sliced) or (buffer == "o" and promise.ends.sliced)
        return (rank, "s", index) if buffer == "s" else (rank, "row", index + (rank * part if own else 0))

    def race(first: int, second: int, place: Place) -> ScheduleError:
        ends = " and ".join(f"operation {actions[one][2]} of gpu {actions[one][0]}" for one in (first, second))
        return ScheduleError(f"{plan['name']}: race: {ends} both use chunk {place[2]} of gpu {place[0]}", rank=place[0])

    accesses = Accesses(happening, race)
    views: dict[tuple[int, int], _View] = {}
    moves = []
    for order, action in enumerate(happening.order):
        rank, number, place, operation = actions[action]
        view = views.setdefault((rank, number), _View(plan, rank, plan["gpus"][rank]["threadblocks"][number]))
        sources, local, remote, _, _ = view.parts(operation, "")
        time, site = 2 * order, f"gpu {rank} tb {number} op {place}"
        starts = [row(rank, *source) for source in sources]
        ends = [row(rank, *target) for target in local] + [row(*target) for target in remote]
        accesses.take(action, starts, ends)
        if operation["name"] in ("put", "copy"):
            moves += [TimedMove(False, *pair, time, time, site) for pair in zip(starts, ends, strict=True)]
        elif operation["name"] == "re":
            if ends[0] not in starts:
                moves.append(TimedMove(False, starts.pop(0), ends[0], time, time, site))
                time += 1
            for start in starts:
                if start != ends[0]:
                    moves.append(TimedMove(True, start, ends[0], time, time, site, group=action))
    return moves
