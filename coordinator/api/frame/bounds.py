"""Bounds of requests: bytes, the group id, and elements of lists, counted before they are parsed.

A request of 1.5 MiB holds 700,000 empty elements; a Python object of each would hold up the loop
for a second. So group id and counts are checked here, of the request, and what its other fields may
be is checked of the command that is made of it (`ActiveCall.decoded`). Rules of the machine are its
own functions (machine/decide/requests.py); the others are of the wire alone, and no replica knows
them.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from muster.v1 import admin_pb2
from muster.v1 import group_pb2 as pb
from musterd.coordinator.machine.audit import BATCH
from musterd.coordinator.machine.commands import ConsumerGroupHeartbeat, JoinGroup
from musterd.coordinator.machine.decide import requests
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS, Limits
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.machine.zones import wrong_zones
from musterd.coordinator.runtime.patterns import why_invalid

COMMAND_MARGIN_BYTES: Final = 512
"""A command is its request plus what the server adds: the client's host (at most 249 bytes), tags
and lengths."""

NAMES_BYTES_MAX: Final = LIMITS.client_message_max_bytes // 4
"""Bytes of the names in a request that names many groups: an answer that repeats every name fits a
message."""

FIND_KEYS_MAX: Final = 1_000
"""Pairs in one FindCoordinator."""

HEARTBEAT_MEMBERS_MAX: Final = 2_000
"""Members in one Heartbeat."""

GROUPS_MAX: Final = 1_000
"""Groups in one call."""

PARTITIONS_MAX: Final = LIMITS.topic_max_partitions

OWNED_PARTITIONS_MAX: Final = 100_000
"""Partitions that one ConsumerGroupHeartbeat names."""

FILTERS_MAX: Final = 100
"""Names that one ListGroups may filter by."""

_NONCE: Final = re.compile(r"[0-9a-f]{32}")

Rule = Callable[[Any], Refused | None]
"""What is wrong with a request, or None."""


class Bounds(NamedTuple):
    """The bounds of one RPC's requests, or of each item of them (`ActiveCall.ask_each`)."""

    rules: Sequence[Rule] = ()
    bytes_max: int | None = None
    margin_bytes: int = 0
    too_large: str = "The request takes {} bytes; at most {} are taken: ask less at once."

    def size(self, request: Any) -> int:
        """The bytes of the request, or of the command that is made of it; 0 where none counts."""
        if self.bytes_max is None:
            return 0
        text = isinstance(request, str)
        return (len(request.encode()) if text else request.ByteSize()) + self.margin_bytes

    def refusal(self, request: Any, size: int) -> Refused | None:
        """Return what is wrong with a request of this size, or None."""
        if self.bytes_max is not None and size > self.bytes_max:
            return _invalid(self.too_large.format(size, self.bytes_max))
        for rule in self.rules:
            refused = rule(request)
            if refused is not None:
                return refused
        return None


def _invalid(message: str) -> Refused:
    return Refused(Error.INVALID_REQUEST, message)


def _at_most(name: str, most: int, message: str) -> Rule:
    """Return the rule that the list `name` has at most so many elements."""

    def rule(request: Any) -> Refused | None:
        count = len(getattr(request, name))
        return None if count <= most else _invalid(message.format(most=most, count=count))

    return rule


def _many(name: str, most: int, what: str) -> Rule:
    return _at_most(name, most, what + " are at most {most}; this one has {count}.")


def _counted(name: str, refuse: Callable[[int, Limits], Refused | None]) -> Rule:
    return lambda request: refuse(len(getattr(request, name)), LIMITS)


def refuse_group(group_id: str) -> Refused | None:
    """Return what is wrong with a group id, or None."""
    return requests.refuse_group_id(group_id, LIMITS)


def refuse_configured_group(group_id: str) -> Refused | None:
    """Return what is wrong with the id of a group whose settings are asked for, or None."""
    return requests.refuse_configured_group(group_id, LIMITS)


def _group(request: Any) -> Refused | None:
    return refuse_group(request.group_id)


def _topic(request: Any) -> Refused | None:
    """No name at all is the machine's to refuse: a new topic needs one, an old one has one."""
    return requests.refuse_topic_name(request.name, LIMITS) if request.name else None


def _zones(request: Any) -> Refused | None:
    wrong = wrong_zones(request.zones, LIMITS)
    return Refused(Error.INVALID_REQUEST, wrong) if wrong else None


def _command(*rules: Rule, bytes_max: int = LIMITS.command_max_bytes) -> Bounds:
    """Return the bounds of a request that becomes one command, which has to fit a log entry."""
    message = "The request takes {} bytes in the log; at most {} are taken: send less at once."
    return Bounds(rules, bytes_max, COMMAND_MARGIN_BYTES, message)


def _names(*rules: Rule) -> Bounds:
    """Return the bounds of a request that names many groups."""
    return Bounds(rules, NAMES_BYTES_MAX)


def command_size(request_bytes: int) -> int:
    """At most so many bytes does the command of such a request take in an entry."""
    return request_bytes + COMMAND_MARGIN_BYTES


def refuse_command_size(size: int) -> Refused | None:
    """Refuse a command of so many bytes that is one of several of its request."""
    return COMMAND.refusal(None, size)


NONE: Final = Bounds()
"""The bounds of requests that hold next to nothing, or that name shards and nodes. How many of
those there are, the service knows, which asks `refuse_shards` and `refuse_node` about callers who
may ask at all."""
COMMAND: Final = _command()

# ---- GroupCoordinator

FIND: Final = _names(_at_most("keys", FIND_KEYS_MAX, "A FindCoordinator has at most {most} keys."))
JOIN: Final = _command(
    _counted("protocols", requests.refuse_protocols),
    _many("subscribed_topics", LIMITS.max_topics, "The topics that a member names"),
    _group,
)
SYNC: Final = _command(
    _many("assignments", LIMITS.group_max_members, "The assignments of one Sync"),
    _group,
    bytes_max=LIMITS.sync_max_bytes,
)
LEAVE: Final = _command(_counted("members", requests.refuse_leaving), _group)


COMMIT: Final = _command(_counted("partitions", requests.refuse_commits), _group)


def _subscribed(request: pb.ConsumerGroupHeartbeatRequest) -> Refused | None:
    names = request.topics.names
    if len(names) > LIMITS.max_topics:
        return _invalid(f"A member names at most {LIMITS.max_topics} topics, not {len(names)}.")
    return None


def _owned(request: pb.ConsumerGroupHeartbeatRequest) -> Refused | None:
    topics = request.owned.topics
    if len(topics) > LIMITS.max_topics:
        return _invalid(f"A member owns partitions of at most {LIMITS.max_topics} topics.")
    if sum(len(one.partitions) for one in topics) > OWNED_PARTITIONS_MAX:
        return _invalid(f"A member owns at most {OWNED_PARTITIONS_MAX} partitions.")
    return None


CONSUMER_HEARTBEAT: Final = _command(_subscribed, _owned, _group)


def refuse_heartbeat_form(command: ConsumerGroupHeartbeat) -> Refused | None:
    """Return what is wrong with a heartbeat of a modern group's member for the wire alone, or None.

    Asked of the command, in the call's turn: it may name many topics.
    """
    wrong = why_invalid(command.pattern) if command.pattern else ""
    if wrong:
        return Refused(Error.INVALID_REGULAR_EXPRESSION, wrong)
    most = LIMITS.id_max_bytes
    owned = command.owned or ()
    for names in (command.topics or (), (one.topic for one in owned)):
        if not all(0 < len(topic.encode()) <= most for topic in names):
            return _invalid(f"A topic's name has 1 to {most} bytes.")
    for one in owned:  # in ascending order
        if one.partitions and not 0 <= one.partitions[0] <= one.partitions[-1] < PARTITIONS_MAX:
            return _invalid(f"A partition's number is 0 to {PARTITIONS_MAX - 1}.")
    return None


def refuse_join_form(command: JoinGroup) -> Refused | None:
    """Return what is wrong with a Join for the wire alone, or None.

    Asked of the command, in the call's turn: a Join may name many topics.
    """
    if not command.member_id and not _NONCE.fullmatch(command.join_nonce or command.drawn_nonce):
        return _invalid("A join_nonce is 32 lower-case hex digits, new for each membership.")
    names = [protocol.name for protocol in command.protocols]
    if len(set(names)) != len(names):
        return _invalid("A protocol is listed twice: list each name once.")
    most = LIMITS.id_max_bytes
    if not all(0 < len(topic.encode()) <= most for topic in command.subscribed_topics):
        return _invalid(f"A topic's name has 1 to {most} bytes.")
    return None


def _nonce(request: pb.HeartbeatRequest) -> Refused | None:
    if 0 < len(request.client_nonce) <= LIMITS.id_max_bytes:
        return None
    return _invalid("A heartbeat needs a client_nonce of 1 to 249 bytes.")


HEARTBEAT: Final = Bounds(
    (
        _nonce,
        _at_most("members", HEARTBEAT_MEMBERS_MAX, "A heartbeat has at most {most} members."),
    )
)


def _one_or_many(request: pb.OffsetFetchRequest) -> Refused | None:
    one = request.group_id or request.partitions or request.all or request.HasField("after")
    if not request.groups or not one:
        return None
    return _invalid("Ask for one group or for `groups`, not both.")


def _named_once(request: Any) -> Refused | None:
    if len({one.group_id for one in request.groups}) == len(request.groups):
        return None
    return _invalid("A group is named twice: name each once.")


def _fetched(request: pb.OffsetFetchRequest) -> Refused | None:
    most = LIMITS.commit_max_partitions
    queries = request.groups or (request,)
    if sum(len(query.partitions) for query in queries) <= most:
        return None
    return _invalid(f"At most {most} partitions are fetched in one call.")


FETCH: Final = _names(
    _one_or_many,
    _at_most("groups", GROUPS_MAX, "At most {most} groups are fetched in one call."),
    _named_once,
    _fetched,
)

# ---- Admin


def _filters(request: admin_pb2.ListGroupsRequest) -> Refused | None:
    count = len(request.states) + len(request.types) + len(request.protocol_types)
    if count > FILTERS_MAX:
        message = f"Groups are listed by at most {FILTERS_MAX} states and types; here are {count}."
        return _invalid(message)
    return refuse_group(request.after_group_id) if request.after_group_id else None


def _not_negative(name: str, message: str) -> Rule:
    def rule(request: Any) -> Refused | None:
        return None if getattr(request, name) >= 0 else _invalid(f"{name} is at least 0, {message}")

    return rule


def _changes(asked: admin_pb2.AlterGroupConfigsRequest.Group) -> Refused | None:
    return requests.refuse_settings(len(asked.settings) + len(asked.removed), LIMITS)


def _configured_group(asked: admin_pb2.AlterGroupConfigsRequest.Group) -> Refused | None:
    return refuse_configured_group(asked.group_id)


LIST_GROUPS: Final = _names(_filters)
DESCRIBE_GROUPS: Final = _names(
    _at_most("group_ids", GROUPS_MAX, "At most {most} groups are described in one call."),
    _not_negative("first_member", "which begins anew."),
)
DESCRIBE_REBALANCES: Final = Bounds(
    (_group, _not_negative("max_rebalances", "which asks for all that are kept."))
)
DELETE_GROUPS: Final = _names(
    _at_most("group_ids", GROUPS_MAX, "At most {most} groups are deleted in one call.")
)
DELETE_GROUP: Final = _command(refuse_group)
OFFSET_DELETE: Final = _command(_counted("partitions", requests.refuse_deletions), _group)
KICK: Final = Bounds((_group, _counted("members", requests.refuse_leaving)))
RECORD_AUDIT: Final = _command(_many("entries", BATCH, "The entries of one RecordAudit"))
ALTER_QUOTAS: Final = _command(
    _many("changes", LIMITS.alter_quotas_max, "The quotas that one call changes")
)
_ONE_CALL: Final = "At most {most} groups go into one call."
DESCRIBE_CONFIGS: Final = _names(_at_most("group_ids", GROUPS_MAX, _ONE_CALL))
ALTER_CONFIGS: Final = _names(_at_most("groups", GROUPS_MAX, _ONE_CALL), _named_once)
ALTER_CONFIG: Final = _command(_changes, _configured_group)


def refuse_shards(numbers: Sequence[int], count: int) -> Refused | None:
    """Return what is wrong with these numbers of shards, where there are so many, or None."""
    if len(numbers) > count:
        return _invalid(f"There are {count} shards, and {len(numbers)} were named: name each once.")
    wrong = next((number for number in numbers if not 0 <= number < count), None)
    return None if wrong is None else _invalid(f"There are shards 0 to {count - 1}, not {wrong}.")


def refuse_node(node_id: int, known: Collection[int]) -> Refused | None:
    """Return what is wrong with the id of a node, where these are known, or None."""
    return None if node_id in known else _invalid(f"There is no node {node_id} in this cluster.")


# ---- Access

ALTER_ACLS: Final = _command(
    lambda request: _refuse_acls(len(request.added) + len(request.removed))
)
CREATE_TOKEN: Final = _command(_many("scopes", LIMITS.token_max_scopes, "The scopes of a token"))


def _refuse_acls(count: int) -> Refused | None:
    most = LIMITS.alter_acls_max_rules
    return None if count <= most else _invalid(f"At most {most} rules change in one call.")


# ---- Topics

CHANGE_TOPIC: Final = Bounds((_topic,))
CHANGE_ZONES: Final = Bounds((_topic, _zones))
DESCRIBE_TOPICS: Final = Bounds(
    (_at_most("names", LIMITS.max_topics, "At most {most} topics are described in one call."),)
)
