"""What counts for a group: its own settings and the cluster's defaults (gp-2.14)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from muster.v1 import admin_pb2 as pb
from muster.v1.errors_pb2 import Status
from musterd.coordinator.api import translate
from musterd.coordinator.api.cooperative_yield import Slices
from musterd.coordinator.api.handler import (
    Context,
    Coordination,
    admit,
    refuse_bytes,
    some_at_a_time,
)
from musterd.coordinator.machine import decide
from musterd.coordinator.machine.commands import AlterGroupConfig, ConfigSetting
from musterd.coordinator.machine.decide.config import OFFSETS_RETENTION_MS, SETTINGS
from musterd.coordinator.machine.decide.requests import refuse_request
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Configured, Refused, Reply
from musterd.coordinator.runtime.answers import Answer, Shed
from musterd.coordinator.runtime.coordinator_state import CoordinatorState
from musterd.coordinator.runtime.shard import Shard

GROUPS_MAX = 1_000
"""Groups in one call."""


@dataclass(frozen=True, slots=True)
class _Altered:
    """Own settings before, as far as this node had applied them, and the log's answer."""

    before: Mapping[str, int]
    answer: Answer


class GroupSettings:
    """The calls of `Admin` about settings of groups."""

    def __init__(self, core: Coordination) -> None:
        self._core = core

    async def describe(
        self, request: pb.DescribeGroupConfigsRequest, context: Context
    ) -> pb.DescribeGroupConfigsResponse:
        """One answer per id, from applied state, labelled with its index."""
        core = self._core
        admitted = await admit(core, context)
        try:
            response = pb.DescribeGroupConfigsResponse()
            refused = _refuse_named(request)
            if refused is not None:
                named = next(iter(request.group_ids), "")[: LIMITS.id_max_bytes]
                response.groups.add(group_id=named, status=core.statuses.of(refused))
                return response
            entries = len(request.group_ids) * (1 + len(SETTINGS))
            async with Slices(core.one_long_read) as slices:
                await slices.turn(entries)
                shards = {(shard := core.shard_for(g)).number: shard for g in request.group_ids}
            await core.loaded(shards.values())
            async with Slices(core.one_long_read) as slices:
                await slices.turn(entries)
                for group_id in request.group_ids:
                    self._describe(response.groups.add(group_id=group_id))
                    await slices.did(1 + len(SETTINGS))
            return response
        finally:
            admitted.leave()

    def _describe(self, described: pb.DescribeGroupConfigsResponse.Group) -> None:
        core = self._core
        refused = refuse_request(AlterGroupConfig(described.group_id, (), ()), LIMITS)
        shard = core.shard_for(described.group_id)
        if refused is not None:
            described.status.CopyFrom(core.statuses.of(refused))
        elif shard.coordinator_state is CoordinatorState.LOADING:
            described.status.CopyFrom(core.statuses.loading())
        elif shard.coordinator_state.elsewhere:
            described.status.CopyFrom(core.statuses.of(shard.elsewhere()))
        else:
            described.applied_index = shard.log.applied_index
            described.settings.extend(_settings(_own(shard, described.group_id), shard))

    async def alter(
        self, request: pb.AlterGroupConfigsRequest, context: Context
    ) -> pb.AlterGroupConfigsResponse:
        """Each group on its own, all of it or nothing; with `validate_only` nothing is changed."""
        core = self._core
        admitted = await admit(core, context)
        try:
            refused = _refuse(request)
            if refused is not None:
                return pb.AlterGroupConfigsResponse(status=core.statuses.of(refused))

            async def one(asked: pb.AlterGroupConfigsRequest.Group) -> _Altered:
                few = translate.too_many_settings(asked)
                if few is not None:
                    return _Altered({}, few)
                settings = tuple(ConfigSetting(s.name, s.value) for s in asked.settings)
                command = AlterGroupConfig(asked.group_id, settings, tuple(asked.removed))
                size = translate.command_bytes(asked.ByteSize())
                wrong = translate.too_large(size) or refuse_request(command, LIMITS)
                if wrong is not None:
                    return _Altered({}, wrong)
                shard = core.shard_for(command.group_id)
                before = dict(_own(shard, command.group_id))
                if request.validate_only:
                    return _Altered(before, await self._validate(shard, command))
                return _Altered(before, await core.ask(shard, command, size, admitted))

            response = pb.AlterGroupConfigsResponse()

            def done(asked: pb.AlterGroupConfigsRequest.Group, altered: _Altered) -> None:
                self._fill(response.results.add(group_id=asked.group_id), altered)

            await some_at_a_time(one, request.groups, done)
            return response
        finally:
            admitted.leave()

    async def _validate(self, shard: Shard, command: AlterGroupConfig) -> Answer:
        """What the log would answer, once a quorum has confirmed that this node leads."""
        elsewhere = await self._core.confirmed(shard)
        if elsewhere is not None:
            return elsewhere
        group = shard.state.groups.get(command.group_id)
        return cast("Reply", decide(group, command, shard.envelope()).reply)

    def _fill(self, result: pb.AlterGroupConfigsResponse.Result, altered: _Altered) -> None:
        answer, shard = altered.answer, self._core.shard_for(result.group_id)
        if isinstance(answer, Configured):
            result.before.extend(_settings(altered.before, shard))
            result.after.extend(_settings(dict(answer.values), shard))
        else:
            result.status.CopyFrom(self._status(answer))

    def _status(self, answer: Answer) -> Status:
        """One group of several: overload is its own, too."""
        if isinstance(answer, Shed):
            message = f"{answer.what}: the limit is reached, nothing was done; repeat later."
            return self._core.statuses.error(Error.COORDINATOR_NOT_AVAILABLE, message)
        return self._core.statuses.of(translate.failure(answer))


def _refuse(request: pb.AlterGroupConfigsRequest) -> Refused | None:
    if len(request.groups) > GROUPS_MAX:
        return _too_many()
    if len({group.group_id for group in request.groups}) != len(request.groups):
        return Refused(Error.INVALID_REQUEST, "A group is named twice: name each once.")
    return refuse_bytes(request.ByteSize())


def _refuse_named(request: pb.DescribeGroupConfigsRequest) -> Refused | None:
    return _too_many() if len(request.group_ids) > GROUPS_MAX else refuse_bytes(request.ByteSize())


def _too_many() -> Refused:
    return Refused(Error.INVALID_REQUEST, f"At most {GROUPS_MAX} groups go into one call.")


def _own(shard: Shard, group_id: str) -> Mapping[str, int]:
    group = shard.state.groups.get(group_id)
    return {} if group is None else group.config


def _settings(own: Mapping[str, int], shard: Shard) -> list[pb.GroupSetting]:
    found: list[pb.GroupSetting] = []
    for name, setting in SETTINGS.items():
        lowest, highest = setting.bounds(LIMITS)
        default = getattr(LIMITS, setting.limit)
        if name == OFFSETS_RETENTION_MS:
            default = shard.node.retention.offsets_ms
        found.append(
            pb.GroupSetting(
                name=name,
                value=own.get(name, default),
                overridden=name in own,
                default_value=default,
                lowest=lowest,
                highest=highest,
            )
        )
    return found
