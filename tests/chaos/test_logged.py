"""What a run takes from the tables of a replay: which offsets the nodes' logs have."""

from musterd.chaos.history import Key, Logged, Removal, ShardLog
from musterd.chaos.workloads import replay
from musterd.replay.output import TableWriter
from musterd.replay.tables import Commit, Integrity, MemberSession, Ownership


def commit_row(offset, index, **fields):
    """One stored offset of partition 0 of g/t, in shard 1."""
    row = dict.fromkeys(Commit._fields) | {
        "shard": 1,
        "group": "g",
        "topic": "t",
        "partition": 0,
        "index": index,
        "sub": 0,
        "ts": 0,
        "outcome": "committed",
        "offset": offset,
        "rewind": False,
        "member_id": "",
        "commit_seq": 0,
        **fields,
    }
    return Commit(**row)


def hole(check, last):
    """Entries up to `last` of shard 1 are not there; None: said of one group, again."""
    group = "g" if last is None else None
    return Integrity(check, "ok", 1, group, None, 1, last, "")


def test_the_logs_have_what_was_stored_and_not_what_was_superseded_or_removed(tmp_path):
    """Each key apart; long ones in several lines."""
    with TableWriter(tmp_path) as writer:
        for number in range(replay.LOGGED_MAX + 1):
            writer.write(commit_row(number, 10 + number))
        writer.write(commit_row(7, 9000, partition=1))
        writer.write(commit_row(8, 9001, partition=1, outcome="superseded"))
        writer.write(commit_row(9, 9002, partition=1, outcome="deleted"))
    key, other = Key("g", "t", 0), Key("g", "t", 1)
    first, second, third = replay.read_logged(tmp_path)
    assert first == Logged(1, key, tuple(range(replay.LOGGED_MAX)))
    assert second == Logged(1, key, (replay.LOGGED_MAX,))
    assert third == Logged(1, other, (7,))


def test_what_is_in_front_of_a_hole_says_nothing_of_what_is_behind_it(tmp_path):
    """An acknowledged commit in the hole is not lost."""
    with TableWriter(tmp_path) as writer:
        writer.write(hole("deleted", 3))
        writer.write(hole("gap", 20))
        writer.write(hole("gap", None))
        for index in (2, 10, 20, 21):
            writer.write(commit_row(index, index))
        writer.write(commit_row(1, 1, shard=2, group="h"))
    key, other = Key("g", "t", 0), Key("h", "t", 0)
    assert sorted(replay.read_logged(tmp_path), key=lambda one: one.shard) == [
        Logged(1, key, (21,)),
        Logged(2, other, (1,)),
    ]


def test_it_is_told_of_each_log_from_where_on_it_is_whole(tmp_path):
    """Behind its last hole, or from its first entry on; also where nobody committed."""
    with TableWriter(tmp_path) as writer:
        for shard in (0, 1, 2):
            writer.write(Integrity("fold", "ok", shard, None, None, None, None, ""))
        writer.write(hole("gap", 20))
        writer.write(hole("deleted", 3))
        writer.write(hole("gap", None))
    assert list(replay.read_logs(tmp_path)) == [ShardLog(0, 1), ShardLog(1, 21), ShardLog(2, 1)]


def session_row(member_id, end, last, joined, left=0):
    """One membership in g, in the entries from `joined` to `left`."""
    row = dict.fromkeys(MemberSession._fields, 0) | {
        "group": "g",
        "member_id": member_id,
        "client_id": "",
        "client_host": "",
        "end": end,
        "reason": None,
        "last_generation": last,
        "joined_index": joined,
        "left_index": left,
    }
    return MemberSession(**row)


def grant_row(group, token, index):
    """A partition that somebody was granted in this entry; None: before the log begins."""
    row = dict.fromkeys(Ownership._fields) | {
        "shard": 1,
        "group": group,
        "topic": "t",
        "partition": 0,
        "member_id": "m",
        "token": token,
        "released": "open",
        "from_index": index,
    }
    return Ownership(**row)


def test_a_member_that_its_group_removed_is_told_with_its_last_generation(tmp_path):
    """Not one that left, nor one that came back under its id, nor one that was in no generation."""
    sessions = [
        ("slow", "not_rejoined", 4, 1),
        ("gone", "left", 4, 1),
        ("back", "session_expired", 4, 1),
        ("back", "open", 6, 9),
        ("early", "session_expired", None, 1),
    ]
    with TableWriter(tmp_path) as writer:
        for row in sessions:
            writer.write(session_row(*row))
        writer.write(grant_row("g", 99, None))
    assert [*replay.read_removals(tmp_path)] == [Removal("g", "slow", None, generation=4)]


def test_a_removed_member_of_a_modern_group_is_told_with_the_tokens_of_before(tmp_path):
    """What the entry that removed it granted to others came after it; epochs are no order."""
    with TableWriter(tmp_path) as writer:
        writer.write(session_row("slow", "not_released", 70, 1, left=30))
        writer.write(session_row("late", "not_back", 70, 1, left=9))
        for group, token, index in (
            *(("g", 3, None), ("g", 5, 10), ("g", 7, 29), ("g", 8, 30), ("g", 9, 31)),
            ("h", 6, 20),
        ):
            writer.write(grant_row(group, token, index))
    assert [*replay.read_removals(tmp_path, {"g"})] == [
        Removal("g", "slow", None, generation=7),
        Removal("g", "late", None, generation=3),
    ]
