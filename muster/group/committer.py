"""A member's commits: one in flight at a time, each under a rising number, retries byte-equal."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

from muster import timeouts
from muster.errors import ErrorCode, InvalidRequest, MusterError
from muster.group.actions import CommitRefused, Identity, Refusal
from muster.group.offsets import (
    PLAIN,
    Offsets,
    Terms,
    commit_request,
    first_refusal,
    partition_results,
)
from muster.net.calls import COMMIT, Caller
from muster.types import Assignment, CommitResult, Coordinator, CoordinatorChange
from muster.v1 import group_pb2

CoordinatorHook = Callable[[CoordinatorChange], Awaitable[None] | None]

_TRY_AGAIN = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class Committer:
    """Commits of one member. Their numbers rise over all of its memberships."""

    def __init__(
        self,
        caller: Caller,
        group_id: str,
        *,
        instance_id: str = "",
        hook: CoordinatorHook | None,
        refused: Callable[[CommitRefused], None],
    ) -> None:
        self._caller = caller
        self._group_id = group_id
        self._instance_id = instance_id
        self._hook = hook
        self._refused = refused
        self._lock = asyncio.Lock()
        self._commit_seq = 0
        self._coordinator: Coordinator | None = None  # where the last commit went
        self._hook_task: asyncio.Task[object] | None = None

    async def commit(
        self,
        choose: Callable[[], Assignment],
        offsets: Offsets,
        timeout_ms: float,
        terms: Terms = PLAIN,
    ) -> CommitResult:
        """See `Group.commit`. `choose` is asked once it is this commit's turn; it may raise."""
        if self._hook_task is not None and asyncio.current_task() is self._hook_task:
            raise InvalidRequest("on_coordinator_change may read, not commit: commits wait for it")
        counters = self._caller.counters
        async with self._lock:
            under = choose()
            self._commit_seq += 1
            request = commit_request(
                self._group_id,
                under.member_id,
                under.generation,
                self._commit_seq,
                offsets,
                self._instance_id,
                terms,
                under.fencing_tokens,
            )
            try:
                result = await self._send(request, timeout_ms, terms)
            except MusterError:
                counters.commits_failed += 1
                raise
        counters.commits_acknowledged += bool(result.acknowledged)
        return result

    async def _send(
        self, request: group_pb2.OffsetCommitRequest, timeout_ms: float, terms: Terms
    ) -> CommitResult:
        """Send, and where a refusal asks for patience send the same bytes again."""
        loop = asyncio.get_running_loop()
        payload = request.SerializeToString()
        started_at = loop.time()
        while True:
            left_ms = timeout_ms - (loop.time() - started_at) * 1000
            response, coordinator = await self._caller.call(
                self._group_id, COMMIT, payload, timeout_ms=max(left_ms, 1), gate=self._gate
            )
            status = first_refusal(response)
            if status is None:
                return partition_results(request, response, coordinator)
            code = int(status.code)
            spent_ms = (loop.time() - started_at) * 1000
            patience_ms = (
                timeouts.TOPIC_WAIT_MS * terms.awaits_topics
                if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else timeout_ms * (code in _TRY_AGAIN)
            )
            if spent_ms + timeouts.RECONNECT_MS_MAX > min(patience_ms, timeout_ms):
                refusal = Refusal(code, status.message, retriable=status.retriable)
                identity = Identity(request.member_id, request.generation)
                self._refused(CommitRefused(identity, refusal))
                return partition_results(request, response, coordinator)
            await asyncio.sleep(timeouts.RECONNECT_MS_MAX / 1000)

    async def _gate(self, coordinator: Coordinator) -> None:
        """Tell the user of a later coordinator before anything is committed there."""
        last = self._coordinator
        if last is not None and coordinator.term > last.term and self._hook is not None:
            self._hook_task = asyncio.current_task()
            try:
                await maybe(self._hook(CoordinatorChange(self._group_id, last, coordinator)))
            finally:
                self._hook_task = None
        self._coordinator = coordinator


async def maybe(result: Awaitable[None] | None) -> None:
    """Await what a callback returned, where it is a coroutine."""
    if inspect.isawaitable(result):
        await result
