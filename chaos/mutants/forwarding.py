"""Builds that pass calls on wrongly."""

from collections.abc import Sequence

from musterd.chaos.mutants.build import Builds, gives
from musterd.coordinator.api.forward.member_ways import MemberRequest, MemberWays
from musterd.coordinator.api.forward.passed_call import HandedOnCall
from musterd.coordinator.api.frame import handler
from musterd.coordinator.api.frame.forwarding import ShownCaller
from musterd.coordinator.api.frame.handler import ActiveCall
from musterd.coordinator.api.stream.member_order import Member
from musterd.raft.contract import NodeId

BUILDS = Builds()


def _shows_nothing(self: ActiveCall) -> ShownCaller:
    return ShownCaller(
        self.peer, private=True, certificate=b"", bearer="", secret=b"", request_id=""
    )


def _always(self: MemberWays, members: Sequence[Member], node: NodeId) -> MemberRequest:
    return MemberRequest(self._ways, tuple(members), node)


BUILDS.add(
    "members_go_two_ways",
    "Passes a member's request on while an earlier one of it is with another coordinator.",
    (MemberWays, "begin", _always),
    (MemberWays, "is_taken", gives(False)),
)
BUILDS.add(
    "passed_on_after_a_later_one",
    "Passes a refused request on again though a later one of its member was passed on.",
    (MemberRequest, "may_move", property(gives(True))),
)
BUILDS.add(
    "passed_on_again",
    "Passes a call on that another node has passed to this one.",
    (handler, "_was_passed_on", gives(False)),
)
BUILDS.add(
    "caller_not_passed_on",
    "Passes calls on as nobody's.",
    (ActiveCall, "shown", property(_shows_nothing)),
)
BUILDS.add(
    "edge_taken_for_its_clients",
    "Takes the death of a node that forwards for that of the clients behind it.",
    (HandedOnCall, "with_edge", property(gives(False), gives(None))),
)
