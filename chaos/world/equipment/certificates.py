"""Certificates for nodes and clients: what `muster cert` makes, in the cluster's own directory."""

from pathlib import Path
from typing import Final

from muster.net.tls import Tls
from musterd.coordinator.node.authority import CA_CERT, CERT, KEY, Authority
from musterd.coordinator.node.launcher import Equipment
from musterd.coordinator.node.loopback import ClusterError

HOSTS: Final = ("127.0.0.1", "localhost")
CLIENT: Final = "load"


class Certificates(Equipment):
    """Both ports of every node use TLS, with certificates on both sides."""

    def __init__(self, cluster_id: str) -> None:
        """`cluster_id`: what the nodes' identities have."""
        self._cluster_id = cluster_id
        self._authority: Authority | None = None
        self._folder: Path | None = None

    def prepare(self, node_id: int, data_dir: Path) -> None:
        """Make the node's certificate; before the first one the authority and a client's."""
        if self._authority is None:
            self._folder = data_dir.parent / "certs"
            self._authority = Authority.create(self._folder, self._cluster_id)
            self._authority.client(CLIENT)
        self._authority.node(node_id, HOSTS)

    def command(self, node_id: int, argv: list[str]) -> list[str]:
        """With the node's folder for both ports."""
        return [*argv, f"--tls-dir={self.folder / f'node-{node_id}'}"]

    @property
    def folder(self) -> Path:
        """The authority's. Raises ClusterError before the first node has an identity."""
        if self._folder is None:
            raise ClusterError("no node has an identity yet, so there are no certificates")
        return self._folder

    @property
    def client(self) -> Tls:
        """The files of a client that all nodes know. Raises ClusterError as `folder`."""
        mine = self.folder / f"client-{CLIENT}"
        return Tls(str(mine / CA_CERT), str(mine / CERT), str(mine / KEY))
