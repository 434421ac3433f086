"""torchtitan's debug model with FSDP × TP × PP on 8 CPU ranks, on allfold and on gloo, whose losses must agree; then on gloo
under `allfold run --check` and `allfold record`, with replays of single ranks.

    python tests/torch/titan.py [--steps 4] [--only compare|record]

`make test-torchtitan` runs this. torchtitan itself is unmodified. It is written for GPUs and for a newer torch than 2.13:
`prepared` adds what torch lacks on CPUs and in this version. Nothing is downloaded: the tokenizer and the text are made
from this project's docs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from allfold.testing import run

ROOT = Path(__file__).parents[2]
RANKS = 8  # 2 × 2 × 2
CLOSE = 1e-4  # relative: the ranks of a group may be summed in another order
_STEP = re.compile(r"step: +(\d+) +loss: +(-?[\d.]+) +grad_norm: +([\d.]+)")
# A stage of the pipeline that has no loss prints -1 for each rank that the loss is summed over.
_NO_LOSS = -1.0

Curve = list[tuple[int, float, float]]


def options(steps: int) -> list[str]:
    """torchtitan's options: its debug model, smaller batches, and what must be chosen on CPUs."""
    return [
        *("--module", "llama3", "--config", "llama3_debugmodel", "--override.imports", "titan_attention.on_cpus"),
        *("--parallelism.data_parallel_shard_degree", "2", "--parallelism.tensor_parallel_degree", "2"),
        *("--parallelism.pipeline_parallel_degree", "2", "--parallelism.spmd_backend", "full_dtensor"),
        *("--training.local_batch_size", "4", "--training.seq_len", "128", "--training.steps", str(steps)),
        *("--debug.seed", "42", "--debug.deterministic", "--training.disable_cuda_graphs"),
        "--metrics.disable_color_printing",
    ]


def make_assets(folder: Path) -> None:
    """The tokenizer and the data that the debug model looks for in the current folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # type: ignore[import-not-found]

    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
    special = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=list(special.values()), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    assets = folder / "tests/assets"
    for name in ("tokenizer", "c4_test"):
        (assets / name).mkdir(parents=True)
    tokenizer.save(str(assets / "tokenizer/tokenizer.json"))
    (assets / "tokenizer/tokenizer_config.json").write_text(json.dumps(special))
    (assets / "c4_test/data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def prepared(backend: str) -> None:
    """Give torch what torchtitan expects of it, before torchtitan is imported."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as fsdp
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti

    # torchtitan asks for the accelerator, takes "cuda" if there is none, and asks torch for the device's backend.
    torch._utils._get_available_device_type = lambda: "cpu"
    dist.Backend.default_device_backend_map["cpu"] = backend
    # Functions that torch.cuda has, and torch.cpu has not.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    missing: dict[str, Any] = {
        "current_device": lambda: 0,
        "get_device_name": lambda _=None: "CPU",
        "get_device_properties": lambda _=None: SimpleNamespace(total_memory=memory),
        "memory_stats": lambda _=None: {},
        "reset_peak_memory_stats": lambda: None,
        "empty_cache": lambda: None,
    }
    for name, function in missing.items():
        setattr(torch.cpu, name, function)

    # Functions that torch has after 2.13: a timeout that can be set, and a step of given microbatches.
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout  # type: ignore[attr-defined]

    def step(
        self: Any,
        arg_mbs: Any = None,
        kwarg_mbs: Any = None,
        target_mbs: Any = None,
        losses: Any = None,
        return_outputs: bool = True,
        loss_kwargs: Any = None,
    ) -> None:
        for stage in self._stages:
            stage.has_backward = self._has_backward
            stage.clear_runtime_states()
        self._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs=loss_kwargs)

    PipelineScheduleMulti.step = step  # type: ignore[assignment, method-assign]

    if backend == "gloo":  # it cannot multiply before it sums, as FSDP2 asks; then it can only sum, and FSDP2 divides
        factors = fsdp._get_gradient_divide_factors
        fsdp._get_gradient_divide_factors = lambda *args: factors(*args[:5], True)


def train(_: Any, backend: str, steps: int) -> tuple[str, Curve]:
    """Train on one rank; returns the backend that torch used, and the steps as torchtitan logged them."""
    prepared(backend)
    import torch.distributed as dist
    import torchtitan.train  # type: ignore[import-not-found]

    curve: Curve = []
    used = []

    def read(record: logging.LogRecord) -> bool:
        if found := _STEP.search(record.getMessage()):
            used.append(dist.get_backend())
            curve.append((int(found[1]), float(found[2]), float(found[3])))
        return record.levelno > logging.WARNING

    logging.getLogger().addFilter(read)
    sys.argv = ["torchtitan", *options(steps)]
    torchtitan.train.main()
    return " ".join(sorted(set(used))), curve


def check_and_record(steps: int) -> None:
    """The same run with every call compared; recorded, explained and compared between its ranks; and two of its ranks alone."""
    allfold = [sys.executable, "-m", "allfold"]
    script = [__file__, "--rank", "--steps", str(steps)]
    eight = ["-n", str(RANKS)]
    # A busy machine may keep a rank from its next call for seconds.
    settings = {"OMP_NUM_THREADS": "1", "ALLFOLD_CHECK_LATE": "300"}
    for words, expected in (
        ([*allfold, "run", *eight, "--check", *script], f"{steps} steps on gloo"),
        ([*allfold, "record", *eight, "--out", "recorded", "--keep", "all", *script], f"recorded: {RANKS} ranks"),
        ([*allfold, "explain", "recorded"], "nothing wrong found"),
        ([*allfold, "diverge", "recorded"], "no difference in "),
        *(
            ([*allfold, "replay", "recorded", "--rank", str(rank)], "calls were made as recorded")
            for rank in (0, RANKS - 1)
        ),
    ):
        begin = time.monotonic()
        done = subprocess.run(words, capture_output=True, text=True, env=os.environ | settings)
        said = done.stdout + done.stderr
        if done.returncode or expected not in said or "allfold check:" in said:
            sys.exit(f"{shlex.join(words)}: status {done.returncode}, expected {expected!r}\n{said}")
        shown = next(line for line in reversed(said.splitlines()) if expected in line)
        print(f"{words[3]}: {time.monotonic() - begin:.0f} s: {shown[:150]}", flush=True)


def close(a: Curve, b: Curve) -> bool:
    pairs = [pair for one, other in zip(a, b, strict=True) for pair in zip(one, other, strict=True)]
    return all(abs(x - y) <= CLOSE * max(1.0, abs(x)) for x, y in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", choices=["compare", "record"], help="one of the two parts")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    steps: int = arguments.steps
    if arguments.rank:
        used, curve = train(None, "gloo", steps)
        print(f"{len(curve)} steps on {used}, loss {curve[-1][1]}")
        return
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_assets(Path(folder))
        if arguments.only != "compare":
            check_and_record(steps)
        if arguments.only == "record":
            os.chdir(ROOT)
            return
        curves: dict[str, list[Curve]] = {}
        for backend in ("gloo", "allfold"):
            begin = time.monotonic()
            results = run(train, RANKS, args=(backend, steps), timeout=1800)
            used, found = zip(*results, strict=True)
            if set(used) != {backend} or any(len(one) != steps for one in found):
                sys.exit(f"{backend}: torch used {set(used)}, and the ranks took {[len(one) for one in found]} steps")
            curves[backend] = list(found)
            print(f"{backend}: {RANKS} ranks, {steps} steps in {time.monotonic() - begin:.0f} s", flush=True)
        os.chdir(ROOT)
    last = max(range(RANKS), key=lambda rank: curves["gloo"][rank][0][1])  # of a last stage, which has the loss
    print(f"{'step':>4} {'gloo':>10} {'allfold':>10}   gradient norm: {'gloo':>8} {'allfold':>8}")
    for (step, loss, norm), (_, ours, our_norm) in zip(curves["gloo"][last], curves["allfold"][last], strict=True):
        print(f"{step:4} {loss:10.5f} {ours:10.5f}   {'':14} {norm:8.4f} {our_norm:8.4f}")
    losses = [loss for _, loss, _ in curves["gloo"][last]]
    if losses[0] <= _NO_LOSS or losses[-1] >= losses[0]:
        sys.exit(f"the loss did not fall: {losses}")
    differing = [rank for rank in range(RANKS) if not close(curves["gloo"][rank], curves["allfold"][rank])]
    if differing:
        sys.exit(f"allfold's numbers differ from gloo's on ranks {differing}: {curves}")
    print("allfold's losses and gradient norms are those of gloo on all ranks")


if __name__ == "__main__":
    main()
