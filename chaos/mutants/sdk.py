"""Builds whose SDK lacks a rule, or whose coordinator does where only the SDK shows it."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import grpc

from muster.group import group, membership, ownership
from muster.group.membership import Membership, State
from muster.group.session import Session
from muster.net import nodes, streams
from muster.net.nodes import Nodes
from muster.net.streams import Stream, StreamedCall
from muster.types import Assignment
from muster.v1.group_pb2 import ServerFrame
from musterd.chaos.mutants.build import Builds, gives
from musterd.coordinator.machine.commands import OffsetCommit
from musterd.coordinator.machine.decide import commit
from musterd.coordinator.machine.decide.decision import Decision
from musterd.coordinator.machine.state import Group
from musterd.coordinator.runtime import calls
from musterd.coordinator.runtime.disconnect_detector import DisconnectDetector

BUILDS = Builds()
_refuse = commit._refuse  # before any patch
_committable = ownership.committable
_on_answer, _call = Stream._on_answer, Stream.call


@BUILDS.replaces("eager_keeps", group)
class KeepsAll(Membership):
    """An eager member that joins again without giving anything up."""

    def _begin_round(self, reason: str) -> None:
        if self.state is State.STABLE:
            self._reason, self._wait_ms = reason, 0
            self._send_join()


@BUILDS.replaces("cooperative_gives_all", group)
class GivesAllUp(Membership):
    """A cooperative member that gives everything up in each round."""

    def _begin_round(self, reason: str) -> None:
        if self.state is State.STABLE:
            self._reason, self._wait_ms = reason, 0
            self._release(State.RELEASING)


@BUILDS.replaces("one_channel", Nodes, "take_channel")
def _one_channel(nodes: Nodes, endpoint: str) -> int:
    """All calls to a node go by one connection, which has 1,024 at a time."""
    nodes._patient.setdefault(endpoint, [0])[0] += 1
    return 0


@BUILDS.replaces("stream_answers_mixed", Stream, "_on_answer")
def _oldest_first(self: Stream, answer: ServerFrame.Answer) -> None:
    """Takes each answer for that of the oldest open request."""
    answer.call_id = next(iter(self._open), answer.call_id)
    _on_answer(self, answer)


@BUILDS.replaces("stream_keeps_cancelled", Stream, "_ended")
def _says_nothing(self: Stream, one: StreamedCall[Any]) -> None:
    """Does not tell the node that nobody waits for a call any more."""
    self._open.pop(one.call_id, None)


@BUILDS.replaces("stream_end_untold", Stream, "_fail")
def _tells_nobody(_self: Stream, _code: object, _details: str) -> None:
    """Calls of a stream that has ended wait on."""


@BUILDS.replaces("stream_silence_borne", Stream, "_watch")
async def _waits(_self: Stream) -> None:
    """Waits for ever for a node that says nothing in its stream."""
    await asyncio.Event().wait()


@BUILDS.replaces("stream_sent_unordered", Stream, "call")
def _newest_first(self: Stream, *args: Any) -> StreamedCall[Any]:
    """Sends the newest request of a stream first."""
    one = _call(self, *args)
    self._waiting.rotate(1)
    return one


@BUILDS.replaces("stream_kept_retired", Nodes, "_retire")
def _forgets(_nodes: Nodes, stream: Stream) -> None:
    """Knows nothing of former streams when the client is closed."""
    stream.retire()


@BUILDS.replaces("mass_break", calls)
class NeverForgiving(DisconnectDetector):
    """Takes every broken call for a death, however many break at once."""

    def broke(self, forgive: Callable[[], None]) -> None:
        self.broken_total += 1


@BUILDS.replaces("zombie_fence", commit, "_refuse")
def _any_member(group: Group | None, command: OffsetCommit) -> Decision | None:
    """Takes commits of members that it has removed."""
    if group is not None and command.member_id not in group.members and group.members:
        return None
    return _refuse(group, command)


@BUILDS.replaces("late_assignment", group, "committable")
def _late(machine: Membership, under: Assignment, *args: Any) -> Assignment:
    """Commits under the assignment that it holds when it sends, not under that of the call."""
    return _committable(machine, machine.held or under, *args)


BUILDS.add_all(
    ("stream_too_large", "Sends a request that is larger than any may be with all others.",
     nodes, "REQUEST_BYTES_MAX", math.inf),
    ("stream_refused", "Takes a connection that has streams enough for a node that is overloaded.",
     streams, "_REFUSALS", (grpc.StatusCode.UNIMPLEMENTED,)),
    ("withheld", "The cooperative group leader gives away at once what others still work on.",
     membership, "withheld", gives(frozenset())),
    ("doubtless", "Takes its session for alive however long its machine slept.",
     Session, "in_doubt", property(gives(False))),
    ("roundless", "Takes no round for one that ended without this member while its machine slept.",
     Session, "round_end_s", gives(math.inf)),
)  # fmt: skip
