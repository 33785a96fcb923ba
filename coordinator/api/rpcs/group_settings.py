"""The RPCs about a group's settings: its own, and the cluster's defaults (gp-2.14)."""

from collections.abc import Mapping
from typing import cast

from muster.v1 import admin_pb2 as pb
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.handler import (
    ActiveCall,
    CoordinatorService,
    handler,
    with_first_group,
    with_status,
)
from musterd.coordinator.api.frame.paging import PAGE_BYTES
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.machine.commands import AlterGroupConfig, ConfigSetting
from musterd.coordinator.machine.decide.config import (
    CHOICES,
    OFFSETS_RETENTION_MS,
    SETTINGS,
    TEXTS,
    names_at,
)
from musterd.coordinator.machine.decide.dispatch import decide
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Configured, Reply
from musterd.coordinator.runtime.answers import Answer
from musterd.coordinator.runtime.shard import Shard

Own = Mapping[str, int | str]
"""A group's own settings by name."""

_failed = with_first_group(
    pb.DescribeGroupConfigsResponse, "groups", lambda request: request.group_ids
)


class GroupSettings(CoordinatorService):
    """The RPCs about settings of groups."""

    @handler(Kind.ORDINARY, bounds.DESCRIBE_CONFIGS, _failed, reads=True)
    async def DescribeGroupConfigs(
        self, request: pb.DescribeGroupConfigsRequest, call: ActiveCall
    ) -> pb.DescribeGroupConfigsResponse:
        """Return each group's settings, from applied state, labelled with its index (gp-2.14).

        An answer that is full says that there are more: texts are some KiB for each group.
        """
        core = self.core
        response = pb.DescribeGroupConfigsResponse()
        entries, size = len(request.group_ids) * (1 + len(SETTINGS)), 0
        async with call.slices() as slices:
            await slices.turn(entries)
            shards = [core.shard_for(group_id) for group_id in request.group_ids]
        reads = await call.reads(shards)
        async with call.slices() as slices:
            await slices.turn(entries)
            for group_id in request.group_ids:
                if size >= PAGE_BYTES:
                    response.more = True
                    break
                described = response.groups.add(group_id=group_id)
                shard = core.shard_for(group_id)
                refused = call.denied_item(group_id) or bounds.refuse_configured_group(group_id)
                if not reads.refused(described.status, shard, refused):
                    described.applied_index = shard.log.applied_index
                    described.settings.extend(_settings(_own(shard, group_id), shard))
                size += described.ByteSize()
                await slices.did(1 + len(SETTINGS))
        return response

    @handler(Kind.ORDINARY, bounds.ALTER_CONFIGS, with_status(pb.AlterGroupConfigsResponse))
    async def AlterGroupConfigs(
        self, request: pb.AlterGroupConfigsRequest, call: ActiveCall
    ) -> pb.AlterGroupConfigsResponse:
        """Override the cluster's defaults for groups, or go back to them (gp-2.14).

        Each group on its own, all of it or nothing; with `validate_only` nothing is changed. Where
        the answer is full it says of the groups that follow what became of them, and no settings.
        """
        core = self.core
        before: dict[str, Own] = {}
        """Own settings of each group, as far as this node had applied them when it was asked."""

        def altering(asked: pb.AlterGroupConfigsRequest.Group) -> AlterGroupConfig:
            before[asked.group_id] = _own(core.shard_for(asked.group_id), asked.group_id)
            settings = tuple(ConfigSetting(s.name, s.value) for s in asked.settings)
            return AlterGroupConfig(asked.group_id, settings, tuple(asked.removed))

        def now() -> dict[str, Own]:
            return {one: _own(core.shard_for(one), one) for one in before}

        call.changed(before, now)
        response, size = pb.AlterGroupConfigsResponse(), 0

        def done(asked: pb.AlterGroupConfigsRequest.Group, answer: Answer) -> None:
            nonlocal size
            result = response.results.add(group_id=asked.group_id)
            shard = core.shard_for(asked.group_id)
            if not isinstance(answer, Configured):
                result.status.CopyFrom(core.statuses.of(answer))
            elif size < PAGE_BYTES:
                result.before.extend(_settings(before[asked.group_id], shard))
                result.after.extend(_settings({**dict(answer.values), **dict(answer.texts)}, shard))
            size += result.ByteSize()

        put = self._validate if request.validate_only else None
        await call.ask_each(request.groups, bounds.ALTER_CONFIG, altering, done, put)
        return response

    async def _validate(self, shard: Shard, command: AlterGroupConfig) -> Answer:
        """Return what the log would answer, once a quorum has confirmed that this node leads."""
        elsewhere = await self.core.confirmed(shard)
        if elsewhere is not None:
            return elsewhere
        group = shard.state.groups.get(command.group_id)
        return cast("Reply", decide(group, command, shard.envelope()).reply)


def _own(shard: Shard, group_id: str) -> Own:
    group = shard.state.groups.get(group_id)
    return {} if group is None else {**group.config, **group.texts}


def _settings(own: Own, shard: Shard) -> list[pb.GroupSetting]:
    found: list[pb.GroupSetting] = []
    for name in names_at(shard.envelope().level):
        if name in TEXTS:
            text = str(own.get(name, ""))
            found.append(pb.GroupSetting(name=name, text=text, overridden=name in own))
            continue
        if name in CHOICES:
            words = CHOICES[name]
            text = words[int(own.get(name, len(words) - 1))]
            one = pb.GroupSetting(name=name, text=text, overridden=name in own)
            one.default_text = words[-1]
            found.append(one)
            continue
        setting = SETTINGS[name]
        lowest, highest = setting.bounds(LIMITS)
        default = getattr(LIMITS, setting.limit)
        if name == OFFSETS_RETENTION_MS:
            default = shard.node.retention.offsets_ms
        found.append(
            pb.GroupSetting(
                name=name,
                value=int(own.get(name, default)),
                overridden=name in own,
                default_value=default,
                lowest=lowest,
                highest=highest,
            )
        )
    return found
