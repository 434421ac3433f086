"""Data-parallel training: the bits of one process where the mathematics allows it, those of torch's DDP otherwise.

Training results come from real processes; the behaviour of the class is tested with ranks as threads.
"""

from __future__ import annotations

import copy
import gc
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import allfold as af
from allfold.communicator.communicator import Communicator
from allfold.errors import MismatchError, RankFailed, RankLost, UsageError
from allfold.launch.threads import run_threads
from allfold.torch import DataParallel
from allfold.torch.training import timeline

BATCH, STEPS = 4, 4


# Trained by processes: what must be equal, and to what ----------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(3 * 4 * 4),
        nn.Linear(48, 20),
        nn.Tanh(),
        nn.Linear(20, 5),
    )


def batch_of(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1000 * step + rank)
    return torch.randn(BATCH, 1, 6, 6), torch.randint(5, (BATCH,))


def loss_of(module: nn.Module, rank: int, step: int) -> torch.Tensor:
    inputs, labels = batch_of(rank, step)
    return nn.functional.cross_entropy(module(inputs), labels)


def bits(module: nn.Module) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in module.state_dict().values()]


def accumulated_like_one_process(comm: Communicator) -> bool:
    """Train with all ranks; then on rank 0 alone, the ranks' batches in turn, divided by how many there are."""
    module = network()
    model = DataParallel(module, comm, bucket_bytes=512)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, comm.rank, step).backward()
        optimizer.step()
    alone = network()
    optimizer = torch.optim.Adam(alone.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(comm.size):
            loss_of(alone, rank, step).backward()
        for parameter in alone.parameters():
            assert parameter.grad is not None
            parameter.grad /= comm.size
        optimizer.step()
    return bits(module) == bits(alone)


def whole_batch_like_one_process(comm: Communicator) -> bool:
    """Where no sum rounds and the number of ranks is a power of two, it is the bits of the whole batch at once, too."""

    def train(module: nn.Module, ranks: list[int]) -> None:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.25)
        for step in range(2):  # fractions get longer with every step, and must still be exact
            generator = torch.Generator().manual_seed(step)
            everything = torch.randint(-4, 5, (comm.size, BATCH, 6), generator=generator).double()
            inputs = everything[ranks].flatten(0, 1)
            optimizer.zero_grad()
            output = module(inputs)
            ((output * inputs[:, :3]).sum() / len(inputs)).backward()
            optimizer.step()

    def small() -> nn.Module:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
        for parameter in module.parameters():
            parameter.data = torch.randint(-3, 4, parameter.shape).double()
        return module

    module, alone = small(), small()
    train(DataParallel(module, comm, bucket_bytes=32), [comm.rank])
    train(alone, list(range(comm.size)))
    return bits(module) == bits(alone)


class Branches(nn.Module):
    """Which layers are used depends on the step and on the rank; one is never used, and one has another type."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(36)
        self.layers = nn.ModuleList(nn.Linear(36, 5) for _ in range(4))
        self.wide = nn.Linear(36, 5, dtype=torch.float64)

    def forward(self, inputs: torch.Tensor, rank: int, step: int) -> torch.Tensor:
        flat = self.norm(inputs.flatten(1))
        output: torch.Tensor = self.layers[(rank + step) % 3](flat) + self.layers[0](flat)
        return output + self.wide(flat.double()).float()


def train_branches(model: Any, rank: int, *, accumulate: bool, clip: bool, set_to_none: bool) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        inputs, labels = batch_of(rank, step)
        optimizer.zero_grad(set_to_none)
        if accumulate:
            with model.no_sync():
                nn.functional.cross_entropy(model(inputs * 0.5, rank, step + 1), labels).backward()
        nn.functional.cross_entropy(model(inputs, rank, step), labels).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def like_ddp(comm: Communicator) -> list[tuple[str, bool, bool]]:
    """(case, the same bits, close) for every case."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("allfold")
    gloo, third = dist.new_group(backend="gloo"), dist.new_group(backend="allfold")
    plain = {"accumulate": False, "clip": False, "set_to_none": True, "compress": None}
    cases = (
        {},
        {"accumulate": True},
        {"clip": True},
        {"set_to_none": False},
        {"compress": "bfloat16"},
        {"accumulate": True, "clip": True, "set_to_none": False},
    )
    results = []
    for number, case in enumerate(cases):
        facts = plain | case
        compress = facts.pop("compress")
        theirs, ours = Branches(), Branches()
        model = DistributedDataParallel(theirs, process_group=gloo, find_unused_parameters=True)
        if compress:
            # Under its own name torch allows it only with NCCL; gloo can do it as well.
            model.register_comm_hook(gloo, lambda state, bucket: bf16_compress_hook(state, bucket))
        train_branches(model, comm.rank, **facts)
        communicator = (None, comm, third)[number % 3]  # torch's default group, a communicator, a group of torch's
        model = DataParallel(ours, communicator, bucket_bytes=256, compress=compress)
        train_branches(model, comm.rank, **facts)
        if facts["accumulate"] and comm.rank > 0:
            # DDP sends rank 0's buffers before the first pass of a cycle, even in no_sync; we send them before the
            # last, outside.
            for buffer, same in zip(theirs.norm.buffers(), ours.norm.buffers(), strict=True):
                buffer.copy_(same)
        close = all(
            torch.allclose(one, other, rtol=1e-2 if compress else 1e-5, atol=1e-3 if compress else 1e-6)
            for one, other in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
        )
        results.append((str(case), bits(ours) == bits(theirs), close))
    comm.barrier()
    dist.destroy_process_group()
    return results


@dataclass(frozen=True)
class Compared:
    on_one_host: bool
    in_turn: bool
    whole_batch: bool
    ddp: list[tuple[str, bool, bool]]


def compare(comm: Communicator) -> Compared:
    torch.set_num_threads(1)
    on_one_host = len(comm._engine.hosts()) == 1
    return Compared(on_one_host, accumulated_like_one_process(comm), whole_batch_like_one_process(comm), like_ddp(comm))


@pytest.fixture(scope="module", params=[(2, 1), (3, 1), (4, 2)], ids=lambda shape: "{} ranks, {} hosts".format(*shape))
def compared(request: pytest.FixtureRequest) -> list[Compared]:
    """Everything in one run for each number of ranks: starting processes takes longer than training."""
    ranks, hosts = request.param
    return af.spawn(compare, ranks, hosts=None if hosts == 1 else hosts, timeout=250)


def test_the_bits_of_one_process_that_takes_the_batches_in_turn(compared: list[Compared]) -> None:
    # On two hosts each adds up its own ranks first, which rounds differently.
    assert all(one.in_turn == one.on_one_host for one in compared)


def test_the_bits_of_one_process_with_the_whole_batch(compared: list[Compared]) -> None:
    # A third is not exact: three ranks divide what they have added, one process adds what it has divided.
    assert all(one.whole_batch == (len(compared) != 3) for one in compared)


def test_the_same_as_torchs_ddp(compared: list[Compared]) -> None:
    for one in compared:
        for case, same_bits, close in one.ddp:
            assert close, case
            # Two numbers have only one sum, and halving is exact, before it or after.
            assert same_bits or len(compared) > 2, case


# How it behaves, with ranks that are threads --------------------------------------------------------------------------


def on_threads(work: Callable[[Communicator], Any], ranks: int = 2) -> list[Any]:
    torch.set_num_threads(1)
    return run_threads(work, ranks, timeout=60)


def ones(rows: int, columns: int) -> nn.Linear:
    layer = nn.Linear(columns, rows, bias=False)
    nn.init.ones_(layer.weight)
    return layer


def gradients(module: nn.Module) -> list[float | None]:
    return [None if one.grad is None else float(one.grad.flatten()[0]) for one in module.parameters()]


def test_everybody_starts_with_what_rank_0_has() -> None:
    def work(comm: Communicator) -> None:
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        for tensor in module.state_dict().values():
            tensor.fill_(comm.rank + 1)
        module[0].weight = nn.Parameter(torch.full((3, 3), comm.rank + 1.0).t())  # not contiguous in memory
        DataParallel(module, comm)
        assert all((tensor == 1).all() for tensor in module.state_dict().values())

    on_threads(work, 3)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_views_of_shared_memory(set_to_none: bool) -> None:
    def work(comm: Communicator) -> None:
        module = nn.Sequential(ones(2, 3), ones(1, 2))
        model = DataParallel(module, comm)
        places = []
        for step in range(3):
            model.zero_grad(set_to_none)
            model(torch.full((1, 3), float(comm.rank + step))).sum().backward()
            assert gradients(module) == [step + 0.5, 3 * (step + 0.5)]
            places.append([parameter.grad.data_ptr() for parameter in module.parameters()])
            for parameter in module.parameters():
                assert comm._engine.native.in_shared_memory(parameter.grad)
        assert places[0] == places[1] == places[2] or places[1] == places[2]  # the first pass may rearrange them

    on_threads(work)


def test_gradients_that_are_not_zeroed_add_up() -> None:
    def work(comm: Communicator) -> None:
        module = ones(1, 3)
        model = DataParallel(module, comm)
        for step in range(3):
            model(torch.full((1, 3), float(comm.rank))).sum().backward()
            assert gradients(module) == [0.5 * (step + 1)]
        module.weight.grad = torch.full((1, 3), 10.0)  # a gradient that was already there is included
        model(torch.full((1, 3), float(comm.rank))).sum().backward()
        assert gradients(module) == [10.5]

    on_threads(work)


def test_no_sync_keeps_gradients_to_oneself_until_the_next_pass() -> None:
    def work(comm: Communicator) -> None:
        module = ones(1, 3)
        model = DataParallel(module, comm)
        inputs = torch.full((1, 3), float(comm.rank + 1))
        with model.no_sync():
            model(inputs).sum().backward()
            with model.no_sync():
                model(inputs).sum().backward()
            model(inputs).sum().backward()
            assert gradients(module) == [3.0 * (comm.rank + 1)]
        model(inputs).sum().backward()
        assert gradients(module) == [4 * 1.5]

    on_threads(work)


class Choice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ones(1, 3) for _ in range(4))

    def forward(self, inputs: torch.Tensor, *chosen: int) -> torch.Tensor:
        return inputs.sum() + sum(self.layers[one](inputs).sum() for one in chosen)


@pytest.mark.parametrize("bucket_bytes", [1, 2**20])
def test_parameters_that_are_not_used(bucket_bytes: int) -> None:
    def work(comm: Communicator) -> None:
        module = Choice()
        model = DataParallel(module, comm, bucket_bytes=bucket_bytes)
        inputs = torch.full((1, 3), 4.0, requires_grad=True)
        # Zeros from those who did not use it; None where nobody did.
        model(inputs, *([0, 1] if comm.rank == 0 else [1, 2])).backward()
        assert gradients(module) == [2, 4, 2, None]
        # Nobody uses the first two any more: they keep what they have.
        model(inputs, *([2, 3] if comm.rank == 0 else [3])).backward()
        assert gradients(module) == [2, 4, 4, 4]
        # A rank that uses none at all still takes part.
        model.zero_grad()
        model(inputs, *([3] if comm.rank == 0 else [])).backward()
        assert gradients(module) == [None, None, None, 2]
        # What was accumulated before counts as used.
        model.zero_grad()
        if comm.rank == 1:
            with model.no_sync():
                model(inputs, 0).backward()
        model(inputs, 1).backward()
        assert gradients(module) == [2, 4, None, None]

    on_threads(work)


def test_buckets_follow_the_order_of_the_first_pass() -> None:
    def work(comm: Communicator) -> None:
        class Backwards(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.last, self.first = ones(3, 3), ones(3, 3)

            def forward(self, inputs: torch.Tensor) -> Any:
                return {"rows": [self.last(self.first(inputs))]}

        module = Backwards()
        model = DataParallel(module, comm, bucket_bytes=1)
        assert model.buckets == [["first.weight"], ["last.weight"]]
        for _ in range(2):
            model.zero_grad()
            model(inputs=torch.full((1, 3), float(comm.rank)))["rows"][0].sum().backward()
            assert model.buckets == [["last.weight"], ["first.weight"]]
            assert gradients(module) == [1.5, 1.5]
        assert len(DataParallel(module, comm).buckets) == 1

    on_threads(work)


def test_a_bucket_has_one_type() -> None:
    def work(comm: Communicator) -> None:
        dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)
        module = nn.ParameterList(nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in dtypes)
        for compress in (None, "bfloat16"):
            model = DataParallel(module, comm, compress=compress)
            assert sorted(len(names) for names in model.buckets) == [1] * len(dtypes)
            model.zero_grad()
            # ParameterList has no forward; a loss of the parameters themselves reaches their hooks as well.
            sum((one * (comm.rank + 1)).sum().abs() for one in module).backward()
            assert [one.grad.dtype for one in module] == list(dtypes)
            assert all((one.grad == 1.5).all() for one in module)

    on_threads(work)


def test_compressed_gradients_are_rounded_and_stay_what_they_were() -> None:
    # Threads share torch's own random numbers, so these come from elsewhere.
    inputs = [torch.randn(1, 1000, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]

    def work(comm: Communicator) -> torch.Tensor:
        module = ones(1, 1000)
        model = DataParallel(module, comm, compress="bfloat16")
        model(inputs[comm.rank]).sum().backward()
        assert module.weight.grad is not None and module.weight.grad.dtype == torch.float32
        rounded = [one.bfloat16().float() for one in inputs]
        assert torch.equal(module.weight.grad, ((rounded[0] + rounded[1]) / 2).bfloat16().float())
        assert not torch.equal(module.weight.grad, (inputs[0] + inputs[1]) / 2)
        return module.weight.grad

    one, other = on_threads(work)
    assert torch.equal(one, other)


def test_buffers_come_from_rank_0_before_every_pass() -> None:
    def work(comm: Communicator) -> None:
        for broadcast_buffers in (True, False):
            model = DataParallel(nn.BatchNorm1d(1, momentum=1.0), comm, broadcast_buffers=broadcast_buffers)
            inputs = torch.tensor([[1.0], [3.0]]) + 10 * comm.rank
            model(inputs)
            assert model.module.running_mean == 2 + 10 * comm.rank  # of this rank's own batch, after the pass
            model.eval()
            with model.no_sync():
                model(inputs)
                assert model.module.running_mean == 2 + 10 * comm.rank
            model(inputs)
            assert model.module.running_mean == (2 if broadcast_buffers else 2 + 10 * comm.rank)

    on_threads(work)


def test_tied_and_frozen_parameters() -> None:
    def work(comm: Communicator) -> None:
        module = nn.Sequential(ones(3, 3), ones(3, 3), ones(3, 3))
        module[2].weight = module[0].weight
        module[1].weight.requires_grad_(False)
        model = DataParallel(module, comm)
        assert model.buckets == [["0.weight"]]
        alone = copy.deepcopy(module)
        for rank in range(2):
            (alone(torch.full((1, 3), float(rank))).sum() / 2).backward()
        model(torch.full((1, 3), float(comm.rank))).sum().backward()
        assert gradients(module) == gradients(alone)

    on_threads(work)


def test_two_modules_in_one_pass() -> None:
    def work(comm: Communicator) -> None:
        one, other = (DataParallel(Choice(), comm, bucket_bytes=1) for _ in range(2))
        inputs = torch.full((1, 3), 2.0, requires_grad=True)
        # In another order on every rank, and each leaves something unused.
        first, second = (one, other) if comm.rank == 0 else (other, one)
        (first(second(inputs, 0) * inputs, 1) + second(inputs, 2)).backward()
        assert [grad is None for grad in gradients(one.module)] == [False, False, False, True]
        assert gradients(one.module) == gradients(other.module)

    on_threads(work)


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(context: Any, *_: torch.Tensor) -> Any:
        raise ArithmeticError("in the middle of the pass")


def test_a_pass_that_raises_ends_that_of_everybody() -> None:
    def work(comm: Communicator) -> None:
        module = nn.Sequential(ones(3, 3), ones(3, 3))
        model = DataParallel(module, comm, bucket_bytes=1)
        model(torch.ones(1, 3)).sum().backward()
        middle = module[0](torch.ones(1, 3))
        with pytest.raises(ArithmeticError if comm.rank == 1 else RankLost):
            # The bucket of the last layer is already being reduced; that of the first never comes on rank 1.
            model.module[1](Broken.apply(middle) if comm.rank == 1 else middle).sum().backward()
        with pytest.raises(UsageError, match=f"did not come to its end on rank {comm.rank}.*make a new DataParallel"):
            model(torch.ones(1, 3))
        comm.barrier()
        model = DataParallel(module, comm)  # the communicator itself still works
        model.zero_grad()
        model(torch.full((1, 3), float(comm.rank))).sum().backward()
        assert gradients(module) == [1.5, 1.5]

    on_threads(work)


def test_hooks_do_nothing_once_it_is_gone() -> None:
    def work(comm: Communicator) -> None:
        module = ones(1, 3)
        model = DataParallel(module, comm)
        model(torch.ones(1, 3)).sum().backward()
        del model
        gc.collect()
        module.zero_grad()
        if comm.rank == 0:  # alone, so it would hang
            module(torch.ones(1, 3)).sum().backward()

    on_threads(work)


def test_one_rank_is_a_plain_module() -> None:
    assert on_threads(accumulated_like_one_process, ranks=1) == [True]


def test_names_in_the_state() -> None:
    model = on_threads(lambda comm: DataParallel(ones(1, 2), comm), ranks=1)[0]
    assert list(model.state_dict()) == ["module.weight"]  # like torch's DDP
    assert list(model.module.state_dict()) == ["weight"]


# What is refused ------------------------------------------------------------------------------------------------------


def refused(make: Callable[[Communicator], Any], error: type[Exception] = UsageError) -> str:
    """The sentence, the same on all ranks."""

    def work(comm: Communicator) -> str:
        with pytest.raises(error) as caught:
            make(comm)
        return str(caught.value)

    first, *others = on_threads(work)
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda comm: DataParallel(nn.Linear(2, 2, device="meta"), comm),
            "parameter weight is on meta, .*main memory.*cpu",
        ),
        (lambda comm: DataParallel(nn.LazyLinear(2), comm), "parameter weight has no shape yet; run the module once"),
        (lambda comm: DataParallel(nn.ReLU(), comm), "no parameter .* requires a gradient"),
        (lambda comm: DataParallel(nn.Linear(2, 2).requires_grad_(False), comm), "no parameter .* requires a gradient"),
        (
            lambda comm: DataParallel(nn.Linear(2, 2), comm, compress="int8"),
            "compress is None or \"bfloat16\", not 'int8'",
        ),
        (lambda comm: DataParallel(nn.Linear(2, 2), comm, bucket_bytes=0), "bucket_bytes must be at least 1, not 0"),
        (lambda comm: DataParallel(nn.Linear(2, 2)), "there is no communicator; give it one .*init_process_group"),
        (lambda comm: DataParallel(nn.Linear(2, 2), 3), "expected a communicator .*, not 3"),
    ],
)
def test_what_cannot_be_trained(make: Callable[[Communicator], Any], sentence: str) -> None:
    said = refused(make)
    assert said.startswith("DataParallel: ") and re.search(sentence, said)


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda rank: nn.Linear(2, 2 + rank), ("parameter weight float32[3, 2]", "parameter weight float32[2, 2]")),
        (lambda rank: nn.Linear(2, 2, bias=rank == 0), ("nothing more", "parameter bias float32[2]")),
        (
            lambda rank: nn.Linear(2, 2, dtype=(torch.float32, torch.float64)[rank]),
            ("parameter weight float64[2, 2]", "parameter weight float32[2, 2]"),
        ),
        (
            lambda rank: nn.Linear(2, 2) if rank else _half_frozen(),
            ("parameter bias float32[2]", "parameter bias float32[2] (frozen)"),
        ),
        (
            lambda rank: nn.BatchNorm1d(2, track_running_stats=rank == 1),
            ("buffer running_mean float32[2]", "nothing more"),
        ),
    ],
)
def test_models_that_differ(make: Callable[[int], nn.Module], facts: tuple[str, str]) -> None:
    said = refused(lambda comm: DataParallel(make(comm.rank), comm), MismatchError)
    differ = f"rank 1 has {facts[0]}, where rank 0 has {facts[1]}; "
    assert said == f"DataParallel: {differ}all ranks must wrap the same model in the same way"


def _half_frozen() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    return layer


def test_options_that_differ() -> None:
    said = refused(lambda comm: DataParallel(ones(1, 2), comm, bucket_bytes=8 + comm.rank), MismatchError)
    assert "rank 1 has bucket_bytes=9, where rank 0 has bucket_bytes=8" in said


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_gradients_that_cannot_be_reduced() -> None:
    def sparse(comm: Communicator) -> None:
        model = DataParallel(nn.Embedding(4, 2, sparse=True), comm)
        model(torch.tensor([1])).sum().backward()

    def with_a_graph(comm: Communicator) -> None:
        model = DataParallel(ones(1, 2), comm)
        model(torch.ones(1, 2)).square().sum().backward(create_graph=True)

    def twice(comm: Communicator) -> None:
        class Checkpointed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = ones(2, 2)

            def forward(self, inputs: torch.Tensor) -> Any:
                for _ in range(2):
                    inputs = torch.utils.checkpoint.checkpoint(self.layer, inputs, use_reentrant=True)
                return inputs

        model = DataParallel(Checkpointed(), comm)
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()

    assert "the gradient of weight is sparse, and only dense ones can be reduced" in refused(sparse)
    assert "backward(create_graph=True) gave weight a gradient with a graph" in refused(with_a_graph)
    assert "added to the gradient of layer.weight twice" in refused(twice)


def test_a_rank_that_does_not_come_is_named() -> None:
    def work(comm: Communicator) -> None:
        model = DataParallel(ones(1, 2), comm)
        if comm.rank == 0:
            model(torch.ones(1, 2)).sum().backward()
        else:
            model.communicator.close()

    with pytest.raises(RankFailed, match="rank 1 has left"):
        on_threads(work)


# What is recorded -----------------------------------------------------------------------------------------------------


def test_a_recorded_step(tmp_path: Any) -> None:
    def work(comm: Communicator) -> timeline.Timeline:
        model = DataParallel(nn.Sequential(*(nn.Linear(200, 200) for _ in range(4))), comm, bucket_bytes=1)
        for _ in range(2):
            with timeline.record(model) as recorded:
                with recorded.span("forward"):
                    loss = model(torch.ones(8, 200)).sum()
                with recorded.span("backward"):
                    loss.backward()
        return recorded

    one, other = on_threads(work)
    assert one.spans == other.spans and set(one.ends) == {0, 1}
    assert one.reducing > 0 and 0 <= one.overlapped <= 1
    for rank in range(2):
        reductions = [span.name for span in one.spans if span.rank == rank and span.track == timeline.REDUCE]
        assert reductions == [f"bucket {number}" for number in range(8)]
        forward, backward = (span for span in one.spans if span.rank == rank and span.track == timeline.COMPUTE)
        assert forward.end <= backward.start <= one.ends[rank] <= backward.end
    chrome = timeline.to_chrome({"ours": one})["traceEvents"]
    assert len([row for row in chrome if row["ph"] == "X"]) == len(one.spans)
    assert {row["args"]["name"] for row in chrome if row["ph"] == "M"} >= {"ours rank 0", "compute", "reduce"}
    one.save(tmp_path / "step.svg")
    drawn = ElementTree.parse(tmp_path / "step.svg").getroot()
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}g"))) == len(one.spans)
    with pytest.raises(UsageError, match=r"saved as \.json .* or \.svg"):
        one.save(tmp_path / "step.png")


def test_overlap_is_time_before_the_last_gradient() -> None:
    spans = [
        timeline.Span(0, timeline.REDUCE, "bucket 0", 10, 30),
        timeline.Span(0, timeline.REDUCE, "bucket 1", 20, 50),  # 10 to 50 are 40 ns, not 50
        timeline.Span(0, timeline.REDUCE, "bucket 2", 90, 100),
    ]
    recorded = timeline.Timeline(spans, ends={0: 40})
    assert recorded.reducing == pytest.approx(50e-9)
    assert recorded.overlapped == pytest.approx(30 / 50)
