"""Parks a request of a group, refuses it, or proposes it to the log of a serving shard.

A request is refused without an entry (arch-5.1) where the applied state already rejects it and none
of the group's commands is under way, once a quorum has confirmed that this node still leads.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from musterd.coordinator.machine.commands import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    AlterGroupConfig,
    CloseRound,
    Command,
    ConsumerGroupHeartbeat,
    DeleteGroup,
    ExpireMember,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    SyncGroup,
)
from musterd.coordinator.machine.decide.dispatch import heartbeat, would_refuse
from musterd.coordinator.machine.decide.join import is_noop_join
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.decide.sync import is_noop_sync
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.modern.decide_heartbeat import unchanged, unchanged_member
from musterd.coordinator.machine.modern.group import Consumer
from musterd.coordinator.machine.replies import Heard, Refused
from musterd.coordinator.machine.shard_state import DELETIONS_DIFFER, ShardState
from musterd.coordinator.machine.state import Group, Phase, modern_of
from musterd.coordinator.runtime.answers import NotHere, Shed
from musterd.coordinator.runtime.calls import Call
from musterd.coordinator.runtime.claims import Claim, claims_of_heartbeat
from musterd.coordinator.runtime.growth import (
    NO_GROWTH,
    Growth,
    StateSize,
    growth_of,
    refuse_for_room,
    remainder,
)
from musterd.coordinator.runtime.proposer import (
    BYTES_PER_GRANT,
    GRANTS_PER_PARTITION,
    JOINING_WORK,
    LEAVING_WORK,
    TOPICS_PER_MEMBERSHIP,
    Proposer,
)
from musterd.coordinator.runtime.sessions import MemberKey, Sessions
from musterd.raft.contract import Room

GroupRequest = (
    JoinGroup
    | SyncGroup
    | LeaveGroup
    | OffsetCommit
    | DeleteGroup
    | OffsetDelete
    | AlterGroupConfig
)


class Coordinator(Protocol):
    """The leadership, as the router uses it."""

    state: ShardState
    sessions: Sessions
    proposer: Proposer
    state_size: StateSize

    @property
    def room(self) -> Room:
        """The room on the disks."""
        ...

    def envelope(self) -> Envelope:
        """Return the envelope that a command would get now."""
        ...

    def elsewhere(self) -> NotHere:
        """The answer that names who coordinates the shard."""
        ...

    def hold_change(self, call: Call, size: int) -> bool:
        """Keep a call back that would change a group of which a plan is overdue; False: none is."""
        ...

    def claimed(self, claims: Sequence[Claim]) -> None:
        """A request of a member named these, of which others have the grants; mostly none."""
        ...

    def park(self, call: Call) -> None:
        """Hold a Join or Sync until an event answers it."""
        ...

    def confirm(self, done: Callable[[bool], None]) -> None:
        """ReadIndex: whether this node still leads, with all that is committed applied."""
        ...

    def wake(self) -> None:
        """Ask for a turn soon."""
        ...

    def begin_drop(self) -> None:
        """Tell the shard of topics that were deleted, before what was checked without them."""
        ...


_TOO_MANY_GROUPS = Refused(
    Error.INVALID_REQUEST,
    f"This group would be one more than the {LIMITS.shard_max_groups} that a shard holds "
    "(shard_max_groups): delete groups that are not needed, or use a name that falls into another "
    "shard.",
)


_OF_THE_GROUP: Final = (Error.GROUP_ID_NOT_FOUND, Error.REBALANCE_IN_PROGRESS)
"""Why a classic group takes no modern member now, whoever that is."""

UNCONVERTIBLE_MAX: Final = 1_000
"""The number of groups that are known not to be convertible; beyond it all are looked at anew."""


class CommandRouter:
    """The way into one shard, while it serves."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._unconvertible: dict[str, tuple[int, Refused]] = {}
        """By classic group its digest as of when a modern member was refused, and with what.

        To find that out takes reading all that its members say, and a fleet comes at once.
        """

    def take(self, call: Call, command: GroupRequest, size: int) -> None:
        """Take a validated request whose encoding is at most `size` bytes."""
        coordinator = self._coordinator
        group = coordinator.state.groups.get(command.group_id)
        plain = False
        if isinstance(command, OffsetCommit):
            is_member = _is_of_member(group, command)
            if is_member:  # a sign of life, even where it is refused (gp-O8)
                coordinator.sessions.heard(MemberKey(command.group_id, command.member_id))
            coordinator.begin_drop()
            if _is_late(command, coordinator.state):
                call.answer(DELETIONS_DIFFER)
                return
            plain = _is_plain(group, command, is_member=is_member)
            if plain and group is not None:
                self.offer(call, size)
                return
        if not _hold(call, command, coordinator.sessions):
            call.answer(Shed("parked calls"))
        elif group is None and _creates(command) and _is_full(coordinator.state):
            call.answer(_TOO_MANY_GROUPS)
        elif plain or coordinator.proposer.busy(command.group_id):
            self.offer(call, size)
        elif _waits_again(group, command):
            coordinator.park(call)
        elif self._refusal(command) is not None:
            self._confirm_refusal(call, command, size)
        else:
            self.offer(call, size)

    def hear(self, call: Call, command: ConsumerGroupHeartbeat, size: int) -> None:
        """Take a heartbeat of a modern group's member: it is a sign of life whatever it says."""
        coordinator = self._coordinator
        group = coordinator.state.groups.get(command.group_id)
        joins = command.member_epoch == JOIN_EPOCH
        coordinator.claimed(claims_of_heartbeat(group, command))
        if command.member_epoch != LEAVE_EPOCH:
            coordinator.sessions.heard(MemberKey(command.group_id, command.member_id))
        if group is None and joins and _is_full(coordinator.state):
            call.answer(_TOO_MANY_GROUPS)
            return
        if group is not None and joins and command.group_instance_id:
            holder = group.instances.get(command.group_instance_id, command.member_id)
            key = MemberKey(command.group_id, holder)
            if holder != command.member_id and coordinator.sessions.is_disconnected(key):
                command = call.command = replace(command, holder_disconnected=True)
        # An answer is made once, when it is given: it may name many partitions.
        if unchanged_member(group, command) or self._answer(command) is not None:
            self._confirm_refusal(call, command, size)
        else:
            self.offer(call, size)

    def offer(self, call: Call, size: int) -> None:
        """Put the command into the queue for the next entry, shed it, or refuse it for its growth.

        Growth of callers is refused here alone. Where only some partitions of a commit grow, the
        rest is stored.
        """
        coordinator = self._coordinator
        if type(call.command) is not OffsetCommit and coordinator.hold_change(call, size):
            return
        reserved = coordinator.proposer.reserved_of(getattr(call.command, "group_id", ""))
        growth = growth_of(coordinator.state, call.command, reserved)
        refusal = self._no_room(call.command, growth)
        if refusal is not None:
            group = coordinator.state.groups.get(getattr(call.command, "group_id", ""))
            rest = remainder(group, call.command, refusal) if coordinator.room < Room.NONE else None
            if rest is None:
                call.answer(refusal)
                return
            call.narrow(rest.command, rest.merged)
            growth = NO_GROWTH
        shed = coordinator.proposer.offer(
            call.command,
            size,
            call,
            growth.size,
            _deleted(coordinator.state, call.command),
            _regranted(coordinator.state, call.command),
            membership_work(coordinator.state, call.command),
        )
        if shed is not None:
            call.answer(Shed(shed))
        else:
            call.offered = True
            self._coordinator.wake()

    def room_for(self, command: GroupCommand) -> int | None:
        """How many bytes a command of the leader itself adds; None where there is no room now."""
        growth = growth_of(self._coordinator.state, command)
        return None if self._no_room(command, growth) is not None else growth.size

    def _no_room(self, command: Command, growth: Growth) -> Refused | None:
        coordinator = self._coordinator
        refusal = refuse_for_room(coordinator.room, growth)
        if refusal is not None:
            coordinator.state_size.refused["disk"] += 1
        if refusal is not None or not growth.size:
            return refusal
        group_id = getattr(command, "group_id", "")
        group, proposer = coordinator.state.groups.get(group_id), coordinator.proposer
        held = (group.bytes if group else 0) + proposer.reserved_of(group_id)
        coordinator.state_size.note(group_id, held + growth.size)
        return coordinator.state_size.refusal(
            growth, held, coordinator.state.bytes + proposer.reserved
        )

    def _refusal(self, command: GroupCommand) -> Refused | None:
        group = self._coordinator.state.groups.get(command.group_id)
        if group is None or not _would_convert(group, command):
            return would_refuse(group, command, self._coordinator.envelope())
        digest, refused = self._unconvertible.get(command.group_id, (None, None))
        if digest == group.digest:
            return refused
        refusal = would_refuse(group, command, self._coordinator.envelope())
        if refusal is not None and refusal.error in _OF_THE_GROUP:
            if len(self._unconvertible) >= UNCONVERTIBLE_MAX:
                self._unconvertible.clear()
            self._unconvertible[command.group_id] = group.digest, refusal
        return refusal

    def _answer(self, command: GroupCommand) -> Refused | Heard | None:
        """What the applied state answers; None where it has to change for that."""
        if isinstance(command, ConsumerGroupHeartbeat):
            heard = unchanged(self._coordinator.state.groups.get(command.group_id), command)
            if heard is not None:
                return heard
        if self._coordinator.proposer.busy(command.group_id):
            return None  # something moves: the log decides
        return self._refusal(command)

    def _confirm_refusal(self, call: Call, command: GroupCommand, size: int) -> None:
        """Answer from applied state once a quorum says that this node leads."""

        def confirmed(still_leader: bool) -> None:
            if call.ended:
                return
            if not still_leader:
                call.answer(self._coordinator.elsewhere())
                return
            answer = self._answer(command)
            if answer is None:
                self.offer(call, size)
                return
            call.answer(answer)

        self._coordinator.confirm(confirmed)


def _hold(call: Call, command: GroupRequest, sessions: Sessions) -> bool:
    """A Join or Sync holds its member's session from its arrival on; False: too many are held."""
    if isinstance(command, JoinGroup):
        return call.hold(MemberKey(command.group_id, joining_id(command)), sessions)
    if isinstance(command, SyncGroup):
        return call.hold(MemberKey(command.group_id, command.member_id), sessions)
    return True


def _is_plain(group: Group | None, commit: OffsetCommit, *, is_member: bool) -> bool:
    """Whether this state would not refuse the commit as a whole: nothing more need be asked."""
    if commit.generation < 0:
        nobody = not commit.member_id and not commit.group_instance_id
        return nobody and (group is None or group.phase is Phase.EMPTY)
    completing = group is not None and group.phase is Phase.COMPLETING_REBALANCE
    return not completing and is_member


def _is_of_member(group: Group | None, commit: OffsetCommit) -> bool:
    """Whether a member with the current generation commits."""
    if commit.generation < 0:
        return False
    if group is not None and group.modern is not None:
        consumer = group.modern.members.get(commit.member_id)
        if consumer is None or not consumer.is_classic:
            return consumer is not None
    status = heartbeat(group, commit.member_id, commit.generation, commit.group_instance_id)
    return status in (Error.NONE, Error.REBALANCE_IN_PROGRESS)


def _creates(command: GroupRequest) -> bool:
    """True where the command makes its group, if there is none."""
    if isinstance(command, OffsetCommit):
        return command.generation < 0
    if isinstance(command, AlterGroupConfig):
        return bool(command.settings)
    return isinstance(command, JoinGroup) and not command.member_id


def _deleted(state: ShardState, command: Command) -> int:
    """How many offsets go with a group that is deleted."""
    group = state.groups.get(command.group_id) if isinstance(command, DeleteGroup) else None
    return 0 if group is None else group.offset_count


def _regranted(state: ShardState, command: Command) -> int:
    """How many partitions the member of a modern group has that joins, syncs, or says something.

    Before a modern member joins a classic group all is read that its members say, and are assigned.
    """
    if not isinstance(command, ConsumerGroupHeartbeat | JoinGroup | SyncGroup):
        return 0
    group = state.groups.get(command.group_id)
    if group is None:
        return 0
    modern = modern_of(group)
    if modern is None:
        return group.bytes // BYTES_PER_GRANT if _would_convert(group, command) else 0
    member_id = joining_id(command) if isinstance(command, JoinGroup) else command.member_id
    holder_id = group.instances.get(command.group_instance_id, "")
    member = modern.members.get(member_id) or modern.members.get(holder_id)
    return 0 if member is None else member.size


def membership_work(state: ShardState, command: Command) -> int:
    """What members of modern groups who join or go by this command count as in its entry.

    One that is a member and joins again changes no membership: it counts by its grants.
    """
    match command:
        case ConsumerGroupHeartbeat() if command.member_epoch == JOIN_EPOCH:
            if _members_of(state, command.group_id, [(command.member_id, "")]):
                return 0
            return JOINING_WORK + len(command.topics or ()) // TOPICS_PER_MEMBERSHIP
        case ConsumerGroupHeartbeat() if command.member_epoch != LEAVE_EPOCH:
            return 0
        case ConsumerGroupHeartbeat() | ExpireMember() | CloseRound():
            named = [(command.member_id, "")]
        case LeaveGroup():
            named = [(one.member_id, one.group_instance_id) for one in command.members]
        case _:
            return 0
    gone = _members_of(state, command.group_id, named)
    topics = sum(len(one.said.topics) for one in gone)
    grants = sum(one.size for one in gone)
    work = LEAVING_WORK * len(gone) + topics // TOPICS_PER_MEMBERSHIP
    return work + grants // GRANTS_PER_PARTITION


def _members_of(
    state: ShardState, group_id: str, named: Sequence[tuple[str, str]]
) -> list[Consumer]:
    """Return those of a modern group that are named by member id, or else by instance id."""
    group = state.groups.get(group_id)
    if group is None or group.modern is None:
        return []
    ids = [member_id or group.instances.get(instance_id, "") for member_id, instance_id in named]
    return [group.modern.members[one] for one in ids if one in group.modern.members]


def _would_convert(group: Group, command: Command) -> bool:
    """Whether the command is a modern member's Join, and this a classic group with members."""
    return (
        isinstance(command, ConsumerGroupHeartbeat)
        and command.member_epoch == JOIN_EPOCH
        and bool(group.members)
    )


def _is_late(commit: OffsetCommit, state: ShardState) -> bool:
    """True where the shard knows of a deletion by which it was not checked: no entry for that."""
    return commit.deletions_version < state.dropped_version


def _is_full(state: ShardState) -> bool:
    return len(state.groups) >= LIMITS.shard_max_groups


def _waits_again(group: Group | None, command: GroupCommand) -> bool:
    """True where the member has joined (synced) already: the log has nothing to add."""
    if isinstance(command, JoinGroup):
        return is_noop_join(group, command)
    return isinstance(command, SyncGroup) and is_noop_sync(group, command)
