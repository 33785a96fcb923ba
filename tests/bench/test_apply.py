"""What `bench apply` measures is applied: rounds assign everybody, commits are stored."""

import json

from bench import apply


def test_a_round_leaves_every_member_with_its_assignment():
    """Of a round that was refused, or waits for somebody, the cost would be another."""
    replica = apply.Replica()
    assert apply.form(replica, 5) > 0
    group = replica.state.groups[apply.GROUP]
    assert {len(one.assignment) for one in group.members.values()} == {apply.METADATA_BYTES}


def test_commits_of_the_bench_are_stored():
    """The last one stands in each partition."""
    replica = apply.Replica()
    apply.form(replica, 1)
    entries, _ = apply.decoded(apply.commits(replica, 3, 4, 1))
    replica.apply(entries)
    offsets = replica.state.groups[apply.GROUP].offsets
    assert [offsets[apply.TOPIC, p].offset for p in range(3)] == [4, 4, 4]


def test_two_runs_apply_the_same(capsys):
    """The digest tells two builds of the machine apart that differ."""
    digests = []
    for _ in range(2):
        few = ["--commits", "40", "--topics", "3", "--members", "250"]
        assert apply.main(["--rounds", "1", *few]) == 0
        out = capsys.readouterr().out
        assert json.loads(out.splitlines()[-1])["figures"]["commit_20_apply_cpu"]["n"] == 1
        digests.append(out.split("digest ")[1].split(",")[0])
    assert digests[0] == digests[1]


def test_a_hand_over_of_the_bench_is_of_half_of_all_partitions():
    """Each of its commands did what its name says: a member that was refused would cost another."""
    took = apply.hand_over(3, 20)
    assert list(took) == ["grant", "revoke", "release", "heard", "rejoin", "away", "leave"]
    assert min(took.values()) > 0
