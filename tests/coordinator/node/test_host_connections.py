"""Connections of hosts: of those with too many the ones that came last are ended, no other's."""

import contextlib
import socket

import pytest

from musterd.coordinator.node.host_connections import (
    Bounds,
    File,
    HostConnections,
    bounds_of,
    host_of,
    surplus,
)

MOST = 40
BOUNDS = Bounds(MOST, 10 * MOST)


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
    connections = HostConnections(port, BOUNDS)
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
    connections = HostConnections(port, BOUNDS)
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
        HostConnections(other, Bounds(3, 3)).look()
    assert all(is_open(client) for client, _ in pairs)
    assert connect(1, "127.0.0.2")


def test_many_addresses_of_one_machine_do_not_take_every_connection(listener):
    """Two that have all but a few between them give way to each other, not a third one."""
    port, connect = listener
    connections = HostConnections(port, Bounds(MOST, MOST + 20))
    first, others = connect(MOST, "127.0.0.2"), connect(10, "127.0.0.4")
    second = connect(MOST, "127.0.0.3")
    connections.look()
    assert all(is_open(client) for client, _ in others)
    for pairs in (first, second):
        assert [is_open(client) for client, _ in pairs] == [True] * 25 + [False] * 15


def files(*addresses):
    """Connections in the order in which they came, each of an address."""
    return [File(number, number, *host_of(one)) for number, one in enumerate(addresses)]


def test_beyond_what_all_may_have_the_hosts_with_most_give_way():
    """Who has little keeps it, came it last; so do all that have little, however many they are."""
    flood = [f"10.0.0.{1 + number % 3}" for number in range(300)]
    held = files(*["10.0.1.1"] * 20, *flood, *["10.0.1.2"] * 20)
    ended = surplus(held, Bounds(150, 220))
    assert ended == held[20 + 180 : 20 + 300]
    few = files(*(f"10.1.0.{number}" for number in range(200)))
    assert surplus(few, Bounds(150, 100)) == []


def test_the_networks_of_one_ipv6_site_have_two_hosts_connections_together():
    """A site of 48 bits has 65,536 networks of 64 bits."""
    held = files(*(f"2001:db8:1:{number:x}::1" for number in range(100)), "2001:db8:2::1")
    assert surplus(held, Bounds(30, 1_000)) == held[60:100]
    assert surplus(held, Bounds(60, 40)) == held[39:100]


def test_by_itself_a_host_has_no_more_than_memory_holds():
    """Half of 130,048 was more than an address has ports, and 2.8 GB."""
    assert bounds_of(130_048, 0) == Bounds(4_096, 97_536)
    assert bounds_of(768, 0) == Bounds(192, 576)
    assert bounds_of(768, 500) == Bounds(500, 576)


@pytest.mark.parametrize(
    ("address", "host", "site"),
    [
        ("10.0.0.7", "10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7", "10.0.0.7"),
        ("2001:db8::1", "2001:db8::/64", "2001:db8::/48"),
        ("2001:db8:0:1::ffff:1", "2001:db8:0:1::/64", "2001:db8::/48"),
        ("fe80::1%eth0", "fe80::/64", "fe80::/48"),
    ],
)
def test_an_ipv6_host_is_its_network(address, host, site):
    """It could have as many addresses as it likes there."""
    assert host_of(address) == (host, site)
