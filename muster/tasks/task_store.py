"""Stores the tasks of a task group among the group's own offsets.

So they are as durable as what is committed, belong to no member, and are gone when the group is.
Each task has a slot. A removed task's slot is free for the next new one, so what is kept does not
grow with the names that were ever used. Two registered topics name the slots; all task groups share
them, since offsets belong to groups:

    muster.task-definitions 0       the set's version, which every change raises by one
    muster.task-definitions 1 + i   of slot i: the version that changed it last; as metadata name,
                                    configuration, and the version since which the name has the slot
    muster.tasks i                  of slot i: the task's progress; its metadata begins with that
                                    version, so that nothing is taken over from an earlier task
"""

import asyncio
import json
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from muster.admin import topics
from muster.errors import (
    CoordinatorNotAvailable,
    IllegalGeneration,
    InvalidRequest,
    InvalidUpdateVersion,
    MusterError,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from muster.group.group_kind import to_json
from muster.group.offsets import Terms, commit_request, fetch, partition_results
from muster.net import backoff
from muster.net.calls import COMMIT, Caller
from muster.tasks.task_topics import DEFINITIONS, PROGRESS
from muster.types import Assignment, Committed, OffsetAndMetadata, TopicPartition

TASKS_MAX = 1000
"""In one group at one time."""

CHANGES_MAX = 100
"""Tasks in one change: a commit has at most 512 KiB, and each may come with 4 KiB."""

DEFINITION_BYTES_MAX = 4096
"""Bytes of name and configuration as JSON: an offset's metadata (arch-5)."""

VERSION = TopicPartition(DEFINITIONS, 0)

Config = Mapping[str, Any]
"""What a task is given: anything that JSON can say."""

_CHANGED_MEANWHILE = (
    InvalidUpdateVersion,
    IllegalGeneration,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
"""Look again, and try again."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A task as it is defined."""

    name: str
    config: Config
    version: int
    """The version of the set of tasks when this task was changed last."""
    since: int
    """The version of the set when this task was added."""

    def encode(self) -> OffsetAndMetadata:
        fields = {"name": self.name, "config": self.config, "since": self.since}
        return OffsetAndMetadata(self.version, to_json(fields))


class Kept(Protocol):
    """A committed offset, of the SDK or as it comes over the wire."""

    @property
    def offset(self) -> int: ...
    @property
    def metadata(self) -> str: ...


def decode(one: Kept | None) -> Definition | None:
    """Decode the content of a slot; None where it is free.

    Raises MusterError: whoever may commit may have written it.
    """
    if one is None or not one.metadata:
        return None
    try:
        fields = json.loads(one.metadata)
        found = Definition(fields["name"], fields["config"], one.offset, fields["since"])
        found.encode()  # JSON has no infinite numbers, and Python reads them
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MusterError(f"not a task's definition: {one.metadata[:100]!r}") from error
    is_sound = isinstance(found.name, str) and isinstance(found.config, dict)
    if not is_sound or type(found.since) is not int:
        raise MusterError(f"not a task's definition: {one.metadata[:100]!r}")
    return found


@dataclass(frozen=True, slots=True)
class TaskSet:
    """All tasks of a group, under one version; 0 = none was ever defined."""

    version: int
    slots: Mapping[int, Definition]

    def slot_of(self, name: str) -> int | None:
        return next((i for i, one in self.slots.items() if one.name == name), None)


Changes = Mapping[int, Definition | None]
"""Slot -> what shall be there; None = nothing."""

Change = Callable[[TaskSet], Changes]
"""What to do, given what there is; asked again where somebody else was faster."""


def definition_key(slot: int) -> TopicPartition:
    """Where a slot's definition is."""
    return TopicPartition(DEFINITIONS, slot + 1)


def put_all(tasks: Mapping[str, Config]) -> Change:
    """Add these, or change their configuration. Nothing where all is as it shall be."""

    def change(found: TaskSet) -> Changes:
        free = iter(sorted(set(range(TASKS_MAX)) - found.slots.keys()))
        version = found.version + 1
        changes: dict[int, Definition | None] = {}
        for name, config in tasks.items():
            slot = found.slot_of(name)
            if slot is None:
                slot = next(free, None)
                if slot is None:
                    raise InvalidRequest(f"a task group has at most {TASKS_MAX} tasks")
                changes[slot] = Definition(name, config, version, version)
            elif to_json(found.slots[slot].config) != to_json(config):
                changes[slot] = Definition(name, config, version, found.slots[slot].since)
        return changes

    return change


def remove_all(names: Collection[str]) -> Change:
    """Free their slots. Nothing for a name that is not there."""

    def change(found: TaskSet) -> Changes:
        return {i: None for i, one in found.slots.items() if one.name in names}

    return change


def check(tasks: Mapping[str, Config]) -> None:
    """Refuse what cannot be kept.

    Raises:
        InvalidRequest: an empty name, one too long with its configuration, or no JSON.
    """
    for name, config in tasks.items():
        if not name or not isinstance(config, Mapping):
            raise InvalidRequest(f"task {name!r}: a name, and a mapping as its configuration")
        try:
            # The longest version there is: 19 digits.
            size = len(Definition(name, dict(config), 0, 2**63 - 1).encode().metadata.encode())
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"task {name!r}: its configuration is no JSON: {error}") from error
        if size > DEFINITION_BYTES_MAX:
            raise InvalidRequest(
                f"task {name!r}: name and configuration have {size} bytes as JSON;"
                f" at most {DEFINITION_BYTES_MAX}"
            )


class TaskStore:
    """Reads and changes the tasks of one group."""

    def __init__(
        self, caller: Caller, group_id: str, *, instance_id: str, timeout_ms: float
    ) -> None:
        self._caller = caller
        self._group_id = group_id
        self._instance_id = instance_id
        self._timeout_ms = timeout_ms

    async def prepare(self) -> None:
        """See to it that the slots have their topics."""
        for name, partitions in ((DEFINITIONS, TASKS_MAX + 1), (PROGRESS, TASKS_MAX)):
            await topics.create_topic(
                self._caller, name, partitions, exist_ok=True, timeout_ms=self._timeout_ms
            )

    async def fetch(self, keys: Collection[TopicPartition], timeout_ms: float = 0) -> Committed:
        return await fetch(self._caller, self._group_id, keys, timeout_ms or self._timeout_ms)

    async def read(self, timeout_ms: float = 0) -> TaskSet:
        """All of it. The version is not later than what it came with."""
        keys = [VERSION, *(definition_key(slot) for slot in range(TASKS_MAX))]
        found = await self.fetch(keys, timeout_ms)
        slots = {slot: decode(found[definition_key(slot)]) for slot in range(TASKS_MAX)}
        return TaskSet(
            found.offset(VERSION) or 0, {i: one for i, one in slots.items() if one is not None}
        )

    async def change(self, choose: Callable[[], Assignment | None], change: Change) -> TaskSet:
        """Change it, all or nothing, as a member; what it is then.

        Args:
            choose: this member's assignment now.
            change: what to do; see `Change`.

        Raises:
            InvalidRequest: too much at once, or too many tasks.
            RequestTimedOut, CoordinatorNotAvailable: it may have been done.
            RebalanceInProgress: the group did not come to rest in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_ms / 1000
        failures = 0
        last: MusterError = RebalanceInProgress("this member has no assignment now")
        while loop.time() < deadline:
            if failures:
                await asyncio.sleep(backoff.CALL.delay_ms(failures, random.random) / 1000)
            failures += 1
            under = choose()
            if under is None:
                continue
            found = await self.read()
            changes = change(found)
            if not changes:
                return found
            try:
                await self._commit(under, found.version, changes)
            except _CHANGED_MEANWHILE as error:
                last = error
                continue
            slots = {**found.slots, **changes}
            return TaskSet(
                found.version + 1, {i: one for i, one in slots.items() if one is not None}
            )
        raise RebalanceInProgress(f"the tasks could not be changed in time: {last}")

    async def _commit(self, under: Assignment, version: int, changes: Changes) -> None:
        if len(changes) > CHANGES_MAX:
            raise InvalidRequest(f"at most {CHANGES_MAX} tasks are changed at once")
        offsets: dict[TopicPartition, int | OffsetAndMetadata] = {VERSION: version + 1}
        for slot, definition in changes.items():
            offsets[definition_key(slot)] = (
                OffsetAndMetadata(version + 1) if definition is None else definition.encode()
            )
        # No commit_seq: what makes it count once is the version it expects.
        request = commit_request(
            self._group_id,
            under.member_id,
            under.generation,
            0,
            offsets,
            self._instance_id,
            Terms(atomic=True, expected={VERSION: version or None}),
        )
        response, coordinator = await self._caller.call(
            self._group_id, COMMIT, request.SerializeToString(), timeout_ms=self._timeout_ms
        )
        partition_results(request, response, coordinator)


UNREACHABLE = (RequestTimedOut, CoordinatorNotAvailable)
"""Asking again may help."""
