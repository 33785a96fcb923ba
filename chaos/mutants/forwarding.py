"""Builds that pass calls on wrongly."""

from musterd.chaos.mutants.build import Builds, gives
from musterd.coordinator.api.forward.passed_call import HandedOnCall
from musterd.coordinator.api.frame import handler
from musterd.coordinator.api.frame.forwarding import ShownCaller
from musterd.coordinator.api.frame.handler import ActiveCall

BUILDS = Builds()


def _shows_nothing(self: ActiveCall) -> ShownCaller:
    return ShownCaller(
        self.peer, private=True, certificate=b"", bearer="", secret=b"", request_id=""
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
