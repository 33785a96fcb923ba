"""Connections of one host: those that came last are ended, and no other's."""

import contextlib
import socket

import pytest

from musterd.coordinator.node.host_connections import HostConnections, host_of

MOST = 40


@pytest.fixture
def listener():
    """A port of this process that takes connections."""
    with contextlib.ExitStack() as kept, socket.create_server(("127.0.0.1", 0)) as listening:

        def connect(count, host):
            at = listening.getsockname()
            pairs = []
            for _ in range(count):
                client = kept.enter_context(
                    socket.create_connection(at, 5, source_address=(host, 0))
                )
                pairs.append((client, kept.enter_context(listening.accept()[0])))
            return pairs

        yield listening.getsockname()[1], connect


def is_open(client):
    """Whether the other end has not shut the connection."""
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True


def test_of_a_host_with_too_many_those_that_came_last_are_ended(listener):
    """Those of another host stay, and so do those that were there."""
    port, connect = listener
    connections = HostConnections(port, MOST)
    before = connect(MOST - 10, "127.0.0.2")
    connections.look()
    others = connect(MOST, "127.0.0.3")
    after = connect(15, "127.0.0.2")
    for _ in range(2):
        connections.look()
        assert all(is_open(client) for client, _ in (*before, *others, *after[:10]))
        assert not any(is_open(client) for client, _ in after[10:])
        for _, served in after[10:]:
            served.close()
    assert connections.ended_total == 5


def test_a_later_connection_under_the_number_of_one_that_went_is_the_last(listener):
    """A number of a file that is used again is another file."""
    port, connect = listener
    connections = HostConnections(port, MOST)
    held = connect(MOST, "127.0.0.2")
    connections.look()
    number = held[0][1].fileno()
    for one in held.pop(0):
        one.close()
    (again,), (last,) = connect(1, "127.0.0.2"), connect(1, "127.0.0.2")
    assert number in {one.fileno() for one in (*again, *last)}
    connections.look()
    assert all(is_open(client) for client, _ in held)
    assert [is_open(client) for client, _ in (again, last)].count(False) == 1


def test_what_is_no_connection_of_the_client_port_is_left_alone(listener):
    """Connections of other ports, pairs, and the ports that listen themselves."""
    port, connect = listener
    pairs = connect(MOST, "127.0.0.2")
    for other in (port + 1, 1):
        HostConnections(other, 3).look()
    assert all(is_open(client) for client, _ in pairs)
    assert connect(1, "127.0.0.2")


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_ipv6_host_is_its_network(address, host):
    """It could have as many addresses as it likes there."""
    assert host_of(address) == host
