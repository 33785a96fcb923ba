"""Network namespaces without names: they live as long as a process is inside or holds them open.

Used by the link process alone. Nothing here touches the machine's own network: bridge, devices
and routes are all made inside of new namespaces.
"""

import ctypes
import fcntl
import os
import struct
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyroute2

from musterd.coordinator.host import enter_namespace

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
TUN = "slow0"
"""The device through which a place sends what must be dropped or delayed."""
_OFFICE = "eth0"
_BRIDGE = "bridge0"
_PREFIX_BITS = 24
_SS_S_MAX = 5.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Namespace:
    """One namespace, its address on the bridge, and its tun device."""

    address: str
    handle: int
    """File descriptor that keeps it alive."""
    tun: int
    """Non-blocking file descriptor."""


def _enter_own_users() -> None:
    """Give this process a user namespace, in which it is root. Raises OSError where it may not.

    Must be called before any thread is started.
    """
    user, group = os.geteuid(), os.getegid()
    _unshare(_CLONE_NEWUSER, "user")
    for file, what in (
        ("uid_map", f"0 {user} 1"),
        ("setgroups", "deny"),
        ("gid_map", f"0 {group} 1"),
    ):
        Path(f"/proc/self/{file}").write_text(what)


class Namespaces:
    """All namespaces of one run, joined by a bridge that has a namespace of its own.

    Netlink and namespace calls run in a thread of their own: a namespace is a thread's, and the
    rest of the process stays where `settle` puts it.
    """

    def __init__(self) -> None:
        """Make the bridge; who is not root becomes root of a user namespace first."""
        self._users: list[str] = []
        if os.geteuid() != 0:
            _enter_own_users()
            self._users = [f"/proc/{os.getpid()}/ns/user"]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="netlink")
        self.places: dict[str, Namespace] = {}
        self._core = self._run(self._make_core)

    def add(self, place: str, address: str) -> None:
        """A namespace with an address on the bridge, and a tun device for shaped links."""
        self.places[place] = self._run(self._make, address)

    def settle(self, place: str) -> None:
        """Move the calling thread into a namespace; sockets that it makes are of that."""
        enter_namespace(self.places[place].handle)

    def paths(self, place: str) -> list[str]:
        """Return what another process of this user has to enter, in this order, for a place."""
        return [*self._users, f"/proc/{os.getpid()}/fd/{self.places[place].handle}"]

    def detour(self, source: str, target: str) -> None:
        """Let what `source` sends to `target` go through its tun device."""
        self._run(self._route, "replace", source, target)

    def straight(self, source: str, target: str) -> None:
        """Let it go over the bridge again; the detour must exist."""
        self._run(self._route, "del", source, target)

    def destroy(self, source: str, target: str) -> int:
        """End every TCP connection that `source` has with `target`, with an RST; how many."""
        return self._run(self._destroy, source, target)

    def close(self) -> None:
        """End the thread. The namespaces go with the process."""
        self._thread.shutdown()

    def _run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        return self._thread.submit(call, *arguments).result()

    # ---- in the thread

    @staticmethod
    def _make_core() -> int:
        handle = _new_network()
        with pyroute2.IPRoute() as ip:
            ip.link("add", ifname=_BRIDGE, kind="bridge")
            ip.link("set", ifname=_BRIDGE, state="up")
        return handle

    def _make(self, address: str) -> Namespace:
        handle = _new_network()
        for scope in ("all", "default"):
            # What comes out of the tun device has come a way that a strict check would not expect.
            Path(f"/proc/sys/net/ipv4/conf/{scope}/rp_filter").write_text("0")
        device = _open_tun()
        enter_namespace(self._core)
        outer = f"v{len(self.places)}"
        with pyroute2.IPRoute() as ip:
            inner = {"ifname": _OFFICE, "net_ns_fd": handle}
            ip.link("add", ifname=outer, kind="veth", peer=inner)
            ip.link("set", ifname=outer, master=_index(ip, _BRIDGE), state="up")
        enter_namespace(handle)
        with pyroute2.IPRoute() as ip:
            ip.link("set", ifname="lo", state="up")
            ip.link("set", ifname=_OFFICE, state="up")
            ip.addr("add", index=_index(ip, _OFFICE), address=address, prefixlen=_PREFIX_BITS)
            ip.link("set", ifname=TUN, state="up")
        return Namespace(address, handle, device)

    def _route(self, verb: str, source: str, target: str) -> None:
        here = self.places[source]
        enter_namespace(here.handle)
        with pyroute2.IPRoute() as ip:
            ip.route(
                verb,
                dst=f"{self.places[target].address}/32",
                oif=_index(ip, TUN),
                prefsrc=here.address,
                scope="link",
            )

    def _destroy(self, source: str, target: str) -> int:
        here = self.places[source]
        enter_namespace(here.handle)
        command = ["ss", "-HtnK", "src", here.address, "dst", self.places[target].address]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SS_S_MAX
        )
        if done.returncode != 0:
            raise OSError(f"ending connections: {done.stderr}")
        return len(done.stdout.splitlines())


def _index(ip: Any, name: str) -> int:
    found: int = ip.link_lookup(ifname=name)[0]
    return found


def _unshare(flag: int, kind: str) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flag) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} (unshare of a {kind} namespace)")


def _new_network() -> int:
    """Move the thread into a new namespace; returns a descriptor of that."""
    _unshare(_CLONE_NEWNET, "network")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _open_tun() -> int:
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(
        handle, _TUNSETIFF, struct.pack("16sH22s", TUN.encode(), _IFF_TUN | _IFF_NO_PI, b"")
    )
    return handle
