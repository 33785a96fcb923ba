"""inv-I3 to inv-I6, inv-I8, inv-I9: generations, owners and their tokens."""

from dataclasses import replace

import pytest

from musterd.chaos.check import cooperative, fences, generations, owned_again, owners, tokens
from musterd.chaos.history import FaultSpan, Key, Members, Outcome, Removal, StaleJoin
from tests.chaos.check.made import (
    KEY,
    OTHER,
    S,
    commit,
    expected,
    history,
    only,
    op,
    owns,
    read,
    told,
)

# -- inv-I3


def test_generations_that_rise_with_one_set_each_pass():
    """Told late is told: only what was asked for afterwards must be newer."""
    made = history(
        generations=[
            told(1, "ab", 1),
            told(2, "abc", 3),
            told(2, "abc", 3, source="c"),
            told(1, "b", 4, source="b", whole=False, asked_ns=0),
            told(2, "b", 5, source="b", whole=False, asked_ns=4 * S),
        ]
    )
    verdict = generations.check(made)
    assert verdict.passed
    assert verdict.looked_at == 5


def test_two_member_sets_of_one_generation_are_told():
    """The number was used twice."""
    made = history(
        generations=[told(1, "a", 0), told(2, "ab", 1), told(2, "ac", 2, source="node-1")]
    )
    assert only(generations.check(made)) == (
        "g: generation 2 has two member sets: [a, b] told to node-0 at +1.000000 s, and "
        "[a, c] told to node-1 at +2.000000 s"
    )


def test_a_member_that_is_in_no_set_of_its_generation_is_told():
    """Its generation is not that of the others."""
    made = history(
        generations=[told(1, "a", 0), told(2, "ab", 1), told(2, "c", 2, source="c", whole=False)]
    )
    assert only(generations.check(made)) == (
        "g: c was told at +2.000000 s that it is in generation 2, whose members are [a, b]"
    )


def test_a_generation_that_falls_for_one_source_is_told():
    """As after a restart without the floor."""
    made = history(generations=[told(7, "a", 0), told(1, "a", 1)])
    assert only(generations.check(made)) == (
        "g: node-0 was told of generation 1 at +1.000000 s, after generation 7 at +0.000000 s"
    )


def test_an_old_generation_for_who_asked_after_a_newer_one_was_told_is_told():
    """Also where no source saw both."""
    made = history(
        generations=[
            told(7, "a", 1, source="a"),
            told(6, "b", 3, source="b", asked_ns=2 * S),
        ]
    )
    assert only(generations.check(made)) == (
        "g: b asked at +1.000000 s and was told of generation 6, after a had been told of "
        "generation 7 at +0.000000 s"
    )


def test_two_members_of_one_process_may_hear_of_generations_in_any_order():
    """And groups count for themselves."""
    made = history(
        generations=[
            told(2, "a", 1, source="p", whole=False),
            told(1, "b", 2, source="p", whole=False),
            told(1, "a", 3, source="p", whole=False, group="other"),
        ]
    )
    assert generations.check(made).passed


def test_one_generation_alone_shows_nothing():
    """It cannot rise."""
    assert not generations.check(history(generations=[told(1, "a", 0)])).passed


# -- inv-I4


def test_a_partition_that_is_handed_over_passes():
    """The new owner begins when the old one has ended; a kept one lasts over generations."""
    made = history(
        ownerships=[owns("a", 1, 0, 5), owns("b", 2, 5, None), owns("a", 1, 0, None, key=OTHER)]
    )
    verdict = owners.check(made)
    assert verdict.passed
    assert verdict.looked_at == 3
    assert verdict.note == ""


def test_two_owners_in_one_generation_are_told_even_one_after_the_other():
    """The assignment itself was wrong, or the number was used twice."""
    made = history(ownerships=[owns("a", 2, 0, 1), owns("b", 2, 3, 4)])
    assert only(owners.check(made)).startswith(
        "g/t/0: two owners in generation 2: a of client-a owned it (generation 2, +0.000000 s .. "
    )


def test_a_live_owner_that_overlaps_with_the_next_one_is_told():
    """It gave the partition up in good order, and too late."""
    made = history(ownerships=[owns("a", 1, 0, 6), owns("b", 2, 5, 9)], expected=[expected()])
    assert only(owners.check(made)) == (
        "g/t/0: b of client-b owned it (generation 2, +5.000000 s .. +9.000000 s, revoked) while "
        "a of client-a owned it (generation 1, +0.000000 s .. +6.000000 s, revoked), and it was in "
        "the group: both worked for 1.000 s"
    )


def test_an_overlap_is_one_in_the_order_of_generations():
    """The older owner was told late, after the newer one had begun."""
    made = history(ownerships=[owns("a", 1, 3, 6), owns("b", 2, 2, 9)])
    assert "while a of client-a" in only(owners.check(made))


@pytest.mark.parametrize("ended", ["lost", "died"])
def test_a_zombie_is_counted_and_not_told(ended):
    """It had been removed, and learnt it late, or never."""
    made = history(ownerships=[owns("a", 1, 0, 8, ended=ended), owns("b", 2, 5, 9)])
    verdict = owners.check(made)
    assert verdict.passed
    assert verdict.note == (
        "1 overlaps with owners that had been removed and were not told yet, the longest of 3.000 "
        "s; of 1 the older owner alone says so"
    )


@pytest.mark.parametrize("ended", ["lost", "died"])
def test_a_member_of_the_newer_generation_is_no_zombie_however_it_ended(ended):
    """It was listed when another got what it still held; its end came later and excuses nothing."""
    both = [told(2, "ab", 4)]
    made = history(ownerships=[owns("a", 1, 0, 8, ended=ended), owns("b", 2, 5, 9)])
    assert owners.check(made).passed
    made.generations += both
    assert "both worked for 3.000 s" in only(owners.check(made))


def test_an_instance_that_was_replaced_may_be_a_zombie_under_its_own_name():
    """The one that the generation has may be another process."""
    older = owns("a", 1, 0, 8, ended="lost", instance_id="a")
    made = history(ownerships=[older, owns("b", 2, 5, 9)])
    made.generations.append(told(2, ("instance:a", "b"), 4))
    assert owners.check(made).passed


def test_who_is_not_in_the_new_generation_had_been_removed():
    """Also where it then left in good order, unaware of it."""
    ownerships = [owns("a", 1, 0, 8, ended="left"), owns("b", 3, 5, 9)]
    for generation, members, passes in [(2, "b", True), (2, "ab", False), (4, "b", False)]:
        made = history(ownerships=ownerships, generations=[told(generation, members, 4)])
        assert owners.check(made).passed is passes


def test_who_gives_up_for_longer_than_the_rebalance_timeout_is_removed():
    """Slow handlers (chaos-W6): 4 s are allowed."""
    late = replace(owns("a", 1, 0, 8), revoking_ns=3 * S)
    in_time = replace(owns("a", 1, 0, 8), revoking_ns=5 * S)
    newer = owns("b", 2, 7, 9)
    assert owners.check(history(ownerships=[late, newer], expected=[expected()])).passed
    assert not owners.check(history(ownerships=[in_time, newer], expected=[expected()])).passed
    assert not owners.check(history(ownerships=[late, newer])).passed


def test_who_was_refused_as_no_member_had_been_removed():
    """Before the newer owner got the partition; afterwards proves nothing of that moment."""
    ownerships = [owns("a", 1, 0, 8), owns("b", 2, 5, 9)]
    for ended, passes in [(5, True), (6, False)]:
        refused = commit(
            1, 4, ended, member_id="a", outcome=Outcome.FAIL, error="UNKNOWN_MEMBER_ID"
        )
        assert owners.check(history(refused, ownerships=ownerships)).passed is passes


def test_a_zombie_that_is_never_told_is_told():
    """15 s after the newer owner began a live process knows."""
    ownerships = [owns("a", 1, 0, None), owns("b", 2, 5, None)]
    members = [told(2, "b", 4)]
    for end, passes in [(19, True), (21, False)]:
        made = history(
            ownerships=ownerships,
            generations=members,
            expected=[expected()],
            facts={"ended_ns": end * S},
        )
        assert owners.check(made).passed is passes
    assert "to the end, and was not told that b of client-b" in only(owners.check(made))


def test_a_static_member_that_comes_back_is_the_same_owner():
    """Another process, another member id, one instance."""
    made = history(
        ownerships=[
            owns("a1", 1, 0, 5, ended="died", instance_id="i"),
            owns("a2", 1, 4, None, instance_id="i"),
        ]
    )
    assert owners.check(made).passed


def two_of_one(ended="lost", until=8, token=2):
    """Two processes of one static member in one generation, of which the first stood still."""
    return [
        owns("a1", 1, 0, until, ended, instance_id="i", token=1),
        owns("a2", 1, 4, None, instance_id="i", token=token),
    ]


@pytest.mark.parametrize("ended", ["lost", "revoked"])
def test_the_process_that_was_replaced_is_a_zombie(ended):
    """The group gives an instance to one process at a time: the older one was removed."""
    verdict = owners.check(history(ownerships=two_of_one(ended)))
    assert verdict.passed
    assert "1 overlaps with owners that had been removed" in verdict.note
    third = owns("b", 2, 6, None, token=3)
    assert owners.check(history(ownerships=[*two_of_one(ended)[:1], third])).passed is (
        ended == "lost"
    )
    replaced = [*two_of_one(ended)[:1], replace(two_of_one()[1], until_ns=5 * S, ended="revoked")]
    assert owners.check(history(ownerships=[*replaced, third])).passed


def test_a_replaced_process_that_is_never_told_is_told():
    """15 s after the newer one began a live process knows."""
    for end, passes in [(18, True), (20, False)]:
        made = history(
            ownerships=two_of_one(until=None), expected=[expected()], facts={"ended_ns": end * S}
        )
        assert owners.check(made).passed is passes


def test_two_processes_of_one_member_under_one_token_are_told():
    """One instance in one generation, and still two owners: they are processes."""
    made = history(ownerships=two_of_one(token=1))
    assert "two owners in generation 1: instance:i of client-a1" in only(owners.check(made))
    assert only(fences.check(made)) == (
        "g/t/0: two owners under one token: a1 of client-a1 had token 1 (generation 1, "
        "+0.000000 s .. +8.000000 s), and a2 of client-a2 had token 1 (generation 1, "
        "+4.000000 s .. open)"
    )


def test_without_ownerships_nothing_was_looked_at():
    """It has not passed."""
    assert not owners.check(history()).passed


# -- inv-I5


def test_tokens_that_rise_with_generation_and_process_pass():
    """Who hears of its generation late has the token of that one."""
    late = owns("b", 2, 9, None, token=3)
    verdict = fences.check(history(ownerships=[*two_of_one(), owns("c", 3, 8, 9, token=4), late]))
    assert verdict.passed
    assert verdict.looked_at == 4


def test_a_token_that_fell_is_told():
    """From generation to generation, and of one process."""
    made = history(ownerships=[*two_of_one(), owns("c", 2, 9, None, token=1)])
    told_of = [one.what for one in fences.check(made).violations]
    assert any("the token fell: c of client-c had token 1 (generation 2" in one for one in told_of)
    again = history(ownerships=[owns("c", 2, 3, None, token=4), owns("c", 3, 5, None, token=3)])
    assert "the token fell" in fences.check(again).violations[0].what


def test_ownerships_without_a_token_are_not_looked_at():
    """As in histories from before: what proves nothing has not passed."""
    assert not fences.check(history(ownerships=[owns("a", 1, 0, None)])).passed


# -- inv-I6


def test_a_commit_under_an_earlier_token_after_a_later_one_is_told():
    """In one generation, where the member is the same and the process another."""
    for began, who, passes in [(3, "a1", True), (5, "a1", False), (5, "a2", True)]:
        late = commit(7, began, began + 1, member_id=who, generation=1, token=1)
        verdict = tokens.check(history(late, ownerships=two_of_one()))
        assert verdict.passed is passes
        assert passes or "although a2 of client-a2 had token 2" in only(verdict)


def test_commits_under_rising_generations_pass():
    """One of the older generation that was under way is no violation."""
    made = history(
        commit(5, 0, 3, generation=1), commit(6, 1, 2, generation=2), read(6, 4, 5), commit(7, 4, 5)
    )
    verdict = tokens.check(made)
    assert verdict.passed
    assert verdict.looked_at == 2


def test_an_older_generation_that_is_accepted_after_a_newer_one_is_told():
    """Another partition of the group does not matter: the token is the group's."""
    made = history(commit(5, 0, 1, generation=2, key=OTHER), commit(6, 2, 3, generation=1))
    assert only(tokens.check(made)) == (
        "g/t/0: accepted commit 6 by w (+2.000000 s .. +3.000000 s, generation 1), although "
        "generation 2 was known at +1.000000 s: "
        "commit 5 by w (+0.000000 s .. +1.000000 s, generation 2)"
    )


def test_a_generation_is_known_when_a_member_was_told_of_it():
    """By its assignment, or by its first partition."""
    late = commit(6, 2, 3, generation=1)
    assert "a was told of it" in only(
        tokens.check(history(late, generations=[told(2, "a", 1, source="a")]))
    )
    assert "client-a was told that it owns g/t/0 in it" in only(
        tokens.check(history(late, ownerships=[owns("a", 2, 1, None)]))
    )


def test_a_later_generation_stays_known_when_an_earlier_one_is_heard_of_again():
    """A commit that was under way is acknowledged in between."""
    made = history(
        commit(5, 0, 1, generation=2),
        commit(6, 0, 2, generation=1),
        commit(7, 3, 4, generation=1),
    )
    assert "accepted commit 7" in only(tokens.check(made))


def beat(generation, began, ended, **fields):
    """A heartbeat in a generation."""
    group = Key("g", "", -1)
    return op("heartbeat", None, began, ended, generation=generation, key=group, **fields)


def test_a_heartbeat_in_a_generation_that_is_over_is_told():
    """As of a zombie that nobody has told; a coordinator may be deposed for 1.4 s and not know."""
    news = told(2, "a", 1, source="a")
    late = beat(1, 2.401, 3, node=1)
    assert only(tokens.check(history(late, generations=[news]))) == (
        "g: accepted heartbeat by w (+1.401000 s .. +2.000000 s, generation 1, node-1), although "
        "generation 2 was known at +0.000000 s: a was told of it"
    )
    for passes in (beat(1, 2.4, 3), beat(2, 9, 10), beat(3, 9, 10)):
        assert not tokens.check(history(passes, generations=[news])).violations


def test_heartbeats_that_are_refused_for_their_generation_are_looked_at():
    """Else a run without commits of members would show nothing of the fence."""
    news = told(2, "a", 1, source="a")
    refused = beat(1, 5, 6, outcome=Outcome.FAIL, error="ILLEGAL_GENERATION")
    verdict = tokens.check(history(refused, beat(1, 7, None), generations=[news]))
    assert verdict.passed
    assert verdict.looked_at == 2
    assert tokens.check(history(beat(2, 5, 6), generations=[news])).looked_at == 0


def test_refused_and_unknown_commits_are_no_proof():
    """Neither of a newer generation, nor of a broken fence."""
    made = history(
        commit(5, 0, 1, generation=2, outcome=Outcome.FAIL),
        commit(6, 0, None, generation=2),
        commit(7, 2, 3, generation=1),
        commit(8, 4, 5, generation=0, outcome=Outcome.FAIL),
    )
    assert tokens.check(made).passed


# -- inv-I8

FAULT = FaultSpan("kill", ("node-0",), 1 * S, 10 * S, quorum=True)
"""Session 6 s + rebalance 4 s + 5 s: owned from +25 s."""


def quiet(*ownerships, ends=40, left_alone=False, **fields):
    """A history with a fault that was healed at 10 s."""
    facts = {"ended_ns": ends * S, **fields}
    return history(
        read(-1, 0, 1),
        ownerships=list(ownerships),
        faults=[FAULT],
        expected=[expected(left_alone=left_alone)],
        facts=facts,
    )


def test_owned_within_the_time_and_to_the_end_passes():
    """By one owner after the other without a gap."""
    verdict = owned_again.check(quiet(owns("a", 1, 24, 30), owns("b", 2, 30, None)))
    assert verdict.passed
    assert verdict.looked_at == 1


@pytest.mark.parametrize(
    ("ownerships", "says"),
    [
        ([], "nobody owned it at +25.000000 s, nobody ever did"),
        ([("a", 1, 26, None)], "nobody owned it at +25.000000 s, nobody ever did"),
        ([("a", 1, 0, 9)], "its last owner stopped at +9.000000 s"),
        ([("a", 1, 0, 30), ("b", 2, 31, None)], "nobody owned it at +30.000000 s"),
    ],
)
def test_a_partition_that_nobody_owns_is_told(ownerships, says):
    """Never, late, no more, or with a gap."""
    what = only(owned_again.check(quiet(*(owns(*one) for one in ownerships))))
    assert says in what
    assert what.endswith("all was quiet from +10.000000 s, and 15 s are allowed")


def test_the_time_counts_from_when_all_was_quiet():
    """Churn that goes on after the last fault moves the deadline."""
    late = owns("a", 1, 28, None)
    assert owned_again.check(quiet(late, quiet_from_ns=14 * S)).passed
    assert not owned_again.check(quiet(late)).passed


def test_of_members_that_are_left_alone_the_time_counts_from_the_heal():
    """Whatever the other workloads still do, and however long the run waits for the cluster."""
    late = owns("a", 1, 28, None)
    assert not owned_again.check(quiet(late, quiet_from_ns=14 * S, left_alone=True)).passed
    assert owned_again.check(quiet(owns("a", 1, 24, None), left_alone=True)).passed


def test_a_run_that_ends_too_early_shows_what_is_owned_and_nothing_of_the_rest():
    """Not owned yet is not judged, and not passed."""
    assert owned_again.check(quiet(owns("a", 1, 12, None), ends=20)).passed
    for ownerships in ([], [owns("a", 1, 0, 20)], [owns("a", 1, 0, 19)]):
        early = owned_again.check(quiet(*ownerships, ends=20))
        assert not early.violations
        assert not early.passed
        assert "too early to judge" in early.note


def test_without_expected_groups_nothing_is_shown():
    """And the note says what is missing."""
    verdict = owned_again.check(history(ownerships=[owns("a", 1, 0, None)]))
    assert not verdict.passed
    assert verdict.note == "no group is named that was to have members at the end"
    assert owned_again.check(history(expected=[expected(lasting=False)])).note == verdict.note


def test_a_fact_that_is_no_time_is_an_error():
    """A wrong set-up is not judged."""
    with pytest.raises(ValueError, match="the fact ended_ns is no time"):
        owned_again.check(history(expected=[expected()], facts={"ended_ns": "soon"}))


# -- inv-I9


def assigned(generation, at, *keys, member="a"):
    """What one member was told that it owns."""
    return told(generation, (member,), at, source=member, whole=False, assigned=keys)


def cooperating(*ownerships, generations=()):
    """A cooperative group."""
    return history(
        ownerships=list(ownerships),
        generations=list(generations),
        expected=[expected(cooperative=True)],
    )


def test_a_partition_that_moves_is_revoked_and_that_passes():
    """By who owns it next, or by what the member was told."""
    moved = cooperating(owns("a", 1, 0, 5), owns("b", 3, 6, None))
    reduced = cooperating(owns("a", 1, 0, 5), generations=[assigned(1, 0, KEY), assigned(2, 6)])
    for made in (moved, reduced):
        verdict = cooperative.check(made)
        assert verdict.passed
        assert verdict.looked_at == 1


def test_a_partition_that_is_revoked_and_still_there_in_the_next_generation_is_told():
    """As an eager member does."""
    made = cooperating(
        owns("a", 1, 0, 5),
        owns("a", 2, 6, None),
        generations=[assigned(1, 0, KEY), assigned(2, 6, KEY)],
    )
    assert only(cooperative.check(made)) == (
        "g/t/0: a was asked at +5.000000 s to give it up, and has it in generation 1 and again in "
        "2, the next one"
    )


def test_a_partition_that_comes_back_to_the_same_members_is_told():
    """It was taken away for nothing; with other members it may come back."""
    ownerships = [owns("a", 1, 0, 5), owns("a", 3, 6, None)]
    same = cooperating(*ownerships, generations=[told(2, "ab", 3), told(3, "ab", 6)])
    other = cooperating(*ownerships, generations=[told(2, "ab", 3), told(3, "a", 6)])
    assert "got it back in generation 3, though nobody had come or gone" in only(
        cooperative.check(same)
    )
    assert cooperative.check(other).passed


def test_a_partition_that_comes_back_after_somebody_went_passes():
    """In a generation between, or removed and back under the same name, as static members are."""
    ownerships = [owns("a", 1, 0, 5), owns("a", 4, 9, None)]
    between = cooperating(
        *ownerships, generations=[told(2, "ab", 3), told(3, "a", 6), told(4, "a", 8)]
    )
    formed = [told(2, "ab", 3), told(3, "ab", 6), told(4, "ab", 8)]
    removed = cooperating(*ownerships, generations=formed)
    removed.removals.append(Removal("g", "m-b", 7 * S))
    assert cooperative.check(between).passed
    assert cooperative.check(removed).passed
    removed.removals[0] = Removal("g", "m-b", 4 * S)
    assert "got it back in generation 4" in only(cooperative.check(removed))


def test_an_eager_group_is_not_looked_at_and_too_little_is_not_passed():
    """Notes say so."""
    eager = history(ownerships=[owns("a", 1, 0, 5)], expected=[expected()])
    assert cooperative.check(eager).note == "no cooperative group is named"
    little = cooperative.check(cooperating(owns("a", 1, 0, 5), owns("a", 3, 6, None)))
    assert not little.passed
    assert "1 revoked partitions cannot be judged" in little.note


# -- what logs know


def test_who_the_log_has_removed_is_a_zombie_and_may_not_commit():
    """inv-I4 allows the overlap, inv-I6 no commit that was sent while it was removed."""
    owned = [owns("a", 1, 0, 8), owns("b", 2, 5, 9)]
    for span, passes in (((4, None), True), ((6, None), False), ((3, 4), False)):
        from_s, until_s = span
        removal = Removal("g", "a", from_s * S, until_s and until_s * S)
        assert owners.check(history(ownerships=owned, removals=[removal])).passed is passes
        sent = commit(7, 5, 6, member_id="a", generation=1)
        found = tokens.check(history(sent, removals=[removal])).violations
        assert [one.what.endswith("of a, which had been removed") for one in found] == [True] * (
            span == (4, None)
        )


@pytest.mark.parametrize("ended", ["revoked", "left"])
def test_who_an_exported_log_has_removed_before_the_newer_owner_is_a_zombie(ended):
    """Slow, and unaware of it (inv-I4); removed only later, or never, it was live."""
    made = history(ownerships=[owns("a", 1, 0, 8, ended=ended), owns("b", 3, 5, 9)])
    for removals, passes in (([], False), ([1], True), ([2], True), ([3], False)):
        made.removals = [Removal("g", "a", None, generation=last) for last in removals]
        verdict = owners.check(made)
        assert verdict.passed is passes
        assert ("of 0 the older owner alone says so" in verdict.note) is passes


@pytest.mark.parametrize(("last", "passes"), [(None, False), (4, True), (6, True), (7, False)])
def test_who_a_modern_group_removed_before_the_newer_owners_grant_is_a_zombie(last, passes):
    """By tokens (inv-I4): members of one group have any epochs, and others' rise without that."""
    owned = [owns("a", 4, 0, 8, token=4), owns("b", 7, 5, 9, token=7)]
    sent = commit(1, 1, 2, member_id="b", generation=90, token=0)
    epoch = told(90, "b", 1, source="client-b", whole=False)
    lists = {"ownerships": owned, "generations": [epoch], "expected": [expected(modern=True)]}
    made = history(sent, **lists)
    made.removals = [] if last is None else [Removal("g", "a", None, generation=last)]
    assert owners.check(made).passed is passes


@pytest.mark.parametrize(
    ("former_s", "asked_s", "passes"), [(4, 6, True), (3, 4, True), (5, 6, False), (6, 7, False)]
)
def test_who_a_modern_group_does_not_name_when_it_is_asked_next_is_a_zombie(
    former_s, asked_s, passes
):
    """No log says so where a run was cut (inv-I4); a member that is named then was live."""
    owned = [owns("a", 4, 0, 8, ended="left", token=4), owns("b", 7, 5, 9, token=7)]
    named = [Members("g", ("a", "b"), 1 * S), Members("g", ("b",), asked_s * S, former_s * S)]
    made = history(ownerships=owned, members=named, expected=[expected(modern=True)])
    assert owners.check(made).passed is passes
    made.members = []
    assert not owners.check(made).passed


def test_who_a_modern_group_removed_commits_nothing_after_a_later_token_was_known():
    """inv-I6: and before that nobody can say that it had been removed, whatever others' epochs."""
    owned = [owns("a", 4, 0, 20, token=4), owns("b", 7, 9, 20, key=OTHER, token=7)]
    epoch = told(90, "b", 1, source="client-b", whole=False)
    early = commit(1, 5, 6, member_id="a", generation=3, token=4)
    late = commit(2, 10, 11, member_id="a", generation=3, token=4)
    lists = {"ownerships": owned, "generations": [epoch], "expected": [expected(modern=True)]}
    made = history(early, late, removals=[Removal("g", "a", None, generation=6)], **lists)
    assert "commit 2 by w" in only(tokens.check(made))
    assert only(tokens.check(made)).endswith("of a, which had been removed")


@pytest.mark.parametrize(("generation", "passes"), [(2, True), (3, False)])
def test_a_join_that_came_again_excuses_the_overlap_that_it_brought_about(generation, passes):
    """inv-I4: of that owner, and by that generation alone."""
    owned = [owns("a", 1, 0, 8), owns("b", 2, 5, 9)]
    made = history(ownerships=owned, stale_joins=[StaleJoin(KEY, "a", generation)])
    assert owners.check(made).passed is passes
