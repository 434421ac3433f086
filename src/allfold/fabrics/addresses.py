"""Reachable addresses of hosts: found by probing, not by name.

A hostname often resolves to a loopback address, or to an interface that leads elsewhere. So every host
publishes the addresses of its interfaces, its first rank tries to connect to those of all other hosts, and each host
takes the first of its addresses that all others reached. `ALLFOLD_INTERFACE` (or gloo's `GLOO_SOCKET_IFNAME`) names the
interface instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import selectors
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import AllfoldError, UsageError

if TYPE_CHECKING:
    from .board import Board

_SIOCGIFADDR = 0x8915
_TRY_SECONDS = 3.0


class Address(NamedTuple):
    interface: str
    address: str

    def __str__(self) -> str:
        return f"{self.address} ({self.interface})"


def own_addresses(environ: Mapping[str, str] = os.environ) -> list[Address]:
    """The addresses of this host that others might reach, IPv4 first; if an interface is named, only those of that one."""
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
    import fcntl  # imported here, because Windows does not have it

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
            if scope == "00":  # global: neither link-local nor loopback
                found.append(Address(name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))))
    return found


def choose_address(board: Board, host: str, timeout: float) -> str:
    """The address of this host that the first rank of every other host reaches. Every rank of the board calls it.

    `host`: a text that is the same for all ranks of a host, and different for every other host.
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
    blocked = [rank for rank in others if not any(one[0] == first[host] for one in seen[rank])] or others
    names = ", ".join(f"{cards[rank]['name']} (rank {rank})" for rank in blocked)
    raise AllfoldError(
        f"init: rank {board.rank} on {socket.gethostname()} has no address that all other hosts reach: {names} reached none "
        f"of {tried}. Check firewalls and routes, or name the interface that connects the hosts with ALLFOLD_INTERFACE"
    )


def address_family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def place_in_words(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def listen(address: str, port: int | None = None, environ: Mapping[str, str] = os.environ) -> socket.socket:
    """A socket that listens at an address (empty: all addresses of this host), on a free port: in ALLFOLD_PORTS, if set.

    `port`: listen on this port instead, even if connections of an earlier run linger there.
    """
    # With an empty address, peers may connect over IPv4 or IPv6.
    is_dual = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual else address_family(address)
    ports = _ports(environ) if port is None else [port]
    for one in ports:
        try:
            return socket.create_server((address, one), family=family, backlog=1024, dualstack_ipv6=is_dual)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or one == ports[-1]:
                raise OSError(error.errno, os.strerror(error.errno or 0)) from None
    raise AssertionError


def _ports(environ: Mapping[str, str]) -> Sequence[int]:
    text = environ.get("ALLFOLD_PORTS")
    if text is None:
        return [0]  # the system picks one
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text)
    first, last = (int(one) for one in found.groups()) if found else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise UsageError(f"ALLFOLD_PORTS={text!r}: expected a range of ports like 5000-5100")
    # Start at a different port in each process, since ranks of one host would otherwise all try the ports already taken.
    middle = first + os.getpid() % (last + 1 - first)
    return [*range(middle, last + 1), *range(first, middle)]


def _listening(address: Address) -> socket.socket | None:
    try:
        listener = listen(address.address)
        listener.setblocking(False)
        return listener
    except OSError:
        return None


def _reach(wanted: list[tuple[int, str, int]]) -> list[list[object]]:
    """The addresses that accept a connection. Meanwhile the kernel accepts those to our own listeners by itself."""
    reached: list[list[object]] = []
    with selectors.DefaultSelector() as selector:
        for rank, address, port in wanted:
            with contextlib.suppress(OSError):  # this host has no IPv6, or it is switched off
                asking = socket.socket(address_family(address), socket.SOCK_STREAM)
                asking.setblocking(False)
                # Any other result is final, such as no route; SO_ERROR would not report it again.
                if asking.connect_ex((address, port)) in (0, errno.EINPROGRESS):
                    selector.register(asking, selectors.EVENT_WRITE, (rank, address))
                else:
                    asking.close()
        deadline = time.monotonic() + _TRY_SECONDS
        while selector.get_map() and (remaining := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(remaining):
                asking = key.fileobj  # type: ignore[assignment]
                if asking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    reached.append(list(key.data))
                selector.unregister(asking)
                asking.close()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return reached
