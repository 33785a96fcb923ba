"""The network of a world as network namespaces: each node and each host of clients in its own.

Needs Linux, /dev/net/tun, `ss` and the package `pyroute2`; without root also user namespaces.
The machine's own network is not touched.
"""

import functools
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex

from muster.admin.operator_secret import CLEAR_VARIABLE, FILE_VARIABLE
from musterd.chaos.child import Child, ChildError, ChildRefusedError, Message
from musterd.chaos.world.networks.network import Network, Shape, client_place
from musterd.coordinator.host import tied_command
from musterd.coordinator.node.loopback import Addresses, ClusterError, node_place

_CONTROL = "control"
_SUBNET = "10.99.0"
"""Inside of the run's own namespaces, so it may be in use elsewhere."""
_NODE_FIRST, _CLIENT_FIRST, _CONTROL_HOST = 10, 100, 250
_CLIENT_HOSTS = 2
_CLIENT_PORT, _PEER_PORT, _METRICS_PORT, _PROXY_PORT = 7070, 7170, 7270, 7670
_TUN = Path("/dev/net/tun")
_READY_S, _ANSWER_S = 20.0, 10.0


class Netns(Network):
    """Real packets on veth pairs and a bridge; shaped links go through a tun device.

    A process of its own, `link_process`, holds all that, and works on links.
    """

    name = "netns"
    provides = frozenset({"links"})
    serve_flags: tuple[str, ...] = (
        *("--insecure", "--insecure-peers", "--insecure-metrics"),
        "--insecure-admin-secret",
    )

    def __init__(self, seed: int = 0) -> None:
        """Not open yet. `seed`: for losses and jitter."""
        super().__init__()
        self._hosts: dict[str, str] = {}
        self._seed = seed
        self._nodes = 0
        self._process: Child | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._namespaces: dict[str, list[str]] = {}
        """Place -> paths of what a process has to enter to be there."""

    @staticmethod
    def lacks() -> str:
        """Why this machine cannot have it, "" where it can: tried once, with one node."""
        return _tried()

    def open(self, nodes: int) -> None:
        self._hosts = {node_place(n): f"{_SUBNET}.{_NODE_FIRST + n}" for n in range(nodes)}
        self._nodes = nodes
        for host in range(_CLIENT_HOSTS):
            self._hosts[client_place(host)] = f"{_SUBNET}.{_CLIENT_FIRST + host}"
        control = {}
        for n in range(nodes):
            at = self._hosts[node_place(n)]
            control[self._control(n, "client")] = [at, _CLIENT_PORT]
            control[self._control(n, "metrics")] = [at, _METRICS_PORT]
        given = {
            "places": {**self._hosts, _CONTROL: f"{_SUBNET}.{_CONTROL_HOST}"},
            "control": control,
            "seed": self._seed,
        }
        secret = Path(self.folder) / "admin-secret"
        secret.write_text(token_hex())
        self.serve_flags = (*Netns.serve_flags, "--admin-secret-file", str(secret))
        # For operators' calls of this process and its commands; nobody else is in this network.
        os.environ |= {FILE_VARIABLE: str(secret), CLEAR_VARIABLE: "true"}
        self._process = Child("musterd.chaos.world.networks.link_process", given)
        try:
            self._namespaces = self._process.ready(_READY_S)["namespaces"]
        except ChildError:
            self.close()
            raise

    def close(self) -> None:
        for name in (FILE_VARIABLE, CLEAR_VARIABLE):
            os.environ.pop(name, None)
        process, self._process = self._process, None
        if process is not None:
            process.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()
        super().close()

    def addresses(self, node_id: int) -> Addresses:
        host = self._hosts[node_place(node_id)]
        others = [n for n in range(self._nodes) if n != node_id]
        return Addresses(
            listen=f"{host}:{_CLIENT_PORT}",
            advertise=f"{host}:{_CLIENT_PORT}",
            peer_listen=f"{host}:{_PEER_PORT}",
            peers={n: f"{self._hosts[node_place(n)]}:{_PEER_PORT}" for n in others},
            metrics_listen=f"{host}:{_METRICS_PORT}",
            control=f"unix:{self._control(node_id, 'client')}",
            control_metrics=f"unix:{self._control(node_id, 'metrics')}",
        )

    def command(self, place: str, argv: Sequence[str]) -> list[str]:
        if place not in self._namespaces:
            raise ClusterError(f"there is no place {place!r}; there are: {', '.join(self._hosts)}")
        return tied_command(argv, *self._namespaces[place])

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(self._hosts)

    @property
    def folder(self) -> str:
        """Where the sockets of the runner's own calls are; it goes with this network."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="muster-net-")
        return self._folder.name

    @property
    def process(self) -> Child:
        """The process that holds the namespaces. Raises ClusterError where none is open."""
        if self._process is None:
            raise ClusterError("the network is not open")
        return self._process

    def proxy_ports(self, count: int) -> list[str]:
        return [f"{self._hosts[client_place()]}:{_PROXY_PORT + n}" for n in range(count)]

    def shape(self, source: str, target: str, shape: Shape) -> None:
        self._link("shape", source, target, shape=asdict(shape))

    def heal(self, source: str, target: str) -> None:
        self._link("heal", source, target)

    def reset(self, source: str, target: str) -> int:
        return int(self._link("reset", source, target)["connections"])

    def half_open(self, dead: str, alive: str) -> int:
        return int(self._link("half_open", dead, alive)["connections"])

    def counts(self) -> Mapping[tuple[str, str, str], int]:
        counts = self._ask("counts")["counts"]
        return {(source, target, what): count for source, target, what, count in counts}

    def _link(self, verb: str, source: str, target: str, **more: object) -> Message:
        if source == target or not {source, target} <= self._hosts.keys():
            raise ClusterError(f"there is no link {source}>{target}")
        return self._ask(verb, source=source, target=target, **more)

    def _ask(self, verb: str, **fields: object) -> Message:
        try:
            return self.process.ask(verb, _ANSWER_S, **fields)
        except ChildRefusedError:
            raise
        except ChildError:
            # A late answer would be taken for that of the next question.
            self.process.close()
            self._process = None
            raise

    def _control(self, node_id: int, port: str) -> str:
        return f"{self.folder}/{port}-{node_id}"


def choose_network(seed: int = 0) -> tuple[Network, str]:
    """Namespaces, or plain loopback where this machine has none; and which it is, for people."""
    network = Netns(seed=seed)
    if reason := network.lacks():
        return Network(), (
            f"plain loopback, where no link can be broken ({reason}; run as root, or allow user "
            "namespaces); other faults are, and with --bootstrap those of your own installation"
        )
    return network, "network namespaces"


@functools.lru_cache(maxsize=1)
def _tried() -> str:
    if importlib.util.find_spec("pyroute2") is None:
        return "the package pyroute2 is not installed"
    if shutil.which("ss") is None:
        return "there is no command ss (of iproute2)"
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return f"{_TUN} is not there or may not be opened"
    trial = Netns()
    try:
        trial.open(1)
    except ClusterError as error:
        return str(error)
    finally:
        trial.close()
    return ""
