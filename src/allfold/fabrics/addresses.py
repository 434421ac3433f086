"""Which address of a host the others can reach: found by trying, not by its name.

A hostname often resolves to a loopback address, or to an interface that leads elsewhere. So every host puts up the
addresses of its interfaces, the first rank of every host tries those of all others, and each host takes the first of
its addresses that everybody reached. `ALLFOLD_INTERFACE` (or gloo's `GLOO_SOCKET_IFNAME`) names the interface instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..errors import AllfoldError, UsageError
from .fabric import Board

_SIOCGIFADDR = 0x8915
_TRY_SECONDS = 3.0


class Address(NamedTuple):
    interface: str
    address: str

    def __str__(self) -> str:
        return f"{self.address} ({self.interface})"


def own_addresses(environ: Mapping[str, str] = os.environ) -> list[Address]:
    """The addresses of this host that others might reach, IPv4 first; of the interface that is named, if one is."""
    found = [*_version_4(), *_version_6()]
    wanted = environ.get("ALLFOLD_INTERFACE") or environ.get("GLOO_SOCKET_IFNAME")
    if wanted:
        variable = "ALLFOLD_INTERFACE" if environ.get("ALLFOLD_INTERFACE") else "GLOO_SOCKET_IFNAME"
        names = wanted.split(",")
        chosen = [one for one in found if one.interface in names]
        if not chosen:
            known = ", ".join(map(str, found)) or "none with an address"
            raise UsageError(f"{variable}={wanted!r}: {socket.gethostname()} has no such interface; it has {known}")
        return chosen
    return [one for one in found if one.interface != "lo"]


def _version_4() -> list[Address]:
    import fcntl  # only here: there is none on Windows

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no such address
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
                found.append(Address(name, socket.inet_ntoa(answer[20:24])))
    return found


def _version_6() -> list[Address]:
    found = []
    with contextlib.suppress(OSError):  # the kernel has no IPv6
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, _, _, scope, _, name = line.split()
            if scope == "00":  # neither of one link, nor of this host alone
                found.append(Address(name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))))
    return found


def choose_address(board: Board, host: str, timeout: float) -> str:
    """The address of this host that the first rank of every other host reaches. Every rank of the board calls it.

    `host`: something that all ranks of a host have in common, and no other host has.
    """
    own = own_addresses()
    listeners = {address: _listening(address) for address in own}
    try:
        offered = {address.address: listener.getsockname()[1] for address, listener in listeners.items() if listener}
        card = {
            "host": host,
            "name": socket.gethostname(),
            "offers": offered,
            "interfaces": {one.address: one.interface for one in own},
        }
        cards = board.gather_all("addresses", card, timeout)
        first = {one["host"]: rank for rank, one in reversed(list(enumerate(cards)))}
        wanted = [
            (rank, address, port)
            for there, rank in first.items()
            if there != host
            for address, port in cards[rank]["offers"].items()
        ]
        reached = _reach(wanted) if first[host] == board.rank else []
        seen = board.gather_all("reached", reached, timeout)
    finally:
        for listener in listeners.values():
            if listener is not None:
                listener.close()
    others = [rank for there, rank in first.items() if there != host]
    for address in cards[first[host]]["offers"]:
        if all([first[host], address] in seen[rank] for rank in others):
            return str(address)
    mine = cards[first[host]]
    tried = ", ".join(f"{address} ({mine['interfaces'][address]})" for address in mine["offers"]) or "none"
    deaf = [rank for rank in others if not any(one[0] == first[host] for one in seen[rank])] or others
    names = ", ".join(f"{cards[rank]['name']} (rank {rank})" for rank in deaf)
    raise AllfoldError(
        f"init: rank {board.rank} on {socket.gethostname()} has no address that all other hosts reach: {names} reached none "
        f"of {tried}. Check firewalls and routes, or name the interface that connects the hosts with ALLFOLD_INTERFACE"
    )


def _listening(address: Address) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in address.address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address.address, 0))
        listener.listen(128)
        listener.setblocking(False)
        return listener
    except OSError:
        listener.close()
        return None


def _reach(wanted: list[tuple[int, str, int]]) -> list[list[object]]:
    """Which of these addresses answer. Meanwhile the kernel answers for our own: it completes connections itself."""
    reached: list[list[object]] = []
    with selectors.DefaultSelector() as selector:
        for rank, address, port in wanted:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError):  # this host has no IPv6, or it is switched off
                asking = socket.socket(family, socket.SOCK_STREAM)
                asking.setblocking(False)
                # Any other answer is final: there is no route. SO_ERROR would not repeat it.
                if asking.connect_ex((address, port)) in (0, errno.EINPROGRESS):
                    selector.register(asking, selectors.EVENT_WRITE, (rank, address))
                else:
                    asking.close()
        deadline = time.monotonic() + _TRY_SECONDS
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                asking = key.fileobj  # type: ignore[assignment]
                if asking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    reached.append(list(key.data))
                selector.unregister(asking)
                asking.close()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return reached
