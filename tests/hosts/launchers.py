"""How a script is started on the hosts of a laboratory: the commands of torchrun, of mpirun, and of plain ranks."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from processes import Host, inside

Rendezvous = Literal["static", "c10d"]


@dataclass(frozen=True)
class Job:
    command: Sequence[str]  # of every rank
    hosts: Sequence[Host]
    ranks_per_host: Sequence[int]
    port: int
    name: str
    folder: Path
    switch: str  # its namespace


@dataclass(frozen=True)
class Start:
    """One command, on a host or, without one, on this machine, and what it adds to the environment."""

    label: str
    host: Host | None
    command: Sequence[str]
    environment: Mapping[str, str]


Launcher = Callable[[Job], Iterator[Start]]


def torchrun(rendezvous: Rendezvous = "static") -> Launcher:
    return partial(_torchrun, rendezvous)


def _torchrun(rendezvous: str, job: Job) -> Iterator[Start]:
    """One torchrun per host. The agents tell each other how many ranks they have, so the numbers may differ."""
    first = job.hosts[0].addresses[0]
    for host, ranks in zip(job.hosts, job.ranks_per_host, strict=True):
        words = [sys.executable, "-m", "torch.distributed.run"]
        words += ["--nnodes", str(len(job.hosts)), "--nproc-per-node", str(ranks)]
        if rendezvous == "static":
            words += ["--node-rank", str(host.index), "--master-addr", first, "--master-port", str(job.port)]
        else:
            # By itself torchrun finds out by names who keeps the store and where rank 0 is, and here are no names.
            endpoint = f"[{first}]:{job.port}" if ":" in first else f"{first}:{job.port}"
            words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", job.name]
            words += ["--rdzv-conf", f"is_host={int(host.index == 0)}", "--local-addr", host.addresses[0]]
        yield Start(f"host {host.index}", host, [*words, "--no-python", *job.command], {})


def ranks(job: Job) -> Iterator[Start]:
    """The ranks by themselves, in torchrun's environment: no agent ends them when another has failed."""
    numbers = itertools.count()
    for host, count in zip(job.hosts, job.ranks_per_host, strict=True):
        for local in range(count):
            rank = next(numbers)
            place = {
                "RANK": rank,
                "WORLD_SIZE": sum(job.ranks_per_host),
                "LOCAL_RANK": local,
                "LOCAL_WORLD_SIZE": count,
                "GROUP_RANK": host.index,
                "GROUP_WORLD_SIZE": len(job.hosts),
                "MASTER_ADDR": job.hosts[0].addresses[0],
                "MASTER_PORT": job.port,
            }
            yield Start(f"rank {rank}", host, job.command, {name: str(value) for name, value in place.items()})


def mpirun(options: Sequence[str] = ()) -> Launcher:
    return partial(_mpirun, options)


def _mpirun(options: Sequence[str], job: Job) -> Iterator[Start]:
    """Open MPI's mpirun, at the switch, as on a head node; where it would use ssh, a script of ours enters a host."""
    launcher = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    if launcher is None:
        raise FileNotFoundError("mpirun was not found: make bench-peers installs it")
    agent = job.folder / "agent"
    cases = "".join(f'{host.addresses[0]}) exec {" ".join(inside(host))} sh -c "$*" ;;\n' for host in job.hosts)
    agent.write_text(f'#!/bin/sh\nhost=$1; shift\ncase "$host" in\n{cases}esac\necho "no host $host" >&2; exit 1\n')
    agent.chmod(0o755)
    places = [f"{host.addresses[0]}:{count}" for host, count in zip(job.hosts, job.ranks_per_host, strict=True)]
    words = ["ip", "netns", "exec", job.switch, launcher, "--prtemca", "plm_ssh_agent", str(agent)]
    words += ["--host", ",".join(places), "-n", str(sum(job.ranks_per_host))]
    # By networks: PRRTE crashes over an interface that one of the machines does not have.
    network = job.hosts[0].addresses[0].rpartition(".")[0] + ".0/24"
    words += ["--prtemca", "prte_if_include", network, "--mca", "btl_tcp_if_include", network]
    words += ["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none", *options]
    # Laboratories have no user but root.
    settings = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    yield Start("mpirun", None, [*words, *job.command], settings)
