"""Assigns tasks to workers: the sticky assignor over the slots that are in use."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from muster.assignors import FunctionAssignor, Shares, Subscriber, in_order, sticky_shares
from muster.errors import InconsistentGroupProtocol
from muster.group.actions import Assignments, JoinAnswered
from muster.group.group_kind import GroupKind, encoded, members_of, said, tell, to_json, told
from muster.tasks.task_store import TaskSet
from muster.tasks.task_topics import PROGRESS
from muster.types import TopicPartition


def share_tasks(members: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> Shares:
    """Tasks by count, evenly, and nobody gets what need not move (`sticky_shares`).

    The slots in use are in each member's user data: `b"0 3 7"`. Each is a topic of its own here,
    because a topic's partitions have no holes and slots have. A slot that is free is nobody's work;
    an assignor has to give it to somebody, and it is left out of what is sent.
    """
    workers = in_order(member for member in members if member.topics)
    if not workers:
        return {}
    live = {int(slot) for slot in workers[0].user_data.split()}
    names = {TopicPartition(PROGRESS, slot): TopicPartition(f"{slot:04}", 0) for slot in live}
    named = [
        replace(
            worker,
            topics=tuple(sorted(key.topic for key in names.values())),
            owned=tuple(names[key] for key in worker.owned if key in names),
        )
        for worker in workers
    ]
    found = sticky_shares(named, {key.topic: 1 for key in names.values()}) if live else {}
    shares = {
        member_id: [TopicPartition(PROGRESS, int(key.topic)) for key in keys]
        for member_id, keys in found.items()
    }
    free = set(range(partition_counts.get(PROGRESS, 0))) - live
    shares.setdefault(workers[0].member_id, []).extend(
        TopicPartition(PROGRESS, slot) for slot in sorted(free)
    )
    return shares


ASSIGNOR = FunctionAssignor("tasks", share_tasks, cooperative=True)


class TaskKind(GroupKind):
    """One member's part in a task group."""

    protocol_type = "tasks"

    def __init__(self, read: Callable[[], Awaitable[TaskSet]], works: Callable[[], bool]) -> None:
        """`works`: it is given tasks; else it only changes them, or looks on."""
        self._known_version = 0
        """The latest version of the set that this member has seen."""
        self._round_version = 0
        """The version that the last round was decided over."""
        self._read, self._works = read, works
        self._tasks = TaskSet(0, {})

    def statement(self) -> bytes:
        """Return this member's statement for its next Join. A new version makes it another Join."""
        return to_json({"works": self._works(), "version": self._known_version}).encode()

    def is_news(self, version: int) -> bool:
        """Note a version that was seen; True where the last round was decided over an older one."""
        self._known_version = max(self._known_version, version)
        return version > self._round_version

    async def on_joined(self, answer: JoinAnswered) -> JoinAnswered:
        """The group leader reads the tasks, and sees who works."""
        self._tasks = await self._read()
        slots = self._tasks.slots
        live = " ".join(str(slot) for slot in sorted(slots)).encode()
        members = []
        for member in members_of(answer):
            match said(member):
                case {"works": bool(works), "version": int(_)}:
                    topics = (PROGRESS,) if works and slots else ()
                    members.append(replace(member, topics=topics, user_data=live))
                case _:
                    raise InconsistentGroupProtocol("a member does not say what a worker says")
        counts = {PROGRESS: max(slots) + 1} if any(m.topics for m in members) else {}
        return replace(answer, members=encoded(members), partition_counts=counts)

    def on_assigning(self, assignments: Assignments) -> Assignments:
        """Only slots in use go out, and everybody is told the version."""
        only = frozenset(TopicPartition(PROGRESS, slot) for slot in self._tasks.slots)
        news = {"version": self._tasks.version}
        return tuple((member_id, tell(one, news, only=only)) for member_id, one in assignments)

    def on_assigned(self, assignment: bytes, sent_at: float) -> None:  # noqa: ARG002
        match told(assignment):
            case {"version": int(version)}:
                self._round_version = version
            case _:
                self._round_version = 0  # joined while it was decided
