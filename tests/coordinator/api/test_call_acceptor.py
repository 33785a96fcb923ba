"""The call acceptor over real gRPC: what fits is served, the surplus refused, the end is clean."""

import asyncio
import math
import tempfile
import time
from itertools import count, cycle
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from muster.v1 import group_pb2 as pb
from muster.v1 import group_pb2_grpc
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.forwarding import Forwarding
from musterd.coordinator.api.frame.handler import handler
from musterd.coordinator.api.limits import call_acceptor, grpc_internals
from musterd.coordinator.api.limits.admission import (
    CALL,
    FIND_CALLS_MAX,
    FLEET_GROUPS_MIN,
    JOINS_AT_ONCE,
    MANY_JOINS,
    Admission,
    Kind,
    Wait,
)
from musterd.coordinator.api.limits.call_acceptor import TAKEN_AT_ONCE, CallAcceptor, open_answers
from musterd.coordinator.api.limits.queue_probe import QueueProbe
from musterd.coordinator.api.server import make_server
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.runtime.large_commits import LargeCommits
from musterd.coordinator.runtime.timeouts import (
    HERD_MS,
    JOINS_FOLLOW_MS,
    JOINS_MS_MAX,
    MANY_JOINS_MS,
)
from musterd.coordinator.runtime.turn import Joins

LIMIT = 5


class Groups(group_pb2_grpc.GroupCoordinatorServicer):
    """A commit waits for `let_go`, a Join is parked meanwhile, a heartbeat is answered at once."""

    def __init__(self, admission):
        identities = SimpleNamespace(has_client_ca=False, version=(0, 0))
        access = SimpleNamespace(is_guarded=False, identities=identities)
        self.core = SimpleNamespace(admission=admission, access=access, forwarding=Forwarding())
        self.let_go = asyncio.Event()
        self.joins_stay_active = False
        self.commits = 0
        self.parked = 0

    @handler(Kind.ORDINARY, bounds.NONE)
    async def OffsetCommit(self, request, call):  # noqa: N802 - the generated name
        """Active all the time."""
        self.commits += 1
        await self.let_go.wait()
        return pb.OffsetCommitResponse()

    @handler(Kind.JOIN, bounds.NONE)
    async def JoinGroup(self, request, call):  # noqa: N802 - the generated name
        """Active until it parks."""
        if not self.joins_stay_active:
            call.leave()
        self.parked += 1
        await self.let_go.wait()
        return pb.JoinGroupResponse(generation=3)

    @handler(Kind.DISCOVERY, bounds.NONE)
    async def FindCoordinator(self, request, call):  # noqa: N802 - the generated name
        """Answered at once."""
        return pb.FindCoordinatorResponse()

    @handler(Kind.PATIENT, bounds.NONE)
    async def SyncGroup(self, request, call):  # noqa: N802 - the generated name
        """Answered at once."""
        return pb.SyncGroupResponse()

    @handler(Kind.EXEMPT, bounds.NONE)
    async def Heartbeat(self, request, call):  # noqa: N802 - the generated name
        """Exempt."""
        assert CALL.get() is None
        return pb.HeartbeatResponse(interval_ms=7)

    @handler(Kind.PATIENT, bounds.NONE)
    async def LeaveGroup(self, request, call):  # noqa: N802 - the generated name
        """A defect in a handler."""
        raise ValueError("a defect")


class Case:
    """A server behind a call acceptor, with a probe, and a stub."""

    servicer = Groups
    grpc_version = grpc.__version__

    def __init__(self, folder=None):
        self.own = tempfile.TemporaryDirectory()
        self.folder = folder or Path(self.own.name)

    async def __aenter__(self):
        self.admission = Admission(LIMIT)
        self.failures = []
        self.groups = self.servicer(self.admission)
        self.probe = QueueProbe(self.admission, self.folder)
        self.server = make_server([self.probe])
        self.acceptor = CallAcceptor(
            self.server,
            self.admission,
            open_answers(),
            LargeCommits(),
            (self.probe,),
            self.ended,
            self.grpc_version,
        )
        self.probe.listen(self.server)
        group_pb2_grpc.add_GroupCoordinatorServicer_to_server(self.groups, self.acceptor)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.acceptor.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")
        self.stub = group_pb2_grpc.GroupCoordinatorStub(self.channel)
        return self

    async def __aexit__(self, *_):
        self.groups.let_go.set()
        await self.channel.close()
        await self.probe.stop()
        await self.server.stop(None)
        async with asyncio.timeout(20):
            await self.acceptor.stop()
        self.own.cleanup()
        assert not self.failures

    def ended(self, task):
        if not task.cancelled() and task.exception() is not None:
            self.failures.append(task.exception())

    async def until(self, holds):
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.001)


def _code(outcome):
    return outcome.code() if isinstance(outcome, grpc.aio.AioRpcError) else grpc.StatusCode.OK


def test_the_surplus_is_refused_and_the_rest_served():
    """As many as the limit, whatever the size of what is refused; then the room is free again."""

    async def run():
        async with Case() as case:
            calls = [
                case.stub.OffsetCommit(pb.OffsetCommitRequest(group_id="g" * (number % 2) * 10**6))
                for number in range(4 * TAKEN_AT_ONCE)
            ]
            everything = asyncio.gather(*calls, return_exceptions=True)
            await case.until(lambda: case.admission.refused_total == len(calls) - LIMIT)
            await case.until(lambda: case.groups.commits == LIMIT)  # the last may be read only now
            assert case.admission.active == LIMIT
            case.groups.let_go.set()
            codes = [_code(one) for one in await everything]
            assert codes.count(grpc.StatusCode.OK) == LIMIT
            assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == len(calls) - LIMIT
            await case.until(lambda: case.admission.active == 0)
            await case.stub.OffsetCommit(pb.OffsetCommitRequest())

    asyncio.run(run())


def test_a_groups_members_pass_a_full_node_all_at_once():
    """All members of a group join at once: refused they would only come again (ADR 10)."""

    async def run():
        async with Case() as case:
            held = [case.stub.OffsetCommit(pb.OffsetCommitRequest()) for _ in range(LIMIT)]
            await case.until(lambda: case.admission.active == LIMIT)
            case.admission.overdue = lambda: True
            many = 4 * TAKEN_AT_ONCE
            joins = [case.stub.JoinGroup(pb.JoinGroupRequest()) for _ in range(many)]
            await case.until(lambda: case.groups.parked == many)
            assert case.admission.refused_total == 0
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await case.stub.OffsetCommit(pb.OffsetCommitRequest())
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            case.groups.let_go.set()
            await asyncio.gather(*held, *joins)
            await case.until(lambda: case.admission.active == 0)

    asyncio.run(run())


def test_patient_calls_take_no_room_from_others_and_have_a_maximum_of_their_own():
    """Joins 10,000, as many as may be parked, and so Syncs with Leaves; FindCoordinators 400."""
    room = {
        Kind.ORDINARY: LIMIT,
        Kind.DISCOVERY: FIND_CALLS_MAX,
        Kind.JOIN: LIMITS.max_parked_calls,
        Kind.PATIENT: LIMITS.max_parked_calls,
    }

    async def run():
        admission = Admission(LIMIT)
        entered = []
        for kind, most in room.items():
            entered += [admission.enter(kind) for _ in range(most)]
            assert None not in entered
            assert admission.enter(kind) is None
        for one in entered:
            one.leave()
            one.leave()
        assert admission.active == 0
        assert set(admission.of_kind.values()) == {0}
        assert all(admission.enter(kind) is not None for kind in room)

    asyncio.run(run())


def test_a_herd_of_joins_keeps_no_question_for_a_coordinator_out():
    """More Joins than a node takes in one go, and calls that wait too long: the surplus waits.

    Who coordinates a group is answered meanwhile, who has joined syncs, and in the end all joined.
    """

    async def run():
        async with Case() as case:
            case.groups.joins_stay_active = True
            case.admission.overdue = lambda: True
            most = JOINS_AT_ONCE + TAKEN_AT_ONCE
            herd = [case.stub.JoinGroup(pb.JoinGroupRequest()) for _ in range(3 * most)]
            everybody = asyncio.gather(*herd)
            await case.until(lambda: case.groups.parked >= JOINS_AT_ONCE)
            await case.until(lambda: case.admission.joins() is Joins.HERD)
            others = [  # two each: gRPC itself takes the first
                *(case.stub.FindCoordinator(pb.FindCoordinatorRequest()) for _ in range(2)),
                *(case.stub.SyncGroup(pb.SyncGroupRequest()) for _ in range(2)),
            ]
            codes = [await call.code() for call in others]
            assert codes == [grpc.StatusCode.OK] * 4
            with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
                await case.stub.OffsetCommit(pb.OffsetCommitRequest())
            # A slow machine reads some so late that others were taken in their places.
            assert JOINS_AT_ONCE <= case.groups.parked < 2 * most
            case.groups.let_go.set()
            await everybody
            await case.until(lambda: case.admission.active == 0)

    asyncio.run(run())


def test_so_many_joins_are_begun_whoever_takes_them():
    """GRPC's own loop takes some calls; those wait where the others wait unread."""

    async def run():
        async with Case() as case:
            case.groups.joins_stay_active = True
            most = JOINS_AT_ONCE + TAKEN_AT_ONCE
            herd = [case.stub.JoinGroup(pb.JoinGroupRequest()) for _ in range(3 * most)]
            everybody = asyncio.gather(*herd)
            await case.until(lambda: len(case.admission._read) + case.groups.parked > most)
            assert JOINS_AT_ONCE <= case.groups.parked <= most
            case.groups.let_go.set()
            await everybody
            await case.until(lambda: case.admission.active == 0)

    asyncio.run(run())


def test_a_join_that_is_given_up_when_its_turn_has_come_passes_it_on():
    """Whoever waits behind it would wait for a place that nobody has."""

    async def run():
        admission = Admission(LIMIT)
        taken = [admission.enter(Kind.JOIN) for _ in range(JOINS_AT_ONCE)]
        first, second = (
            asyncio.create_task(admission.room(Kind.JOIN, read=True)) for _ in range(2)
        )
        await asyncio.sleep(0)
        taken[0].leave()
        first.cancel()
        await asyncio.wait([first, second], timeout=5)
        assert first.cancelled()
        assert second.done()

    asyncio.run(run())


def test_a_herd_is_over_a_second_after_there_was_room_for_joins_again(monkeypatch):
    """Sessions stand still until then; groups that form wait for the herd alone (sessions.py)."""

    async def run():
        admission, loop = Admission(LIMIT), asyncio.get_running_loop()
        taken = [admission.enter(Kind.JOIN) for _ in range(JOINS_AT_ONCE - 1)]
        assert admission.joins() is not Joins.HERD
        taken.append(admission.enter(Kind.JOIN))
        assert admission.joins() is Joins.HERD
        assert admission.joins().hold_first_rounds
        taken[0].leave()
        assert admission.joins() is Joins.HERD, "those that wait have had no turn yet"
        now = came_s = admission._herd_at
        monkeypatch.setattr(loop, "time", lambda: now)
        seen = []
        while now < came_s + 2 * HERD_MS / 1_000:
            seen.append((now - came_s, admission.joins()))
            now += 0.05
        over = [after_s for after_s, joins in seen if joins is Joins.HERD_OVER]
        assert over[0] == pytest.approx(JOINS_FOLLOW_MS / 1_000, abs=0.051)
        assert over[-1] == pytest.approx(HERD_MS / 1_000, abs=0.051)
        assert seen[-1][1] is Joins.FEW

    asyncio.run(run())


def test_first_rounds_wait_while_joins_come_as_when_a_fleet_starts(monkeypatch):
    """Few are under way at any moment: its processes come one by one, and nodes are quick."""

    async def run():
        admission, loop = Admission(LIMIT), asyncio.get_running_loop()
        now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now)
        step_s = (MANY_JOINS_MS - 1) / 1_000 / (MANY_JOINS - 1)
        groups = cycle(f"g{number}" for number in range(FLEET_GROUPS_MIN))

        def join():
            admission.note_group(next(groups))
            return admission.joins()

        for _ in range(MANY_JOINS - 1):
            assert join() is Joins.FEW
            now += step_s
        for _ in range(3 * MANY_JOINS):
            assert join() is Joins.MANY
            now += step_s
        for _ in range(3 * MANY_JOINS):
            now += 1.1 * step_s
            last = join()
        assert last is Joins.FEW

    asyncio.run(run())


def test_the_members_of_one_group_are_no_fleet():
    """However many of them come: its first round waits for itself as ever."""

    async def run():
        admission = Admission(LIMIT)
        for _ in range(1_000):
            admission.note_group("g")
        assert admission.joins() is Joins.FEW
        for number in range(FLEET_GROUPS_MIN - 2):
            admission.note_group(f"g{number}")
        assert admission.joins() is Joins.FEW
        admission.note_group("another")
        assert admission.joins() is Joins.MANY

    asyncio.run(run())


def test_joins_that_never_cease_to_come_hold_no_round_after_a_minute(monkeypatch):
    """A node where so many come all day is no fleet that starts."""

    async def run():
        admission, loop = Admission(LIMIT), asyncio.get_running_loop()
        began = now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now)
        groups = (f"g{number}" for number in count())
        seen = {}
        while now < began + 300:
            admission.note_group(next(groups))
            seen.setdefault(admission.joins(), []).append(now - began)
            now += 0.01
        assert JOINS_MS_MAX / 1_000 - 1 < seen[Joins.MANY][-1] < JOINS_MS_MAX / 1_000 + 1
        for _ in range(JOINS_MS_MAX // 100 + 10):
            now += 0.1
            last = admission.joins()
        assert last is Joins.FEW
        for _ in range(MANY_JOINS):
            admission.note_group(next(groups))
        assert admission.joins() is Joins.MANY

    asyncio.run(run())


@pytest.mark.parametrize(("herd_s", "rest_s"), [(600, 0), (59, 1.05), (0.1, 0.8), (5, 30)])
def test_herds_stop_sessions_for_half_of_a_long_time_at_most(monkeypatch, herd_s, rest_s):
    """However they come: otherwise one client keeps the dead members of all groups."""

    async def run():
        admission, loop = Admission(LIMIT), asyncio.get_running_loop()
        began = now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now)
        stopped_s = longest_s = run_s = 0.0
        while now < began + 600:
            if (now - began) % (herd_s + rest_s) < herd_s:
                admission._note_herd()
            herd = admission.joins().stop_sessions
            stopped_s += 0.05 * herd
            run_s = run_s + 0.05 if herd else 0.0
            longest_s = max(longest_s, run_s)
            now += 0.05
        assert longest_s <= JOINS_MS_MAX / 1_000 + 0.1
        assert min(herd_s, 59) <= longest_s
        assert stopped_s <= (600 + JOINS_MS_MAX / 1_000) / 2

    asyncio.run(run())


@pytest.fixture
def patience(monkeypatch):
    """A request may take as long as it likes to come, until it is ended."""
    with monkeypatch.context() as patched:
        patched.setattr(call_acceptor, "REQUEST_MS_MAX", 3_600_000)
        yield patched


def test_joins_whose_request_does_not_come_keep_nobody_out(patience):
    """Their places come back without another call."""

    async def run():
        async with Case() as case:
            case.groups.let_go.set()
            start = case.channel.stream_unary("/muster.v1.GroupCoordinator/JoinGroup")
            silent = [start() for _ in range(2 * JOINS_AT_ONCE)]
            for call in silent:
                await call.wait_for_connection()
            await case.until(lambda: case.admission.of_kind[Kind.JOIN] >= JOINS_AT_ONCE)
            patience.undo()
            assert (await case.stub.JoinGroup(pb.JoinGroupRequest())).generation == 3
            await case.until(lambda: case.admission.of_kind[Kind.JOIN] == 0)
            for call in silent:
                call.cancel()

    asyncio.run(run())


def test_heartbeats_pass_a_full_node():
    """They are answered while commits are refused."""

    async def run():
        async with Case() as case:
            held = [case.stub.OffsetCommit(pb.OffsetCommitRequest()) for _ in range(LIMIT)]
            await case.until(lambda: case.admission.active == LIMIT)
            answer = await case.stub.Heartbeat(pb.HeartbeatRequest())
            assert answer.interval_ms == 7
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await case.stub.OffsetCommit(pb.OffsetCommitRequest())
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "nothing was done" in refused.value.details()
            case.groups.let_go.set()
            await asyncio.gather(*held)

    asyncio.run(run())


def test_parked_calls_take_no_room():
    """Ten times as many as the limit may be parked."""

    async def run():
        async with Case() as case:
            joins = []
            for parked in range(LIMIT, 11 * LIMIT, LIMIT):
                joins += [case.stub.JoinGroup(pb.JoinGroupRequest()) for _ in range(LIMIT)]
                await case.until(lambda parked=parked: case.groups.parked == parked)
            case.groups.let_go.set()
            answers = await asyncio.gather(*joins)
            assert {answer.generation for answer in answers} == {3}

    asyncio.run(run())


def test_a_call_that_fails_or_is_given_up_leaves_its_room():
    """A handler that raises, and a caller that cancels."""

    async def run():
        async with Case() as case:
            for _ in range(2 * LIMIT):
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await case.stub.LeaveGroup(pb.LeaveGroupRequest())
                assert failed.value.code() is grpc.StatusCode.UNKNOWN
            held = [case.stub.OffsetCommit(pb.OffsetCommitRequest()) for _ in range(LIMIT)]
            await case.until(lambda: case.admission.active == LIMIT)
            for one in held:
                one.cancel()
            await case.until(lambda: case.admission.active == 0)

    asyncio.run(run())


def test_while_calls_wait_too_long_all_are_refused_until_a_probe_is_back_in_time():
    """The probe finds no wait any more, so calls are admitted again without anybody's help."""

    async def run():
        async with Case() as case:
            case.groups.let_go.set()
            case.admission.wait.sent(0.0)
            case.admission.wait.answered(1e9)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await case.stub.OffsetCommit(pb.OffsetCommitRequest(), timeout=20)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await case.stub.Heartbeat(pb.HeartbeatRequest())).interval_ms == 7
            case.probe.start(case.ended)
            await case.until(lambda: not case.admission.overdue())
            await case.stub.OffsetCommit(pb.OffsetCommitRequest())
            assert case.groups.commits == 1, "a probe is no commit"

    asyncio.run(run())


def test_a_probe_waits_behind_the_commits_of_others():
    """The loop is held up while commits arrive: the next probes say how long."""

    async def run():
        async with Case() as case:
            case.groups.let_go.set()
            case.probe.start(case.ended)
            calls = [case.stub.OffsetCommit(pb.OffsetCommitRequest()) for _ in range(50)]
            everything = asyncio.gather(*calls, return_exceptions=True)
            async with asyncio.timeout(20):
                while case.admission.wait.last_s == 0.0:
                    await asyncio.sleep(0.001)
                    time.sleep(0.05)  # the loop is held up  # noqa: ASYNC251
            assert case.admission.wait.last_s >= 0.05
            await everything

    asyncio.run(run())


def test_commits_in_frames_are_probed_every_200_ms_and_calls_or_refusals_at_each_look(tmp_path):
    """Frames stand in no queue of gRPC's; 40 looks of 20 ms under 50 commits each."""
    admission = Admission()
    probe = QueueProbe(admission, tmp_path)

    def probed(admitted: int, framed: int, refused: int) -> int:
        sent = 0
        for _ in range(40):
            admission.admitted_total += admitted
            admission.framed_total += framed
            admission.refused_total += refused
            clock.now_s += 0.02
            if probe.is_wanted(clock.now_s):
                probe.sent(clock.now_s)
                admission.wait.answered(clock.now_s)
                sent += 1
        return sent

    clock = SimpleNamespace(now_s=100.0)
    assert probed(0, 0, 0) == probed(3, 0, 0) == 0
    assert probed(50, 50, 0) in (4, 5)
    assert probed(50, 0, 0) == 40
    assert probed(100, 50, 0) == 40, "calls beside frames"
    assert probed(50, 50, 50) == 40, "a flood of frames that are refused"


@pytest.mark.parametrize(
    ("events", "now_s", "too_long"),
    [
        ([], 100.0, False),
        ([("sent", 1.0)], 1.05, False),
        ([("sent", 1.0)], 1.2, True),
        ([("sent", 1.0), ("answered", 1.05)], 9.0, False),
        ([("sent", 1.0), ("answered", 1.2)], 9.0, True),
        ([("sent", 1.0), ("answered", 1.2), ("sent", 2.0)], 2.01, True),
        ([("sent", 1.0), ("answered", 1.2), ("sent", 2.0), ("answered", 2.01)], 2.02, False),
    ],
)
def test_the_wait_is_the_last_probes_or_that_of_the_one_under_way(events, now_s, too_long):
    """Each state of the measurement, with 100 ms as the limit."""
    wait = Wait(0.1)
    for what, at_s in events:
        getattr(wait, what)(at_s)
    assert wait.too_long(now_s) is too_long


def test_a_taker_that_breaks_is_told_and_never_goes_silently(monkeypatch):
    """An acceptor that takes nothing any more must not look like a quiet one."""

    async def run():
        async with Case() as case:

            def broken(kind):
                raise ValueError("a defect")

            monkeypatch.setattr(case.admission, "enter", broken)
            calls = [case.stub.OffsetCommit(pb.OffsetCommitRequest()) for _ in range(3)]
            await case.until(lambda: case.failures)
            assert isinstance(case.failures[0], ValueError)
            monkeypatch.undo()  # no taker breaks from here on, however late its call comes
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            case.failures.clear()

    asyncio.run(run())


def test_calls_without_a_request_keep_nobody_out(patience):
    """Headers alone take a place for a moment; then it is given to calls that can be served."""

    async def run():
        async with Case() as case:
            case.groups.let_go.set()
            start = case.channel.stream_unary(
                "/muster.v1.GroupCoordinator/OffsetCommit",
                request_serializer=pb.OffsetCommitRequest.SerializeToString,
                response_deserializer=pb.OffsetCommitResponse.FromString,
            )
            silent = [start() for _ in range(3 * LIMIT)]
            for call in silent:
                await call.wait_for_connection()
            await case.until(lambda: case.admission.active == LIMIT)
            assert case.groups.commits == 0

            patience.undo()
            async with asyncio.timeout(20):
                while await _code_of_commit(case) is not grpc.StatusCode.OK:
                    await asyncio.sleep(0.01)
            still = [call for call in silent if not call.done()]
            assert still
            await still[0].write(pb.OffsetCommitRequest())
            await still[0].done_writing()
            await still[0]  # late, and served all the same
            assert case.groups.commits == 2
            for call in silent:
                call.cancel()

    asyncio.run(run())


def test_a_probe_that_breaks_is_told_and_blocks_nobody(monkeypatch):
    """Neither are calls refused for ever, nor does the node go on unmeasured without a word."""

    async def run():
        async with Case() as case:
            case.groups.let_go.set()
            monkeypatch.setattr(case.probe, "is_wanted", lambda _now_s: True)
            monkeypatch.setattr(case.probe, "_note", _broken)
            case.admission.limits[Kind.ORDINARY] = 0  # the probe is refused, and noting that fails
            case.admission.wait = Wait(20.0)  # this machine may be slow
            case.probe.start(case.ended)
            await case.until(lambda: case.failures)
            assert isinstance(case.failures.pop(), ValueError)
            assert not case.admission.wait.too_long(math.inf)  # none is under way

    asyncio.run(run())


async def _code_of_commit(case):
    return await case.stub.OffsetCommit(pb.OffsetCommitRequest()).code()


def _broken(*_):
    raise ValueError("a defect")


def test_the_probes_socket_may_lie_deep(tmp_path):
    """A path longer than a socket's address may be, and nothing of it is left behind."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()

    async def run():
        async with Case(deep) as case:
            case.groups.let_go.set()
            monitored = case.admission.wait
            monitored.sent(0.0)
            monitored.answered(1e9)
            case.probe.start(case.ended)
            await case.until(lambda: not case.admission.overdue())

    asyncio.run(run())
    assert list(deep.iterdir()) == []


@pytest.mark.parametrize("version", ["1.68.1", "1.85.0", "1.86.0", "2.0.0"])
def test_the_private_parts_of_another_grpc_are_not_used(version):
    """They may be others, or mean something else."""
    assert not grpc_internals.are_usable(version)


def test_the_private_parts_of_the_tested_grpc_are_used_where_they_are(monkeypatch):
    """That of requirements/dev.txt; one that is missing is noticed before it is needed."""
    monkeypatch.setattr(grpc_internals, "cygrpc", SimpleNamespace(**vars(grpc_internals.cygrpc)))
    here = grpc.__version__ == grpc_internals.TESTED_VERSION
    assert grpc_internals.are_usable(grpc.__version__) is here
    monkeypatch.delattr(grpc_internals.cygrpc, "_handle_rpc")
    assert not grpc_internals.are_usable(grpc_internals.TESTED_VERSION)


class OwnLoopCase(Case):
    """The same with a release of grpcio that was not tested: the server's own loop takes calls."""

    grpc_version = "9.9.9"


def test_with_another_grpc_the_surplus_is_refused_and_the_rest_served():
    """Each call is bounded all the same, and what it took is given back."""

    async def run():
        async with OwnLoopCase() as case:
            request = pb.OffsetCommitRequest(group_id="g" * 10_000)
            calls = [case.stub.OffsetCommit(request) for _ in range(3 * LIMIT)]
            everything = asyncio.gather(*calls, return_exceptions=True)
            await case.until(lambda: case.admission.refused_total == 2 * LIMIT)
            await case.until(lambda: case.groups.commits == LIMIT)
            assert case.admission.active == LIMIT
            assert (await case.stub.Heartbeat(pb.HeartbeatRequest())).interval_ms == 7
            await case.until(lambda: 0 < case.acceptor.requests.bytes <= LIMIT * 20_000)
            case.groups.let_go.set()
            codes = [_code(one) for one in await everything]
            assert codes.count(grpc.StatusCode.OK) == LIMIT
            assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 2 * LIMIT
            assert (await case.stub.JoinGroup(pb.JoinGroupRequest())).generation == 3
            await case.until(lambda: not case.acceptor.requests.bytes)
            await case.until(lambda: not len(case.acceptor.untaken))
            await case.until(lambda: case.admission.active == 0)

    asyncio.run(run())
