"""inv-I1 and inv-I13: what was acknowledged is there."""

from dataclasses import replace

import pytest

from musterd.chaos.check import lost, offsets
from musterd.chaos.history import SUPERSEDED, Key, Logged, Outcome, ShardLog
from tests.chaos.check.made import (
    KEY,
    OTHER,
    S,
    commit,
    delete,
    history,
    only,
    op,
    owns,
    read,
    told,
)


def test_a_later_read_that_answers_the_last_commit_passes_both():
    """The plain case, with what was looked at."""
    made = history(read(-1, 0, 1), commit(5, 2, 3), commit(6, 4, 5), read(6, 6, 7))
    verdict = lost.check_lost(made)
    assert verdict.passed
    assert verdict.looked_at == 1
    assert verdict.note == (
        "0 of 2 acknowledged commits were looked up in the nodes' logs, which are not in this "
        "history"
    )
    assert lost.check_ghosts(made).passed


def test_an_acknowledged_commit_that_a_later_read_does_not_have_is_lost():
    """How many, which one, and who saw it."""
    verdict = lost.check_lost(
        history(commit(5, 0, 1), commit(6, 2, 3), commit(7, 4, 5), read(5, 6, 7, client="r"))
    )
    assert only(verdict) == (
        "g/t/0: acknowledged commit 7 by w (+4.000000 s .. +5.000000 s) is lost "
        "(and 1 acknowledged before it): read 5 by r (+6.000000 s .. +7.000000 s) answered what it "
        "had replaced"
    )


def test_every_lost_commit_counts_once_and_keys_not_read_again_are_apart():
    """More than the violations that are listed: a read that misses two, and many keys."""
    made = history(commit(5, 0, 1), commit(6, 2, 3), commit(7, 4, 5), read(5, 6, 7), read(6, 8, 9))
    assert dict(lost.check_lost(made).counts) == {"lost": 2, "unread": 0, "looked_up": 0}
    unread = history(commit(5, 0, 1), read(5, 2, 3), commit(6, 4, 5))
    assert dict(lost.check_lost(unread).counts) == {"lost": 0, "unread": 1, "looked_up": 0}


def test_each_lost_commit_is_told_once_however_often_it_is_missed():
    """A hundred reads of a partition that lost one commit are one violation."""
    reads = [read(5, at, at + 1) for at in range(10, 20, 2)]
    assert only(lost.check_lost(history(commit(5, 0, 1), commit(6, 2, 3), *reads)))


def test_a_commit_that_is_under_way_may_be_read_or_not():
    """It is not acknowledged when the read begins."""
    under_way = [commit(5, 0, 1), commit(6, 2, 9)]
    for value in (5, 6):
        for ended in (4, 9.5):
            made = history(*under_way, read(value, 3, ended), read(6, 10, 11))
            assert lost.check_lost(made).passed


def test_the_commit_that_began_last_counts_and_not_the_one_that_ended_last():
    """A slow one that was acknowledged later may have been replaced by it."""
    made = history(commit(5, 0, 1), commit(7, 0, 4), commit(6, 2, 3), read(5, 5, 6))
    assert "acknowledged commit 6" in only(lost.check_lost(made))


def test_the_latest_of_two_equal_writes_explains_what_is_read():
    """The one that began first may have taken effect last."""
    resets = [op("reset", 5, 0, 9), op("reset", 5, 1, 2)]
    assert lost.check_lost(history(*resets, commit(6, 3, 4), read(5, 10, 11))).passed


def test_an_unknown_commit_may_have_come_late_and_explains_what_is_read():
    """It was never answered, so it may take effect after later ones."""
    made = history(commit(5, 0, None), commit(6, 2, 3), read(5, 4, 5))
    assert lost.check_lost(made).passed


def test_an_unknown_commit_has_no_effect_once_a_later_generation_is_known():
    """A zombie's, that arrives late; however the generation came to be known."""
    zombie = commit(5, 0, None, member_id="a", generation=1)
    later = commit(6, 2.5, 3, member_id="b", generation=2)
    told_of_it = told(2, "b", 2)
    for made, is_lost in (
        (history(zombie, later, commit(7, 4, 5, generation=2), read(5, 6, 7)), True),
        (history(zombie, later, read(5, 4, 5), generations=[told_of_it]), True),
        (history(zombie, later, read(5, 4, 5), ownerships=[owns("b", 2, 2, None)]), True),
        (history(zombie, replace(later, generation=1), read(5, 4, 5)), False),
        (history(replace(zombie, generation=-1), later, read(5, 4, 5)), False),
    ):
        assert lost.check_lost(made).passed is not is_lost
        assert offsets.check(made).passed is not is_lost


def test_an_unknown_commit_that_began_too_late_had_no_effect_at_all():
    """The generation was over when it was sent."""
    zombie = commit(5, 3, None, member_id="a", generation=1)
    known = history(
        commit(6, 1, 2, generation=2), zombie, commit(7, 4, 5, generation=2), read(5, 6, 7)
    )
    assert not lost.check_lost(known).passed
    assert not offsets.check(known).passed


def test_an_unknown_commit_does_not_follow_a_later_one_of_its_client_that_was_acknowledged():
    """Each has a greater number than the one before; a client without numbers may see it happen."""
    first = commit(5, 0, None, generation=1, numbered=True)
    second = commit(6, 2, 3, generation=1, numbered=True)
    third = commit(7, 4, 5, generation=1, numbered=True)
    for replaced, is_lost in (
        ({}, True),
        ({"numbered": False}, False),
        ({"client": "another"}, False),
        ({"began_ns": 5 * S}, False),
    ):
        made = history(replace(first, **replaced), second, third, read(5, 6, 7))
        assert lost.check_lost(made).passed is not is_lost
        assert offsets.check(made).passed is not is_lost


def test_an_unknown_commit_may_have_taken_effect_until_it_was_overtaken():
    """What a read answers in between is no violation."""
    made = history(
        commit(5, 0, None, member_id="a", generation=1),
        read(5, 1, 2),
        commit(6, 3, 4, member_id="b", generation=2),
        read(6, 5, 6),
    )
    assert lost.check_lost(made).passed
    assert offsets.check(made).passed


def test_a_late_retry_that_was_superseded_explains_nothing_after_its_answer():
    """Its value cannot come back."""
    newer = commit(6, 1, 2, **MEMBERS)
    later = commit(7, 4, 5)
    assert "is lost" in only(lost.check_lost(history(superseded(), newer, later, read(5, 6, 7))))


MEMBERS = {"member_id": "m", "generation": 1, "numbered": True}


def superseded(**fields):
    """A commit of 0 to 3 s that was answered so."""
    return commit(5, 0, 3, **{**MEMBERS, "outcome": Outcome.UNKNOWN, "error": SUPERSEDED, **fields})


NOT_ATTEMPTED = {"outcome": Outcome.FAIL, "error": "OPERATION_NOT_ATTEMPTED"}
FILLER = [commit(1, 20, 21, key=Key("h", "t", 0)), read(1, 22, 23, key=Key("h", "t", 0))]


@pytest.mark.parametrize(
    "newer",
    [
        commit(6, 1, 2, **MEMBERS, outcome=Outcome.UNKNOWN, error="REQUEST_TIMED_OUT"),
        commit(6, 2, None, **MEMBERS),
        commit(6, 2, 9, **MEMBERS, outcome=Outcome.UNKNOWN, error=SUPERSEDED),
    ],
)
def test_a_newer_commit_of_the_member_that_may_have_been_stored_explains_superseded(newer):
    """It was sent before the answer came; whether it was stored need not be known."""
    newest = commit(7, 3, 10, **MEMBERS)  # of the third case
    made = history(superseded(), newer, newest, read(7, 12, 13))
    verdict = lost.check_lost(made)
    assert verdict.passed
    assert "commits were answered as superseded" in verdict.note


@pytest.mark.parametrize(
    "other",
    [
        commit(4, -2, -1, **MEMBERS),
        commit(6, 3, 4, **MEMBERS),
        commit(6, 1, 2, **MEMBERS, outcome=Outcome.FAIL, error="FENCED"),
        commit(6, 1, 2, **MEMBERS, key=OTHER),
        commit(6, 1, 2, **{**MEMBERS, "member_id": "n"}),
        commit(6, 1, 2, **{**MEMBERS, "numbered": False}),
        delete(1, 2),
        op("reset", 3, 1, 2),
    ],
    ids=["older", "too late", "refused", "partition", "member", "no number", "delete", "reset"],
)
def test_a_commit_that_nothing_can_have_overtaken_may_not_be_superseded(other):
    """By the rule of gp-O9: the same member's, at the same partition, with a greater number."""
    told = lost.check_lost(history(superseded(), other, *FILLER))
    (named,) = [one.what for one in told.violations if "superseded" in one.what]
    assert named.startswith(
        "g/t/0: superseded by nothing: no newer commit of its member was sent before the answer to "
        "commit 5 by w"
    )


def test_a_commit_without_a_number_is_never_superseded():
    """Outside of a membership nothing has one (sc-O13)."""
    newer = commit(6, 1, 2, **MEMBERS)
    for fields in ({"numbered": False}, {"generation": -1}):
        made = history(superseded(**fields), newer, read(6, 4, 5))
        assert "superseded by nothing" in only(lost.check_lost(made))


def test_an_atomic_commit_that_nothing_can_have_overtaken_is_told():
    """Nobody knows which of its partitions was superseded, so any of the member's newer excuses it.

    Its own partitions do not, though they are written down one after the other.
    """
    both = [superseded(**NOT_ATTEMPTED), commit(6, 0.1, 3, **MEMBERS, key=OTHER, **NOT_ATTEMPTED)]
    doubtful = [replace(one, outcome=Outcome.UNKNOWN) for one in both]
    for atomic in (both, doubtful):
        assert len(lost.check_lost(history(*atomic, *FILLER)).violations) == 2
        newer = commit(7, 1, 2, **MEMBERS, key=OTHER)
        assert lost.check_lost(history(*atomic, newer, read(7, 4, 5, key=OTHER))).passed


def test_a_delete_or_a_reset_explains_an_older_value():
    """Also one whose outcome is unknown; not a refused one, and not one before the commit."""
    commits = [commit(5, 0, 1), commit(6, 2, 3)]
    reset = op("reset", 5, 4, 5)
    assert lost.check_lost(history(*commits, reset, read(5, 6, 7))).passed
    assert lost.check_lost(history(*commits, delete(4, 5), read(-1, 6, 7))).passed
    assert lost.check_lost(history(*commits, delete(4, None), read(-1, 6, 7))).passed
    refused = delete(4, 5, outcome=Outcome.FAIL)
    assert not lost.check_lost(history(*commits, refused, read(-1, 6, 7))).passed
    before = history(commits[0], delete(1.2, 1.5), commits[1], read(-1, 6, 7))
    assert not lost.check_lost(before).passed
    assert not lost.check_ghosts(before).passed


def test_a_key_that_was_not_read_after_its_last_commit_has_not_passed():
    """Nothing shows that it is there, though another key was read."""
    made = history(
        commit(5, 0, 1),
        read(5, 2, 3),
        commit(6, 4, 5),
        commit(5, 0, 1, key=OTHER),
        read(5, 6, 7, key=OTHER),
    )
    assert only(lost.check_lost(made)) == (
        "1 keys were not read after their last acknowledged commit, so nothing shows that it is "
        "there: g/t/0"
    )


def test_without_an_acknowledged_commit_nothing_was_looked_at():
    """Reads alone prove nothing."""
    made = history(read(-1, 0, 1), commit(5, 2, None))
    assert not lost.check_lost(made).passed
    assert not lost.check_ghosts(made).passed
    assert lost.check_ghosts(made).looked_at == 0


def test_no_offset_after_an_acknowledged_commit_is_a_ghost():
    """The read that says there never was one."""
    assert only(lost.check_ghosts(history(commit(5, 0, 1), read(-1, 2, 3)))) == (
        "g/t/0: read -1 by w (+2.000000 s .. +3.000000 s) answered -1 after "
        "commit 5 by w (+0.000000 s .. +1.000000 s) was acknowledged"
    )


def test_zero_that_nobody_committed_is_a_ghost():
    """Bufstream's; where somebody did commit 0 it is a stale read and no ghost."""
    assert "answered 0 after" in only(lost.check_ghosts(history(commit(5, 0, 1), read(0, 2, 3))))
    stale = history(commit(0, 0, 1), commit(5, 2, 3), read(0, 4, 5))
    assert lost.check_ghosts(stale).passed
    assert not lost.check_lost(stale).passed


def test_keys_are_apart():
    """A delete of one key explains nothing of another."""
    made = history(commit(5, 0, 1, key=KEY), delete(2, 3, key=OTHER), read(-1, 4, 5, key=KEY))
    assert "g/t/0" in only(lost.check_ghosts(made))


def test_an_acknowledged_commit_that_the_logs_do_not_have_is_lost_though_no_read_missed_it():
    """A later commit hid it: reads go by what is stored now."""
    commits = [commit(5, 0, 1), commit(6, 2, 3), commit(7, 4, 5)]
    made = history(*commits, read(7, 6, 7), facts={"shards": 1})
    assert lost.check_lost(made).passed
    made.logged = [Logged(0, KEY, (5, 7))]
    verdict = lost.check_lost(made)
    assert only(verdict) == (
        "g/t/0: acknowledged commit 6 by w (+2.000000 s .. +3.000000 s) is not in the log of shard "
        "0"
    )
    assert dict(verdict.counts) == {"lost": 1, "unread": 0, "looked_up": 2}
    assert verdict.looked_at == 1, "the read; what was looked up is counted apart"
    made.logged = [Logged(0, KEY, (5, 6)), Logged(0, KEY, (7,))]
    verdict = lost.check_lost(made)
    assert verdict.passed
    assert verdict.note == "2 of 3 acknowledged commits were looked up in the nodes' logs"


def test_a_commit_that_reads_and_logs_miss_is_one_lost_commit():
    """Counted once."""
    made = history(commit(5, 0, 1), commit(6, 2, 3), read(5, 4, 5), facts={"shards": 1})
    made.logged = [Logged(0, KEY, (5,))]
    assert lost.check_lost(made).counts["lost"] == 1


def test_of_a_shard_whose_beginning_is_gone_only_what_came_later_is_looked_up():
    """Another key's commit in the same shard's log says how far back that goes."""
    other = Key("h", "t", 0)
    commits = [
        commit(5, 0, 1),
        commit(6, 2, 4, key=other),
        commit(7, 3, 5),
        commit(8, 6, 7),
        commit(9, 8, None),
        commit(10, 8, 9, outcome=Outcome.FAIL),
    ]
    made = history(*commits, read(8, 10, 11), read(6, 10, 11, key=other), facts={"shards": 1})
    made.logged = [Logged(0, other, (6,)), Logged(0, KEY, ())]
    assert "acknowledged commit 8" in only(lost.check_lost(made))
    made.facts["shards"] = 4
    assert lost.check_lost(made).passed


def test_a_log_of_which_nothing_is_missing_has_every_acknowledged_commit():
    """Also those before the first one that it has, and those of a group of which it has none."""
    commits = [commit(5, 0, 1), commit(6, 2, 3), commit(7, 4, 5)]
    made = history(*commits, read(7, 6, 7), facts={"shards": 1})
    for values, missing in (((5, 6, 7), 0), ((7,), 2), ((), 3)):
        made.logged = [Logged(0, KEY, values)] if values else []
        made.logs = [ShardLog(0, 1)]
        verdict = lost.check_lost(made)
        assert len(verdict.violations) == missing
        assert verdict.note == "3 of 3 acknowledged commits were looked up in the nodes' logs"
        made.logs = [ShardLog(0, 9)]
        verdict = lost.check_lost(made)
        assert verdict.passed
        assert verdict.counts["looked_up"] == max(0, len(values) - 1)
