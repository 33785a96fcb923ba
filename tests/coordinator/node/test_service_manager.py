"""Signs of life to systemd: by the loop, at half of the time that systemd waits."""

import asyncio
import os
import socket

import pytest

from musterd.coordinator.node.service_manager import ServiceManager


@pytest.fixture(params=["file", "abstract"])
def manager_socket(request, tmp_path):
    """A socket as systemd's, and how it is named to a service."""
    path = str(tmp_path / "notify")
    name = path if request.param == "file" else f"@muster-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        one.settimeout(10)
        yield one, name


def test_it_says_ready_then_gives_signs_of_life_until_it_is_closed(manager_socket):
    """Each of them from the loop: none comes while the loop does not turn."""
    heard, name = manager_socket

    async def run():
        manager = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000"})
        assert manager.interval_s == 0.01
        manager.ready("node 0 serves")
        said = [heard.recv(1_000)]
        said.append(heard.recv(1_000))
        heard.setblocking(False)
        with pytest.raises(BlockingIOError):  # the loop was not let turn since
            heard.recv(1_000)
        loop = asyncio.get_running_loop()
        said.append(await loop.sock_recv(heard, 1_000))
        said.append(await loop.sock_recv(heard, 1_000))
        manager.close()
        manager.stopping()
        said.append(await loop.sock_recv(heard, 1_000))
        return said

    first, *alive, last = asyncio.run(run())
    assert first == b"READY=1\nSTATUS=node 0 serves"
    assert alive == [b"WATCHDOG=1"] * 3
    assert last.startswith(b"STOPPING=1\n")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/at/all", "WATCHDOG_USEC": "1000"},
        {"WATCHDOG_USEC": "1000"},
    ],
)
def test_without_a_service_manager_nothing_happens(environment):
    """Nor where its socket is gone."""

    async def run():
        manager = ServiceManager(environment)
        manager.ready("x")
        manager.stopping()
        manager.close()

    asyncio.run(run())


def test_a_watchdog_of_another_process_is_not_ours():
    """As sd_watchdog_enabled(3) has it."""
    usec = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000"}
    assert ServiceManager({**usec, "WATCHDOG_PID": "1"}).interval_s == 0
    assert ServiceManager({**usec, "WATCHDOG_PID": str(os.getpid())}).interval_s > 0
    assert ServiceManager({**usec, "WATCHDOG_USEC": "x"}).interval_s == 0
