"""What the tables say of a history that the test tells."""

from typing import get_args

import pytest

from musterd.coordinator.machine.commands import CreateTopic, ShardLevel
from musterd.coordinator.machine.events import GroupEvent
from musterd.levels import LEVEL
from musterd.replay import modern_trackers, trackers
from musterd.replay.tables import TABLES
from tests.export.exports import converted, export_once, lively, open_exporter
from tests.export.node import WALL_MS, FakeNode, Script, vector
from tests.replay.results import replayed, table


@pytest.fixture
def node():
    """One shard."""
    return FakeNode()


@pytest.fixture
def told(node, tmp_path):
    """Export what the node holds, replay it, read one table."""

    def tell(name):
        root, output = tmp_path / "export", tmp_path / f"out-{name}"
        if not root.exists():
            export_once(node, root, tmp_path / "data")
        report = replayed(root, output, prove=True)
        assert report.sound, report.failed
        return table(output, name)

    return tell


def test_a_rebalance_names_its_cause_and_what_it_cost(node, told):
    """Who came, how long the round took in shard time, what moved beyond need."""
    group = Script(node, "g")
    a, b = group.form("a", "b")
    node.advance(1_000)
    c = group.join("c")
    node.advance(300)
    group.rejoin(a)
    node.advance(700)
    group.rejoin(b)
    node.advance(40)
    group.settle()

    first, second = told("rebalances")

    assert (first["trigger"], first["cause_member_id"], first["from_generation"]) == (
        "member_joined",
        a,
        0,
    )
    assert (first["members_before"], first["members_after"], first["first_assigned"]) == (0, 2, 6)
    assert second["outcome"] == "published"
    assert (second["trigger"], second["cause_member_id"]) == ("member_joined", c)
    assert (second["join_ms"], second["sync_ms"], second["duration_ms"]) == (1_000, 40, 1_040)
    assert (second["slowest_member_id"], second["slowest_member_ms"]) == (b, 1_000)
    assert (second["members_before"], second["members_after"]) == (2, 3)
    assert (second["members_added"], second["members_gone"]) == (1, 0)
    assert (second["moved"], second["minimum_moves"]) == (4, 2)


def test_both_rounds_of_a_cooperative_rebalance_say_what_moved(node, told):
    """The first takes two of four partitions from their owner, the second gives them to another."""
    group = Script(node, "g", partitions=4)
    (a,) = group.form("a")
    b = group.join("b")
    group.rejoin(a)
    group.settle({a: vector(t=[0, 1]), b: vector()})
    group.rejoin(a, meta=b"less", released=True)
    group.rejoin(b)
    group.settle({a: vector(t=[0, 1]), b: vector(t=[2, 3])})

    rows = told("rebalances")

    assert [(r["moved"], r["minimum_moves"], r["first_assigned"]) for r in rows] == [
        (0, 0, 4),
        (0, 0, 0),
        (2, 2, 0),
    ]
    assert rows[-1]["trigger"] == "partitions_released"


def test_who_is_gone_gives_up_at_once_what_others_get_in_a_cooperative_rebalance(node, told):
    """What it had moves in the first round; nobody has to wait for it."""
    group = Script(node, "g", partitions=4)
    a, b = group.form("a", "b")
    group.expire(b)
    c = group.join("c")
    group.rejoin(a)
    group.settle({a: vector(t=[0]), c: vector(t=[1, 3])})

    last = told("rebalances")[-1]

    assert (last["moved"], last["minimum_moves"], last["first_assigned"]) == (2, 2, 0)


def test_a_change_of_leader_shortens_no_session(node, told):
    """Shard time stands still without entries and without a leader; a person's time goes on."""
    group = Script(node, "g")
    (a,) = group.form("a")
    node.wall_ms += 3_600_000
    node.term += 1
    group.leave(a)
    (session,) = told("member_sessions")
    assert session["session_ms"] >= 3_600_000
    assert {row["owned_ms"] for row in told("ownership")} == {3_600_000}


def test_within_one_term_no_wall_clock_counts(node, told):
    """A leader that is suspended, or whose clock is set, changes no duration."""
    group = Script(node, "g")
    (a,) = group.form("a")
    node.wall_ms += 3_600_000
    group.leave(a)
    assert told("member_sessions")[0]["session_ms"] < 60_000


def test_a_round_that_a_newer_one_overtakes_is_superseded(node, told):
    """A generation formed and its assignment never came: the next round says why it opened."""
    group = Script(node, "g")
    group.join("a")
    group.close_round()
    group.join("b")
    first, second = told("rebalances")
    assert (first["outcome"], first["generation"]) == ("superseded", 1)
    assert (second["outcome"], second["from_generation"], second["generation"]) == ("open", 1, None)
    assert second["finished_ts"] is None


def test_the_last_member_s_leave_empties_the_group(node, told):
    """The round closes with nobody, at once."""
    group = Script(node, "g")
    (a,) = group.form("a")
    group.leave(a, "shutdown")
    last = told("rebalances")[-1]
    assert (last["outcome"], last["members_after"], last["members_gone"]) == ("emptied", 0, 1)
    assert (last["trigger"], last["reason"]) == ("member_left", "shutdown")
    assert (last["from_generation"], last["generation"]) == (1, 2)


def test_a_session_has_its_end_and_its_generations(node, told):
    """Joined, expired, left, still there: each once."""
    group = Script(node, "g")
    a, b = group.form("a", "b")
    node.advance(5_000)
    group.expire(b)
    group.rebalance()
    c = group.join("c")
    group.rebalance()
    group.leave(c)
    sessions = {row["member_id"]: row for row in told("member_sessions")}
    assert sessions[b]["end"] == "session_expired"
    assert (sessions[b]["first_generation"], sessions[b]["last_generation"]) == (1, 1)
    assert sessions[b]["session_ms"] >= 5_000
    assert (sessions[c]["end"], sessions[c]["reason"], sessions[c]["first_generation"]) == (
        "left",
        "done",
        3,
    )
    assert (sessions[a]["end"], sessions[a]["left_ts"], sessions[a]["last_generation"]) == (
        "open",
        None,
        3,
    )
    assert sessions[a]["rejoins"] == 2


def test_nobody_owns_a_partition_under_two_tokens_at_once(node, told):
    """Spans of one partition never overlap in the log, and each carries its generation."""
    group = Script(node, "g")
    group.form("a", "b")
    group.join("c")
    group.rebalance()
    group.expire(group.member("b"))
    group.rebalance()
    spans = told("ownership")
    assert {row["token"] for row in spans} == {1, 2, 3}
    for number in range(6):
        mine = sorted(
            (row["from_index"], row["to_index"] or 1 << 60, row["released"])
            for row in spans
            if row["partition"] == number
        )
        ends = [end for _, end, _ in mine]
        assert all(end <= start for end, (start, _, _) in zip(ends, mine[1:], strict=False))
        assert mine[-1][2] == "open"
    expired = [row for row in spans if row["released"] == "session_expired"]
    assert {row["member_id"] for row in expired} == {group.member("b")}


def test_an_opaque_assignment_shows_owner_and_size(node, told):
    """Only protocol type `consumer` can be parsed; nothing is guessed of others."""
    group = Script(node, "g", kind="connect")
    a = group.join("a")
    group.close_round()
    group.settle({a: b"12345"})
    (row,) = told("ownership")
    assert (row["topic"], row["partition"], row["opaque_bytes"]) == (None, None, 5)
    assert (row["member_id"], row["token"]) == (a, 1)


def test_a_consumer_assignment_that_does_not_parse_is_shown_as_opaque(node, told):
    """The coordinator does not look into it either."""
    group = Script(node, "g")
    a = group.join("a")
    group.close_round()
    group.settle({a: b"\xff\xff"})
    (row,) = told("ownership")
    assert (row["topic"], row["opaque_bytes"]) == (None, 2)
    assert told("rebalances")[0]["moved"] is None


def test_members_with_different_topics_have_no_minimum(node, told):
    """A balanced share is not defined where not everybody may own everything."""
    group = Script(node, "g")
    a = group.join("a", topics=("t",))
    b = group.join("b", topics=("t", "u"))
    group.close_round()
    group.settle({a: vector(t=[0, 1]), b: vector(u=[0])})
    assert told("rebalances")[0]["minimum_moves"] is None


def test_commits_show_progress_lag_rewinds_and_late_retries(node, told):
    """One row per partition, with the offset that stood before."""
    node.run(CreateTopic("t", 6))
    group = Script(node, "g")
    (a,) = group.form("a")
    node.advance(250)
    group.commit(a, 10, partitions=(0, 1), seq=1, end=14, meta="x")
    group.commit(a, 30, seq=3)
    group.commit(a, 20, seq=2)
    group.commit(a, 25, seq=4)
    group.commit("nobody", 99)
    rows = told("commits")
    assert [(r["partition"], r["offset"], r["outcome"]) for r in rows] == [
        (0, 10, "committed"),
        (1, 10, "committed"),
        (0, 30, "committed"),
        (0, 20, "superseded"),
        (0, 25, "committed"),
    ]
    assert [r["previous_offset"] for r in rows] == [None, None, 10, 30, 30]
    assert [r["rewind"] for r in rows] == [False, False, False, False, True]
    assert (rows[0]["lag"], rows[0]["metadata"], rows[2]["lag"]) == (4, "x", None)
    assert rows[0]["ts"].timestamp() * 1000 == node.wall_ms >= WALL_MS


def test_the_same_export_gives_the_same_rows_in_the_same_order(node, tmp_path):
    """Two replays of one export are equal byte for byte in every table."""
    lively(node)
    converted(node)
    export_once(node, tmp_path / "export", tmp_path / "data")
    for name in ("one", "two"):
        assert replayed(tmp_path / "export", tmp_path / name).sound
    for name in TABLES:
        assert table(tmp_path / "one", name) == table(tmp_path / "two", name)
        assert table(tmp_path / "one", name), name


def test_a_returning_static_member_owns_what_it_owned(node, told):
    """gp-2.2.4: its session ends and another begins under a token of its own; nothing moved."""
    group = Script(node, "g")
    a, b = group.join("a"), group.join("b", instance="i")
    group.close_round()
    group.settle()
    node.advance(1_000)
    c = group.join("b", nonce=2, instance="i")
    node.advance(500)
    group.rejoin(a)
    d = group.join("b", nonce=3, instance="i")
    group.settle()

    sessions = {row["member_id"]: row for row in told("member_sessions")}
    assert [sessions[m]["end"] for m in (a, b, c, d)] == ["open", "replaced", "replaced", "open"]
    assert sessions[b]["session_ms"] is not None
    assert (sessions[c]["first_generation"], sessions[c]["last_generation"]) == (1, 1)
    assert sessions[d]["first_generation"] == 2
    spans = [(r["member_id"], r["token"], r["released"]) for r in told("ownership")]
    assert spans.count((b, 1, "replaced")) == spans.count((c, 2, "replaced")) == 3
    assert spans.count((d, 4, "open")) == 3  # of its generation; 3 was its own in the round
    _, second = told("rebalances")
    assert (second["members_added"], second["members_gone"], second["moved"]) == (0, 0, 0)


# ---- groups that are converted


class LateExport(FakeNode):
    """A node whose log is trimmed after some entries; the export begins there, with a base."""

    def __init__(self, folder, entries):
        super().__init__()
        self.folder, self.left, self.exporter = folder, entries, None

    def run(self, *commands, shard=0):
        results = super().run(*commands, shard=shard)
        self.left -= 1
        if self.left == 0:
            self.trim(self.replicas[0].last - 1)
            self.exporter = open_exporter(self, self.folder / "export", self.folder / "data")
        return results


@pytest.mark.parametrize("entries", range(7, 27))
def test_a_fold_from_a_base_in_a_conversion_reaches_the_same_digests(tmp_path, entries):
    """Whatever kind the group is of where the log was trimmed, and whoever is to release."""
    node = LateExport(tmp_path, entries)
    converted(node)
    node.exporter.drain()
    node.exporter.close()
    report = replayed(tmp_path / "export", tmp_path / "out", prove=True)
    assert report.sound, report.failed
    assert report.checkpoints >= 1
    open_spans = [row for row in table(tmp_path / "out", "ownership") if row["released"] == "open"]
    assert sorted(row["partition"] for row in open_spans) == [0, 1, 2, 3, 4, 5]


def numbers(rows, **which):
    """(partition, token, released) of the rows of `ownership` with these values."""
    found = [row for row in rows if all(row[name] == value for name, value in which.items())]
    return sorted((row["partition"], row["token"], row["released"]) for row in found)


def test_a_conversion_is_a_row_with_its_cause(node, told):
    """Who came first, and who went last; nobody had to give anything up for it."""
    converted(node)
    up, down = told("conversions")
    assert (up["kind"], up["trigger"], up["cause_member_id"]) == ("upgraded", "member_joined", "m")
    assert (up["from_generation"], up["generation"]) == (1, 1)
    assert (up["members"], up["partitions"]) == (2, 6)
    assert (down["kind"], down["trigger"]) == ("downgraded", "member_left")
    assert (down["cause_member_id"], down["reason"]) == ("m", "enough")
    assert down["generation"] > down["from_generation"]
    assert (down["members"], down["partitions"]) == (2, 4)
    assert down["index"] > up["index"]


def test_members_own_the_same_under_their_token_when_their_group_is_converted(node, told):
    """One row per partition and token, whichever kind the group is of when the span ends."""
    group = converted(node)
    a = next(iter(group.group.members))
    conversions = told("conversions")
    rows = told("ownership")
    first = [row for row in rows if row["token"] == 1]
    assert {row["from_index"] for row in first} == {7}
    assert all(row["to_index"] > conversions[0]["index"] for row in first)
    assert numbers(rows, member_id=a, token=3) == [
        (0, 3, "rejoined"),
        (2, 3, "rejoined"),
        (4, 3, "released"),  # it worked on it when it joined, and was told to release it
    ]
    assert numbers(rows, member_id="m") == [(4, 4, "left"), (5, 6, "left")]
    after = [row for row in rows if row["released"] == "next_generation"]
    assert all(row["from_index"] < conversions[1]["index"] < row["to_index"] for row in after)
    assert [row["partition"] for row in rows if row["released"] == "open"] == [0, 2, 4, 1, 3, 5]
    spans = [(row["partition"], row["token"]) for row in rows]
    assert len(set(spans)) == len(spans)


def test_the_round_after_a_conversion_counts_what_moves(node, told):
    """What the last modern member had moves; the plan that was due is superseded."""
    converted(node)
    rounds = told("rebalances")
    assert [row["outcome"] for row in rounds[-2:]] == ["superseded", "published"]
    last = rounds[-1]
    assert (last["moved"], last["first_assigned"]) == (2, 0)
    assert (last["members_before"], last["members_after"], last["members_gone"]) == (3, 2, 1)
    first_plan = rounds[1]
    assert (first_plan["members_before"], first_plan["members_after"]) == (2, 3)


def test_each_move_of_a_plan_has_its_reason(node, told):
    """From whom to whom, for which epoch; who left is named, and who took its place is another."""
    group = converted(node)
    a, c = group.group.members
    b = group.member("b")
    rows = told("moves")
    found = [
        (row["generation"], row["partition"], row["from_member_id"], row["to_member_id"])
        for row in rows
    ]
    assert found == [(2, 4, a, "m"), (2, 5, b, "m"), (4, 3, c, "p")]
    assert {row["reason"] for row in rows} == {"balance"}


def test_who_left_is_named_by_the_plan_that_goes_without_it(node, told):
    """And a partition that nobody had comes from nobody."""
    node.run(ShardLevel(LEVEL), CreateTopic("t", 2))
    group = Script(node, "g")
    group.hear("m", 0)
    group.hear("n", 0)
    group.assign()
    group.hear("m", -1)
    group.assign()
    found = [(row["from_member_id"], row["to_member_id"], row["reason"]) for row in told("moves")]
    assert found == [(None, "m", "new"), (None, "n", "new"), ("m", "n", "left")]


def test_every_event_of_a_group_is_told_to_a_table_or_left_out_on_purpose():
    """A new one is looked at by a tracker, or stands here."""
    left_out = "PendingAdded PendingRemoved RoundExtended MemberSynced BlobCommitted TopicsNoted"
    names = {event.__name__ for event in get_args(GroupEvent)}
    unseen = names - vars(trackers).keys() - vars(modern_trackers).keys()
    of_waiting = {"MembersBehind", "PartDropped"}  # which moves nothing by itself
    assert unseen == {*left_out.split(), *of_waiting, "GroupConfigChanged"}
