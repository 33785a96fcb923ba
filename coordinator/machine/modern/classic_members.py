"""Classic members of modern groups: their Joins, Syncs, and the way back (gp-2.2.6, gp-1.11).

Such a member follows as in a classic group; nobody leads it. Each Join that is taken re-grants all
that it has under one new value, which is its generation and its token: what it did before that is
told from what it does after. It is told to join by its heartbeat, whenever its grants change; it
has its rebalance timeout for that, and again for the Sync that follows (gp-4.2).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from musterd.coordinator.machine.commands import JoinGroup, Protocol, SyncGroup
from musterd.coordinator.machine.decide.decision import (
    Decision,
    illegal_generation,
    refuse,
    unknown_member,
)
from musterd.coordinator.machine.decide.fencing import next_token
from musterd.coordinator.machine.decide.identity import fenced, refuse_identity
from musterd.coordinator.machine.decide.requests import joining_id, principal_of
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    ConsumerJoined,
    ConsumerRejoined,
    GroupEvent,
    MemberSynced,
    Subscription,
    Trigger,
)
from musterd.coordinator.machine.modern.consumer_protocol import (
    Said,
    UnreadableError,
    read_subscription,
    write_assignment,
)
from musterd.coordinator.machine.modern.conversion import CONVERTIBLE, goes_back
from musterd.coordinator.machine.modern.departures import refuse_weight, spec_changed, to_classic
from musterd.coordinator.machine.modern.evolve_modern import consumer_from, regranted, rejoined
from musterd.coordinator.machine.modern.group import (
    Consumer,
    ModernGroup,
    partition_sets,
    reads_others,
    said_bytes,
)
from musterd.coordinator.machine.modern.reconciler import Reconciler
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import Joined, Refused, Synced
from musterd.coordinator.machine.state import Group
from musterd.coordinator.machine.subscriptions import CONSUMER

_ASK: Final = ("sticky", "cooperative-sticky")
"""Assignors to whom members say what they owned, and since which generation."""


def decide_classic_join(
    group: Group, modern: ModernGroup, command: JoinGroup, env: Envelope
) -> Decision:
    """Take in a classic member, new, known, or a static one's new process."""
    member_id = joining_id(command)
    known = modern.members.get(member_id)
    holder = None
    if known is None and command.group_instance_id and not command.member_id:
        holder = modern.members.get(group.instances.get(command.group_instance_id, ""))
    former = known or holder
    if former is None and len(modern.members) >= env.limits.group_max_members:
        says = f"The group has its {env.limits.group_max_members} members."
        return refuse(Error.GROUP_MAX_SIZE_REACHED, says)
    refused = _refuse_protocols(modern, command, former)
    said: dict[bytes, Said] = {}
    try:
        said = {} if refused is not None else _read(command.protocols)
    except UnreadableError:
        message = "The coordinator assigns, and cannot read what this member says of itself."
        refused = refuse(Error.INCONSISTENT_GROUP_PROTOCOL, message)
    if refused is None and (known is not None or command.member_id):
        refused = refuse_identity(group, member_id, command.group_instance_id)
    if refused is not None:
        return refused
    if known is not None and not known.is_classic:
        return refuse(
            Error.INCONSISTENT_GROUP_PROTOCOL,
            f"Member {quoted(member_id)} is one of those to whom the coordinator assigns.",
        )
    if former is not None:
        if member_id == former.replaced_id:
            return fenced(group, command.group_instance_id)
        return _join_again(group, modern, former, command, said, env)
    if not (command.join_nonce or command.group_instance_id):
        message = "Who joins a group whose coordinator assigns brings a nonce, or an instance id."
        return refuse(Error.INVALID_REQUEST, message)
    return _enter(group, modern, command, said, env)


def _refuse_protocols(
    modern: ModernGroup, command: JoinGroup, former: Consumer | None
) -> Decision | None:
    """Refuse protocols that do not fit the other classic members, who may be a group again.

    All have to be consumers, with one protocol that all of them list.
    """
    names = [one.name for one in command.protocols]
    others = [one for one in modern.members.values() if one.is_classic and one is not former]
    for other in others:
        listed = dict.fromkeys(one.name for one in other.protocols)
        names = [name for name in names if name in listed]
    if command.protocol_type != CONSUMER or not names:
        return refuse(
            Error.INCONSISTENT_GROUP_PROTOCOL,
            f"The coordinator of group {quoted(command.group_id)} assigns to consumers, and no "
            "protocol of this member is one of theirs that all classic ones support.",
        )
    if command.protocols[0].name not in CONVERTIBLE:
        return refuse(
            Error.INCONSISTENT_GROUP_PROTOCOL,
            f"The coordinator assigns, and does not know {quoted(command.protocols[0].name)}.",
        )
    return None


def _read(protocols: Sequence[Protocol]) -> dict[bytes, Said]:
    """Read what a member says, by metadata: once, as it may name very many partitions.

    Most say the same under each name. Raises UnreadableError.
    """
    return {said: read_subscription(said) for said in {one.metadata: None for one in protocols}}


def _said(command: JoinGroup, said: Mapping[bytes, Said]) -> Subscription:
    return Subscription(
        client_id=command.client_id,
        client_host=command.client_host,
        session_timeout_ms=command.session_timeout_ms,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        topics=tuple(sorted(dict.fromkeys(command.subscribed_topics))),
        zone=said[command.protocols[0].metadata].zone,
    )


def _enter(
    group: Group,
    modern: ModernGroup,
    command: JoinGroup,
    read: Mapping[bytes, Said],
    env: Envelope,
) -> Decision:
    """Take in a new member, which holds nothing until a plan gives it something."""
    member_id = joining_id(command)
    changed = spec_changed(group, modern, env, Trigger.MEMBER_JOINED, member_id, command.reason)
    joined = ConsumerJoined(
        command.group_id,
        member_id,
        command.group_instance_id,
        _said(command, read),
        changed.epoch,
        env.time_ms,
        principal_of(command, env),
        command.protocols,
        next_token(group, env),
    )
    consumer = consumer_from(joined, modern.next_join_seq)
    refused = refuse_weight(modern, 0, consumer, env)
    return refused or Decision((joined, changed), _joined(modern, consumer, env))


def _join_again(
    group: Group,
    modern: ModernGroup,
    former: Consumer,
    command: JoinGroup,
    read: Mapping[bytes, Said],
    env: Envelope,
) -> Decision:
    """Take a Join of a member that says what it goes on working on.

    The rest is released, and what it has is granted anew, under one token. Who was not told of its
    generation yet, since the Join comes late or its answer was lost, may work on all that it has.
    Where it takes the place of the last modern member, the group is a classic one again.
    """
    member_id, said = joining_id(command), _said(command, read)
    before = replace(former, said=said, away_until_ms=0, protocols=command.protocols)
    refused = refuse_weight(modern, said_bytes(former), before, env)
    if refused is not None:
        return refused
    works_on = _works_on(read.values()) if former.is_classic else {}
    if _is_late(command, former, read.values()):
        works_on = _all_of(former)
    kept = {
        topic: [partition for partition in tokens if partition in works_on.get(topic, {})]
        for topic, tokens in former.revoking.items()
    }
    reconciler = Reconciler(group, modern, env, joins=former.join_seq)
    confirmed = bool(former.revoking) and not any(kept.values())
    reconciler.reconcile(before, works_on, confirmed=confirmed)
    reconciler.follow()
    current = former
    for one in reconciler.events:
        if one.member_id == former.member_id:
            current = regranted(current, one)
    replaced_id = former.member_id if former.member_id != member_id else ""
    changed = None
    other_topics = reads_others(former.said, said)
    plans = other_topics or (former.is_away and former.away_epoch != modern.planned_epoch)
    if plans or former.is_away or replaced_id or former.said.zone != said.zone:
        trigger = Trigger.METADATA_CHANGED if other_topics else Trigger.STATIC_REPLACED
        changed = spec_changed(group, modern, env, trigger, member_id, command.reason, plans=plans)
    again = ConsumerRejoined(
        group.group_id,
        member_id,
        replaced_id,
        said,
        max(current.epoch, changed.epoch if changed is not None and plans else 0),
        next_token(group, env, reconciler.token),
        env.time_ms,
        principal_of(command, env) if replaced_id else former.principal,
        command.protocols,
        partition_sets(current.revoking),
    )
    after = rejoined(current, again)
    events: list[GroupEvent] = [*reconciler.decided, again]
    members = [after if one is former else one for one in modern.members.values()]
    if not former.is_classic and goes_back(group, members, env.limits):
        events += to_classic(
            group, members, env, Trigger.STATIC_REPLACED, member_id, command.reason
        )
        message = "The group is a classic one again, and a round of it has opened: join it."
        return Decision(tuple(events), Refused(Error.REBALANCE_IN_PROGRESS, message))
    if changed is not None:
        events.append(changed)
    return Decision(tuple(events), _joined(modern, after, env))


def _works_on(read: Iterable[Said]) -> dict[str, dict[int, None]]:
    """Return what the member goes on working on, whatever protocol it says so under."""
    found: dict[str, dict[int, None]] = {}
    for said in read:
        for topic, partition in said.keeps:
            found.setdefault(topic, {})[partition] = None
    return found


def _is_late(command: JoinGroup, former: Consumer, read: Collection[Said]) -> bool:
    """True where a member joins that had not been told of its generation when it said so.

    A first Join comes without the id that the answer brings. A later one of an eager member whose
    assignors do not ask for what it owned says no generation, and is never late; of one whose
    assignors all ask it says none before it was assigned anything.
    """
    if not command.member_id:
        return joining_id(command) == former.member_id
    told = (command.known_generation, *(said.generation for said in read))
    is_told = any(one > 0 for one in told)
    asks = all(one.name in _ASK for one in command.protocols)
    says_none = asks and not is_told and min(told) < 0 and not any(said.keeps for said in read)
    return says_none or (is_told and all(one < former.generation for one in told))


def _all_of(consumer: Consumer) -> dict[str, dict[int, None]]:
    """Return all partitions of which it has a grant."""
    found: dict[str, dict[int, None]] = {}
    for tokens in (consumer.assigned, consumer.revoking):
        for topic, partitions in tokens.items():
            found.setdefault(topic, {}).update(dict.fromkeys(partitions))
    return found


def _joined(modern: ModernGroup, consumer: Consumer, env: Envelope) -> Joined:
    """Return the answer to a Join that was taken: it follows, under a generation of its own."""
    return Joined(
        generation=consumer.generation,
        protocol_type=CONSUMER,
        protocol_name=consumer.protocols[0].name,
        leader_id="",
        member_id=consumer.member_id,
        members=(),
        token=consumer.generation,
        topics_version=modern.topics_version,
        dropped_version=env.dropped_version,
    )


def decide_classic_sync(group: Group, modern: ModernGroup, command: SyncGroup) -> Decision:
    """Answer what the member holds, where that is what it was told of with its Join."""
    refused = refuse_identity(group, command.member_id, command.group_instance_id)
    if refused is not None:
        return refused
    consumer = modern.members[command.member_id]
    if not consumer.is_classic:
        return unknown_member(command.member_id)
    if command.generation != consumer.generation:
        return illegal_generation(command.generation, consumer.generation)
    names = [one.name for one in consumer.protocols]
    if command.protocol_type not in ("", CONSUMER) or command.protocol_name not in ("", *names):
        return refuse(Error.INCONSISTENT_GROUP_PROTOCOL, "The member joined with another protocol.")
    if consumer.version != consumer.given:
        return refuse(Error.REBALANCE_IN_PROGRESS, "The coordinator assigned anew; join again.")
    synced = Synced(
        generation=consumer.generation,
        protocol_type=CONSUMER,
        protocol_name=command.protocol_name or names[0],
        assignment=write_assignment(consumer.assigned, consumer.revoking),
        token=_token(consumer),
    )
    if consumer.synced == consumer.given:
        return Decision((), synced)
    event = MemberSynced(command.group_id, consumer.member_id, consumer.generation)
    return Decision((event,), synced)


def _token(consumer: Consumer) -> int:
    """Return the one token of its grants, or its generation where it has none."""
    for grant in consumer.grants():
        return grant.token
    return consumer.generation
