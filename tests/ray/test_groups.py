"""Groups of real Ray actors on allfold, on one host and on two simulated ones, against NumPy.

`make test-frameworks` runs this with an environment that has ray; elsewhere it is skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

collective = pytest.importorskip("ray.util.collective", reason="needs ray: make test-frameworks")
torch = pytest.importorskip("torch")
import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from ray.experimental import internal_kv  # noqa: E402
from ray.util.collective import types  # noqa: E402

import allfold as af  # noqa: E402
import allfold.ray  # noqa: E402

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors need not import the tests

SECONDS = 100  # after which a test fails; no test waits for it
HOSTS = {"one host": "aaa", "two hosts": "abb"}
OPS = {
    types.ReduceOp.SUM: np.add,
    types.ReduceOp.PRODUCT: np.multiply,
    types.ReduceOp.MIN: np.minimum,
    types.ReduceOp.MAX: np.maximum,
}
LARGE = (70_001, 3)  # above the size from which the arrays of a list are not copied
SHAPES = [(0,), (1,), (3, 7), (1000,), LARGE]


class Member:
    def do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)


def start(host: str) -> Any:
    """An actor on a simulated host, which is a node of Ray."""
    environment = {"env_vars": {"ALLFOLD_HOSTID": host}}
    return ray.remote(Member).options(num_cpus=0, resources={host: 1}, runtime_env=environment).remote()


def begin(members: Sequence[Any], work: Callable[..., Any], *arguments: Any) -> list[Any]:
    return [member.do.remote(work, rank, *arguments) for rank, member in enumerate(members)]


def run(members: Sequence[Any], work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The results of `work(rank, …)` on every member."""
    results: list[Any] = ray.get(begin(members, work, *arguments), timeout=SECONDS)
    return results


def join(rank: int, size: int, name: str = "default", timeout: float = 300) -> None:
    allfold.ray.register(timeout)
    collective.init_collective_group(size, rank, "allfold", name)


def leave(rank: int, name: str = "default") -> None:
    collective.destroy_collective_group(name)


def raised(work: Callable[..., Any], *arguments: Any) -> tuple[str, str]:
    try:
        work(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Two nodes of Ray on this machine, one for each simulated host."""
    head = {"num_cpus": 4, "resources": {"a": 100}, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    nodes.add_node(num_cpus=4, resources={"b": 100})
    hook = {"worker_process_setup_hook": "allfold.ray.register"}
    ray.init(nodes.address, log_to_driver=False, runtime_env=hook)
    yield
    left = internal_kv._internal_kv_list("", namespace="allfold")
    ray.shutdown()
    nodes.shutdown()
    assert not left


class Pool(list[Any]):
    """Actors, and how their hosts are called."""

    def __init__(self, names: str) -> None:
        super().__init__(start(name) for name in names)
        self.names = names

    def replace(self, rank: int) -> None:
        ray.kill(self[rank])
        self[rank] = start(self.names[rank])


@pytest.fixture(scope="module", params=HOSTS)
def hosts(request: pytest.FixtureRequest, cluster: None) -> Iterator[Pool]:
    """Three actors without a group."""
    pool = Pool(HOSTS[request.param])
    yield pool
    for member in pool:
        ray.kill(member)


@pytest.fixture
def members(hosts: Pool) -> Iterator[Pool]:
    """Three actors in a group."""
    run(hosts, join, len(hosts))
    yield hosts
    run(hosts, leave)


def drawn(rank: int, shape: Sequence[int], dtype: str, place: int = 0) -> Any:
    """Whole numbers from 0 to 3: sums and products of three are exact in every type."""
    random = np.random.default_rng([rank, place, *shape])
    return random.integers(0, 4, shape).astype("float32" if dtype == "bfloat16" else dtype)


def kinds(array: Any, dtype: str) -> list[Any]:
    """Copies of an array as NumPy and torch have it, contiguous and not."""
    tensor = torch.from_numpy(array.copy()).to(getattr(torch, dtype))
    spread = torch.stack([tensor, tensor], dim=-1)[..., 0]
    if dtype == "bfloat16":
        return [tensor, spread]
    return [array.copy(), np.stack([array, array], axis=-1)[..., 0], tensor, spread]


def check(found: Any, expected: Any) -> None:
    if isinstance(found, torch.Tensor):
        found = found.float().numpy() if found.dtype == torch.bfloat16 else found.numpy()
    np.testing.assert_array_equal(found, expected)


def every_collective(rank: int, size: int, dtype: str) -> None:
    for shape in SHAPES:
        inputs = [drawn(one, shape, dtype) for one in range(size)]
        parts = [[drawn(one, shape, dtype, place) for place in range(size)] for one in range(size)]
        root = len(shape) % size
        for number, own in enumerate(kinds(inputs[rank], dtype)):
            for op, function in [*OPS.items()][: 1 if shape == LARGE else None]:
                combined = function.reduce(inputs).astype(inputs[0].dtype)
                x = kinds(inputs[rank], dtype)[number]
                collective.allreduce(x, op=op)
                check(x, combined)
                x = kinds(inputs[rank], dtype)[number]
                collective.reduce(x, root, op=op)
                check(x, combined if rank == root else inputs[rank])
                entries = [kinds(part, dtype)[number] for part in parts[rank]]
                result = kinds(np.zeros_like(inputs[0]), dtype)[number]
                collective.reducescatter(result, entries, op=op)
                check(result, function.reduce([row[rank] for row in parts]).astype(inputs[0].dtype))
                for entry, part in zip(entries, parts[rank], strict=True):
                    check(entry, part)
            outputs = [kinds(np.zeros_like(inputs[0]), dtype)[number] for _ in range(size)]
            collective.allgather(outputs, own)
            for output, expected in zip(outputs, inputs, strict=True):
                check(output, expected)
            check(own, inputs[rank])
            collective.broadcast(own, root)
            check(own, inputs[root])
            collective.barrier()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "float16", "bfloat16"])
def test_every_collective_gives_what_numpy_gives(members: Pool, dtype: str) -> None:
    run(members, every_collective, len(members), dtype)


def messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for shape in SHAPES:
        for number, own in enumerate(kinds(drawn(rank, shape, "float32"), "float32")):
            came = kinds(np.zeros(shape, "float32"), "float32")[number]
            collective.send(own, right)  # all send first: nobody waits for a receiver
            collective.recv(came, left)
            check(came, drawn(left, shape, "float32"))
    group = collective.get_group_handle()
    first, x = types.SendOptions(), np.arange(5.0) + rank
    first.dst_rank, first.n_elements = right, 2
    group.send([x], first)
    into = types.RecvOptions()
    into.src_rank, into.n_elements = left, 2
    x = np.zeros(5)
    group.recv([x], into)
    check(x, [left, left + 1, 0, 0, 0])


def test_messages_arrive(members: Pool) -> None:
    run(members, messages, len(members))


def lists_of_different_lengths(rank: int, size: int) -> None:
    outputs = [np.zeros(one + 1) for one in range(size)]
    collective.allgather(outputs, np.full(rank + 1, float(rank)))
    for one, output in enumerate(outputs):
        check(output, np.full(one + 1, float(one)))
    result = torch.zeros(rank + 1)
    collective.reducescatter(result, [np.ones(one + 1, np.float32) for one in range(size)])
    check(result, np.full(rank + 1, float(size)))


def test_lists_may_have_arrays_of_different_lengths_and_kinds(members: Pool) -> None:
    run(members, lists_of_different_lengths, len(members))


def long_lists(rank: int, size: int) -> tuple[str, str]:
    """Lists whose arrays are copied in several segments; then ones that differ between ranks in the last segment only."""
    elements, random = 1_100_001, np.random.default_rng(rank)
    entries = [random.integers(0, 100, elements).astype(np.float64) for _ in range(size)]
    result, sums = np.empty(elements), [entry.copy() for entry in entries]
    for one in sums:
        collective.allreduce(one)
    collective.reducescatter(result, entries)
    check(result, sums[rank])
    return raised(collective.reducescatter, np.empty(elements + rank % 2), [np.ones(elements + rank % 2)] * size)


def test_long_lists_go_in_segments(members: Pool) -> None:
    for kind, text in run(members, long_lists, len(members)):
        assert kind == "MismatchError" and "from 1100001 to 1100002 elements" in text


def two_groups(rank: int, size: int) -> list[float]:
    join(size - 1 - rank, size, "backwards")
    assert collective.get_rank("backwards") == size - 1 - rank
    assert collective.get_collective_group_size("backwards") == size
    found = []
    for _ in range(3):
        x, y = np.full(1000, float(rank)), np.full(1000, float(rank))
        collective.broadcast(x, 0, "backwards")
        collective.broadcast(y, 0)
        found += [x[0], y[-1]]
    leave(rank, "backwards")
    return found


def test_an_actor_may_be_in_two_groups(members: Pool) -> None:
    assert run(members, two_groups, len(members)) == [[2.0, 0.0] * 3] * 3


def declared(rank: int, name: str) -> tuple[int, float]:
    x = torch.full((3,), 2.0)
    collective.allreduce(x, name)
    return collective.get_rank(name), float(x[0])


def test_the_driver_may_declare_a_group(hosts: Pool) -> None:
    assert collective.is_backend_available("allfold")
    collective.create_collective_group(hosts, 3, [2, 0, 1], backend="allfold", group_name="declared")
    assert run(hosts, declared, "declared") == [(2, 6.0), (0, 6.0), (1, 6.0)]
    run(hosts, leave, "declared")


def test_groups_of_one_and_many_times_the_same_name(hosts: Pool) -> None:
    for size in (1, 3, 2):
        run(hosts[:size], join, size, "again")
        assert run(hosts[:size], declared, "again") == [(rank, 2.0 * size) for rank in range(size)]
        run(hosts[:size], leave, "again")


def test_a_held_group_that_was_destroyed_refuses_calls(hosts: Pool) -> None:
    def work(rank: int, size: int) -> tuple[str, str]:
        join(rank, size, "held")
        group = collective.get_group_handle("held")
        leave(rank, "held")
        return raised(group.allreduce, [np.ones(3)])

    for kind, text in run(hosts, work, len(hosts)):
        assert kind != "nothing" and "'held'" in text


# Faults ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("victim", "elements"), [(1, 1), (0, 3_000_000)])
def test_a_killed_actor_is_named_and_a_new_one_takes_its_place(hosts: Pool, victim: int, elements: int) -> None:
    def forever(rank: int) -> None:
        x = np.ones(elements)
        while rank != victim:
            collective.allreduce(x, "killed")

    def sums(rank: int) -> float:
        x = np.ones(elements)
        collective.allreduce(x, "killed")
        return float(x[0])

    run(hosts, join, 3, "killed")
    assert run(hosts, sums) == [3.0] * 3
    calls = begin(hosts, forever)
    ray.get(calls.pop(victim), timeout=SECONDS)
    hosts.replace(victim)
    for call in calls:
        with pytest.raises(af.RankLost, match=rf"rank {victim}.*in Ray's group 'killed'"):
            ray.get(call, timeout=SECONDS)
    for rank in {0, 1, 2} - {victim}:
        ray.get(hosts[rank].do.remote(leave, rank, "killed"), timeout=SECONDS)
    run(hosts, join, 3, "killed")
    assert run(hosts, sums) == [3.0] * 3
    run(hosts, leave, "killed")


def test_ranks_that_differ_are_named(hosts: Pool) -> None:
    def work(rank: int) -> None:
        collective.allreduce(np.ones(10 + rank % 2, np.float32), "differ")

    run(hosts, join, 3, "differ")
    for call in begin(hosts, work):
        with pytest.raises(af.MismatchError, match=r"rank 1 (called it )?with float32\[11\]"):
            ray.get(call, timeout=SECONDS)
    run(hosts, leave, "differ")


def test_a_rank_that_does_not_come_is_named(hosts: Pool) -> None:
    for call in begin([hosts[0], hosts[1]], join, 3, "short", 1.0):
        with pytest.raises(
            af.CollectiveTimeout, match=r"rank 2 of 3 did not arrive within 1 s \(in Ray's group 'short'\)"
        ):
            ray.get(call, timeout=SECONDS)
    with pytest.raises(af.CollectiveTimeout, match="rank 0 of 2 did not arrive"):
        ray.get(hosts[1].do.remote(join, 1, 2, "nobody", 1.0), timeout=SECONDS)
    run(hosts, join, 3, "short")  # what the attempt left behind does no harm
    run(hosts, leave, "short")


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_world_sizes_that_differ_are_named(hosts: Pool, sizes: tuple[int, int]) -> None:
    calls = [member.do.remote(join, rank, sizes[rank], "sizes") for rank, member in enumerate(hosts[:2])]
    for call in calls:
        with pytest.raises(af.MismatchError, match=f"world size of {sizes[0]}, rank 1 one of {sizes[1]}"):
            ray.get(call, timeout=SECONDS)
    run(hosts, join, 3, "sizes")
    run(hosts, leave, "sizes")


def test_two_actors_with_one_rank_are_refused(hosts: Pool) -> None:
    calls = [hosts[place].do.remote(join, rank, 2, "twice", 2.0) for place, rank in enumerate((0, 1, 1))]
    came = [raised(ray.get, call)[1] for call in calls]
    assert sum("another actor has joined as rank 1" in text for text in came[1:]) == 1
    assert came[1:].count("") == 1
    for member, text in zip(hosts, came, strict=True):
        if not text:
            ray.get(member.do.remote(leave, 0, "twice"), timeout=SECONDS)


def test_what_a_dead_attempt_left_behind_is_not_believed(hosts: Pool) -> None:
    """Its rank 0 died after its verdict: a new rank 1 finds it before the new rank 0 has come."""
    from allfold.ray.meeting import KeyValues, prefix_of

    def leftover(rank: int) -> None:
        store = KeyValues(prefix_of("stale"))
        store.put("run", b"old")
        store.put("old/verdict", b'[[["", 2], ["somebody", 2]], "00"]')

    def answered(rank: int) -> bool:
        return KeyValues(prefix_of("stale")).find(["old/ready/1"], SECONDS) != [None]

    ray.get(hosts[0].do.remote(leftover, 0), timeout=SECONDS)
    waiting = hosts[1].do.remote(join, 1, 2, "stale")
    assert ray.get(hosts[0].do.remote(answered, 0), timeout=SECONDS)
    ray.get([waiting, hosts[0].do.remote(join, 0, 2, "stale")], timeout=SECONDS)
    run(hosts[:2], leave, "stale")


def wrong_arguments(rank: int, size: int) -> list[tuple[str, str]]:
    group, x = collective.get_group_handle(), np.ones(4)
    frozen = x.copy()
    frozen.flags.writeable = False
    nothing = types.AllReduceOptions()
    nothing.reduceOp = "sum"
    hasty = types.RecvOptions()
    hasty.src_rank, hasty.timeout_ms = (rank + 1) % size, timedelta(milliseconds=10)
    too_many = types.SendOptions()
    too_many.dst_rank, too_many.n_elements = (rank + 1) % size, 5
    return [
        raised(collective.allreduce, frozen),
        raised(collective.allreduce, np.array(["words"])),
        raised(group.allreduce, [x, x]),
        raised(group.allreduce, [x], nothing),
        raised(group.allgather, [[x] * (size + 1)], [x]),
        raised(collective.allgather, [np.ones(4, np.float32)] * size, x),
        raised(collective.allgather, [np.ones(5)] * size, x),
        raised(collective.reducescatter, x, [np.ones(3)] * size),
        raised(group.send, [x], too_many),
        raised(group.recv, [x], hasty),
    ]


def test_wrong_arguments_are_refused_and_the_group_goes_on(members: Pool) -> None:
    expected = [
        ("UsageError", "read-only"),
        ("UsageError", "<U5"),
        ("UsageError", "one array per actor, and 2 were given"),
        ("UsageError", "expected a ReduceOp of Ray, not 'sum'"),
        ("UsageError", "the list has 4 arrays, expected one for each of 3 ranks"),
        ("UsageError", "entry 0 of the list is float32[4]"),
        ("UsageError", "is float64[5], and the array to gather of rank"),
        ("UsageError", "is float64[3], and the array for the result of rank"),
        ("UsageError", "n_elements is 5; the array has 4"),
        ("CollectiveTimeout", "0.01 s"),
    ]
    for came in run(members, wrong_arguments, len(members)):
        for (kind, text), (expected_kind, part) in zip(came, expected, strict=True):
            assert kind == expected_kind and part in text and "in Ray's group 'default'" in text
    assert run(members, declared, "default") == [(0, 6.0), (1, 6.0), (2, 6.0)]


def late(rank: int) -> tuple[str, str]:
    """A barrier without rank 1, in which rank 0 alone is in a hurry: ranks that give up at once may all name each other."""
    options = types.BarrierOptions()
    if rank == 0:
        options.timeout_ms = timedelta(seconds=0.2)
    return ("nothing", "") if rank == 1 else raised(collective.get_group_handle("late").barrier, options)


def test_options_may_have_a_timeout(hosts: Pool) -> None:
    run(hosts, join, 3, "late")
    (first, why), _, (last, because) = run(hosts, late)
    assert first == "CollectiveTimeout" and "0.2 s" in why, why
    assert last in ("RankLost", "CollectiveTimeout") and "rank 0 gave up" in because, because
    run(hosts, leave, "late")
