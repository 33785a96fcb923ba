"""Three drivers over memory stores: they elect, commit, survive."""

from musterd.raft.contract import ENTRY_BYTES_MAX, Applied, NotLeader, Overloaded, Role, Unknown
from musterd.raft.settings import RaftSettings
from tests.raft.memory_cluster import MemoryCluster, Recorder


def test_three_nodes_elect_one_leader_and_apply_the_same_entries_everywhere():
    """Whatever is acknowledged is applied on all three in the same order."""
    cluster = MemoryCluster()
    cluster.commit([b"a", b"b", b"c"])
    cluster.run(cluster.converged)
    assert [cluster.applied(n) for n in range(3)] == [[b"a", b"b", b"c"]] * 3
    assert sum(node.driver.replicas[0].leads for node in cluster.nodes) == 1


def test_after_the_leader_loses_power_the_others_go_on_with_everything_acknowledged():
    """A crash loses what was not synced; nothing acknowledged is among it."""
    cluster = MemoryCluster()
    cluster.commit([b"%d" % i for i in range(20)])
    dead = cluster.leader().number
    cluster.crash(dead)
    cluster.wait_leader(other_than=dead)
    cluster.commit([b"after"])
    cluster.restart(dead)
    cluster.run(cluster.converged)
    expected = [b"%d" % i for i in range(20)] + [b"after"]
    assert [cluster.applied(n) for n in range(3)] == [expected] * 3


def test_a_broken_connection_elects_a_new_leader_within_a_quarter_second():
    """No election time-out passes: the break itself is the silence."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    dead = cluster.leader().number
    cluster.crash(dead)
    lost_at = cluster.now
    cluster.wait_leader(other_than=dead)
    assert cluster.now - lost_at < 0.25


def test_a_cluster_of_one_commits_only_what_is_synced():
    """With the disk frozen nothing is acknowledged; with the disk back, everything is."""
    cluster = MemoryCluster(nodes=1)
    cluster.commit([b"a"])
    cluster.frozen_disks.add(0)
    outcomes = []
    cluster.replica(0).propose(b"b", outcomes.append)
    cluster.run_for(1.0)
    assert outcomes == []
    cluster.frozen_disks.clear()
    cluster.run(lambda: outcomes)
    assert isinstance(outcomes[0], Applied)


def test_a_read_is_confirmed_by_a_round_that_began_after_it():
    """An isolated leader confirms no read; one in touch with a majority does."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    leader = cluster.leader()
    answers = []
    cluster.replica(leader.number).read_index(answers.append)
    cluster.run(lambda: answers)
    assert answers == [True]
    for other in cluster.ids:
        if other != leader.number:
            cluster.cut.add(frozenset((leader.number, other)))
    answers.clear()
    cluster.replica(leader.number).read_index(answers.append)
    cluster.run(lambda: answers)
    assert answers == [False]
    assert cluster.replica(leader.number).role is not Role.LEADER


def test_leadership_is_handed_over_on_request_and_proposals_go_to_the_new_leader():
    """A transfer takes no election time-out and loses nothing."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    old = cluster.leader().number
    target = next(n for n in cluster.ids if n != old)
    asked_at = cluster.now
    assert cluster.replica(old).transfer_leadership(target)
    cluster.run(lambda: cluster.replica(target).ready)
    assert cluster.now - asked_at < 0.2
    cluster.commit([b"y"])
    cluster.run(cluster.converged)
    assert cluster.applied(0) == [b"x", b"y"]


def test_a_deposed_leader_never_names_itself_as_the_leader_of_the_later_term():
    """What callers are told while it steps down: nobody, until the new leader is heard."""
    cluster = MemoryCluster(machine=_Witness)
    cluster.commit([b"x"])
    old = cluster.leader().number
    machine = cluster.nodes[old].machines[0]
    machine.replica, machine.number = cluster.replica(old), old
    target = next(n for n in cluster.ids if n != old)
    term = cluster.replica(old).term
    assert cluster.replica(old).transfer_leadership(target)
    cluster.run(lambda: cluster.replica(target).ready)
    assert machine.named == [(term + 1, None)]


class _Witness(Recorder):
    """Notes whom its replica names when it stops leading."""

    replica = None

    def __init__(self):
        super().__init__()
        self.named = []

    def role_changed(self, role, term):
        super().role_changed(role, term)
        if self.replica is not None and role is not Role.LEADER:
            self.named.append((self.replica.term, self.replica.leader))


def leaders(cluster, shards):
    """The leaders of the shards that have one, in shard order."""
    return [cluster.leader(shard).number for shard in range(shards) if cluster.leader(shard)]


def test_after_a_start_each_shard_is_led_by_the_node_it_belongs_to():
    """The preferred leader asks first."""
    cluster = MemoryCluster(shards=6)
    cluster.run(lambda: len(leaders(cluster, 6)) == 6)
    assert leaders(cluster, 6) == [0, 1, 2, 0, 1, 2]


def test_leadership_goes_back_to_the_preferred_node_once_it_has_been_well_for_ten_seconds():
    """At most four shards in five seconds, and nothing is lost on the way."""
    cluster = MemoryCluster(shards=18)
    cluster.run(lambda: len(leaders(cluster, 18)) == 18)
    cluster.crash(1)
    cluster.run(lambda: len(leaders(cluster, 18)) == 18)
    cluster.restart(1)
    back_at = cluster.now
    cluster.run_for(8.0)
    assert 1 not in leaders(cluster, 18)
    cluster.run(lambda: leaders(cluster, 18) == [0, 1, 2] * 6, limit_s=30)
    assert cluster.now - back_at > 10.0
    for shard in range(18):
        assert isinstance(cluster.propose(b"x", shard), Applied)


def test_a_stalled_disk_on_both_followers_deposes_nobody():
    """Heartbeats are answered with what is durable; only acknowledgements wait."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    leader = cluster.leader()
    term = leader.driver.replicas[0].term
    cluster.frozen_disks.update(n for n in cluster.ids if n != leader.number)
    outcomes, reads = [], []
    leader.driver.replicas[0].propose(b"y", outcomes.append)
    cluster.run_for(2.0)
    assert outcomes == []
    leader.driver.replicas[0].read_index(reads.append)
    cluster.run(lambda: reads, limit_s=0.3)
    assert reads == [True]
    assert (leader.driver.replicas[0].term, leader.driver.replicas[0].leads) == (term, True)
    cluster.frozen_disks.clear()
    cluster.run(lambda: outcomes)
    assert isinstance(outcomes[0], Applied)


def test_a_write_stall_of_the_database_holds_everything_back_and_loses_nothing():
    """No message of an epoch that is not written leaves, a leader's appends included."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    leader = cluster.leader()
    leader.store.stall_writes = 50
    outcomes = []
    leader.driver.replicas[0].propose(b"y", outcomes.append)
    follower = next(n for n in cluster.ids if n != leader.number)
    for _ in range(40):
        cluster.step()
        assert cluster.replica(follower).last_index < leader.driver.replicas[0].last_index
    assert leader.driver.stats.write_stalls >= 40
    cluster.run(lambda: outcomes)
    assert isinstance(outcomes[0], Applied)


def test_an_isolated_leader_stops_claiming_a_quorum_after_a_tenth_of_a_second():
    """Broken control connections to a majority count at once, silence after 0.4 s."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    leader = cluster.leader()
    replica = leader.driver.replicas[0]
    assert replica.quorum_heard
    for other in cluster.ids:
        if other != leader.number:
            cluster.disconnect(leader.number, other)
    cluster.run_for(0.09)
    assert replica.quorum_heard
    cluster.run_for(0.02)
    assert not replica.quorum_heard


def test_proposals_are_refused_beyond_the_limits_and_accepted_again_later():
    """An entry that is too long, and more than may wait, are Overloaded, not lost."""
    cluster = MemoryCluster(settings=RaftSettings(waiting_entries=10))
    cluster.commit([b"x"])
    outcomes, propose = [], cluster.leader().driver.replicas[0].propose
    propose(b"x" * ENTRY_BYTES_MAX, outcomes.append)
    for _ in range(12):
        propose(b"y", outcomes.append)
    assert [type(outcome) for outcome in outcomes] == [Overloaded] * 3
    cluster.run(lambda: len(outcomes) == 13)
    assert all(isinstance(outcome, Applied) for outcome in outcomes[3:])
    cluster.commit([b"again"])


def test_a_follower_refuses_a_proposal_with_the_leader_as_hint_and_without_appending():
    """Nothing is forwarded."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    cluster.run(cluster.converged)
    leader = cluster.leader().number
    follower = next(n for n in cluster.ids if n != leader)
    before = cluster.replica(follower).last_index
    outcomes = []
    cluster.replica(follower).propose(b"y", outcomes.append)
    assert outcomes == [NotLeader(leader)]
    assert cluster.replica(follower).last_index == before


def test_what_waits_when_leadership_is_lost_has_an_unknown_outcome_before_the_role_is_told():
    """The order lets the shard answer its callers while it still knows them."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    leader = cluster.leader()
    told = []
    machine = leader.machines[0]
    machine.role_changed = lambda role, term: told.append(role)
    for other in cluster.ids:
        if other != leader.number:
            cluster.cut.add(frozenset((leader.number, other)))
    leader.driver.replicas[0].propose(b"y", told.append)
    cluster.run(lambda: len(told) == 2)
    assert told == [Unknown(), Role.FOLLOWER]


def test_a_turn_begins_no_entry_once_its_time_is_over_and_the_shards_take_turns():
    """Sixteen shards of heavy entries held up a node for sixteen times as long as one."""
    clock = []

    class Heavy(Recorder):
        def apply(self, index, term, entry, batch):
            clock[0].now += 0.006
            return super().apply(index, term, entry, batch)

    cluster = MemoryCluster(nodes=1, shards=3, machine=Heavy)
    clock.append(cluster)
    (node,) = cluster.nodes
    replicas = list(node.driver.replicas.values())
    cluster.run(lambda: all(replica.ready for replica in replicas))
    for number in range(4):
        for replica in replicas:
            replica.propose(b"%d" % number, lambda _: None)

    def applied():
        return [len(node.machines[replica.shard].applied) for replica in replicas]

    turns = []
    while sum(applied()) < 12:
        before = applied()
        cluster.step()
        turns.append([now - then for now, then in zip(applied(), before, strict=True)])
    busy = [turn for turn in turns if any(turn)]
    assert max(map(sum, busy)) == 2, "10 ms are over after two of them"
    assert all(any(turn[shard] for turn in busy[:3]) for shard in range(3))
    assert all(turn.count(0) == 2 for turn in busy)
