"""Which addresses of another host count as reached."""

from __future__ import annotations

import socket

from allfold.fabrics.addresses import _reach


def test_addresses_without_a_route_do_not_count_as_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        # TCP has no route to multicast and broadcast addresses on any machine: connect() fails at once.
        wanted = [(1, "224.0.0.1", port), (2, "255.255.255.255", port), (3, "ff02::1", port), (4, "127.0.0.1", port)]
        assert _reach(wanted) == [[4, "127.0.0.1"]]


def test_a_port_where_nobody_listens_is_not_reached() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert _reach([(1, "127.0.0.1", bound.getsockname()[1])]) == []
