"""`evolve` mutates the group in place: the only code that writes a group's state.

It is total over what `decide` emits and stops at anything else: an event that does not fit is a
broken invariant.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat

from musterd.coordinator.machine.commands import RoundTimer
from musterd.coordinator.machine.commit_events import CommitColumns, CommitEvents
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    BlobCommitted,
    ConsumerJoined,
    GenerationFormed,
    GroupConfigChanged,
    GroupDeleted,
    GroupDowngraded,
    GroupEmptied,
    GroupEvent,
    GroupUpgraded,
    MemberJoined,
    MemberRejoined,
    MemberRemoved,
    MemberReplaced,
    MemberSynced,
    OffsetCommitted,
    OffsetRemoved,
    OffsetSuperseded,
    PendingAdded,
    PendingRemoved,
    RebalanceStarted,
    RoundExtended,
)
from musterd.coordinator.machine.evolve_history import (
    note_assignment,
    note_emptied,
    note_generation,
    note_removal,
    note_start,
)
from musterd.coordinator.machine.modern.evolve_modern import convert, evolve_modern, synced
from musterd.coordinator.machine.state import (
    LEGAL_PREDECESSORS,
    UNHASHED,
    Blob,
    Group,
    Member,
    Offset,
    Phase,
)
from musterd.invariant import invariant


def evolve(group: Group | None, event: GroupEvent) -> Group | None:
    """Apply one event; returns the group, which some events may create; None: it is deleted."""
    if group is None:
        invariant(
            isinstance(
                event,
                MemberJoined | OffsetCommitted | PendingAdded | GroupConfigChanged | ConsumerJoined,
            ),
            f"{type(event).__name__} without a group",
        )
        group = Group(event.group_id)
    invariant(event.group_id == group.group_id, "an event of another group")
    _apply(group, event)
    return None if group.phase is Phase.DEAD else group


def evolve_offset(group: Group, commit: CommitEvents, digest: int, size: int) -> None:
    """`evolve` by the one offset of `commit`, whose record has this digest and value size."""
    (ref,), (one,) = commit.refs, commit.partitions
    group.thawed()[ref] = Offset(
        one.offset,
        one.metadata,
        one.end_offset,
        commit.member_id,
        commit.generation,
        commit.commit_seq,
        commit.wall_ms,
        one.start_offset,
        one.leader_epoch,
        digest,
        size,
    )


def evolve_offsets(
    group: Group,
    commit: CommitEvents,
    columns: CommitColumns,
    digests: Sequence[int],
    sizes: Sequence[int],
) -> None:
    """`evolve` by the offsets of `commit`, whose records have these digests and value sizes."""
    stored = map(
        Offset,
        columns.offsets,
        columns.metadata,
        columns.end_offsets,
        repeat(commit.member_id),
        repeat(commit.generation),
        repeat(commit.commit_seq),
        repeat(commit.wall_ms),
        columns.start_offsets,
        columns.leader_epochs,
        digests,
        sizes,
    )
    group.thawed().update(zip(commit.refs, stored, strict=True))


def write_over(
    kept: Iterable[Offset], commit: CommitEvents, offsets: Iterable[int], size: int
) -> None:
    """`evolve_offsets` by nothing but offsets, each over the one that is kept of its partition.

    Their records are not hashed yet. An object that is written over takes half the time of a new
    one.
    """
    member_id, generation = commit.member_id, commit.generation
    commit_seq, wall_ms = commit.commit_seq, commit.wall_ms
    for one, offset in zip(kept, offsets, strict=True):
        one.offset = offset
        one.metadata = ""
        one.end_offset = one.start_offset = one.leader_epoch = None
        one.member_id = member_id
        one.generation = generation
        one.commit_seq = commit_seq
        one.wall_ms = wall_ms
        one.digest = UNHASHED
        one.size = size


def member_from(event: MemberJoined, join_seq: int) -> Member:
    """The member that the event adds, at this place in join order."""
    return Member(
        member_id=event.member_id,
        client_id=event.client_id,
        client_host=event.client_host,
        session_timeout_ms=event.session_timeout_ms,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        protocols=event.protocols,
        subscribed_topics=event.subscribed_topics,
        join_seq=join_seq,
        joined_round=event.joined_round,
        instance_id=event.group_instance_id,
        joined_ms=event.time_ms,
        with_assignment=event.with_assignment,
        principal=event.principal,
    )


def rejoined(member: Member, event: MemberRejoined) -> Member:
    """A new value: the member with what it said this time. Its place, assignment and sync stay."""
    return Member(
        member_id=member.member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=event.session_timeout_ms,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        protocols=event.protocols,
        subscribed_topics=event.subscribed_topics,
        join_seq=member.join_seq,
        joined_round=event.joined_round,
        synced_generation=member.synced_generation,
        assignment=member.assignment,
        instance_id=member.instance_id,
        replaced_id=member.replaced_id,
        joined_ms=event.time_ms,
        token=member.token,
        with_assignment=event.with_assignment,
        principal=member.principal,
    )


def replaced(member: Member, event: MemberReplaced) -> Member:
    """A new value: who comes in the place of the static member, with what was the old one's."""
    return Member(
        member_id=event.member_id,
        client_id=event.client_id,
        client_host=event.client_host,
        session_timeout_ms=event.session_timeout_ms,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        protocols=event.protocols,
        subscribed_topics=event.subscribed_topics,
        join_seq=member.join_seq,
        joined_round=event.joined_round,
        synced_generation=member.synced_generation,
        assignment=member.assignment,
        instance_id=member.instance_id,
        replaced_id=member.member_id,
        joined_ms=event.time_ms,
        token=event.token,
        with_assignment=event.with_assignment,
        principal=event.principal,
    )


def _apply(group: Group, event: GroupEvent) -> None:  # noqa: PLR0912 - one arm per event
    match event:
        case OffsetCommitted():
            _offset_committed(group, event)
        case OffsetSuperseded():
            pass
        case GroupUpgraded() | GroupDowngraded():
            convert(group, event)
        case BlobCommitted():
            group.blob = Blob(event.blob, event.member_id, event.generation, event.commit_seq)
        case GroupConfigChanged():
            group.config, group.texts = dict(event.values), dict(event.texts)
        case OffsetRemoved():
            stored = group.thawed()
            invariant((event.topic, event.partition) in stored, "no such offset was stored")
            del stored[event.topic, event.partition]
        case GroupDeleted():
            _group_deleted(group, event)
        case MemberJoined():
            _member_joined(group, event)
        case MemberRejoined():
            _member_rejoined(group, event)
        case MemberRemoved():
            _member_removed(group, event)
        case MemberReplaced():
            _member_replaced(group, event)
        case PendingAdded():
            _pending_added(group, event)
        case PendingRemoved():
            invariant(event.member_id in group.pending, "no such id was handed out (sc-G25)")
            note_removal(group, event)
            del group.pending[event.member_id]
        case RebalanceStarted():
            _rebalance_started(group, event)
        case RoundExtended():
            invariant(group.phase is Phase.PREPARING_REBALANCE, "no round is open")
            invariant(event.round == group.round, "another round is open")
            invariant(group.timer is event.timer, "another timer is armed")
            _arm(group, event.timer, event.deadline_ms, event.remaining_ms)
        case GenerationFormed():
            _generation_formed(group, event)
        case MemberSynced() if group.modern is not None:
            synced(group.modern, event)
        case MemberSynced():
            _member_synced(group, event)
        case AssignmentPublished():
            _assignment_published(group, event)
        case GroupEmptied():
            _group_emptied(group, event)
        case _:
            evolve_modern(group, event)


def _move(group: Group, phase: Phase) -> None:
    invariant(
        group.phase in LEGAL_PREDECESSORS[phase], f"no way from {group.phase} to {phase} (sc-G02)"
    )
    group.phase = phase


def _arm(
    group: Group, timer: RoundTimer | None, deadline_ms: int = 0, remaining_ms: int = 0
) -> None:
    """One timer at a time: arming replaces. Whatever the initial delay had noted is over."""
    group.timer = timer
    group.deadline_ms = deadline_ms
    group.remaining_ms = remaining_ms
    group.new_member_added = False


def _disarm_when_all_synced(group: Group) -> None:
    """The sync timer is over once everybody has synced (gp-2.3)."""
    if group.phase is Phase.STABLE and group.tally.synced == len(group.members):
        _arm(group, None)


def _member_joined(group: Group, event: MemberJoined) -> None:
    invariant(event.member_id not in group.members, "a member joined twice")
    if not group.members:
        group.protocol_type = event.protocol_type
        group.leader_id = event.member_id
    if group.from_empty:
        group.new_member_added = True
    member = member_from(event, group.next_join_seq)
    if member.instance_id:
        invariant(member.instance_id not in group.instances, "an instance id held twice (sc-G24)")
        group.instances[member.instance_id] = member.member_id
    group.pending.pop(member.member_id, None)
    group.members[event.member_id] = member
    group.next_join_seq += 1
    group.tally.add(group, member)


def _member_rejoined(group: Group, event: MemberRejoined) -> None:
    invariant(event.member_id in group.members, "a stranger rejoined")
    before = group.members[event.member_id]
    after = rejoined(before, event)
    group.tally.add(group, before, -1)
    group.members[event.member_id] = after
    group.tally.add(group, after)


def _member_removed(group: Group, event: MemberRemoved) -> None:
    """The first in join order leads where the group leader went (gp-3.3)."""
    invariant(event.member_id in group.members, "a stranger was removed")
    note_removal(group, event)
    member = group.members.pop(event.member_id)
    group.tally.add(group, member, -1)
    if member.instance_id:
        del group.instances[member.instance_id]
    if group.leader_id == event.member_id:
        group.leader_id = next(iter(group.members), "")


def _member_replaced(group: Group, event: MemberReplaced) -> None:
    """The place in join order and the group leader's role go over (sc-G18)."""
    invariant(event.replaced_id in group.members, "nobody is replaced (sc-G19)")
    invariant(event.member_id not in group.members, "replaced by a member")
    before = group.members[event.replaced_id]
    invariant(
        bool(event.group_instance_id) and before.instance_id == event.group_instance_id,
        "replaced by another instance (I3)",
    )
    _take_token(group, event.token)
    after = replaced(before, event)
    group.tally.add(group, before, -1)
    ids, members = list(group.members), list(group.members.values())
    place = ids.index(event.replaced_id)
    ids[place], members[place] = event.member_id, after
    group.members = dict(zip(ids, members, strict=True))
    group.tally.add(group, after)
    group.instances[event.group_instance_id] = event.member_id
    if group.leader_id == event.replaced_id:
        group.leader_id = event.member_id


def _pending_added(group: Group, event: PendingAdded) -> None:
    invariant(event.member_id not in group.members, "a member's id handed out (sc-G23)")
    invariant(event.member_id not in group.pending, "an id handed out twice")
    group.pending[event.member_id] = event.session_timeout_ms


def _rebalance_started(group: Group, event: RebalanceStarted) -> None:
    """From CompletingRebalance the assignments of the generation before go too (gp-P4)."""
    invariant(event.round == group.round + 1, "rounds are numbered without gaps")
    note_start(group, event)
    if group.phase is Phase.COMPLETING_REBALANCE:
        for member in group.members.values():
            member.assignment = b""
    _move(group, Phase.PREPARING_REBALANCE)
    group.emptied_wall_ms = 0
    group.round = event.round
    group.tally.joined = sum(map(group.has_joined, group.members.values()))
    _arm(group, event.timer, event.deadline_ms, event.remaining_ms)


def _generation_formed(group: Group, event: GenerationFormed) -> None:
    invariant(event.round == group.round, "another round's generation")
    invariant(event.generation > group.generation, "a generation number is used once (I6)")
    invariant(event.member_ids == tuple(group.members), "a generation of others")
    invariant(
        group.tally.joined == len(group.members)
        or all(m.instance_id or group.has_joined(m) for m in group.members.values()),
        "a dynamic member that did not join",
    )
    invariant(event.leader_id in group.members, "led by a stranger (I2)")
    invariant(group.has_joined(group.members[event.leader_id]), "led by an absent member (gp-3.3)")
    note_generation(group, event)
    _move(group, Phase.COMPLETING_REBALANCE)
    _take_token(group, event.token)
    group.token = event.token
    group.generation = event.generation
    group.former = {}
    group.protocol_name = event.protocol_name
    group.leader_id = event.leader_id
    group.topics_version = event.topics_version
    syncing = group.synced_by_joining(event)
    for member in syncing:
        member.synced_generation = event.generation
    group.tally.joined, group.tally.synced = 0, len(syncing)
    _arm(group, RoundTimer.SYNC, event.deadline_ms)


def _take_token(group: Group, token: int) -> None:
    """None (0) is taken only under rules 1 and 2, which never follow later ones."""
    invariant(
        token > max(group.fence, group.generation) or not (token or group.fence),
        "a fencing token is taken once (I9)",
    )
    group.fence = token


def _member_synced(group: Group, event: MemberSynced) -> None:
    invariant(event.generation == group.generation, "synced in another generation")
    invariant(event.member_id in group.members, "a stranger synced")
    member = group.members[event.member_id]
    invariant(not group.has_synced(member), "synced twice")
    member.synced_generation = event.generation
    group.tally.synced += 1
    _disarm_when_all_synced(group)


def _assignment_published(group: Group, event: AssignmentPublished) -> None:
    invariant(event.generation == group.generation, "an assignment of another generation (I8)")
    invariant(
        tuple(entry.member_id for entry in event.assignments) == tuple(group.members),
        "one entry per member, in join order",
    )
    note_assignment(group, event)
    _move(group, Phase.STABLE)
    for entry in event.assignments:
        group.members[entry.member_id].assignment = entry.assignment
    _disarm_when_all_synced(group)


def _group_emptied(group: Group, event: GroupEmptied) -> None:
    """The protocol type stays until the next first member brings its own (gp-1.2)."""
    invariant(event.round == group.round, "another round's end")
    invariant(event.generation > group.generation, "a generation number is used once (I6)")
    invariant(not group.members, "emptied with members (I2)")
    note_emptied(group, event)
    _move(group, Phase.EMPTY)
    group.generation = event.generation
    group.former = {}
    group.protocol_name = ""
    group.emptied_wall_ms = event.wall_ms
    _arm(group, None)


def _group_deleted(group: Group, event: GroupDeleted) -> None:
    """Mark the group as dead. Its generation stays in the shard's floor (shard_state.py)."""
    invariant(group.phase is Phase.EMPTY, "a group is deleted with members (gp-2.11)")
    invariant(event.generation == group.generation, "another generation goes into the floor (I6)")
    invariant(event.fence == group.fence, "another token goes into the floor (I9)")
    _move(group, Phase.DEAD)


def _offset_committed(group: Group, event: OffsetCommitted) -> None:
    group.thawed()[event.topic, event.partition] = Offset(
        offset=event.offset,
        metadata=event.metadata,
        end_offset=event.end_offset,
        member_id=event.member_id,
        generation=event.generation,
        commit_seq=event.commit_seq,
        wall_ms=event.wall_ms,
        start_offset=event.start_offset,
        leader_epoch=event.leader_epoch,
    )
