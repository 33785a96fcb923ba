"""The ways that requests of members take from an edge to the log: one coordinator at a time.

What a member sends on while something of it is under way goes where that went, or is refused, to be
repeated: two coordinators may lead in turn while requests wait, so that the later one of the first
may enter the log before the earlier one of the second. For the same reason a request that has been
followed by another of its member is passed on once.
"""

from collections.abc import Sequence

from musterd.coordinator.api.stream.member_order import Member
from musterd.raft.contract import NodeId


class _Way:
    __slots__ = ("latest", "node", "requests")

    def __init__(self) -> None:
        self.node: NodeId | None = None
        """Where they are; None while none of them is anywhere."""
        self.requests = 0
        self.latest: MemberRequest | None = None


class MemberWays:
    """By member, the way of its requests that are passed on and not answered.

    There are no more than these requests have members.
    """

    def __init__(self) -> None:
        self._ways: dict[Member, _Way] = {}

    def __len__(self) -> int:
        return len(self._ways)

    def is_taken(self, members: Sequence[Member]) -> bool:
        """Whether a request of one of them is under way."""
        ways = self._ways
        return bool(ways) and any(member in ways for member in members)

    def begin(self, members: Sequence[Member], node: NodeId) -> "MemberRequest | None":
        """One more request, to be passed to `node`; None: a member's earlier one is elsewhere."""
        ways = self._ways
        if any(member in ways and ways[member].node != node for member in members):
            return None
        return MemberRequest(ways, tuple(dict.fromkeys(members)), node)


class MemberRequest:
    """One request under way, until `ended`."""

    __slots__ = ("_members", "_ways")

    def __init__(self, ways: dict[Member, _Way], members: tuple[Member, ...], node: NodeId) -> None:
        self._ways = ways
        self._members = members
        for member in members:
            way = ways.setdefault(member, _Way())
            way.node, way.latest = node, self
            way.requests += 1

    @property
    def has_members(self) -> bool:
        """Whether it is anybody's: otherwise it has no order, and all below is true of it."""
        return bool(self._members)

    @property
    def may_move(self) -> bool:
        """Whether its members have nothing else under way, and had nothing later meanwhile."""
        ways = [self._ways[member] for member in self._members]
        return all(way.requests == 1 and way.latest is self for way in ways)

    def go(self, node: NodeId | None) -> None:
        """Move it, where it `may_move`, to another node; None: to none, until one is found."""
        for member in self._members:
            self._ways[member].node = node

    def ended(self) -> None:
        """It is answered, lost or cancelled."""
        ways = self._ways
        for member in self._members:
            way = ways[member]
            way.requests -= 1
            if not way.requests:
                del ways[member]
