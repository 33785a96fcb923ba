"""The synchronous consumer: from threads, without a loop, on a cluster that lives elsewhere."""

import asyncio
import concurrent.futures
import functools
import gc
import threading
import time

import grpc
import pytest

import muster
from muster.compat import OFFSET_INVALID, Consumer, TopicPartition
from muster.errors import (
    ErrorCode,
    FencedInstanceId,
    GroupClosed,
    IllegalGeneration,
    InvalidConfig,
    InvalidRequest,
    UnknownTopicOrPartition,
)
from muster.net import sleep_clock
from muster.testing import Abort, Cluster, Refuse

T = [TopicPartition("t", i) for i in range(4)]
PATIENCE_S = 30
SESSION_MS = 60_000
SILENT = [Abort(grpc.StatusCode.RESOURCE_EXHAUSTED)] * 200
"""So many heartbeats are not answered; each is asked again a little later."""


class Served:
    """A cluster in a thread of its own."""

    def __init__(self, **options):
        self._ready = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(options)))
        self._thread.start()
        self.cluster, self.loop, self._stop = self._ready.result()

    async def _main(self, options):
        async with Cluster(1, topics={"t": 4}, **options) as cluster:
            stop = asyncio.Event()
            self._ready.set_result((cluster, asyncio.get_running_loop(), stop))
            await stop.wait()

    def close(self):
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def do(self, function, *arguments):
        """Call it in the cluster's thread."""

        async def call():
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE_S)

    @property
    def group(self):
        return self.cluster.groups["g"]

    def stored(self):
        return {key.partition: one.value.offset for key, one in self.group.offsets.items()}

    def config(self, **more):
        return {"bootstrap.servers": self.cluster.bootstrap, "group.id": "g", **more}


@pytest.fixture
def served():
    """The cluster; at the end no thread of ours may be left."""
    cluster = Served()
    yield cluster
    until(lambda: not any(t.name == "muster" for t in threading.enumerate()))
    cluster.close()


def until(condition):
    """Wait for other threads."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.001)


def poll_until(condition, *consumers):
    """Let them be told until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        for consumer in consumers:
            consumer.poll(0.01)


class Told:
    """Callbacks that write down what they are called with, and in which thread."""

    def __init__(self):
        self.lines, self.threads = [], set()

    def callbacks(self, *but):
        return {
            f"on_{what}": self.note(what)
            for what in ("assign", "revoke", "lost")
            if f"on_{what}" not in but
        }

    def note(self, what):
        def call(consumer, partitions):
            self.lines.append((what, [p.partition for p in partitions]))
            self.threads.add(threading.get_ident())

        return call


def test_a_consumer_joins_commits_and_leaves(served):
    """Callbacks run in poll and close, in this thread; what was committed is read back."""
    told = Told()
    with Consumer(served.config()) as consumer:
        consumer.subscribe(["t"], **told.callbacks())
        assert consumer.assignment() == []
        consumer.poll(PATIENCE_S)
        assert consumer.assignment() == T
        assert consumer.fencing_token == 1
        assert consumer.memberid() in served.group.members
        done = consumer.commit(offsets=[TopicPartition("t", 0, 5, "x")], asynchronous=False)
        assert [(p.partition, p.offset, p.metadata) for p in done] == [(0, 5, "x")]
        assert consumer.commit(offsets=[TopicPartition("t", 1, 6)]) is None
        read = consumer.committed([T[0], T[2]], timeout=PATIENCE_S)
        assert [(p.offset, p.metadata) for p in read] == [(5, "x"), (OFFSET_INVALID, None)]
    assert served.stored() == {0: 5, 1: 6}, "close waits for commits"
    assert told.lines == [("assign", [0, 1, 2, 3]), ("revoke", [0, 1, 2, 3])]
    assert told.threads == {threading.get_ident()}
    assert not served.group.members
    with pytest.raises(GroupClosed):
        consumer.poll(0)
    consumer.close()


def test_a_round_waits_until_it_is_polled_and_nothing_changes_before(served):
    """The other one gets its part only after this one was told; then both have halves."""
    told = Told()
    first, second = Consumer(served.config()), Consumer(served.config())
    with first, second:
        first.subscribe(["t"], **told.callbacks())
        first.poll(PATIENCE_S)
        second.subscribe(["t"])
        until(lambda: len(served.group.members) == 2)
        until(lambda: first._member.group.state == "Releasing")
        assert first.assignment() == T
        second.poll(0.05)
        assert second.assignment() == []
        first.commit(offsets=[TopicPartition("t", 3, 9)], asynchronous=False)
        poll_until(lambda: len(second.assignment()) == 2, first, second)
        poll_until(lambda: len(first.assignment()) == 2, first)
        assert sorted(first.assignment() + second.assignment()) == T
        assert told.lines[:2] == [("assign", [0, 1, 2, 3]), ("revoke", [0, 1, 2, 3])]
        assert served.stored() == {3: 9}
        assert first.fencing_token == second.fencing_token == 2


def test_the_coordinator_assigns_and_callbacks_are_the_same(served):
    """Each partition has a token of its own; what moves is told alone, and committed first."""
    told = Told()
    config = served.config(**{"group.protocol": "consumer", "group.remote.assignor": "uniform"})
    first, second = Consumer(config), Consumer(config)
    with first, second:
        first.subscribe(["t"], **told.callbacks())
        first.poll(PATIENCE_S)
        assert first.assignment() == T
        tokens = {one: first.token(one) for one in T}
        assert first.fencing_token == -1
        second.subscribe(["t"])
        until(lambda: first._member.group.state == "Releasing")
        assert first.assignment() == T
        first.commit(offsets=[TopicPartition("t", 3, 9)], asynchronous=False)
        poll_until(lambda: len(second.assignment()) == 2, first, second)
        moved = second.assignment()
        assert sorted(first.assignment() + moved) == T
        assert told.lines[:2] == [
            ("assign", [0, 1, 2, 3]),
            ("revoke", [one.partition for one in moved]),
        ]
        assert all(second.token(one) > tokens[one] for one in moved)
        assert all(first.token(one) == tokens[one] for one in first.assignment())
        with pytest.raises(IllegalGeneration):
            first.token(moved[0])
        assert served.stored() == {3: 9}
    assert not served.cluster.modern["g"].members


def test_cooperative_callbacks_name_what_moves(served):
    """What stays is not revoked."""
    told = Told()
    strategy = {"partition.assignment.strategy": "cooperative-sticky"}
    with Consumer(served.config(**strategy)) as first:
        first.subscribe(["t"], **told.callbacks())
        first.poll(PATIENCE_S)
        with Consumer(served.config(**strategy)) as second:
            second.subscribe(["t"])
            poll_until(lambda: len(second.assignment()) == 2, first, second)
            moved = [p.partition for p in second.assignment()]
            poll_until(lambda: first.fencing_token == 3, first, second)
            assert told.lines == [
                ("assign", [0, 1, 2, 3]),
                ("revoke", moved),
                ("assign", []),
                ("assign", []),
            ]


def test_asynchronous_commits_in_on_revoke_are_durable_before_others_own_it(served):
    """They are waited for; on_commit is told of each in poll."""
    outcomes = []

    def revoked(consumer, partitions):
        for n in range(1, 4):
            consumer.commit(offsets=[TopicPartition("t", p.partition, n) for p in partitions])

    def committed(error, partitions):
        outcomes.append((error, [p.offset for p in partitions]))

    with Consumer(served.config(on_commit=committed)) as consumer:
        consumer.subscribe(["t"], on_revoke=revoked)
        consumer.poll(PATIENCE_S)
    assert served.stored() == dict.fromkeys(range(4), 3)
    assert outcomes == [(None, [n] * 4) for n in range(1, 4)]


def test_a_commit_that_fails_is_told_or_raised(served, caplog):
    """on_commit gets the error; without it the log; a synchronous one raises."""
    outcomes = []
    with Consumer(served.config(on_commit=lambda e, p: outcomes.append((e, p)))) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(PATIENCE_S)
        served.cluster.script("OffsetCommit", Refuse(ErrorCode.OFFSET_METADATA_TOO_LARGE))
        consumer.commit(offsets=[TopicPartition("t", 0, 1)])
        poll_until(lambda: outcomes, consumer)
        ((error, partitions),) = outcomes
        assert error.code == ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert partitions == [T[0]]
        with pytest.raises(IllegalGeneration, match="t-9"):
            consumer.commit(offsets=[TopicPartition("t", 9, 1)])
        with pytest.raises(IllegalGeneration, match="t-9"):
            consumer.commit(offsets=[TopicPartition("t", 9, 1)], asynchronous=False)
        with pytest.raises(InvalidRequest, match="negative"):
            consumer.commit(offsets=[T[0]], asynchronous=False)
        with pytest.raises(InvalidRequest, match="no offsets"):
            consumer.commit(offsets=[])
    with Consumer(served.config()) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(PATIENCE_S)
        served.cluster.script("OffsetCommit", Refuse(ErrorCode.OFFSET_METADATA_TOO_LARGE))
        consumer.commit(offsets=[TopicPartition("t", 0, 1)])
    assert "not committed: t-0" in caplog.text


@pytest.mark.parametrize("has_on_lost", [True, False])
def test_lost_is_told_and_nothing_is_committed(served, has_on_lost):
    """Without on_lost, on_revoke is called for it, as confluent-kafka does."""
    told = Told()
    with Consumer(served.config()) as consumer:
        consumer.subscribe(["t"], **told.callbacks(*(() if has_on_lost else ["on_lost"])))
        consumer.poll(PATIENCE_S)
        member_id = consumer.memberid()
        served.do(served.cluster.remove_member, "g", member_id)
        until(lambda: consumer._member.group.assignment is None)
        assert consumer.assignment() == T, "until it is polled"
        with pytest.raises(IllegalGeneration):
            consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        consumer.commit(offsets=[TopicPartition("t", 0, 1)])
        consumer.poll(PATIENCE_S)
        assert told.lines[1] == ("lost" if has_on_lost else "revoke", [0, 1, 2, 3])
        poll_until(lambda: len(told.lines) == 3, consumer)
        assert consumer.memberid() != member_id
        assert consumer.assignment() == T
        assert not served.stored()


def test_what_was_to_be_revoked_and_is_lost_meanwhile_is_told_as_lost(served):
    """The round did not wait for who did not poll: on_revoke would commit in vain."""
    told = Told()
    with Consumer(served.config()) as first, Consumer(served.config()) as second:
        first.subscribe(["t"], **told.callbacks())
        first.poll(PATIENCE_S)
        second.subscribe(["t"])
        until(lambda: first._member.group.state == "Releasing")
        served.do(served.cluster.remove_member, "g", first.memberid())
        until(lambda: first._member.group.assignment is None)
        first.poll(PATIENCE_S)
        assert told.lines == [("assign", [0, 1, 2, 3]), ("lost", [0, 1, 2, 3])]


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_assignment_is_not_told_after_sleep_until_a_heartbeat_is_answered(
    served, monkeypatch, is_lost
):
    """It waited for poll when the machine slept for longer than a round; what is lost is told."""
    told = Told()
    settings = {"session.timeout.ms": SESSION_MS, "max.poll.interval.ms": 2_000}
    with Consumer(served.config(**settings)) as consumer:
        served.do(served.cluster.script, "Heartbeat", *SILENT)
        consumer.subscribe(["t"], **told.callbacks())
        until(lambda: consumer._member.mailbox._news)
        slept_s = sleep_clock.slept_s() + 3
        monkeypatch.setattr(sleep_clock, "slept_s", lambda: slept_s)
        assert consumer._member.withholds
        consumer.poll(0.1)
        assert told.lines == []
        assert consumer.assignment() == []
        if is_lost:
            served.do(served.cluster.remove_member, "g", consumer.memberid())
        served.do(served.cluster._scripts["Heartbeat"].clear)
        consumer.poll(PATIENCE_S)
        assert told.lines == [("assign", [0, 1, 2, 3])]
        if is_lost:
            poll_until(lambda: len(told.lines) == 3, consumer)
            assert [line[0] for line in told.lines] == ["assign", "lost", "assign"]
        assert consumer.assignment() == T


def test_pause_resume_seek_and_position(served):
    """The same rules as for tasks."""
    with Consumer(served.config()) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(IllegalGeneration):
            consumer.pause([TopicPartition("t", 9)])
        consumer.poll(PATIENCE_S)
        assert [p.offset for p in consumer.position(T[:1])] == [OFFSET_INVALID]
        consumer.commit(offsets=[TopicPartition("t", 0, 5)], asynchronous=False)
        consumer.pause(T[:2])
        assert consumer.paused() == T[:2]
        consumer.seek(TopicPartition("t", 1, 77))
        assert [p.offset for p in consumer.position(T[:2])] == [5, 77]
        consumer.resume(T[:1])
        assert consumer.paused() == T[1:2]
        with pytest.raises(InvalidRequest):
            consumer.seek(T[0])
        assert served.stored() == {0: 5}


def test_topics_are_listed_without_a_subscription(served):
    """All, or one; one that is not there says so, as confluent-kafka's does."""
    served.do(served.cluster.topics.update, {"u": 1})
    with Consumer(served.config()) as consumer:
        listed = consumer.list_topics()
        assert {name: list(one.partitions) for name, one in listed.topics.items()} == {
            "t": [0, 1, 2, 3],
            "u": [0],
        }
        assert consumer.list_topics("u", timeout=-1).topics == {"u": listed.topics["u"]}
        missing = consumer.list_topics("nope").topics["nope"]
        assert missing.partitions == {}
        assert isinstance(missing.error, UnknownTopicOrPartition)
        assert listed.topics["u"].error is None


def test_watermarks_are_what_the_last_commit_reported_and_nothing_else(served):
    """No commit, a commit without them, one with them, one with the end alone."""
    with Consumer(served.config()) as consumer:
        assert consumer.get_watermark_offsets(T[0]) == (OFFSET_INVALID, OFFSET_INVALID)
        consumer.subscribe(["t"])
        until(lambda: consumer.poll(0.1) or consumer.assignment() == T)
        for reported, told in (
            ({}, (OFFSET_INVALID, OFFSET_INVALID)),
            ({"start_offset": 0, "end_offset": 90}, (0, 90)),
            ({"end_offset": 91}, (OFFSET_INVALID, 91)),
        ):
            consumer.commit(offsets=[TopicPartition("t", 0, 42, **reported)], asynchronous=False)
            assert consumer.get_watermark_offsets(T[0], cached=True) == told
        whole = TopicPartition("t", 1, 7, "note", 3, start_offset=1, end_offset=9)
        consumer.commit(offsets=[whole], asynchronous=False)
        (read,) = consumer.committed([T[1]])
        assert (read.offset, read.metadata, read.leader_epoch) == (7, "note", 3)
        assert (read.start_offset, read.end_offset) == (1, 9)


def test_what_a_callback_raises_is_raised_by_poll_and_the_round_goes_on(served):
    """Also by close, after everything is closed."""

    def fail(consumer, partitions):
        raise LookupError("shelf")

    consumer = Consumer(served.config())
    consumer.subscribe(["t"], on_assign=fail, on_revoke=fail)
    with pytest.raises(LookupError, match="shelf"):
        consumer.poll(PATIENCE_S)
    assert consumer.assignment() == T
    consumer.poll(0)
    with pytest.raises(LookupError, match="shelf"):
        consumer.close()
    assert not served.group.members


def test_what_ends_the_membership_is_raised_by_poll_again_and_again(served):
    """A topic that is not there; a fenced static member, told as lost first."""
    with Consumer(served.config()) as consumer:
        consumer.subscribe(["nowhere"])
        for _ in range(2):
            with pytest.raises(UnknownTopicOrPartition):
                consumer.poll(PATIENCE_S)
    told = Told()
    static = served.config(**{"group.instance.id": "i"})
    with Consumer(static) as first, Consumer(static) as second:
        first.subscribe(["t"], **told.callbacks())
        first.poll(PATIENCE_S)
        second.subscribe(["t"])
        second.poll(PATIENCE_S)
        assert second.assignment() == T
        with pytest.raises(FencedInstanceId):
            poll_until(lambda: False, first)
        assert told.lines == [("assign", [0, 1, 2, 3]), ("lost", [0, 1, 2, 3])]
        assert first.assignment() == []


def test_unsubscribe_leaves_and_one_may_subscribe_again(served):
    """The callbacks run in it; the connections stay."""
    told = Told()
    with Consumer(served.config()) as consumer:
        for call in (consumer.poll, consumer.memberid, consumer.paused):
            with pytest.raises(InvalidRequest, match="not subscribed"):
                call()
        assert consumer.committed(T[:1])[0].offset == OFFSET_INVALID
        consumer.subscribe(["t"], **told.callbacks())
        consumer.poll(PATIENCE_S)
        consumer.unsubscribe()
        assert consumer.assignment() == []
        assert not served.group.members
        consumer.subscribe(["t"], **told.callbacks())
        consumer.poll(PATIENCE_S)
        assert consumer.assignment() == T
    assert [what for what, _ in told.lines] == ["assign", "revoke"] * 2


def test_a_second_subscription_replaces_the_first_of_the_same_member(served):
    """It joins no second time; one that is refused changes nothing, the callbacks included."""
    first, second, u = Told(), Told(), [TopicPartition("u", i) for i in range(2)]
    served.cluster.topics["u"] = 2
    with Consumer(served.config()) as consumer:
        consumer.subscribe(["t"], **first.callbacks())
        consumer.poll(PATIENCE_S)
        member_id = consumer.memberid()
        with pytest.raises(UnknownTopicOrPartition):
            consumer.subscribe(["nowhere"], **second.callbacks())
        assert consumer.assignment() == T
        consumer.subscribe(["u"], **second.callbacks())
        poll_until(lambda: consumer.assignment() == u, consumer)
        assert consumer.memberid() == member_id
    assert [what for what, _ in first.lines] == ["assign"]
    assert [what for what, _ in second.lines] == ["revoke", "assign", "revoke"]


@pytest.mark.parametrize(
    ("topics", "says"), [(["t", "^ord.*"], "is a pattern"), ("t", "a list"), ([], "a list")]
)
def test_what_is_no_list_of_names_is_refused_and_changes_nothing(served, topics, says):
    """A pattern would be waited for as a topic of that name."""
    with Consumer(served.config()) as consumer:
        with pytest.raises(InvalidRequest, match=says):
            consumer.subscribe(topics)
        consumer.subscribe(["t"])
        consumer.poll(PATIENCE_S)
        with pytest.raises(InvalidRequest):
            consumer.subscribe(topics)
        assert consumer.assignment() == T


def test_waiting_in_a_callback_for_more_callbacks_is_refused(served):
    """It would wait for itself. Everything else works there."""
    refused = []

    def assigned(consumer, partitions):
        again = functools.partial(consumer.subscribe, ["t"])
        for call in (consumer.poll, consumer.close, consumer.unsubscribe, again):
            with pytest.raises(InvalidRequest, match="in a callback"):
                call()
            refused.append(call)
        consumer.pause(partitions)
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        refused.append(consumer.committed(partitions))

    with Consumer(served.config()) as consumer:
        consumer.subscribe(["t"], on_assign=assigned)
        consumer.poll(PATIENCE_S)
        assert len(refused) == 5
        assert consumer.paused() == T


def test_close_ends_a_poll_in_another_thread(served):
    """It returns, or says that the consumer is closed; so does the next one."""
    consumer = Consumer(served.config())
    consumer.subscribe(["t"])
    consumer.poll(PATIENCE_S)
    raised = []

    def poll():
        try:
            while True:
                consumer.poll()
        except GroupClosed as error:
            raised.append(error)

    threads = [threading.Thread(target=poll) for _ in range(2)]
    for thread in threads:
        thread.start()
    consumer.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(raised) == 2
    assert not served.group.members


def test_threads_share_a_consumer(served):
    """Commits from four threads at once, while a fifth one polls: none is forgotten."""
    with Consumer(served.config()) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(PATIENCE_S)

        def work(partition):
            for offset in range(1, 31):
                one = TopicPartition("t", partition, offset)
                consumer.commit(offsets=[one], asynchronous=offset % 3 > 0)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            consumer.poll(0.01)
    assert served.stored() == dict.fromkeys(range(4), 30)


def test_consumers_share_one_thread_and_the_last_one_ends_it(served):
    """None before the first use."""

    def ours():
        return [t for t in threading.enumerate() if t.name == "muster"]

    consumers = [Consumer(served.config()) for _ in range(3)]
    assert not ours()
    for consumer in consumers:
        consumer.subscribe(["t"])
    assert len(ours()) == 1
    for consumer in consumers:
        assert len(ours()) == 1
        closing = threading.Thread(target=consumer.close)
        closing.start()
        while closing.is_alive():
            for other in consumers:
                if not other._is_closed:
                    other.poll(0.01)
    assert not ours()


def test_a_consumer_that_is_dropped_leaves(served, caplog):
    """It cannot be polled any more, so it must not hold its partitions; and it is said."""
    consumer = Consumer(served.config())
    revoked = []
    consumer.subscribe(["t"], on_revoke=lambda *_: revoked.append(1))
    consumer.poll(PATIENCE_S)
    assert served.group.members
    del consumer
    gc.collect()
    until(lambda: not served.group.members)
    assert "dropped without close()" in caplog.text
    assert not revoked


def test_dropping_one_whose_news_nobody_took(served):
    """The assignment was not told yet."""
    consumer = Consumer(served.config())
    consumer.subscribe(["t"])
    member = consumer._member
    until(lambda: member._telling)
    del consumer
    gc.collect()
    until(lambda: not served.group.members)


def test_commits_that_nobody_waits_for_are_limited(served, monkeypatch):
    """One more waits for room, for as long as a call may take."""
    monkeypatch.setattr("muster.compat.member.COMMITS_MAX", 2)
    config = served.config(**{"socket.timeout.ms": 2000})
    with Consumer(config) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(PATIENCE_S)
        for offset in range(1, 50):
            consumer.commit(offsets=[TopicPartition("t", 0, offset)])
            assert len(consumer._member._commits) <= 2
    assert served.stored() == {0: 49}
    with Consumer({**config, "on_commit": lambda *_: None}) as consumer:
        consumer._timeout_s = 0.1
        consumer.subscribe(["t"])
        consumer.poll(PATIENCE_S)
        for offset in (1, 2):
            consumer.commit(offsets=[TopicPartition("t", 0, offset)])
        with pytest.raises(muster.MusterError, match="too many commits"):
            consumer.commit(offsets=[TopicPartition("t", 0, 3)])
        poll_until(lambda: consumer._member.commit_slots._value == 2, consumer)
        consumer.commit(offsets=[TopicPartition("t", 0, 4)])


def test_topic_partitions_are_equal_by_name_and_number():
    """As confluent-kafka's."""
    assert TopicPartition("t", 1, 5) == TopicPartition("t", 1, 6, "m")
    assert len({TopicPartition("t", 1, 5), TopicPartition("t", 1)}) == 1
    assert min([TopicPartition("t", 2), TopicPartition("s", 3)]).topic == "s"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"group.id": ""}, "bootstrap.servers and group.id"),
        ({"group.id": 5}, "group.id: give text"),
        ({"auto.offset.reset": "earliest"}, "auto.offset.reset"),
        ({"enable.auto.offset.store": False}, "enable.auto.offset.store"),
        ({"enable.auto.commit": True}, "enable.auto.commit"),
        ({"enable.auto.commit": "perhaps"}, "give True or False"),
        ({"session.timeout.ms": "soon"}, "session.timeout.ms: give milliseconds"),
        ({"session.timeout.ms": 0}, "session.timeout.ms: give milliseconds"),
        ({"socket.timeout.ms": 2**31}, "socket.timeout.ms is 2147483648 ms"),
        ({"client.id": "c" * 217}, "client.id has 217 bytes"),
        ({"max.poll.interval.ms": True}, "max.poll.interval.ms: give milliseconds"),
        ({"partition.assignment.strategy": "range,best"}, "no assignor 'best'"),
        ({"group.protocol": "streams"}, "classic or consumer"),
        ({"group.remote.assignor": "uniform"}, "group.protocol=consumer"),
        (
            {"group.protocol": "consumer", "partition.assignment.strategy": "range"},
            "partition.assignment.strategy",
        ),
        ({"security.protocol": "sasl_ssl"}, "security.protocol"),
        ({"ssl.ca.location": "ca.pem"}, "security.protocol"),
        ({"on_commit": 5}, "on_commit"),
        ({"bootstrap.servers": "nonsense"}, "nonsense"),
        ({"fetch.min.bytes": 1, "debug": "all"}, "debug, fetch.min.bytes"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(more, message):
    """By their names, when the consumer is made; nothing is ignored in silence."""
    with pytest.raises(InvalidConfig, match=message):
        Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", **more})


def test_settings_reach_the_group(served):
    """What the coordinator sees of them."""
    config = served.config(
        **{
            "client.id": "worker",
            "client.rack": "r1",
            "group.instance.id": "i",
            "session.timeout.ms": "7000",
            "max.poll.interval.ms": 9000,
            "partition.assignment.strategy": "roundrobin, range",
            "enable.auto.commit": "false",
            "socket.timeout.ms": 5000,
            "security.protocol": "PLAINTEXT",
        }
    )
    with Consumer(config) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(PATIENCE_S)
        (join,) = [call.request for call in served.cluster.seen("JoinGroup")]
        assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (7000, 9000)
        assert [p.name for p in join.protocols] == ["roundrobin", "range"]
        assert join.group_instance_id == "i"
        assert consumer.memberid().startswith("worker-")
