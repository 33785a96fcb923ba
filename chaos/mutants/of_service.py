"""Builds that one client, a fleet or a group's own code can stop, or that do not say who died."""

import asyncio
import dataclasses
import gc
import sys
from collections.abc import Collection, Generator, Iterable
from typing import Any

import muster.group.assignor_thread
import musterd.coordinator.api.admission
import musterd.coordinator.api.call_acceptor
import musterd.coordinator.api.translate
import musterd.coordinator.api.untaken_answers
import musterd.coordinator.host
import musterd.coordinator.machine.records.shard_records
import musterd.coordinator.metrics.groups
import musterd.coordinator.runtime.growth
import musterd.coordinator.runtime.heartbeats
import musterd.coordinator.runtime.persist
import musterd.coordinator.runtime.proposer
from muster import timeouts
from muster.admin.topics import topic_errors
from muster.group.actions import Assign, Assigned
from muster.group.assignor_thread import AssignorThread
from muster.group.membership import shared
from muster.net.calls import _Call
from muster.net.discovery import Routes, _Search
from muster.net.topic_registry import TopicRegistry as ClientTopics
from muster.types import Coordinator
from muster.v1 import group_pb2
from musterd.chaos.mutants.build import Build
from musterd.coordinator.api.admission import Admission, Kind
from musterd.coordinator.api.call_acceptor import CallAcceptor
from musterd.coordinator.api.cooperative_yield import Slices
from musterd.coordinator.api.group_service import GroupService
from musterd.coordinator.api.requests_under_way import ParseQueue, Requests
from musterd.coordinator.api.untaken_answers import UntakenAnswers
from musterd.coordinator.machine.commands import CloseRound, Command, JoinGroup
from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.machine.state import Group
from musterd.coordinator.runtime.heartbeats import Beat, Heartbeats, HeldCall, _Places
from musterd.coordinator.runtime.large_commits import Share
from musterd.coordinator.runtime.sessions import Arrivals, Sessions
from musterd.coordinator.runtime.topic_registry import TopicRegistry


def _answers_whoever_asks(_self: UntakenAnswers, _peer: str) -> bool:
    return False


async def _goes_on(_self: UntakenAnswers, _peer: str) -> bool:
    return True


async def _only_parses(self: CallAcceptor, _method: str, _peer: str, size: int) -> str:
    return "" if await self._parse_queue.turn(size) else "waited too long"


def _ends_nothing(_self: UntakenAnswers) -> None:
    """Answers wait for as long as their connection lives."""


def _knows_everybody(_self: Heartbeats, _beat: Beat) -> bool:
    return True


def _has_a_place(_self: _Places, _call: HeldCall) -> bool:
    return True


def _one(_command: Command, _offsets: int = 0) -> int:
    return 1


async def _at_once(_self: Slices, _entries: int) -> None:
    """Large or small."""


async def _parsed_at_once(_self: ParseQueue, _size: int, *, commit: bool = False) -> bool:  # noqa: ARG001
    return True


def _may_always_go(_self: Share, _work: int) -> bool:
    return True


def _counts_nothing(_self: Requests, _peer: str, _size: int) -> bool:
    return True


def _nobody_waits(_self: Arrivals, _loop_round: int) -> int:
    return 0


_NO_ROOM_OF_ITS_OWN = {
    method: kind
    for method, kind in musterd.coordinator.api.call_acceptor.KINDS.items()
    if kind is not Kind.DISCOVERY
}


async def _no_wait(_self: Admission, _kind: Kind, *, read: bool = False) -> None:
    """There is room."""


def _suspects_all(self: _Call[Any]) -> None:
    self._suspect_at = self._loop.time() + timeouts.SUSPECT_MS / 1000


async def _alone(self: ClientTopics, names: Collection[str], timeout_ms: float) -> None:
    for error in (await topic_errors(self._caller, names, timeout_ms)).values():
        if error is not None:
            raise error


def _waits_for_nobody(_self: Sessions, _closing: CloseRound) -> bool:
    return False


def _stays_alone(_self: Routes, _group_id: str, _shard: int, _found: Coordinator | None) -> None:
    """What is known of others says nothing of it."""


def _mourns_nobody(_group: Group) -> bool:
    return False


async def _on_the_loop(_self: AssignorThread, asked: Assign) -> Assigned:
    shares = shared(asked.assignor, asked.subscribers, asked.partition_counts)
    return Assigned(asked.call_id, shares)


class _Endless:
    """`asyncio`, in which nothing is limited in time."""

    wrap_future = staticmethod(asyncio.wrap_future)

    @staticmethod
    async def wait_for(awaited: "asyncio.Future[object]", _timeout: float) -> object:
        return await awaited


def _forms_like_others(_sessions: Sessions, _group: Group) -> None:
    """Whether its first round was held does not count."""


def _goes_round(_search: _Search, _order: list[str], turn: int) -> int:
    """Whoever waits for it already."""
    return turn


def _join_alone(*of: Any) -> JoinGroup:
    """A Join as it was before it could ask."""
    return dataclasses.replace(_JOIN(*of), with_assignment=False)


async def _assigns_later(
    service: GroupService, response: group_pb2.JoinGroupResponse, *rest: Any
) -> None:
    """The member's own Sync will be told."""
    await _ADDS(service, response, *rest)
    response.ClearField("assignment")


def _loads_at_once(
    records: Iterable[tuple[bytes, bytes]], _slice_records: int = 0
) -> Generator[None, None, ShardState]:
    """However many there are."""
    return (yield from _LOADS(records, sys.maxsize))


def _collects_alike(_phase: str, _info: dict[str, int]) -> None:
    """Whatever stays."""
    gc.set_threshold(*musterd.coordinator.host.GC_THRESHOLDS)


_ADDS = GroupService._add_assignment
_JOIN = musterd.coordinator.api.translate.join
_LOADS = musterd.coordinator.machine.records.shard_records.load_in_slices


BUILDS = (
    Build(
        "unread_answers",
        "Makes answers for who does not read them.",
        ((UntakenAnswers, "refuses", _answers_whoever_asks), (UntakenAnswers, "few", _goes_on)),
    ),
    Build(
        "reads_past_the_door",
        "Bounds reads of connections that the acceptor takes, and not those of gRPC's own loop.",
        ((CallAcceptor, "_wait_to_parse", _only_parses),),
    ),
    Build(
        "unread_calls",
        "Ends no call whose answer is not taken.",
        ((UntakenAnswers, "look", _ends_nothing),),
    ),
    Build(
        "strangers_held",
        "Holds heartbeats of members that nobody knows.",
        ((Heartbeats, "_known", _knows_everybody),),
    ),
    Build(
        "all_places_for_one",
        "Holds as many heartbeats of one connection as there are places.",
        ((_Places, "free", _has_a_place),),
    ),
    Build(
        "large_at_once",
        "Reads all large calls that have come in one pass of the loop.",
        ((Slices, "turn", _at_once),),
    ),
    Build(
        "joins_unbounded",
        "Takes as many Joins as come.",
        ((Admission, "room", _no_wait),),
    ),
    Build(
        "discovery_shed",
        "Refuses FindCoordinator as any other call when calls wait too long.",
        ((musterd.coordinator.api.call_acceptor, "KINDS", _NO_ROOM_OF_ITS_OWN),),
    ),
    Build(
        "parked_suspected",
        "The SDK takes a Join that is parked for one that got lost.",
        ((_Call, "_suspect_later", _suspects_all),),
    ),
    Build(
        "topics_unshared",
        "Each member of a client looks for its topics alone.",
        ((ClientTopics, "require", _alone),),
    ),
    Build(
        "herd_unheeded",
        "Closes the first round of a group while members of it wait to be taken.",
        ((Sessions, "_may_wait", _waits_for_nobody),),
    ),
    Build(
        "assignment_unlogged",
        "Does not say in the log that a Join asked for its assignment: each needs a Sync there.",
        ((musterd.coordinator.api.translate, "join", _join_alone),),
    ),
    Build(
        "assignment_apart",
        "Answers a Join without its assignment: each member of a fleet syncs by a call of its own.",
        ((GroupService, "_add_assignment", _assigns_later),),
    ),
    Build(
        "member_held_by_all",
        "Holds a member's heartbeats of as many processes as say that they are it.",
        ((musterd.coordinator.runtime.heartbeats, "PER_MEMBER_MAX", sys.maxsize),),
    ),
    Build(
        "places_for_many_connections",
        "Holds as many heartbeats of each connection whether places are left or not.",
        ((musterd.coordinator.runtime.heartbeats, "PER_CONNECTION_MIN", sys.maxsize),),
    ),
    Build(
        "answers_kept",
        "Keeps whatever clients do not take, in all.",
        ((musterd.coordinator.api.untaken_answers, "NODE_BYTES_MAX", sys.maxsize),),
    ),
    Build(
        "turn_without_end",
        "Closes entries over a whole queue in one turn.",
        ((musterd.coordinator.runtime.proposer, "TURN_PARTITIONS_MAX", sys.maxsize),),
    ),
    Build(
        "loaded_at_once",
        "Loads a shard in one go.",
        (
            (musterd.coordinator.machine.records.shard_records, "load_in_slices", _loads_at_once),
            (musterd.coordinator.runtime.persist, "load_in_slices", _loads_at_once),
        ),
    ),
    Build(
        "limits_unannounced",
        "Says nothing of a limit before it is reached.",
        ((musterd.coordinator.runtime.growth, "WARN_SHARE", 2.0),),
    ),
    Build(
        "growth_collected",
        "Looks for garbage no more often while the state grows.",
        ((musterd.coordinator.host, "_young_collected", _collects_alike),),
    ),
    Build(
        "first_heartbeat_hurried",
        "Gives the members of a fleet that starts no longer than a session for a first heartbeat.",
        ((Sessions, "formed", _forms_like_others),),
    ),
    Build(
        "fleet_unnoticed",
        "Closes the first rounds of a fleet that comes process by process without most of it.",
        ((musterd.coordinator.api.admission, "MANY_JOINS_MS", 0),),
    ),
    Build(
        "herds_without_end",
        "Lets herds of Joins stop the sessions of a node for as long as they come.",
        ((musterd.coordinator.api.admission, "JOINS_MS_MAX", 10**9),),
    ),
    Build(
        "parsed_at_once",
        "Parses all requests that have come in one pass of the loop, however large.",
        ((ParseQueue, "turn", _parsed_at_once),),
    ),
    Build(
        "large_unheld",
        "Proposes all large commits that have come: a small one waits for all of them.",
        ((Share, "may_go", _may_always_go),),
    ),
    Build(
        "requests_uncounted",
        "Takes as many bytes of requests as come.",
        ((Requests, "take", _counts_nothing), (Requests, "let_go", _counts_nothing)),
    ),
    Build(
        "silence_of_the_unheard",
        "Takes a member for silent whose call was read and waits for its turn.",
        ((Arrivals, "waited_rounds", _nobody_waits),),
    ),
    Build(
        "hangs_awaited",
        "All askers of a search may come to wait for one node that hangs.",
        ((_Search, "next", _goes_round),),
    ),
    Build(
        "shards_apart",
        "The SDK looks for the coordinator of each group, whichever shard it is in.",
        ((Routes, "place", _stays_alone),),
    ),
    Build(
        "busy_asked_as_often",
        "The SDK asks a node that does not answer as often as one that does.",
        ((timeouts, "FIND_GAP_MS_MAX", timeouts.FIND_GAP_MS),),
    ),
    Build(
        "unknown_topic",
        "Says that a topic does not exist because its own copy has not arrived yet.",
        ((TopicRegistry, "is_current", True),),
    ),
    Build(
        "assignor_on_the_loop",
        "Runs an assignor of the user's own on the member's loop.",
        ((AssignorThread, "run", _on_the_loop),),
    ),
    Build(
        "assignor_unlimited",
        "Waits for an assignor for as long as it takes.",
        ((muster.group.assignor_thread, "asyncio", _Endless),),
    ),
    Build(
        "death_unseen",
        "Says nothing of the partitions of a group whose workers all died.",
        ((musterd.coordinator.metrics.groups, "workers_died", _mourns_nobody),),
    ),
)
"""Caught by unit tests."""

SIMULATED = (
    Build(
        "work_uncounted",
        "Bounds an entry, a queue and a turn by bytes alone.",
        ((musterd.coordinator.runtime.proposer, "work_of", _one),),
    ),
)
