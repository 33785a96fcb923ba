"""The client of a cluster: it has channels to all nodes and everything that its groups share."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self

from muster import timeouts
from muster.admin import topics
from muster.admin.deletions import delete_groups, delete_offsets
from muster.admin.group_settings import alter_group_settings, group_settings, kick_members
from muster.admin.groups import describe_group, list_groups
from muster.admin.rebalances import KEPT, Rebalance
from muster.assignors import Assignor, Choice, resolve
from muster.bounds import CAPACITY_MAX, CAPACITY_MIN, CLIENT_ID_BYTES_MAX, check_id, check_ms
from muster.election.election import Election
from muster.election.election_state import ElectionState
from muster.errors import GroupClosed, InvalidConfig, MusterError
from muster.group.actions import MemberConfig
from muster.group.committer import CoordinatorHook
from muster.group.group import Group, GroupOptions, subscription
from muster.group.group_kind import GroupKind
from muster.group.heartbeats import Heartbeats
from muster.group.managed_group import CallbackListener, ManagedGroup, Preparation, nothing
from muster.group.membership_calls import ConsumerOptions, JoinOptions, UserData
from muster.group.offsets import Offsets, commit_request, fetch, partition_results
from muster.group.rebalance_listener import SILENT, RebalanceListener
from muster.net.bearer_token import BearerToken, is_loopback
from muster.net.calls import COMMIT, Caller
from muster.net.discovery import Discovery, Routes
from muster.net.nodes import Nodes, parse_endpoints
from muster.net.pings import Pings
from muster.net.tls import Tls
from muster.net.topic_registry import TopicRegistry
from muster.tasks.task_group import OnLost, Tasks
from muster.tasks.task_shares import ASSIGNOR, TaskKind
from muster.tasks.task_store import TaskStore
from muster.types import (
    CommitResult,
    Committed,
    Coordinator,
    Counters,
    GroupDescription,
    GroupListing,
    GroupSetting,
    Topic,
    TopicPartition,
)

Assigning = Literal["client", "server"]
"""Who shares out a group's partitions: its members, or its coordinator."""


class Client:
    """A cluster as one process uses it.

    Opened by `async with`, or by `open` and `close`. It belongs to the event loop that opened it.
    Nothing is started before that: no thread, no connection.

    Args:
        bootstrap: addresses of some nodes, `"host:port,host:port"`; the others are learned.
        client_id: the first part of this process's member ids, for people.
        tls: PEM files; without it connections are plain.
        token: a bearer token (`muster token create`), which is sent over TLS or to loopback alone.
        token_file: a file with it instead, which is read again when it changes.
        request_timeout_ms: how long a call may take, all attempts together.
        streams: whether members' calls to a node share one stream, where it has them; False: each
            is a gRPC call of its own, which costs both sides more (docs/adr/0031).

    Raises:
        InvalidConfig: an address is none, a token would go over the network in the clear or cannot
            be read, or a value is out of bounds.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "muster",
        tls: Tls | None = None,
        token: str = "",
        token_file: str = "",
        request_timeout_ms: int = timeouts.REQUEST_MS,
        streams: bool = True,
    ) -> None:
        self._bootstrap = parse_endpoints(bootstrap)
        self._token = BearerToken(token, token_file) if token or token_file else None
        if self._token is not None and tls is None and not all(map(is_loopback, self._bootstrap)):
            raise InvalidConfig(
                "token: it would go over the network in the clear",
                hint="give tls, or addresses on loopback",
            )
        self._client_id = check_id("client_id", client_id, CLIENT_ID_BYTES_MAX)
        self._tls = tls
        self._streams = streams
        self._timeout_ms = check_ms("request_timeout_ms", request_timeout_ms)
        self._core: _Core | None = None
        self._groups: list[Group] = []
        self.counters = Counters()
        """What the SDK met since this client was made."""

    # ---- life

    async def open(self) -> Self:
        """Start connecting. It returns before any node has answered."""
        if self._core is None:
            self._core = _Core(self._connect(), self.counters)
        return self

    def _connect(self) -> Nodes:
        """Open the channels; the simulator has others."""
        return Nodes(self._bootstrap, self._tls, self._token, streams=self._streams)

    async def close(self) -> None:
        """Close every group (members leave), then the channels."""
        if self._core is None:
            return
        for group in list(self._groups):
            await group.close()
        self._groups.clear()
        core, self._core = self._core, None
        await core.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _opened(self) -> "_Core":
        if self._core is None:
            raise GroupClosed("the client is not open", hint="use it inside `async with`")
        return self._core

    # ---- topics

    async def create_topic(
        self,
        name: str,
        partitions: int,
        *,
        zones: Sequence[Collection[str]] = (),
        exist_ok: bool = False,
    ) -> Topic:
        """Create a topic; with `exist_ok`, one that exists is fine, also where it has grown since.

        With `exist_ok` who may only describe the topic needs no right to create it, once it exists.

        Args:
            name: what it shall be called.
            partitions: how many.
            zones: in which zones each partition is, as in `set_topic_zones`.
            exist_ok: whether one that exists is fine.

        Returns:
            The topic as it is: it may have more partitions than were asked for.

        Raises:
            TopicAlreadyExists: it exists with this count, and `exist_ok` is False.
            InvalidPartitions: it exists with fewer partitions (`add_partitions` raises the count),
                or, where `exist_ok` is False, with more; or the count is not possible.
            InvalidTopic: the name is not possible.
            InvalidRequest: the zones are not possible, or the topic exists in others.
            UnsupportedVersion: the cluster is at a level without zones.
            TopicAuthorizationFailed: the caller may not create it.
        """
        core = self._opened()
        return await topics.create_topic(
            core.caller,
            name,
            partitions,
            zones=zones,
            exist_ok=exist_ok,
            timeout_ms=self._timeout_ms,
        )

    async def topics(self) -> list[Topic]:
        """Every topic of the registry, by name, as the node asked knows it."""
        return await topics.list_topics(self._opened().caller, self._timeout_ms)

    async def describe_topics(self, names: Collection[str]) -> dict[str, Topic]:
        """These topics.

        Raises:
            UnknownTopicOrPartition: one of them does not exist, as far as the node asked knows.
        """
        return await topics.describe_topics(self._opened().caller, names, self._timeout_ms)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all offsets that groups have of it. Returns once they are gone.

        Groups that read it rebalance. A topic of the same name begins without offsets.

        Raises:
            InvalidRequest: this topic keeps the tasks of every task group.
            UnknownTopicOrPartition: there is no such topic.
            RequestTimedOut: the topic is gone or was not reached; offsets may be there, until every
                shard of the cluster has had a leader.
        """
        core = self._opened()
        await topics.delete_topic(core.caller, name, self._timeout_ms)
        core.registry.forget(name)

    async def add_partitions(self, name: str, partitions: int) -> Topic:
        """Raise a topic's count to this total.

        Raises:
            InvalidPartitions: it has more already.
            UnknownTopicOrPartition: there is no such topic.
        """
        core = self._opened()
        return await topics.add_partitions(core.caller, name, partitions, self._timeout_ms)

    async def set_topic_zones(self, name: str, zones: Sequence[Collection[str]]) -> Topic:
        """Say in which zones a topic's partitions are.

        Where the coordinator assigns by `uniform`, as many partitions as balance allows go to
        members whose `rack` is one of theirs.

        Args:
            name: of a topic that exists.
            zones: a list of zones for each partition, which repeat: partition n is in those of the
                list at n modulo their number, so one list is for all. None: they are in no zone.

        Raises:
            InvalidRequest: the zones are not possible.
            UnknownTopicOrPartition: there is no such topic.
            UnsupportedVersion: the cluster is at a level without zones.
        """
        core = self._opened()
        return await topics.set_topic_zones(core.caller, name, zones, self._timeout_ms)

    # ---- groups

    def group(
        self,
        group_id: str,
        topics: Sequence[str] = (),
        *,
        pattern: str = "",
        assignment: Assigning = "client",
        assignor: Choice = "",
        capacity: float = 1.0,
        rack: str = "",
        user_data: UserData = b"",
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        group_instance_id: str = "",
        commit_interval_ms: int = timeouts.COMMIT_INTERVAL_MS,
        listener: RebalanceListener = SILENT,
        on_coordinator_change: CoordinatorHook | None = None,
    ) -> Group:
        """One membership of a group: it joins when first waited on, and leaves when it is closed.

        Args:
            group_id: 1 to 249 bytes of UTF-8.
            topics: what this member subscribes to; they must exist. At least one, unless there is a
                pattern.
            pattern: a regular expression in RE2's syntax: it subscribes to all topics whose whole
                name this matches, as they come and go, beside `topics`. Only where the coordinator
                assigns.
            assignment: `"client"`: members share out the partitions in rounds. `"server"`: the
                coordinator does, and each partition moves on its own (docs/modern.md).
            assignor: `"range"` (which `""` stands for), `"roundrobin"`, `"sticky"`,
                `"cooperative-sticky"`, a function or object of your own, or several of these in
                order of preference. With `"cooperative-sticky"` members go on working during a
                rebalance, and only what moves stops; every member must have it
                (docs/assignors.md). Where the coordinator assigns: `"uniform"`, `"range"`,
                `"weighted"`, or `""` for what the group's other members prefer.
            capacity: how much this member may have, for `"weighted"`: 2.0 is twice as much as 1.0;
                0.001 to 1000. Only where the coordinator assigns.
            rack: where this member is: for assignors of your own; its zone, where the coordinator
                assigns.
            user_data: told to assignors of your own; a function is asked before each Join, and its
                answer should change only where the group ought to be rebalanced.
            session_timeout_ms: how long the member may be silent.
            rebalance_timeout_ms: how long it may take to give up its partitions.
            group_instance_id: a durable name makes this member static: started again within the
                session timeout it gets its partitions back and nobody else notices. At most one
                process may use it at a time; a second one takes over, and the first fails with
                FencedInstanceId. Where the coordinator assigns the second one fails, with
                UnreleasedInstanceId, while the first is connected.
            commit_interval_ms: how often buffered commits (`Partition.commit`) go out, at most.
            listener: is told when partitions come, are revoked, or are lost.
            on_coordinator_change: called when the group has a later coordinator than the one its
                last commit went to, before another commit, or another attempt of one, goes out. It
                may read (`committed`), not commit.
        """
        core = self._opened()
        check_id("group_id", group_id)
        if group_instance_id:
            check_id("group_instance_id", group_instance_id)
        consumer = _consumer(assignment, assignor, capacity, user_data, pattern)
        assignors = resolve("range" if assignor == "" else assignor) if consumer is None else ()
        options = GroupOptions(
            join=JoinOptions(
                MemberConfig(group_id, self._client_id, assignors, group_instance_id),
                subscription(topics, pattern),
                check_ms("session_timeout_ms", session_timeout_ms),
                check_ms("rebalance_timeout_ms", rebalance_timeout_ms),
                rack,
                user_data,
                consumer=consumer,
            ),
            commit_interval_ms=check_ms("commit_interval_ms", commit_interval_ms, 0),
            request_timeout_ms=self._timeout_ms,
            listener=listener,
            on_coordinator_change=on_coordinator_change,
        )
        group = Group(core.caller, core.heartbeats, core.registry, options, forget=self._forget)
        self._groups.append(group)
        return group

    def election(self, name: str, value: str = "", *, session_timeout_ms: int = 10_000) -> Election:
        """One process's part in an election: one member at a time leads (docs/election.md).

        Args:
            name: the group id; 1 to 249 bytes of UTF-8.
            value: what the others are told of this member while it leads, its address for example;
                at most 4096 bytes.
            session_timeout_ms: how long a leader may be silent until another one is elected. It
                stops by itself after 0.9 of this.
        """

        def make(election: Election, state: ElectionState) -> ManagedGroup:
            join = self._managed(name, state, resolve("cooperative-sticky"), session_timeout_ms)
            join = replace(
                join,
                # A candidate that does not come back in time must not cost the leader its lease.
                rebalance_timeout_ms=max(1, session_timeout_ms // 3),
                user_data=state.statement,
            )
            return self._manage(
                join, listener=CallbackListener(revoked=election.on_revoked, lost=election.on_lost)
            )

        return Election(name, value, session_timeout_ms, make)

    def tasks(
        self,
        group_id: str,
        *,
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        group_instance_id: str = "",
        commit_interval_ms: int = timeouts.COMMIT_INTERVAL_MS,
        on_lost: OnLost | None = None,
    ) -> Tasks:
        """One member of a group that shares named tasks instead of partitions (docs/tasks.md).

        Args:
            group_id: 1 to 249 bytes of UTF-8.
            session_timeout_ms: how long the member may be silent.
            rebalance_timeout_ms: how long it may take to give up its tasks.
            group_instance_id: see `group`.
            commit_interval_ms: how often progress goes out (`Task.commit`), at most.
            on_lost: called with the names when this member was fenced: another one may already
                work on them, commits are refused.
        """
        check_ms("rebalance_timeout_ms", rebalance_timeout_ms)
        check_ms("commit_interval_ms", commit_interval_ms, 0)
        store = TaskStore(
            self._opened().caller,
            group_id,
            instance_id=group_instance_id,
            timeout_ms=self._timeout_ms,
        )

        def make(tasks: Tasks, kind: TaskKind) -> ManagedGroup:
            join = self._managed(group_id, kind, (ASSIGNOR,), session_timeout_ms, group_instance_id)
            join = replace(
                join, rebalance_timeout_ms=rebalance_timeout_ms, user_data=kind.statement
            )
            return self._manage(
                join,
                commit_interval_ms=commit_interval_ms,
                listener=CallbackListener(tasks.on_assigned, tasks.on_revoked, tasks.on_lost),
                before_join=store.prepare,
            )

        return Tasks(group_id, store, make, on_lost)

    def _managed(
        self,
        group_id: str,
        kind: GroupKind,
        assignors: tuple[Assignor, ...],
        session_timeout_ms: int,
        group_instance_id: str = "",
    ) -> JoinOptions:
        """How a member joins that owns something else than partitions of registered topics."""
        check_id("group_id", group_id)
        if group_instance_id:
            check_id("group_instance_id", group_instance_id)
        check_ms("session_timeout_ms", session_timeout_ms)
        config = MemberConfig(group_id, self._client_id, assignors, group_instance_id)
        return JoinOptions(config, (), session_timeout_ms, 60_000, kind=kind)

    def _manage(
        self,
        join: JoinOptions,
        *,
        listener: RebalanceListener,
        commit_interval_ms: int = timeouts.COMMIT_INTERVAL_MS,
        before_join: Preparation = nothing,
    ) -> ManagedGroup:
        core = self._opened()
        options = GroupOptions(
            join=join,
            commit_interval_ms=commit_interval_ms,
            request_timeout_ms=self._timeout_ms,
            listener=listener,
            on_coordinator_change=None,
        )
        group = ManagedGroup(
            core.caller,
            core.heartbeats,
            core.registry,
            options,
            forget=self._forget,
            before_join=before_join,
        )
        self._groups.append(group)
        return group

    def _forget(self, group: Group) -> None:
        if group in self._groups:
            self._groups.remove(group)

    async def list_groups(self) -> list[GroupListing]:
        """Every group of the cluster, by id: each node says which it coordinates.

        Raises:
            CoordinatorNotAvailable: some shard had no coordinator in time, so the list would lack
                its groups.
        """
        return await list_groups(self._opened().caller, self._timeout_ms)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """A group with all of its members, as its coordinator knows it, linearizably.

        Raises:
            GroupIdNotFound: there is no such group.
        """
        return await describe_group(self._opened().caller, group_id, self._timeout_ms)

    async def committed(
        self, group_id: str, partitions: Collection[TopicPartition] | None = None
    ) -> Committed:
        """Read committed offsets linearizably, as anybody; None = every offset of the group."""
        return await fetch(self._opened().caller, group_id, partitions, self._timeout_ms)

    async def commit_offsets(self, group_id: str, offsets: Offsets) -> CommitResult:
        """Commit from outside, for a group without members (generation -1).

        Such a commit has no number: a copy that something on the way delivers late undoes what was
        committed since. gRPC itself delivers none; a member's commits are numbered.

        Raises:
            UnknownMemberId: the group has members; only they may commit.
        """
        request = commit_request(group_id, "", -1, 0, offsets)
        response, coordinator = await self._opened().caller.call(
            group_id, COMMIT, request.SerializeToString(), timeout_ms=self._timeout_ms
        )
        return partition_results(request, response, coordinator)

    async def rebalances(self, group_id: str, most: int = KEPT) -> list[Rebalance]:
        """Why a group rebalanced: its last rounds, the newest first, 32 at most.

        Raises:
            GroupIdNotFound: there is no such group.
            InvalidRequest: `most` is not 1 to 32.
        """
        return await topics.rebalances(self._opened().caller, group_id, most, self._timeout_ms)

    async def delete_groups(self, group_ids: Collection[str]) -> dict[str, MusterError | None]:
        """Delete groups without members, each with all its offsets; a group on its own.

        Returns:
            None for a group that is gone, else why not: NonEmptyGroup, GroupIdNotFound,
            RequestTimedOut, CoordinatorNotAvailable. One that is not there when the call is
            repeated after a lost answer counts as gone.

        Raises:
            InvalidRequest: a text instead of a list.
        """
        return await delete_groups(self._opened().caller, group_ids, self._timeout_ms)

    async def delete_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, MusterError | None]:
        """Delete committed offsets, each on its own; one that was never committed counts as gone.

        Returns:
            None for a partition without an offset now, else why not: GroupSubscribedToTopic,
            UnknownTopicOrPartition.

        Raises:
            GroupIdNotFound: there is no such group.
            NonEmptyGroup: it has members, and is no group of consumers.
            InvalidRequest: none at all, or too many partitions.
        """
        return await delete_offsets(self._opened().caller, group_id, partitions, self._timeout_ms)

    async def kick_members(
        self,
        group_id: str,
        member_ids: Collection[str] = (),
        *,
        instance_ids: Collection[str] = (),
        reason: str = "",
    ) -> dict[str, MusterError | None]:
        """Remove members, whatever they do. One whose process lives is told, and joins again.

        Args:
            group_id: the group.
            member_ids: who goes.
            instance_ids: the static members that hold these when this is called go, too; never
                ones that take their places while it is repeated.
            reason: for people; the group's rebalance is kept as "kicked by operator: <reason>".

        Returns:
            None for a member that is gone, by the id it was named by, else why not:
            UnknownMemberId; FencedInstanceId where another process has just taken the place.

        Raises:
            GroupIdNotFound: there is no such group.
            InvalidRequest: nobody at all, too many, or a text instead of a list.
        """
        caller = self._opened().caller
        return await kick_members(
            caller, group_id, member_ids, instance_ids, reason, self._timeout_ms
        )

    async def group_settings(self, group_id: str) -> dict[str, GroupSetting]:
        """Return the settings that count for a group, by name; the group need not exist."""
        return await group_settings(self._opened().caller, group_id, self._timeout_ms)

    async def alter_group_settings(
        self, group_id: str, settings: Mapping[str, int | str], *, removed: Collection[str] = ()
    ) -> dict[str, GroupSetting]:
        """Give a group settings of its own, or take them away: all of it or nothing.

        Args:
            group_id: the group; it need not exist.
            settings: by name, such as `{"classic.max.size": 50}`, `{"consumer.colocate":
                "orders,payments"}` or `{"consumer.weights": "orders=2;orders[7]=5.5"}`;
                docs/groups.md has the list.
            removed: what goes back to the cluster's default.

        Returns:
            What counts from now on.

        Raises:
            InvalidConfig: there is no such setting, or the value is out of bounds.
            InvalidRequest: `removed` is a text instead of a list.
        """
        caller = self._opened().caller
        return await alter_group_settings(caller, group_id, settings, removed, self._timeout_ms)

    def coordinator(self, group_id: str) -> Coordinator | None:
        """The group's coordinator as last heard; None before the first call."""
        return self._opened().caller.routes.get(group_id)

    def coordinators(self) -> Mapping[str, Coordinator]:
        """All of them, by group id."""
        return self._opened().caller.routes.known()


def _consumer(
    assignment: Assigning, assignor: Choice, capacity: float, user_data: UserData, pattern: str
) -> ConsumerOptions | None:
    """What is said of the member to a coordinator that assigns; None where members do.

    Raises:
        InvalidConfig: one of these goes with the other protocol alone, or is none.
    """
    if assignment == "client":
        if capacity != 1:
            raise InvalidConfig("capacity goes with assignment='server'")
        if pattern:
            raise InvalidConfig("pattern goes with assignment='server'")
        return None
    if assignment != "server":
        raise InvalidConfig(f"assignment: 'client' or 'server', not {assignment!r}")
    if not isinstance(assignor, str):
        raise InvalidConfig(f"assignor: where the coordinator assigns it is one name: {assignor!r}")
    if user_data:
        raise InvalidConfig("user_data is for assignors of members; the coordinator reads none")
    if not CAPACITY_MIN <= capacity <= CAPACITY_MAX:  # not a number is refused, too
        raise InvalidConfig(
            f"capacity is {capacity}; {CAPACITY_MIN} to {CAPACITY_MAX} are possible"
        )
    return ConsumerOptions(assignor, round(capacity * 1000), pattern)


class _Core:
    """The objects that exist while a client is open."""

    def __init__(self, nodes: Nodes, counters: Counters) -> None:
        self.nodes = nodes
        routes = Routes(counters)
        self.discovery = Discovery(self.nodes, routes, counters)
        self.pings = Pings(self.nodes, routes, counters)
        self.caller = Caller(self.nodes, routes, self.discovery, self.pings, counters)
        self.registry = TopicRegistry(self.caller)
        self.heartbeats = Heartbeats(self.caller)

    async def close(self) -> None:
        await self.heartbeats.close()
        await self.registry.close()
        await self.discovery.close()
        await self.pings.close()
        await self.nodes.close()
