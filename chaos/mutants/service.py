"""Builds that one client, a fleet or a group's own code can stop, or that do not say who died."""

import asyncio
import dataclasses
import gc
import sys
from collections.abc import Collection, Generator, Iterable
from typing import Any

from muster import timeouts
from muster.admin.topics import topic_errors
from muster.group import assignor_thread
from muster.group.actions import Assign, Assigned
from muster.group.assignor_thread import AssignorThread
from muster.group.membership import shared
from muster.net.calls import _GroupCall
from muster.net.discovery import Routes, _Search
from muster.net.topic_registry import TopicRegistry as ClientTopics
from muster.v1 import group_pb2
from musterd.chaos.mutants.build import Builds, gives, gives_later
from musterd.coordinator import host
from musterd.coordinator.api.limits import admission, untaken_answers
from musterd.coordinator.api.limits.admission import Admission, Admitted, Kind
from musterd.coordinator.api.limits.call_acceptor import CallAcceptor
from musterd.coordinator.api.limits.cooperative_yield import Slices
from musterd.coordinator.api.limits.requests_under_way import ParseQueue, Received, Requests
from musterd.coordinator.api.limits.untaken_answers import UntakenAnswers
from musterd.coordinator.api.rpcs import translate
from musterd.coordinator.api.rpcs.group_service import GroupService
from musterd.coordinator.api.rpcs.streamed_commits import Sender, StreamedCommit, StreamedCommits
from musterd.coordinator.api.stream.client_stream import ClientStream, ClientStreams, StreamedMethod
from musterd.coordinator.api.stream.member_order import Entering
from musterd.coordinator.api.stream.stream_call import StreamCall, StreamedRequest
from musterd.coordinator.machine.commands import JoinGroup
from musterd.coordinator.machine.records import shard_records
from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.metrics import groups
from musterd.coordinator.runtime import growth, heartbeats, persist, proposer
from musterd.coordinator.runtime.heartbeats import Heartbeats, _Places
from musterd.coordinator.runtime.large_commits import Share
from musterd.coordinator.runtime.sessions import Sessions, UntakenCalls
from musterd.coordinator.runtime.topic_registry import TopicRegistry

BUILDS = Builds()
_adds, _join = GroupService._add_assignment, translate.join  # before any patch
_loads = shard_records.load_in_slices
_enters = Admission.enter
_serve = ClientStream._serve
_who = StreamedCommits._who


@BUILDS.replaces("discovery_shed", Admission, "enter")
def _enters_as_others(self: Admission, kind: Kind = Kind.ORDINARY) -> Admitted | None:
    """Refuses FindCoordinator as any other call when calls wait too long."""
    return _enters(self, Kind.ORDINARY if kind is Kind.DISCOVERY else kind)


@BUILDS.replaces("reads_past_the_door", CallAcceptor, "_wait_to_parse")
async def _only_parses(self: CallAcceptor, _method: str, _peer: str, received: Received) -> str:
    """Bounds reads of connections that the acceptor takes, and not those of gRPC's own loop."""
    return "" if await self.parse_queue.turn(len(received.raw)) else "waited too long"


@BUILDS.replaces("stream_push_lost", ClientStream, "_serve")
async def _answers_late_calls_not(
    self: ClientStream,
    method: StreamedMethod,
    call_id: int,
    received: StreamedRequest,
    call: StreamCall,
) -> None:
    """Answers in a stream what it answers at once, and loses what it had held."""
    begun = self._totals.frames_in

    async def held(received: StreamedRequest, call: StreamCall) -> Any:
        response = await method.behaviour(received, call)
        if self._totals.frames_in != begun:
            await asyncio.get_running_loop().create_future()
        return response

    await _serve(self, method._replace(behaviour=held), call_id, received, call)


@BUILDS.replaces("stream_unordered", Entering, "parsed")
async def _waits_for_nobody(self: Entering, _request: Any) -> None:
    """A member's requests enter the log as they come to it."""
    self._told(self)


@BUILDS.replaces("stream_outlives_right", ClientStreams, "_watch_right")
def _watches_nothing(_self: ClientStreams, _stream: object, _recheck: object) -> None:
    """A stream goes on when its caller's token is revoked."""


@BUILDS.replaces("streamed_commits_unasked", Sender, "may")
def _may_all(_self: Sender, _request: object) -> bool:
    """A commit of a frame is asked for no right: whoever opened the stream has it."""
    return True


@BUILDS.replaces("streamed_commits_outlive_certificate", StreamedCommits, "_who")
def _knows_still(self: StreamedCommits) -> Sender | None:
    """Who shows a token commits in frames on after the certificate of the connection has ended."""
    known, version = self._sender, self.core.access.identities.version
    return known if known is not None and known.is_good(version) else _who(self)


@BUILDS.replaces("streamed_commits_outlive_right", StreamedCommit, "recheck")
def _asks_once(_self: StreamedCommit) -> None:
    """A commit of a frame that waited goes into the log after its right is gone."""


@BUILDS.replaces("streamed_commits_pass", ClientStream, "is_awaited")
def _awaits_nobody(_self: ClientStream, _member: object) -> bool:
    """A small commit of a frame passes one of its member that waits for its handler."""
    return False


@BUILDS.replaces("parked_suspected", _GroupCall, "_suspect_later")
def _suspects_all(self: _GroupCall[Any]) -> None:
    """The SDK takes a Join that is parked for one that got lost."""
    self._suspect_at = self._loop.time() + timeouts.SUSPECT_MS / 1000


@BUILDS.replaces("topics_unshared", ClientTopics, "require")
async def _alone(self: ClientTopics, names: Collection[str], timeout_ms: float) -> None:
    """Each member of a client looks for its topics alone."""
    for error in (await topic_errors(self._caller, names, timeout_ms)).values():
        if error is not None:
            raise error


@BUILDS.replaces("assignor_on_the_loop", AssignorThread, "run")
async def _on_the_loop(_self: AssignorThread, asked: Assign) -> Assigned:
    """Runs an assignor of the user's own on the member's loop."""
    shares = shared(asked.assignor, asked.subscribers, asked.partition_counts)
    return Assigned(asked.call_id, shares)


@BUILDS.replaces("assignor_unlimited", assignor_thread, "asyncio")
class _Endless:
    """Waits for an assignor for as long as it takes."""

    wrap_future = staticmethod(asyncio.wrap_future)

    @staticmethod
    async def wait_for(awaited: "asyncio.Future[object]", _timeout: float) -> object:
        return await awaited


@BUILDS.replaces("hangs_awaited", _Search, "next")
def _goes_round(_search: _Search, _order: list[str], turn: int) -> int:
    """All askers of a search may come to wait for one node that hangs."""
    return turn


@BUILDS.replaces("assignment_unlogged", translate, "join")
def _join_alone(*of: Any, **named: Any) -> JoinGroup:
    """Does not say in the log that a Join asked for its assignment: each needs a Sync there."""
    return dataclasses.replace(_join(*of, **named), with_assignment=False)


@BUILDS.replaces("assignment_apart", GroupService, "_add_assignment")
async def _assigns_later(
    service: GroupService, response: group_pb2.JoinGroupResponse, *rest: Any
) -> None:
    """Answers a Join without its assignment: each member of a fleet syncs by a call of its own."""
    await _adds(service, response, *rest)
    response.ClearField("assignment")


def _loads_at_once(
    records: Iterable[tuple[bytes, bytes]], _slice_records: int = 0
) -> Generator[None, None, ShardState]:
    return (yield from _loads(records, sys.maxsize))


@BUILDS.replaces("growth_collected", host, "_young_collected")
def _collects_alike(_phase: str, _info: dict[str, int]) -> None:
    """Looks for garbage no more often while the state grows."""
    gc.set_threshold(*host.GC_THRESHOLDS)


BUILDS.add(
    "unread_answers",
    "Makes answers for who does not read them.",
    (UntakenAnswers, "refuses", gives(False)),
    (UntakenAnswers, "few", gives_later(True)),
)
BUILDS.add(
    "loaded_at_once",
    "Loads a shard in one go.",
    (shard_records, "load_in_slices", _loads_at_once),
    (persist, "load_in_slices", _loads_at_once),
)
BUILDS.add(
    "requests_uncounted",
    "Takes as many bytes of requests as come.",
    (Requests, "take", gives(True)),
    (Requests, "let_go", gives(True)),
)
BUILDS.add_all(
    ("unread_calls", "Ends no call whose answer is not taken.",
     UntakenAnswers, "look", gives(None)),
    ("strangers_held", "Holds heartbeats of members that nobody knows.",
     Heartbeats, "_known", gives(True)),
    ("all_places_for_one", "Holds as many heartbeats of one connection as there are places.",
     _Places, "free", gives(True)),
    ("large_at_once", "Reads all large calls that have come in one pass of the loop.",
     Slices, "turn", gives_later(None)),
    ("joins_unbounded", "Takes as many Joins as come.",
     Admission, "room", gives_later(None)),
    ("herd_unheeded", "Closes the first round of a group while members of it wait to be taken.",
     Sessions, "_may_wait", gives(False)),
    ("member_held_by_all",
     "Holds a member's heartbeats of as many processes as say that they are it.",
     heartbeats, "PER_MEMBER_MAX", sys.maxsize),
    ("places_for_many_connections",
     "Holds as many heartbeats of each connection whether places are left or not.",
     heartbeats, "PER_CONNECTION_MIN", sys.maxsize),
    ("answers_kept", "Keeps whatever clients do not take, in all.",
     untaken_answers, "NODE_BYTES_MAX", sys.maxsize),
    ("turn_without_end", "Closes entries over a whole queue in one turn.",
     proposer, "TURN_PARTITIONS_MAX", sys.maxsize),
    ("limits_unannounced", "Says nothing of a limit before it is reached.",
     growth, "WARN_SHARE", 2.0),
    ("first_heartbeat_hurried",
     "Gives the members of a fleet that starts no longer than a session for a first heartbeat.",
     Sessions, "formed", gives(None)),
    ("fleet_unnoticed",
     "Closes the first rounds of a fleet that comes process by process without most of it.",
     admission, "MANY_JOINS_MS", 0),
    ("herds_without_end",
     "Lets herds of Joins stop the sessions of a node for as long as they come.",
     admission, "JOINS_MS_MAX", 10**9),
    ("parsed_at_once", "Parses all requests that have come in one pass of the loop, however large.",
     ParseQueue, "turn", gives_later(True)),
    ("large_unheld",
     "Proposes all large commits that have come: a small one waits for all of them.",
     Share, "may_go", gives(True)),
    ("silence_of_the_unheard",
     "Takes a member for silent whose call was read and waits for its turn.",
     UntakenCalls, "waited_rounds", gives(0)),
    ("shards_apart", "The SDK looks for the coordinator of each group, whichever shard it is in.",
     Routes, "place", gives(None)),
    ("busy_asked_as_often", "The SDK asks a node that does not answer as often as one that does.",
     timeouts, "FIND_GAP_MS_MAX", timeouts.FIND_GAP_MS),
    ("unknown_topic",
     "Says that a topic does not exist because its own copy has not arrived yet.",
     TopicRegistry, "is_current", True),
    ("death_unseen", "Says nothing of the partitions of a group whose workers all died.",
     groups, "workers_died", gives(False)),
    ("work_uncounted", "Bounds an entry, a queue and a turn by bytes alone.",
     proposer, "work_of", gives(1)),
)  # fmt: skip
