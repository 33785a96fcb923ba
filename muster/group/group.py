"""A membership of a group as its user sees it; it carries out what membership.py decides."""

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, overload

from muster import timeouts
from muster.bounds import MS_MAX, check_ms
from muster.errors import (
    CoordinatorNotAvailable,
    GroupClosed,
    IllegalGeneration,
    InvalidConfig,
    InvalidRequest,
    MusterError,
    RebalanceInProgress,
    RequestTimedOut,
    StaleMemberEpoch,
    UnknownTopicOrPartition,
)
from muster.group.actions import (
    AbandonCalls,
    Action,
    Ask,
    Assign,
    Away,
    Call,
    Close,
    ConsumerHeard,
    Drop,
    Dropped,
    Ended,
    Fail,
    Farewell,
    Give,
    HeartbeatAnswered,
    Identity,
    Input,
    JoinAnswered,
    KeepAlive,
    LeaveAnswered,
    Lose,
    Refusal,
    Released,
    Resubscribe,
    Revoke,
    SendConsumerHeartbeat,
    SendConsumerLeave,
    SendJoin,
    SendLeave,
    SendSync,
    Start,
    StartTimer,
    StopKeepAlive,
    SyncAnswered,
    TimerFired,
)
from muster.group.committer import Committer, CoordinatorHook
from muster.group.consumer_calls import ConsumerCalls
from muster.group.consumer_membership import ConsumerMembership
from muster.group.handover import Handover, Listener
from muster.group.heartbeats import Heartbeats, MemberHeartbeat
from muster.group.member_machine import MemberMachine
from muster.group.membership import Membership, State, one_line
from muster.group.membership_calls import JoinOptions, MemberCalls, MembershipCalls
from muster.group.offsets import BUFFERED, PLAIN, Offsets, Terms, fetch
from muster.group.ownership import committable, current, owned, was_kept
from muster.group.partition_positions import PartitionPosition
from muster.group.partition_tasks import (
    Handler,
    PartitionTasks,
    drain_on_sigterm,
    refuse_synchronous,
)
from muster.group.session import CallTime, Session
from muster.net import background_tasks
from muster.net.calls import Caller
from muster.net.topic_registry import TopicRegistry
from muster.types import Assignment, CommitResult, Committed, TopicPartition

log = logging.getLogger("muster")

JOINS_LATE_MS = 500
"""A wait before another Join that comes of several in vain, which is no matter of course any more.

One after a failover, or for a topic that is about to be made, is."""


BACK_IN_S_MAX = MS_MAX // 1000
"""The seconds that the wire has room for."""


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The arguments of `Client.group` that a `Group` keeps."""

    join: JoinOptions
    commit_interval_ms: int
    request_timeout_ms: int
    listener: "Listener[Group]"
    on_coordinator_change: CoordinatorHook | None


class Group:
    """A member of a group. Make it with `Client.group`, use it inside `async with`.

    Either let it run one task per owned partition (`on_partition`, `run`), or take one assignment
    after the other (`next_assignment`) and commit yourself. It joins when it is first waited on.
    """

    def __init__(
        self,
        caller: Caller,
        heartbeats: Heartbeats,
        registry: TopicRegistry,
        options: GroupOptions,
        *,
        forget: Callable[["Group"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._caller = caller
        self._heartbeats = heartbeats
        self._registry = registry
        self._options = options
        self._forget = forget
        config = options.join.config
        self._group_id = config.group_id
        self._machine, self._calls = _membership(caller, options.join)
        self._committer = Committer(
            caller,
            config.group_id,
            instance_id=config.instance_id,
            hook=options.on_coordinator_change,
            refused=self._feed,
        )
        self._member_heartbeat: MemberHeartbeat | None = None
        self._call: asyncio.Task[None] | None = None  # the one that counts, or the assignor
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._session = Session(
            options.join.session_timeout_ms, options.join.rebalance_timeout_ms, self._certain
        )
        self._handover = Handover(
            self,
            options.listener,
            held=lambda: self._machine.held,
            in_doubt=lambda: self._session.in_doubt,
            timeout_ms=options.join.rebalance_timeout_ms,
        )
        self._taken: Assignment | None = None  # what next_assignment returned last
        self._error: BaseException | None = None
        self._is_away = False  # or about to be
        self._away_refused: MusterError | None = None
        self._ended = False
        self._handler: Handler | None = None
        self._grace_ms = 0

    # ---- what the user sees

    @property
    def group_id(self) -> str:
        return self._group_id

    @property
    def member_id(self) -> str:
        """This member's id in the current membership; "" before the first answered Join."""
        return self._machine.identity.member_id

    @property
    def state(self) -> str:
        """The membership's state, for people, in the names of `muster.group.membership.State`."""
        return self._machine.state.value

    @property
    def assignment(self) -> Assignment | None:
        """The assignment of this member now; None while it joins, and once it is lost.

        A cooperative member has one while it joins, too.
        """
        return self._machine.held

    @property
    def is_ready(self) -> bool:
        """Whether all that it is to have is at work, and nothing is being taken back.

        In a group whose coordinator assigns `ready` has to be waited for once after each change.
        With `on_partition`: each partition has its task; else the assignment is on offer.
        """
        offered = self._handover.offered
        if offered is None or offered is not self._machine.held or not self._machine.is_settled:
            return False
        runner = self._handover.runner
        begun = self._handler is None or (runner is not None and runner.has_begun(offered))
        return begun and not self._session.in_doubt

    async def ready(self) -> None:
        """Wait until it `is_ready`: a probe of readiness. It does not join by itself.

        Raises:
            GroupClosed: the group is closed, or away.
            MusterError: joining is of no use, and why.
            Exception: what a listener or a partition's task raised.
        """
        while not self.is_ready:
            self._refuse_if_gone()
            changed = asyncio.shield(self._changed)
            done, _ = await asyncio.wait([changed], timeout=timeouts.READY_LOOK_MS / 1000)
            if not done:
                self._feed(Ask())  # who gets nothing at all is not told of that

    @property
    def withholds(self) -> bool:
        """Whether an assignment is not handed out now, because the machine slept.

        Another member may own it by then. It ends when the coordinator has answered, or when the
        assignment is taken back. Any thread may ask.
        """
        return self._session.in_doubt and self._handover.releasing is None

    async def certain(self) -> None:
        """Wait while it `withholds`."""
        while self.withholds:
            await asyncio.shield(self._changed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self.stop(one_line(error))
        await self.close()

    async def next_assignment(self) -> Assignment:
        """Wait for an assignment that was not returned before. The first call joins the group.

        So does the first one after `away`, as the same member.

        Raises:
            GroupClosed: the group is closed, or went `away` meanwhile.
            MusterError: joining is of no use, and why.
            Exception: what a listener or a partition's task raised.
        """
        if self._machine.state is State.AWAY and self._ended:
            self._starting, self._ended, self._is_away = None, False, False
        if self._starting is None and not self._is_over():
            self._starting = self._spawn(self._first_join())
        while True:
            self._refuse_if_gone()
            current = self._handover.offered
            certain = not self._session.in_doubt
            if current is not None and current is not self._taken and certain:
                self._taken = current
                return current
            await asyncio.shield(self._changed)

    @overload
    def on_partition(self, handler: Handler) -> Handler: ...
    @overload
    def on_partition(self, *, grace_ms: int) -> Callable[[Handler], Handler]: ...
    def on_partition(
        self, handler: Handler | None = None, *, grace_ms: int = 0
    ) -> Handler | Callable[[Handler], Handler]:
        """Decorate the coroutine that works on one partition; `run` starts one task for each.

        Args:
            handler: `async def work(p: muster.Partition)`.
            grace_ms: on revoke, the time between `p.revoking` being set and the task being
                cancelled. Keep it well below the rebalance timeout.

        Raises:
            InvalidRequest: it is synchronous.
            InvalidConfig: `grace_ms` is out of bounds.
        """
        check_ms("grace_ms", grace_ms, 0)

        def decorate(given: Handler) -> Handler:
            refuse_synchronous(given, "on_partition")
            self._handler = given
            self._grace_ms = grace_ms
            return given

        return decorate if handler is None else decorate(handler)

    async def run(self, *, handle_sigterm: bool = True, back_in: float = 0) -> None:
        """Work until `stop` or SIGTERM; then give up what is owned, flush commits, and leave.

        It returns after `away`, too; called again it goes on as the same member.

        Args:
            handle_sigterm: drain on SIGTERM, where the process has no handler of its own for it.
            back_in: where it is not 0, SIGTERM makes the member `away` for so many seconds instead
                of leaving: this process ends, and another one with its `group_instance_id` starts.

        Raises:
            InvalidRequest: there is no `on_partition`; or see `away`.
            MusterError: joining is of no use, and why.
            Exception: what a partition's task or a listener raised; the group is closed first.
        """
        if self._handler is None:
            raise InvalidRequest("decorate a coroutine with @group.on_partition before run()")
        if back_in:
            self._check_away(back_in)
        with drain_on_sigterm(lambda: self._drain(back_in), enabled=handle_sigterm):
            try:
                while True:
                    self._work_on(await self.next_assignment(), self._handler)
            except GroupClosed:
                pass
            finally:
                if self._is_away and self._error is None:
                    await self._until_ended()
                else:
                    await self.close()
        if self._error is not None:
            raise self._error

    async def subscribe(self, topics: Collection[str] = (), *, pattern: str = "") -> None:
        """Subscribe to these topics, and no others, from now on; the group rebalances once.

        It returns when the change is under way; what comes of it is told as ever. With a
        cooperative assignor the member goes on with what it keeps, and gives up at once what is of
        other topics. A second change before the round has ended comes with a round of its own.

        Args:
            topics: at least one, unless there is a pattern; they must exist.
            pattern: the topics whose names this regular expression matches, too, now and later;
                only where the coordinator assigns (docs/modern.md).

        Raises:
            GroupClosed: the group is closed.
            InvalidConfig: no list of at least one name, or a pattern where members assign.
            UnknownTopicOrPartition: one of them does not exist; nothing was changed.
        """
        chosen = subscription(topics, pattern)
        self._refuse_if_over()
        await self._require(chosen)
        self._refuse_if_over()
        if self._calls.subscribe(chosen, pattern):
            self._feed(Resubscribe(frozenset(chosen)))

    async def away(self, *, back_in: float, reason: str = "") -> None:
        """Give up working, commit what is done, and keep the partitions for some seconds.

        Nothing moves until then: who is back in time has its partitions again, under new tokens.
        That is this group, by `run` or `next_assignment`, or another process with the same
        `group_instance_id`. Nothing more is sent when the process closes the group or ends. A
        second call does nothing.

        Args:
            back_in: seconds; at most as many as the group's setting `consumer.max.away.ms` says,
                ten minutes by default, count.
            reason: for people.

        Raises:
            InvalidRequest: members assign in this group, or the time is none.
            GroupClosed: the group is closed.
            MusterError: the coordinator did not take it, or nobody answered: the work has ended,
                and the partitions go to others when the session ends.
            Exception: what ended the membership before.
        """
        self._check_away(back_in)
        self._refuse_if_over()
        if self._error is not None:
            raise self._error
        self._go_away(back_in, reason)
        await self._until_ended()
        if self._away_refused is not None:
            raise self._away_refused

    def _check_away(self, back_in: float) -> None:
        if self._options.join.consumer is None:
            raise InvalidRequest("away: only where the coordinator assigns (assignment='server')")
        if not 0 < back_in <= BACK_IN_S_MAX:
            raise InvalidRequest(f"away: back_in is {back_in}; at most {BACK_IN_S_MAX} s")

    def _go_away(self, back_in: float, reason: str) -> None:
        self._stop_starting()
        self._is_away, self._away_refused = True, None
        self._feed(Away(round(back_in * 1000) or 1, reason))

    def _drain(self, back_in: float) -> None:
        """On SIGTERM."""
        if back_in:
            self._go_away(back_in, "the process ends, and another one follows")
        else:
            self.stop()

    def stop(self, reason: str = "closed by the application", *, leave: bool | None = None) -> None:
        """Begin to close; `run` returns when it is done. Call it from this loop or its signals.

        Args:
            reason: for people.
            leave: see `close`.
        """
        self._stop_starting()
        self._feed(Close(reason, leave))

    def _stop_starting(self) -> None:
        if self._starting is not None and self._starting is not _current_task():
            self._starting.cancel()

    async def close(self, *, leave: bool | None = None) -> None:
        """Give up what is owned, flush, leave. Bounded by the rebalance timeout and 3 s for Leave.

        What a listener takes comes on top: its time is not limited. Called from a listener this
        only begins to close, because closing waits for the listener.

        Args:
            leave: whether the group is told. By default a dynamic member leaves, and its partitions
                go to others at once; a static one does not, and finds them again if it is back
                within its session timeout.
        """
        self.stop(leave=leave)
        await self._until_ended()
        if self._machine.state is State.LEFT:
            self._forget(self)

    async def _until_ended(self) -> None:
        """Called from a listener it only lets that begin, because it waits for the listener."""
        if _current_task() in self._tasks:
            return
        while not self._ended or self._handover.releasing is not None:
            await asyncio.shield(self._changed)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def commit(
        self,
        offsets: Offsets,
        *,
        assignment: Assignment | None = None,
        atomic: bool = False,
        expected: Mapping[TopicPartition, int | None] | None = None,
        forward_only: bool = False,
        blob: bytes | None = None,
        timeout_ms: int = 0,
    ) -> CommitResult:
        """Commit, and wait until it is durable on a majority.

        One commit is in flight per member, others queue behind it. A retry is byte-equal and
        carries the same number, so a commit that was taken twice counts once, and one that arrives
        late never undoes a newer one (gp-O9).

        Args:
            offsets: the next offset to read, per partition; all owned under the assignment.
            assignment: under which the work was done; by default the one that is current at the
                call. Give it where the work may outlive an assignment, so that it cannot commit for
                a later owner. A partition that was kept through cooperative rounds counts under
                each of them.
            atomic: all partitions, or nothing where one is refused or superseded.
            expected: compare and set, which is atomic, too: what must be stored for each of these
                partitions (None = nothing) for the commit to be taken.
            forward_only: an offset below the stored one is superseded instead of stored.
            blob: at most 4096 bytes, kept with the group in place of the ones before; atomic, too.
            timeout_ms: all attempts together; 0 = the client's `request_timeout_ms`.

        Returns:
            What is acknowledged, and what a newer commit superseded (no acknowledgement).

        Raises:
            IllegalGeneration, UnknownMemberId: the assignment is over; others may own it now.
            InvalidUpdateVersion: another offset is stored than `expected` says.
            OperationNotAttempted: it is atomic, and a newer commit stands for a part of it.
            RebalanceInProgress: no assignment now, or a round is about to end; commit under the
                next, if it has the partition.
            RequestTimedOut: the result is not known; the same may be committed again.
            UnknownTopicOrPartition: one of them does not exist. Where its topic was deleted while
                an atomic commit was tried, an earlier attempt may have been carried out.
        """
        mine = [key for key in offsets if key in self._machine.held_since]
        marks = self._handover.places.marks(mine)
        terms = Terms(atomic, expected or {}, forward_only, blob)
        result = await self._commit(offsets, assignment, terms, timeout_ms)
        marks.moved(result.acknowledged)
        return result

    async def committed(self, partitions: Collection[TopicPartition] | None = None) -> Committed:
        """Read this group's committed offsets, linearizably; None = every offset of the group."""
        return await fetch(
            self._caller, self._group_id, partitions, self._options.request_timeout_ms
        )

    # ---- pausing and seeking

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Take no more work from these: `Partition.paused` is set and `Partition.resumed` waits.

        They stay owned, heartbeats go on, and commits count. A task that has not begun waits until
        its partition is resumed. It holds until `resume`, or until the partition is taken back:
        with an eager assignor at the next round, with a cooperative one only where it moves.

        Raises:
            IllegalGeneration: one of them is not owned now; nothing was paused.
        """
        for place in self._owned(partitions):
            place.pause()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Take work from these again. One that is not paused is let be.

        Raises:
            IllegalGeneration: one of them is not owned now; nothing was resumed.
        """
        for place in self._owned(partitions):
            place.resume()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused now."""
        return self._handover.places.paused()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from this offset. Nothing is committed until new work is.

        The partition's task ends as if it were revoked (`Partition.revoking`, the grace, cancelled)
        and starts again with `Partition.position`; the task itself may call this, too.

        Raises:
            IllegalGeneration: it is not owned now.
            InvalidRequest: the offset is negative.
        """
        if offset < 0:
            raise InvalidRequest(f"{partition}: offset {offset} is negative")
        (place,) = self._owned([partition])
        place.seek(offset)
        if self._handover.runner is not None:
            self._handover.runner.restart(partition)

    async def position(self, partition: TopicPartition) -> int | None:
        """Where to read on: what was sought or committed since, else the committed offset.

        None: nothing was ever committed.

        Raises:
            IllegalGeneration: it is not owned now.
        """
        (place,) = self._owned([partition])
        if place.position is not None:
            return place.position
        return (await self.committed([partition])).offset(partition)

    def _owned(self, partitions: Iterable[TopicPartition]) -> list[PartitionPosition]:
        self._refuse_if_over()
        return [self._handover.places[key] for key in owned(self._machine, partitions)]

    # ---- committing

    async def _commit(
        self,
        offsets: Offsets,
        assignment: Assignment | None,
        terms: Terms = PLAIN,
        timeout_ms: int = 0,
    ) -> CommitResult:
        self._refuse_if_over()
        sent_under: list[Assignment] = []
        under = assignment or current(self._machine)  # a later one may come while others are sent
        partitions = assignment.partitions if assignment else None

        def choose() -> Assignment:
            self._refuse_if_over()
            sent_under.append(committable(self._machine, under, offsets, partitions))
            return sent_under[-1]

        timeout_ms = timeout_ms or self._options.request_timeout_ms
        try:
            return await self._committer.commit(choose, offsets, timeout_ms, terms)
        except StaleMemberEpoch:
            raise
        except IllegalGeneration as error:
            if sent_under and was_kept(self._machine, sent_under[-1], offsets):
                message = "a rebalance came between, and the partitions were kept; commit again"
                raise RebalanceInProgress(message) from error
            raise

    async def _commit_buffered(
        self, offsets: Offsets, assignment: Assignment | None
    ) -> CommitResult:
        return await self._commit(offsets, assignment, BUFFERED)

    def _refuse_if_gone(self) -> None:
        if self._error is not None:
            raise self._error
        self._refuse_if_over()
        if self._machine.state is State.AWAY and self._ended:
            raise GroupClosed(f"group {self._group_id!r} is away")

    def _refuse_if_over(self) -> None:
        if self._is_over():
            raise GroupClosed(f"group {self._group_id!r} is closed")

    def _is_over(self) -> bool:
        return self._machine.state in (State.LEAVING, State.LEFT)

    # ---- carrying out what the machine decides

    def _feed(self, given: Input) -> None:
        for action in self._machine.handle(given):
            self._do(action)
        self._tell_waiters()

    def _tell_waiters(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)
        self._changed = self._loop.create_future()

    def _certain(self) -> None:
        """The member is one still: what waited for that goes on."""
        self._handover.places.look_again()
        self._tell_waiters()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = background_tasks.start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _do(self, action: Action) -> None:  # noqa: C901 - one arm per action
        match action:
            case SendJoin() | SendSync() | Assign() | SendConsumerHeartbeat():
                self._abandon_call()
                self._call = self._spawn(self._make(action))
            case SendLeave() | SendConsumerLeave():
                self._spawn(self._make(action))
            case KeepAlive(identity):
                self._stop_heartbeat()
                self._member_heartbeat = self._heartbeats.keep(
                    self._group_id,
                    identity,
                    self._on_heartbeat,
                    self._session,
                    self._options.join.config.instance_id,
                )
            case StopKeepAlive():
                self._stop_heartbeat()
            case Give(assignment):
                given = (self._group_id, assignment.generation, len(assignment.partitions))
                log.info("group %s: generation %d, %d partitions", *given)
                self._spawn(self._hand_over(assignment))
            case Revoke(assignment, reason):
                log.info("group %s: revoked: %s", self._group_id, reason)
                self._take_back(assignment)
            case Lose(assignment, reason):
                log.warning("group %s: partitions lost: %s", self._group_id, reason)
                self._take_back(assignment, lost=True)
            case Drop(assignment, reason):
                names = ", ".join(map(str, assignment.partitions[:10]))
                log.warning("group %s: %s lost: %s", self._group_id, names, reason)
                self._handover.begin_to_drop(assignment)
                self._spawn(self._drop(assignment))
            case StartTimer(timer_id, delay_ms, reason):
                level = logging.INFO if delay_ms < JOINS_LATE_MS else logging.WARNING
                log.log(level, "group %s: joins in %d ms: %s", self._group_id, delay_ms, reason)
                self._stop_timer()
                fired = TimerFired(timer_id)
                self._timer = self._loop.call_later(delay_ms / 1000, self._feed, fired)
            case AbandonCalls():
                self._abandon_call()
            case Fail(error):
                self._error = self._error or error
            case Ended():
                self._ended = True
                self._stop_timer()

    def _abandon_call(self) -> None:
        if self._call is not None and self._call is not _current_task():
            self._call.cancel()
        self._call = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_heartbeat(self) -> None:
        if self._member_heartbeat is not None:
            self._member_heartbeat.stop()
            self._member_heartbeat = None

    def _on_heartbeat(self, identity: Identity, refusal: Refusal) -> None:
        self._feed(HeartbeatAnswered(identity, refusal))

    async def _make(self, action: Call | Farewell) -> None:
        sent = CallTime.now()
        try:
            answer = await self._calls.make(action)
        except Exception as error:  # noqa: BLE001 - the user's user_data
            self._crash(error)
            return
        match answer:
            case JoinAnswered() | SyncAnswered():
                self._session.joined(sent, synced=answer.assignment is not None)
            case ConsumerHeard():
                self._session.told(sent, to_release=answer.revokes)
            case LeaveAnswered():
                refusal = answer.refusal
                self._away_refused = None if refusal is None else refusal.error
        self._feed(answer)

    async def _first_join(self) -> None:
        """Join, when `_prepare` is done; a cluster that cannot say is waited for as by a Join.

        For as long as a connection to one of its nodes stands: it may be too busy for longer.
        """
        patient_until = self._loop.time() + timeouts.START_MS / 1000
        while True:
            try:
                await self._prepare()
            except (CoordinatorNotAvailable, RequestTimedOut) as error:
                if self._loop.time() >= patient_until and not self._caller.nodes.is_connected:
                    self._crash(error)
                    return
            except MusterError as error:
                self._crash(error)
                return
            else:
                self._feed(Start())
                return

    async def _prepare(self) -> None:
        """See whether the topics exist: a member of a topic that does not would idle for ever."""
        await self._require(self._calls.topics)

    async def _require(self, topics: Collection[str]) -> None:
        """Wait a moment for topics that were created just now."""
        deadline = self._loop.time() + timeouts.TOPIC_WAIT_MS / 1000
        while True:
            try:
                await self._registry.require(topics, self._options.request_timeout_ms)
            except UnknownTopicOrPartition:
                if self._loop.time() >= deadline:
                    raise
                await asyncio.sleep(timeouts.RECONNECT_MS_MAX / 1000)
            else:
                return

    # ---- handing over and taking back

    async def _hand_over(self, assignment: Assignment) -> None:
        while self._session.in_doubt:
            await asyncio.shield(self._changed)
        try:
            offered = await self._handover.give(assignment)
        except Exception as error:  # noqa: BLE001 - the user's: next_assignment raises it
            self._crash(error)
            return
        if offered:
            self._tell_waiters()

    def _take_back(self, assignment: Assignment, *, lost: bool = False) -> None:
        if self._handover.begin_to_take(assignment, lost=lost):
            self._spawn(self._release(assignment))

    async def _release(self, assignment: Assignment) -> None:
        try:
            await self._handover.take(assignment, lambda: assignment is self._machine.assignment)
        except Exception as error:  # noqa: BLE001 - the user's: next_assignment raises it
            self._crash(error)
        finally:
            self._feed(Released())

    async def _drop(self, assignment: Assignment) -> None:
        try:
            await self._handover.drop(assignment)
        except Exception as error:  # noqa: BLE001 - the user's: next_assignment raises it
            self._crash(error)
        finally:
            self._feed(Dropped(assignment.partitions))

    def _work_on(self, assignment: Assignment, handler: Handler) -> None:
        handover = self._handover
        if handover.offered is not assignment:
            return
        if handover.runner is None:
            handover.runner = PartitionTasks(
                handler,
                read=self.committed,
                commit=self._commit_buffered,
                crash=self._crash,
                places=handover.places,
                grace_ms=self._grace_ms,
                commit_interval_ms=self._options.commit_interval_ms,
                started=self._tell_waiters,
            )
        handover.runner.give(assignment)

    def _crash(self, error: BaseException) -> None:
        """The user's code failed, or joining is of no use: close; the waiting call raises it."""
        self._error = self._error or error
        self.stop(one_line(error))


def _membership(caller: Caller, join: JoinOptions) -> tuple[MemberMachine, MemberCalls]:
    """What decides about the membership, and the calls that it asks for."""

    def draw_nonce() -> str:
        return secrets.token_hex(16)

    if join.consumer is None:
        machine = Membership(join.config, draw_nonce=draw_nonce, jitter=random.random)
        return machine, MembershipCalls(caller, join)
    consumer = ConsumerMembership(
        join.config,
        session_timeout_ms=join.session_timeout_ms,
        draw_nonce=draw_nonce,
        jitter=random.random,
    )
    return consumer, ConsumerCalls(caller, join, join.consumer)


def subscription(topics: Collection[str], pattern: str = "") -> tuple[str, ...]:
    """The names in order, each once.

    Raises:
        InvalidConfig: there are none and no pattern, or they are one string.
    """
    if not (topics or pattern) or isinstance(topics, str):
        raise InvalidConfig("topics: give a list of at least one topic name")
    return tuple(sorted(set(topics)))


def _current_task() -> "asyncio.Task[object] | None":
    """The running task; None in a callback of the loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
