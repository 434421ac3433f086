"""Measuring between ranks that a launcher has started, on one host or several: rank 0 asks, and all ranks answer.

Commands and answers travel as messages of a communicator of their own. A rank that waits for one does not spin, so that
it leaves its core to the library that is being timed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import AllfoldError, UsageError
from ..fabrics.addresses import own_addresses
from ..launch.environment import Place
from ..launch.spawn import init
from . import HOW_TO_GET
from .crew import ANSWER_SECONDS, CrewFailed
from .libraries import Allfold, Library, Mpi4py, Torch, TorchOnGpu
from .peer import Bench, answer
from .peers import ENGINE, WantedPeer

_MOST_BYTES = 1 << 16  # of a command, and of an answer


class LaunchedRanks:
    """All ranks of this run: rank 0 starts libraries in them, which become crews; the others `serve`."""

    def __init__(self, place: Place, through_torch: bool, device: str = "cpu") -> None:
        self.communicator = init()
        self.rank, self.size = place.rank, place.size
        control = self.communicator.group(range(place.size))
        assert control is not None
        self._control = control
        self._benches: dict[str, Bench] = {}
        self._through_torch = through_torch
        self._torch = TorchOnGpu if device == "cuda" else Torch

    @property
    def hosts(self) -> list[list[int]]:
        return self.communicator.engine.hosts()

    def start(self, name: str) -> LaunchedCrew:
        """A library in all ranks, as a crew of rank 0."""
        crew = LaunchedCrew(name, self._ask)
        crew.version = crew.ask("open")[0]["version"]
        return crew

    def serve(self) -> None:
        """Do what rank 0 asks, until it is done."""
        gc.collect()
        gc.freeze()
        while (command := self._receive(0)) is not None:
            self._send(0, self._obey(command))
        self.close()

    def close(self) -> None:
        if self.rank == 0:
            with contextlib.suppress(AllfoldError):
                for peer in range(1, self.size):
                    self._send(peer, None)
        for bench in self._benches.values():
            bench.library.close()
        self._benches.clear()
        self.communicator.close()

    def _ask(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        for peer in range(1, self.size):
            self._send(peer, command)
        return [self._obey(command), *(self._receive(peer) or {} for peer in range(1, self.size))]

    def _obey(self, command: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(command)
        crew = given.pop("crew")
        if given["do"] == "open":
            return answer(self._open, name=crew)
        if given["do"] == "close":
            return answer(self._close_library, name=crew)
        return answer(getattr(self._benches[crew], given.pop("do")), **given)

    def _open(self, name: str) -> dict[str, Any]:
        library = self._library(name)
        self._benches[name] = Bench(library)
        return {"version": library.version}

    def _close_library(self, name: str) -> dict[str, Any]:
        if name in self._benches:
            self._benches.pop(name).library.close()
        return {}

    def _library(self, name: str) -> Library:
        if name == ENGINE or (name == "allfold" and not self._through_torch):
            return Allfold(self.rank, self.size, "", self.communicator)
        if name == "allfold":
            return self._torch(self.rank, self.size, None, "allfold")
        if name in ("gloo", "nccl"):
            os.environ["GLOO_SOCKET_IFNAME"] = self._interface()
            return self._torch(self.rank, self.size, None, name)
        return Mpi4py(threads=True)

    def _interface(self) -> str:
        """The interface with the address of allfold's own connections; gloo would resolve the host's name."""
        address = self.communicator.engine.address
        return next((one.interface for one in own_addresses() if one.address == address), "lo")

    def _send(self, peer: int, what: Any) -> None:
        self._control.send(np.frombuffer(json.dumps(what).encode(), np.uint8), peer, timeout=ANSWER_SECONDS)

    def _receive(self, peer: int) -> Any:
        room = np.empty(_MOST_BYTES, np.uint8)
        length = self._control.recv(room, peer, timeout=ANSWER_SECONDS).elements
        return json.loads(room[:length].tobytes())


class LaunchedCrew:
    """A `Crew` in ranks that exist already."""

    def __init__(self, name: str, send: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> None:
        self.name, self.version, self._send = name, "", send

    def ask(self, do: str, **command: Any) -> list[dict[str, Any]]:
        answers = self._send({"do": do, "crew": self.name, **command})
        for rank, said in enumerate(answers):
            if "error" in said:
                raise CrewFailed(f"{self.name}: rank {rank} on {socket.gethostname()} raised {said['error']}")
        return answers

    def close(self) -> None:
        with contextlib.suppress(AllfoldError):
            self.ask("close")


def check_peer(wanted: WantedPeer, environ: Mapping[str, str] = os.environ) -> None:
    """Raise `CrewFailed`, the same on all ranks, if a peer cannot be had in ranks that were started in this way."""
    if wanted.python is not None:
        raise UsageError(
            f"--peers {wanted.name}={wanted.python}: these ranks run in one interpreter, {wanted.name} too"
        )
    if wanted.name in ("gloo", "nccl"):
        if importlib.util.find_spec("torch") is None:
            raise CrewFailed(f"{wanted.name}: torch is not installed; to get it: {HOW_TO_GET['gloo']}")
        if "MASTER_ADDR" not in environ:
            raise CrewFailed(
                f"{wanted.name}: it needs MASTER_ADDR and MASTER_PORT, which torchrun and `allfold run` set"
            )
    elif wanted.name in ("openmpi", "mpich"):
        started_by = {"openmpi": "OMPI_COMM_WORLD_SIZE", "mpich": "PMI_SIZE"}[wanted.name]
        if started_by not in environ or importlib.util.find_spec("mpi4py") is None:
            raise CrewFailed(f"{wanted.name}: it needs its own mpirun, and mpi4py")
