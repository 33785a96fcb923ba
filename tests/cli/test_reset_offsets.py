"""A reset that is carried out: whole or not at all, never over somebody's newer offset."""

import json

import pytest

from muster.cli.group.offset_file import read_offsets
from muster.cli.group.offset_plan import OFFSET_MAX, Known, Step
from muster.cli.group.reset_commit import SLICE_PARTITIONS, _request, slices
from muster.v1 import admin_pb2, group_pb2
from muster.v1.errors_pb2 import ErrorCode, Status
from tests.cli.offset_store import Entry, OffsetStore

MANY = 2 * SLICE_PARTITIONS + 500
Described = admin_pb2.DescribeGroupsResponse


@pytest.fixture
def store(cluster):
    """A group `idle` of one coordinator, with an offset of each of `MANY` partitions."""
    entries = [
        Entry(topic="orders", partition=n, offset=n, end_offset=10**6, start_offset=0)
        for n in range(MANY)
    ]
    made = OffsetStore({"idle": entries}, {"orders": MANY})

    def describe(request):
        [group_id] = request.group_ids
        group = Described.Group(
            group_id=group_id,
            state="Stable" if made.members.get(group_id) else "Empty",
            generation=made.generations.get(group_id, 0),
            members=[Described.Member(member_id="m")] * made.members.get(group_id, 0),
        )
        return Described(groups=[group])

    def topics(request):
        response = admin_pb2.DescribeTopicsResponse()
        for name in request.names:
            count = made.topics.get(name)
            if count is None:
                unknown = Status(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                response.results.add(name=name, status=unknown)
            else:
                topic = admin_pb2.Topic(name=name, partitions=count)
                response.results.add(name=name, topic=topic)
        return response

    cluster.coordinate(cluster.nodes[1])
    cluster.nodes[0].script["DescribeTopics"] = topics
    cluster.nodes[1].script |= {
        "DescribeGroups": describe,
        "OffsetFetch": made.fetch,
        "OffsetCommit": made.commit,
    }
    return made


def _results(ran):
    return [item["result"] for item in map(json.loads, ran.out.splitlines())]


def test_many_partitions_go_in_slices_that_say_so(store, muster):
    """Each commit is atomic, holds at most what one commit takes, and names what is expected."""
    ran = muster(
        *("group", "reset-offsets", "idle", "--all-topics", "--shift-by=7", "--execute"),
        *("-o", "jsonl"),
    )
    assert ran.exit_code == 0, ran.err
    assert "2500 partitions go in 3 commits of at most 1000: each is all or nothing" in ran.err
    assert [len(commit.partitions) for commit in store.commits] == [1000, 1000, 500]
    for commit in store.commits:
        assert (commit.atomic, commit.generation, commit.expected_generation) == (True, -1, 0)
        assert all(p.expected_offset == p.partition for p in commit.partitions)
    assert store.offsets("idle") == {("orders", n): n + 7 for n in range(MANY)}
    assert set(_results(ran)) == {"reset"}


def test_no_commit_is_larger_than_a_command_may_be():
    """The longest names and the most metadata: a slice stays below 512 KiB and loses nothing."""
    known = Known(OFFSET_MAX, 0, OFFSET_MAX, "\N{EURO SIGN}" * (4096 // 3))
    for topic, now in (("t" * 249, known), ("t" * 249, Known(1)), ("t", known)):
        steps = [Step(topic, 2**31 - 1 - n, now, OFFSET_MAX) for n in range(2_100)]
        parts = slices(steps)
        assert [step for part in parts for step in part] == steps
        for part in parts:
            assert len(part) <= SLICE_PARTITIONS
            assert _request("g" * 249, 2**62, part).ByteSize() < 400 * 1024
    assert not slices([])


def test_nothing_is_sent_without_execute(store, muster):
    """A dry run reads."""
    ran = muster("group", "reset-offsets", "idle", "--all-topics", "--to-latest", "-o", "jsonl")
    assert (ran.exit_code, set(_results(ran))) == (0, {"would be reset"})
    assert not store.commits


def test_a_group_without_offsets_says_so(store, muster):
    """Nothing is reset, nothing is shown: that is no failure, and not silent."""
    store.stored["idle"].clear()
    ran = muster("group", "reset-offsets", "idle", "--all-topics", "--to-latest", "--execute")
    assert ran.exit_code == 0
    assert ran.err == "note: no offset of 'idle' is stored: there is nothing to reset\n"
    assert not store.commits
    ran = muster("group", "offsets", "idle", "-o", "jsonl")
    assert (ran.exit_code, ran.out) == (0, "")
    assert ran.err == "note: no offset of 'idle' is stored, and nobody owns a partition\n"


def test_an_offset_that_changed_since_is_a_conflict_and_stays(store, muster, cluster):
    """The second slice meets somebody's commit: it is kept whole, and the table tells all three."""

    def racing(request):
        if len(store.commits) == 1:
            store.stored["idle"]["orders", 1234].offset = 99
        return store.commit(request)

    cluster.nodes[1].script["OffsetCommit"] = racing
    ran = muster(
        *("group", "reset-offsets", "idle", "--all-topics", "--to-latest", "--execute"),
        *("-o", "jsonl"),
    )
    assert ran.exit_code == 4
    assert "INVALID_UPDATE_VERSION: orders/1234: Offset 99 is stored, not offset 1234." in ran.err
    assert "1000 of 2500 partitions were reset before that" in ran.err
    assert "run it again" in ran.err
    assert _results(ran) == ["reset"] * 1000 + ["kept"] * 1500
    assert len(store.commits) == 2
    now = store.offsets("idle")
    assert [now["orders", n] for n in (999, 1000, 1234, 2499)] == [10**6, 1000, 99, 2499]


def test_a_member_that_joins_meanwhile_keeps_the_group_as_it_is(store, muster, cluster):
    """Kafka's UNKNOWN_MEMBER_ID is told as what it means: the group is in use."""

    def joined(request):
        store.members["idle"] = 1
        return store.commit(request)

    cluster.nodes[1].script["OffsetCommit"] = joined
    ran = muster("group", "reset-offsets", "idle", "--topic=orders:5", "--to-offset=0", "--execute")
    assert ran.exit_code == 4
    assert "NON_EMPTY_GROUP" in ran.err
    assert "stop its members first" in ran.err
    assert store.offsets("idle")["orders", 5] == 5


def test_a_round_since_the_offsets_were_read_is_a_conflict(store, muster, cluster):
    """Members came and went in between: what they did is looked at first."""

    def came_and_went(request):
        store.generations["idle"] = 2
        return store.commit(request)

    cluster.nodes[1].script["OffsetCommit"] = came_and_went
    ran = muster("group", "reset-offsets", "idle", "--topic=orders:5", "--to-offset=0", "--execute")
    assert ran.exit_code == 4
    assert "ILLEGAL_GENERATION" in ran.err
    assert store.offsets("idle")["orders", 5] == 5


def test_an_attempt_whose_answer_was_lost_is_no_conflict(store, muster, cluster):
    """The retry is refused because the first one was carried out: that is success."""

    def silent_once(request):
        if store.commits:
            return store.commit(request)
        store.commit(request)
        return group_pb2.OffsetCommitResponse(partitions=[{}] * 3 * 10**6)  # larger than a message

    cluster.nodes[1].script["OffsetCommit"] = silent_once
    ran = muster(
        *("group", "reset-offsets", "idle", "--topic=orders:5", "--to-offset=0", "--execute"),
        *("-o", "jsonl"),
    )
    assert (ran.exit_code, ran.err) == (0, "")
    assert _results(ran) == ["reset"]
    assert len(store.commits) == 2


def test_an_outcome_that_is_not_known_is_called_so(store, muster, cluster):
    """No answer until the time is over: neither reset nor kept."""
    cluster.nodes[1].script["OffsetCommit"] = lambda _: group_pb2.OffsetCommitResponse(
        partitions=[{}] * 3 * 10**6
    )
    ran = muster(
        *("group", "reset-offsets", "idle", "--topic=orders:5,6", "--to-offset=0", "--execute"),
        *("-o", "jsonl", "--timeout=2"),
    )
    assert ran.exit_code != 0
    assert _results(ran) == ["unknown", "unknown"]


def test_an_export_is_what_a_reset_from_the_file_takes(store, muster, tmp_path):
    """Copy, reset, and back again: everything is where it was."""
    for name in ("before.csv", "before.json"):
        copy = str(tmp_path / name)
        before = store.offsets("idle")
        scope = ("group", "reset-offsets", "idle", "-o", "name")
        assert muster(*scope, "--all-topics", "--to-current", "--export", copy).exit_code == 0
        assert read_offsets(tmp_path / name) == before
        assert muster(*scope, "--all-topics", "--to-offset=3", "--execute").exit_code == 0
        assert set(store.offsets("idle").values()) == {3}
        assert muster(*scope, "--from-file", copy, "--execute").exit_code == 0
        assert store.offsets("idle") == before


def test_a_file_with_a_partition_that_is_not_there_changes_nothing(store, muster, tmp_path):
    """All of the file is checked before anything is sent."""
    for line in (f"orders,{MANY},1", "nowhere,0,1"):
        path = tmp_path / "f.csv"
        path.write_text(f"orders,0,77\n{line}\n")
        ran = muster("group", "reset-offsets", "idle", "--from-file", str(path), "--execute")
        assert ran.exit_code == 3
        assert "UNKNOWN_TOPIC_OR_PARTITION" in ran.err
    assert not store.commits


def test_the_reported_ends_outlive_a_reset(store, muster):
    """After --to-earliest, --to-latest still knows the end; metadata goes with its offset."""
    store.stored["idle"]["orders", 5].metadata = "m"
    scope = ("group", "reset-offsets", "idle", "--topic=orders:5", "--execute", "-o", "name")
    assert muster(*scope, "--to-current").exit_code == 0
    assert store.stored["idle"]["orders", 5].metadata == "m"
    assert muster(*scope, "--to-earliest").exit_code == 0
    assert store.stored["idle"]["orders", 5].metadata == ""
    assert muster(*scope, "--to-latest").exit_code == 0
    assert store.offsets("idle")["orders", 5] == 10**6
    assert muster(*scope, "--to-offset=2000000").exit_code == 0
    assert not store.stored["idle"]["orders", 5].HasField("end_offset")
