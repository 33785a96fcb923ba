"""ConsumerGroupHeartbeat as calls: actions of the membership in, its inputs out."""

import logging

from muster import timeouts
from muster.errors import ErrorCode, MusterError
from muster.group.actions import (
    Call,
    ConsumerHeard,
    ConsumerRefused,
    Farewell,
    Granted,
    Input,
    LeaveAnswered,
    Refusal,
    SendConsumerHeartbeat,
    SendConsumerLeave,
)
from muster.group.consumer_protocol import by_topic
from muster.group.membership_calls import (
    REASON_CHARACTERS_MAX,
    ConsumerOptions,
    JoinOptions,
    refusal_of,
)
from muster.net.calls import CONSUMER_HEARTBEAT, Caller
from muster.types import Phase, TopicPartition
from muster.v1 import group_pb2

log = logging.getLogger("muster")

_GONE = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_MEMBER_ID})

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
AWAY_EPOCH = -2

_Request = group_pb2.ConsumerGroupHeartbeatRequest
_Response = group_pb2.ConsumerGroupHeartbeatResponse

_PHASES = {_Response.ACTIVE: Phase.ACTIVE, _Response.REVOKING: Phase.REVOKING}


class ConsumerCalls:
    """The calls of one member of a modern group. None of them raises for an outcome."""

    def __init__(self, caller: Caller, options: JoinOptions, consumer: ConsumerOptions) -> None:
        self._caller = caller
        self._options = options
        self._consumer = consumer
        self._group_id = options.config.group_id
        self.topics = options.topics
        """What the next call that says everything subscribes to."""
        self.pattern = consumer.pattern
        """What else, by regular expression."""
        self._subscription_seq = 0

    def subscribe(self, topics: tuple[str, ...], pattern: str = "") -> bool:
        """Subscribe to these topics from the next call on; False where it does already."""
        changed = (topics, pattern) != (self.topics, self.pattern)
        self._subscription_seq += changed
        self.topics, self.pattern = topics, pattern
        return changed

    async def make(self, action: Call | Farewell) -> Input:
        """Make a call, and return its answer as an input of the membership."""
        match action:
            case SendConsumerHeartbeat():
                return await self.heartbeat(action)
            case SendConsumerLeave():
                return await self.leave(action)
            case _:
                raise TypeError(action)

    async def heartbeat(self, action: SendConsumerHeartbeat) -> ConsumerHeard | ConsumerRefused:
        """Call ConsumerGroupHeartbeat: join, confirm what was released, hear of grants."""
        self._subscription_seq += action.member_epoch == JOIN_EPOCH
        request = self._request(action.member_id, action.member_epoch)
        if action.full:
            self._say_everything(request)
        if action.owned is not None:
            request.owned.SetInParent()
            request.owned.topics.extend(by_topic(action.owned))
            request.known_token = action.known_token
        self._caller.counters.rejoins += action.member_epoch == JOIN_EPOCH and action.call_id > 1
        answer = await self._call(request, timeouts.CONSUMER_HEARTBEAT_MS)
        if isinstance(answer, Refusal):
            return ConsumerRefused(action.call_id, answer)
        grants = {
            TopicPartition(one.topic, partition): Granted(token, _PHASES[one.phase])
            for one in answer.grants
            if one.phase in _PHASES
            for partition, token in zip(one.partitions, one.fencing_tokens, strict=False)
        }
        return ConsumerHeard(
            action.call_id,
            answer.member_epoch,
            answer.assignment_version,
            grants,
            answer.incomplete,
        )

    async def leave(self, action: SendConsumerLeave) -> LeaveAnswered:
        """Say that the member leaves, best effort, or that it will be back."""
        epoch = LEAVE_EPOCH if action.back_in_ms is None else AWAY_EPOCH
        request = self._request(action.member_id, epoch)
        request.subscription_seq = self._subscription_seq
        request.back_in_ms = action.back_in_ms or 0
        request.reason = action.reason[:REASON_CHARACTERS_MAX]
        answer = await self._call(request, timeouts.LEAVE_REQUEST_MS)
        if not isinstance(answer, Refusal):
            return LeaveAnswered()
        if action.back_in_ms is None and answer.code in _GONE:
            return LeaveAnswered()
        log.warning("group %s: leaving failed: %s", self._group_id, answer.reason)
        return LeaveAnswered(answer)

    def _request(self, member_id: str, member_epoch: int) -> _Request:
        return _Request(
            group_id=self._group_id,
            member_id=member_id,
            member_epoch=member_epoch,
            group_instance_id=self._options.config.instance_id,
        )

    def _say_everything(self, request: _Request) -> None:
        options, consumer = self._options, self._consumer
        request.client_id = options.config.client_id
        request.session_timeout_ms = options.session_timeout_ms
        request.rebalance_timeout_ms = options.rebalance_timeout_ms
        request.topics.SetInParent()
        request.topics.names.extend(self.topics)
        request.pattern = self.pattern
        request.zone = options.rack
        request.assignor = consumer.assignor
        request.capacity = consumer.capacity
        request.subscription_seq = self._subscription_seq

    async def _call(self, request: _Request, timeout_ms: int) -> _Response | Refusal:
        try:
            answer, _ = await self._caller.call(
                self._group_id,
                CONSUMER_HEARTBEAT,
                request.SerializeToString(),
                timeout_ms=timeout_ms,
            )
        except MusterError as error:
            return refusal_of(error)
        status = answer.status
        if int(status.code) == ErrorCode.NONE:
            return answer
        return Refusal(int(status.code), status.message, retriable=status.retriable)
