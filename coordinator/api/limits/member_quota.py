"""The quota of members: how many a principal or a group may have at a time.

A newcomer beyond it is refused; nobody who is a member goes, whatever the quota falls to. Members
are counted in the replicated state of all shards, which each node has, so a principal has its quota
once, whichever nodes coordinate its groups. What others take at the same moment may come on top.
Where there are no rules nobody has a name, and a group's quota alone counts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from musterd.coordinator.machine.commands import ConsumerGroupHeartbeat, JoinGroup
from musterd.coordinator.machine.decide.join import adds_member, replaces_other
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.quotas import QuotaEntity, QuotaKey, QuotaOf, quota_in_force
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.machine.state import Group, modern_of

Joining = JoinGroup | ConsumerGroupHeartbeat
"""What brings a newcomer; a heartbeat that joins."""


class MemberPlace(NamedTuple):
    """A newcomer whose Join is under way: it counts as a member until it is one, or is refused."""

    principal: str
    group_id: str
    """"" where it takes the place of another principal's static member: the group has none more."""
    member_id: str


class MemberQuota:
    """Refuses newcomers, and counts those whose Joins are under way: one each Join at most."""

    def __init__(
        self,
        quotas: Callable[[], Mapping[QuotaOf, int]],
        states: Callable[[], Iterable[ShardState]],
        count: Callable[[QuotaOf], None],
    ) -> None:
        """`quotas`: those in force. `states`: of all shards. `count`: told of each refusal."""
        self._quotas = quotas
        self._states = states
        self._count = count
        self._taken: Counter[MemberPlace] = Counter()
        """How many calls hold each place: the Join of a member may be repeated."""
        self._by_principal: Counter[str] = Counter()
        self._by_group: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def has_quotas(self) -> bool:
        """Whether there are any quotas at all."""
        return bool(self._quotas())

    def refusal(self, command: Joining, group: Group | None) -> Refused | None:
        """Why this Join's member may not come in, or None. `group` is its group's applied state."""
        place = _place(command, group)
        if place is None:
            return None
        principal = command.principal
        own = int(place in self._taken)
        quotas = self._quotas()
        most = quota_in_force(quotas, QuotaEntity.GROUP, command.group_id, QuotaKey.MEMBERS)
        if most and place.group_id:
            members = 0 if group is None else group.member_count
            if members + self._by_group[command.group_id] - own >= most:
                over = QuotaOf(QuotaEntity.GROUP, command.group_id, QuotaKey.MEMBERS)
                return self._refused(over, f"The group has its quota of {most} members.")
        most = quota_in_force(quotas, QuotaEntity.PRINCIPAL, principal, QuotaKey.MEMBERS)
        if most and principal:
            members = sum(state.members_of.get(principal, 0) for state in self._states())
            if members + self._by_principal[principal] - own >= most:
                over = QuotaOf(QuotaEntity.PRINCIPAL, principal, QuotaKey.MEMBERS)
                return self._refused(over, f"{quoted(principal)} has its quota of {most} members.")
        return None

    def take(self, command: Joining, group: Group | None) -> MemberPlace | None:
        """Count the newcomer of a Join that is not refused, until `let_go`; None: there is none."""
        place = _place(command, group)
        if place is None:
            return None
        self._taken[place] += 1
        if self._taken[place] == 1:
            self._by_principal[place.principal] += 1
            self._by_group[place.group_id] += 1
        return place

    def let_go(self, place: MemberPlace) -> None:
        """The newcomer is a member now, or its Join has ended."""
        self._taken[place] -= 1
        if not self._taken[place]:
            del self._taken[place]
            _drop(self._by_principal, place.principal)
            _drop(self._by_group, place.group_id)

    def _refused(self, over: QuotaOf, message: str) -> Refused:
        self._count(over)
        return Refused(Error.GROUP_MAX_SIZE_REACHED, message)


def _place(command: Joining, group: Group | None) -> MemberPlace | None:
    """What one member more, of its group or of its principal alone, counts as; else None."""
    if isinstance(command, ConsumerGroupHeartbeat):
        return _consumers_place(command, group)
    if adds_member(group, command):
        return MemberPlace(command.principal, command.group_id, joining_id(command))
    if replaces_other(group, command):
        return MemberPlace(command.principal, "", joining_id(command))
    return None


def _consumers_place(command: ConsumerGroupHeartbeat, group: Group | None) -> MemberPlace | None:
    """As `_place`, of a member of a modern group that joins."""
    modern = modern_of(group)
    group_id, member_id = command.group_id, command.member_id
    if group is None or modern is None:
        return MemberPlace(command.principal, group_id, member_id)
    if member_id in modern.members:
        return None
    holder_id = group.instances.get(command.group_instance_id)
    if holder_id is None:
        return MemberPlace(command.principal, group_id, member_id)
    if modern.members[holder_id].principal != command.principal:
        return MemberPlace(command.principal, "", member_id)
    return None


def _drop(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
