"""The room on the disks of a node and its connected peers."""

from musterd.raft.contract import Room


class DiskRoom:
    """The node's own, and what connected peers said last of theirs."""

    def __init__(self) -> None:
        self.own = Room.ENOUGH
        self._peers: dict[int, Room] = {}
        """The room of the peers that have not enough."""

    @property
    def enough(self) -> bool:
        """Whether every disk has room enough, as far as is known here."""
        return not self._peers and self.own is Room.ENOUGH

    def of(self, node: int) -> Room:
        """Return the room on a peer's disk, as it said last."""
        return self._peers.get(node, Room.ENOUGH)

    def hear(self, node: int, room: Room) -> None:
        """A frame of a peer says so."""
        if room is not Room.ENOUGH:
            self._peers[node] = room
        elif self._peers:
            self._peers.pop(node, None)

    def forget(self, node: int) -> None:
        """A peer is not connected any more."""
        self._peers.pop(node, None)
