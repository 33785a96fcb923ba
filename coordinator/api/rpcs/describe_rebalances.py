"""The RPC DescribeRebalances: why a group rebalanced, and what it waits for now (gp-2.12, gp-3.4).

Both are read from the coordinator's applied state: phase, timer, deadline, history of the rounds.
"""

from collections.abc import Iterator
from itertools import islice

from muster.v1 import admin_pb2 as pb
from muster.v1.errors_pb2 import Status
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.handler import ActiveCall, CoordinatorService, handler
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.machine.commands import RoundTimer
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.evolve_history import last_round, rounds_of
from musterd.coordinator.machine.history import NAMES_MAX, Moves, Rebalance, RoundEnd, Who
from musterd.coordinator.machine.plan import Why
from musterd.coordinator.machine.state import Group, Member, Phase
from musterd.coordinator.runtime.answers import Answer
from musterd.coordinator.runtime.shard import Shard

Wait = pb.DescribeGroupsResponse.Wait
Delay = pb.DescribeRebalancesResponse.Delay
_REASONS = [why.value for why in Why]


# ---- what is waited for


def is_awaited(group: Group, member: Member) -> bool:
    """True where the group waits for this member to join or to sync."""
    match group.timer:
        case RoundTimer.JOIN:
            return not group.has_joined(member)
        case RoundTimer.SYNC:
            return not group.has_synced(member)
        case _:
            return False


def wait_of(group: Group, time_ms: int, wall_ms: int) -> Wait | None:
    """Return what the group waits for at this shard time; None where for nothing."""
    if group.timer is None:
        return None
    wait = Wait(kind=group.timer.name.lower(), remaining_ms=max(0, group.deadline_ms - time_ms))
    wait.until_wall_ms = wall_ms + wait.remaining_ms
    current = last_round(group)
    if current is not None:
        since_ms = current.started_ms + (current.joining_ms or 0)
        wait.waited_ms = max(0, time_ms - since_ms)
        wait.since_wall_ms = wall_ms - wait.waited_ms
    members = group.members.values()
    wait.awaited_members = sum(is_awaited(group, member) for member in members)
    if group.timer is RoundTimer.JOIN:
        wait.pending_ids.extend(islice(group.pending, NAMES_MAX))
        wait.pending = len(group.pending)
    return wait


# ---- why


def _failed(
    about: pb.DescribeRebalancesRequest, _answer: Answer, status: Status
) -> pb.DescribeRebalancesResponse:
    return pb.DescribeRebalancesResponse(group_id=about.group_id, status=status)


class RebalanceDescriptions(CoordinatorService):
    """Serves DescribeRebalances of `muster.v1.Admin`."""

    @handler(Kind.ORDINARY, bounds.DESCRIBE_REBALANCES, _failed, reads=True)
    async def DescribeRebalances(
        self, request: pb.DescribeRebalancesRequest, call: ActiveCall
    ) -> pb.DescribeRebalancesResponse:
        """The last rounds of one group, the newest first: why it rebalanced (gp-3.4)."""
        response = pb.DescribeRebalancesResponse(group_id=request.group_id)
        shard = self.core.shard_for(request.group_id)
        reads = await call.reads((shard,))
        call.refuse(reads.unserved(shard), request)
        self._fill(response, shard, request.max_rebalances)
        return response

    def _fill(self, response: pb.DescribeRebalancesResponse, shard: Shard, most: int) -> None:
        response.applied_index = shard.log.applied_index
        own = self.core.directory.own
        response.coordinator.CopyFrom(self.core.statuses.coordinator(own, shard.log.term))
        group = shard.state.groups.get(response.group_id)
        if group is None:
            message = f"There is no group {response.group_id!r}."
            status = self.core.statuses.error(Error.GROUP_ID_NOT_FOUND, message)
            response.status.CopyFrom(status)
            return
        for number, record in islice(rounds_of(group), most or None):
            response.rebalances.append(told(group, number, record, shard.time_ms))


def told(
    group: Group, number: int, record: Rebalance, time_ms: int
) -> pb.DescribeRebalancesResponse.Rebalance:
    """One round, or plan, as it is sent; `time_ms` is the shard time of the answer."""
    one = pb.DescribeRebalancesResponse.Rebalance(
        round=number,
        started_wall_ms=record.started_wall_ms,
        from_generation=record.from_generation,
        generation=record.generation,
        trigger=record.trigger.name.lower(),
        culprit=_who(record.culprit),
        reason=record.reason,
        initial=record.initial,
        members_before=record.members_before,
        members_after=record.members_after,
        joining_ms=record.joining_ms,
        syncing_ms=record.syncing_ms,
        ended=record.ended.value,
        leader=_who(record.leader),
        new_members=record.new_members,
        new_member_ids=record.new_ids,
        missing_members=record.missing_members,
        delays=_delays(record),
    )
    if record.moves is not None:
        _add_plan(one, group, record, record.moves, time_ms)
    elif record.ended is RoundEnd.OPEN:
        so_far_ms = max(0, time_ms - record.started_ms)
        if group.phase is Phase.PREPARING_REBALANCE:
            one.joining_ms = so_far_ms
            one.members_after = len(group.members)
        else:
            one.syncing_ms = so_far_ms - (record.joining_ms or 0)
        awaited = [member for member in group.members.values() if is_awaited(group, member)]
        one.awaited_members = len(awaited)
        for member in awaited[:NAMES_MAX]:
            who = Who(member.member_id, member.client_id, member.instance_id)
            one.delays.add(how="awaited", who=_who(who), after_ms=so_far_ms)
    return one


def _add_plan(
    one: pb.DescribeRebalancesResponse.Rebalance,
    group: Group,
    record: Rebalance,
    moves: Moves,
    time_ms: int,
) -> None:
    """What a plan moves, and while it is open how long that takes, and who is to release."""
    one.planned = True
    for (former, owner, why), count in moves.flows.items():
        if count:
            names = moves.called(former), moves.called(owner)
            one.moves.add(former=names[0], owner=names[1], why=_REASONS[why], partitions=count)
    for why, count in moves.count.items():
        one.moved_partitions[_REASONS[why]] = count
    modern = group.modern
    if record.ended is not RoundEnd.OPEN or modern is None:
        return
    so_far_ms = max(0, time_ms - record.started_ms)
    if not record.generation:
        one.joining_ms, one.members_after = so_far_ms, len(modern.members)
        return
    one.syncing_ms = so_far_ms - (record.joining_ms or 0)
    awaited = [consumer for consumer in modern.members.values() if consumer.revoking]
    one.awaited_members = len(awaited)
    for consumer in awaited[:NAMES_MAX]:
        who = Who(consumer.member_id, consumer.said.client_id, consumer.instance_id)
        one.delays.add(how="awaited", who=_who(who), after_ms=so_far_ms)


def _delays(record: Rebalance) -> Iterator[Delay]:
    """Who is missing, in that order; the last to join; the group leader's assignment."""
    for member_id, one in record.missing.items():
        who = Who(member_id, one.client_id, one.instance_id)
        how = "absent" if one.cause is None else one.cause.name.lower()
        yield Delay(how=how, who=_who(who), after_ms=one.after_ms)
    if record.last_joined.member_id:
        last = _who(record.last_joined)
        yield Delay(how="last_to_join", who=last, after_ms=record.last_join_ms)
    if record.ended is RoundEnd.STABLE and record.moves is None:
        leader = _who(record.leader)
        yield Delay(how="assignment", who=leader, after_ms=record.syncing_ms or 0)


def _who(who: Who) -> pb.DescribeRebalancesResponse.Who:
    return pb.DescribeRebalancesResponse.Who(
        member_id=who.member_id, client_id=who.client_id, group_instance_id=who.instance_id
    )
