"""What the log's answers say must be so, kept beside the shipped state and held against it.

Every command that is applied comes by with its reply. What a reply promises is written down here
without looking at any event: an offset that was committed, a setting that was altered, a topic that
was created or grew. After each entry the state must say the same, so a reply without its effect is
seen at once, whoever asked. What clients were told is judged as in real runs (group_history.py),
but for kicks: only the log shows that a member is back under the id that it had.
"""

from dataclasses import dataclass, field

from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.coordinator.machine.commands import (
    AddPartitions,
    AlterGroupConfig,
    CreateTopic,
    DeleteGroup,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    GroupDeleted,
    MemberJoined,
    MemberRemoved,
    MemberReplaced,
    OffsetRemoved,
    PendingAdded,
)
from musterd.coordinator.machine.replies import Committed, Configured, Done, Left
from musterd.coordinator.machine.shard_state import CommandResult, ShardState

Place = tuple[str, str, int]
"""Group, topic, partition."""


@dataclass(slots=True)
class Ledger:
    """Of one shard, over all groups."""

    shard: ShardChecker
    seen: int = 0
    """Index of the last entry that came by."""
    offsets: dict[Place, int] = field(default_factory=dict)
    settings: dict[str, dict[str, int]] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    kicked: dict[tuple[str, str], int] = field(default_factory=dict)
    """Group and member id -> index at which an operator removed it."""
    _members: set[tuple[str, str]] = field(default_factory=set)

    def watch(self, one: Applied) -> None:
        self.seen = one.index
        places: set[Place] = set()
        groups: set[str] = set()
        for result in one.results:
            self._note(one.index, result, places, groups)
        self._compare(one.node, one.shard.state, places, groups)

    # -- what the replies say

    def _note(
        self, index: int, result: CommandResult, places: set[Place], groups: set[str]
    ) -> None:
        command, reply = result.command, result.reply
        match command:
            case OffsetCommit() if isinstance(reply, Committed):
                self._committed(command, reply, places)
            case AlterGroupConfig() if isinstance(reply, Configured):
                self._altered(command)
                groups.add(command.group_id)
            case CreateTopic() | AddPartitions() if isinstance(reply, Done):
                self._grown(command.name, command.partitions)
            case LeaveGroup(kicked=True) if isinstance(reply, Left):
                for one in reply.results:
                    if one.error is Error.NONE and one.member_id:
                        self.kicked[command.group_id, one.member_id] = index
            case _:
                pass
        self._events(result)

    def _committed(self, command: OffsetCommit, reply: Committed, places: set[Place]) -> None:
        for wanted, told in zip(command.partitions, reply.partitions, strict=True):
            place = (command.group_id, wanted.topic, wanted.partition)
            places.add(place)
            if told.error is not Error.NONE or told.superseded:
                self.shard.counts.held_back += command.forward_only and told.superseded
                continue
            before = self.offsets.get(place, -1)
            if command.forward_only and wanted.offset < before:
                self.shard.violated(
                    "H-offset-fell",
                    group=place[0],
                    partition=place[2],
                    stored=before,
                    committed=wanted.offset,
                )
            self.offsets[place] = wanted.offset

    def _altered(self, command: AlterGroupConfig) -> None:
        now = dict(self.settings.get(command.group_id, {}))
        for name in command.removed:
            now.pop(name, None)
        now |= {one.name: int(one.value) for one in command.settings}
        self.settings[command.group_id] = now
        self.shard.counts.altered += 1

    def _grown(self, name: str, partitions: int) -> None:
        before = self.topics.get(name, 0)
        if partitions < before:
            self.shard.violated("H-topic-shrank", topic=name, had=before, now=partitions)
        self.topics[name] = partitions

    def _events(self, result: CommandResult) -> None:
        """Who is there, and what went: what a reply does not say.

        A kicked id is gone for good: nobody joins under it by naming it. A first Join that is
        repeated has a nonce and names none, and may bring its id back (gp-D2).
        """
        if isinstance(result.command, DeleteGroup) and result.events:
            ids = len(result.events) - 1  # the last one is the deletion itself
            self.shard.counts.dropped += ids if ids > 1 else 0
        for event in result.events:
            match event:
                case MemberJoined():
                    key = (event.group_id, event.member_id)
                    command = result.command
                    if isinstance(command, JoinGroup) and command.member_id and key in self.kicked:
                        self.shard.violated("H-kicked-came-back", group=key[0], member=key[1])
                    self.kicked.pop(key, None)
                    self._members.add(key)
                case PendingAdded():
                    self.kicked.pop((event.group_id, event.member_id), None)
                case MemberRemoved():
                    self._members.discard((event.group_id, event.member_id))
                case MemberReplaced():
                    self._members.discard((event.group_id, event.replaced_id))
                    self._members.add((event.group_id, event.member_id))
                case OffsetRemoved():
                    place = (event.group_id, event.topic, event.partition)
                    self.offsets.pop(place, None)
                case GroupDeleted():
                    self._deleted(event.group_id)
                case _:
                    pass

    def _deleted(self, group: str) -> None:
        for place in [place for place in self.offsets if place[0] == group]:
            del self.offsets[place]
        self.settings.pop(group, None)
        self._members = {key for key in self._members if key[0] != group}

    # -- what the state says

    def _compare(self, node: int, state: ShardState, places: set[Place], groups: set[str]) -> None:
        for place in sorted(places):
            self._compare_offset(node, state, place)
        for group in sorted(groups):
            self._compare_settings(node, state, group)
        for key in [key for key in self.kicked if key in self._members]:
            self.shard.violated("H-kick-lost", node=node, group=key[0], member=key[1])
        for name, partitions in self.topics.items():
            if state.topics.get(name) != partitions:
                self.shard.violated(
                    "H-topic-lost",
                    node=node,
                    topic=name,
                    promised=partitions,
                    stored=state.topics.get(name),
                )

    def _compare_offset(self, node: int, state: ShardState, place: Place) -> None:
        stored, promised = stored_offset(state, *place), self.offsets.get(place, -1)
        if stored != promised:
            self.shard.violated(
                "H-commit-without-effect",
                node=node,
                group=place[0],
                partition=place[2],
                promised=promised,
                stored=stored,
            )

    def _compare_settings(self, node: int, state: ShardState, group: str) -> None:
        stored, promised = stored_settings(state, group), self.settings.get(group, {})
        if stored != promised:
            self.shard.violated(
                "H-setting-lost", node=node, group=group, promised=promised, stored=stored
            )

    def finished(self, node: int, state: ShardState) -> None:
        """The world is at rest: this node has everything that was ever promised."""
        self._compare(node, state, set(self.offsets), set(self.settings))

    # -- what clients were told; `since` is `seen` at the time at which they asked

    def kick_told(self, group: str, member_id: str, since: int) -> None:
        """An operator was told that this member is gone; it may have gone before it was asked."""
        if (group, member_id) in self._members and self.kicked.get((group, member_id), 0) <= since:
            self.shard.violated("H-kick-lost", group=group, member=member_id)
        self.shard.counts.kicked += 1

    def topic_refused(self, name: str, partitions: int, why: str) -> None:
        """Somebody was told that a topic cannot have so many partitions: by the log it has more.

        Who sends a call again whose outcome it does not know may find that it was carried out, and
        that the topic grew since.
        """
        has = self.topics.get(name, 0)
        if has <= partitions:
            self.shard.violated(
                "H-topic-refused", topic=name, wanted=partitions, promised=has, message=why[:200]
            )


def stored_offset(state: ShardState, group_id: str, topic: str, partition: int) -> int:
    """What the state has for a partition; -1: nothing."""
    group = state.groups.get(group_id)
    offset = None if group is None else group.offsets.get((topic, partition))
    return -1 if offset is None else offset.offset


def stored_settings(state: ShardState, group_id: str) -> dict[str, int]:
    """What the state has as a group's own settings."""
    group = state.groups.get(group_id)
    return {} if group is None else dict(group.config)
