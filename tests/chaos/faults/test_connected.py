"""A fault that opens connections reaches a node in either kind of network."""

import socket

from musterd.chaos.faults.resources import _connected


def test_a_node_is_reached_on_loopback_and_behind_a_socket_of_its_network(tmp_path):
    """In network namespaces its address for the runner is a path."""
    with socket.create_server(("127.0.0.1", 0)) as on_loopback, socket.socket(socket.AF_UNIX) as at:
        at.bind(str(tmp_path / "at"))
        at.listen()
        port = on_loopback.getsockname()[1]
        for control in (f"127.0.0.1:{port}", f"unix:{tmp_path}/at"):
            with _connected(control) as caller:
                assert caller.getpeername()
