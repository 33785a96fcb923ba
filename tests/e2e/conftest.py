"""Shared by the tests that start real processes."""

import socket

import pytest


@pytest.fixture
def free_ports():
    """Ports that nobody listens on now."""

    def take(count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            return [one.getsockname()[1] for one in sockets]
        finally:
            for one in sockets:
                one.close()

    return take
