"""Who is taken out of service, by whom, and whose state replaces the wrong one."""

import asyncio
import dataclasses
import itertools

import grpc
import pytest

import musterd.coordinator.integrity.quarantine
import musterd.coordinator.integrity.verify
from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from musterd.coordinator.api.server import make_server
from musterd.coordinator.integrity.peer_checkpoints import PeerCheckpoints
from musterd.coordinator.integrity.verify import Verifier
from musterd.coordinator.machine.records.digest import DIGEST_MODULUS, digest_of
from musterd.coordinator.machine.records.encoding import RecordError
from musterd.coordinator.machine.records.group_records import group_key, group_records
from musterd.coordinator.machine.records.values import put_offset
from musterd.coordinator.machine.shard_state import load_state
from musterd.coordinator.runtime.persist import CheckpointRecord
from musterd.coordinator.runtime.routing import Directory
from musterd.raft.contract import NodeId, Role
from musterd.raft.settings import RaftSettings
from musterd.storage import keys
from musterd.storage.store import Family
from tests.coordinator.fakes import Rig, commit
from tests.coordinator.shard_cluster import FIRST, GROUP, damage, grown, offset_of
from tests.raft.test_admission import counts, replace, wipe

SHORT_LOG = RaftSettings(
    log_disk_bytes=4096,
    log_trim_bytes=512,
    log_memory_bytes=1024,
    apply_ms=0,
)
"""Who was away for long needs a snapshot."""

A, B, C = (bytes([letter]) * 16 for letter in b"abc")
STORE, LATER_STORE = b"1" * 16, b"2" * 16


# ---- a whole cluster: shipped shards on shipped replicas


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0), (3, 4)])
def test_of_five_nodes_the_two_that_differ_alike_take_the_state_of_the_three(wrong):
    """The first of them leads. No acknowledged offset is replaced, whoever judges first."""
    leader, other = wrong
    cluster = grown(5, dict.fromkeys(wrong, FIRST - 1))
    cluster.lead(leader)
    cluster.checkpoint()
    three = [n for n in cluster.ids if n not in wrong]
    cluster.judge(*three)
    assert cluster.quarantined() == []
    cluster.judge(other)
    assert cluster.quarantined() == [other]
    cluster.run_for(1.0)  # its leader would send what it holds, and knows nothing yet
    assert cluster.quarantined() == [other]
    cluster.judge(leader)
    assert set(cluster.quarantined()) == set(wrong)
    assert cluster.wait_leader(other_than=leader).number in three
    cluster.heal()
    assert {offset_of(cluster, n) for n in cluster.ids} == {FIRST}
    assert len({str(state) for state in cluster.states().values()}) == 1
    cluster.checkpoint()
    cluster.judge()
    assert cluster.quarantined() == []
    assert not any(cluster.has_conflict(n) for n in cluster.ids)


def _right_restarts(cluster, here, wrong):
    """They have no votes until the next checkpoint."""
    for node in here:
        if node not in wrong:
            cluster.crash(node)
            cluster.restart(node)
            cluster.run_for(0.5)
    cluster.judge(*here)


def _leader_restarts(cluster, here, wrong):
    """It leads again, and knows nothing of what it had seen."""
    cluster.crash(0)
    cluster.restart(0)
    cluster.run_for(1)
    cluster.lead(0)
    cluster.judge(*here)


def _unanswered(cluster, here, wrong):
    """The leader's question to those that are right is not answered, once."""
    cluster.asked[0].ask()
    for node in here:
        if node not in wrong:
            cluster.asked[0].said.pop((node, 0), None)
    cluster.quarantines[0].judge()


def _copy_restarts(cluster, here, wrong):
    """Who took the leader's state is restarted."""
    away = len(cluster.ids) - 1
    cluster.crash(away)
    cluster.restart(away)
    cluster.run_for(0.5)


BEFORE = {"right_restarts": _right_restarts, "leader_restarts": _leader_restarts}
BEFORE |= {"unanswered": _unanswered}
AFTER = {"copy_restarts": _copy_restarts}


@pytest.mark.parametrize("event", ["none", "unjudged", *BEFORE, *AFTER])
@pytest.mark.parametrize(("nodes", "wrong"), [(3, [0]), (5, [0, 1])])
def test_who_comes_back_behind_the_log_is_no_witness_for_a_leader_that_may_be_wrong(
    nodes, wrong, event
):
    """It is sent the leader's state and agrees with it; the others shall not be outvoted by that.

    Whatever was known before (`unjudged`: nothing), and whoever was restarted or did not answer.
    """
    cluster = grown(nodes, dict.fromkeys(wrong, FIRST - 1), SHORT_LOG)
    cluster.lead(0)
    away = nodes - 1
    cluster.crash(away)
    for offset in range(300):
        cluster.ask(commit("", -1, offset, partition=1))
    cluster.checkpoint()
    here = [n for n in cluster.ids if n != away]
    if event != "unjudged":
        cluster.judge(*here)
        assert all(cluster.has_conflict(n) for n in here)
    BEFORE.get(event, _nothing)(cluster, here, wrong)
    cluster.restart(away)
    cluster.run(lambda: cluster.replica(away)._snapshots.installed)
    cluster.run(cluster.converged)
    AFTER.get(event, _nothing)(cluster, here, wrong)
    assert offset_of(cluster, away) == FIRST - 1
    for _ in range(2):
        cluster.checkpoint()
        cluster.judge()
        assert cluster.quarantined() == []
        cluster.run_for(1.0)
    right = [n for n in here if n not in wrong]
    assert {offset_of(cluster, n) for n in right} == {FIRST}
    assert all(cluster.has_conflict(n) for n in cluster.ids)
    assert cluster.replica(away).copy_of == 0
    cluster.ask(commit("", -1, 50))  # what differed is written anew, everywhere the same
    cluster.checkpoint()
    cluster.judge()
    assert cluster.replica(away).copy_of is None
    assert not any(cluster.has_conflict(n) for n in cluster.ids)


def _nothing(cluster, here, wrong):
    """No event."""


@pytest.mark.parametrize("restarts", [False, True])
def test_who_takes_a_state_that_differs_without_a_verdict_sets_its_own_aside(restarts):
    """It comes back behind the log of a wrong leader whose state another one has taken, too.

    Nothing stops, and nothing is forgotten, restarts included, until one of the two is replaced.
    """
    cluster = _disputed()
    _away_for_long(cluster, 1)
    _agree(cluster)
    if restarts:
        for node in (1, 0):
            cluster.crash(node)
            cluster.restart(node)
            cluster.run_for(1.0)
        _agree(cluster)
    assert [offset_of(cluster, n) for n in cluster.ids] == [FIRST - 1] * 3
    assert [cluster.replica(n).copy_of for n in cluster.ids] == [None, 0, 0]
    assert cluster.has_conflict(1)
    assert _set_aside(cluster, 1) == FIRST
    assert cluster.quarantined() == []
    wipe(cluster, 1)
    cluster.restart(1)
    replace(cluster, 1)
    cluster.connect_all()
    cluster.run(lambda: cluster.replica(1)._snapshots.installed)
    cluster.run(cluster.converged)
    _agree(cluster)
    assert not any(cluster.has_conflict(n) for n in cluster.ids)
    assert [cluster.replica(n).copy_of for n in cluster.ids] == [None] * 3
    assert [cluster.replica(n).differing for n in cluster.ids] == [{}] * 3


def test_verify_names_the_offsets_that_were_set_aside_and_are_above_the_present_ones():
    """An operator has to know what to look at."""
    cluster = _disputed()
    _away_for_long(cluster, 1)
    response = pb.VerifyResponse()
    shard = cluster.shard(1)
    asyncio.run(musterd.coordinator.integrity.verify._compare_set_aside(shard, response))
    whole, one = response.differences
    assert "its own is set aside" in whole.detail
    assert one.group_id == GROUP
    assert one.detail == f"the offset of t/0 that was set aside, {FIRST}, is above the present one"
    response = pb.VerifyResponse()
    asyncio.run(musterd.coordinator.integrity.verify._compare_set_aside(cluster.shard(0), response))
    assert not response.differences


def test_a_majority_that_agrees_later_drops_what_was_set_aside():
    """Of five nodes: three that applied the log themselves say what was right."""
    cluster = grown(5, {0: FIRST - 1, 1: FIRST - 2}, SHORT_LOG)
    cluster.lead(0)
    cluster.crash(3)
    for offset in range(300):
        cluster.ask(commit("", -1, offset, partition=1))
    cluster.checkpoint()
    cluster.judge()
    cluster.run_for(0.1)
    _away_for_long(cluster, 1)
    assert _set_aside(cluster, 1) == FIRST - 2
    start, end = keys.state_range(0, cluster.replica(1)._snapshots.set_aside.local_id)
    cluster.ask(commit("", -1, 50))  # what differed is written anew, everywhere the same
    _agree(cluster)
    assert cluster.replica(1).set_aside is None
    assert not any(cluster.has_conflict(n) for n in cluster.verifiers)
    cluster.run_for(1.0)
    assert list(cluster.nodes[1].store.scan(Family.STATE, start, end)) == []


@pytest.mark.parametrize("wrong", [0, 2])
def test_a_wrong_node_can_be_replaced_while_another_keeps_its_own_state(wrong):
    """Nobody's refusal keeps the newcomer from being admitted: commits go on."""
    cluster = _disputed()
    _away_for_long(cluster, 1)
    wipe(cluster, wrong)
    cluster.restart(wrong)
    replace(cluster, wrong)
    cluster.connect_all()
    cluster.run(lambda: all(counts(cluster, n, wrong) for n in cluster.ids))
    cluster.ask(commit("", -1, 1, partition=2))
    _agree(cluster)
    assert _set_aside(cluster, 1) == FIRST
    assert cluster.has_conflict(1)


def test_an_agreement_older_than_the_difference_does_not_end_it():
    """All agreed; one goes wrong; who else sees it is restarted, and has no votes for a while."""
    cluster = grown(3, {}, SHORT_LOG)
    cluster.lead(0)
    cluster.checkpoint()
    cluster.judge()
    cluster.cut.add(frozenset((0, 2)))
    cluster.disconnect(0, 2)
    _go_wrong(cluster, 0, FIRST - 1)
    for offset in range(300):
        cluster.ask(commit("", -1, offset, partition=1))
    cluster.checkpoint()
    cluster.judge()
    cluster.run_for(0.1)
    cluster.crash(1)
    cluster.restart(1)
    cluster.run_for(1.0)
    cluster.judge()
    assert [set(cluster.replica(n).differing) for n in (0, 1)] == [{1}, {0}]
    assert cluster.has_conflict(0)
    cluster.crash(1)
    cluster.cut.clear()
    cluster.connect_all()
    cluster.run(lambda: cluster.replica(2)._snapshots.installed)
    cluster.run(cluster.converged)
    for offset in range(300):
        cluster.ask(commit("", -1, offset, partition=1))
    cluster.restart(1)
    cluster.run_for(3.0)
    _agree(cluster)
    assert _set_aside(cluster, 1) == FIRST
    assert cluster.has_conflict(1)


def _go_wrong(cluster, node, offset):
    """In memory and in what is written from it, without a restart."""
    state = cluster.shard(node).state
    group = state.groups[GROUP]
    wrong = dataclasses.replace(group.offsets["t", 0], offset=offset, digest=0)
    group.offsets["t", 0] = wrong
    before = group.digest
    group.digest = digest_of(group_records(group))
    state.digest = (state.digest + group.digest - before) % DIGEST_MODULUS
    cluster.replica(node)._batch.put(group_key(GROUP, ("t", 0)), put_offset(wrong))


def test_who_took_a_right_state_still_knows_who_is_wrong():
    """Of five nodes one takes the state of one that agrees with it, then that of a wrong one."""
    cluster = grown(5, {0: FIRST - 1, 3: FIRST - 1}, SHORT_LOG)
    cluster.lead(0)
    cluster.crash(4)
    for offset in range(300):
        cluster.ask(commit("", -1, offset, partition=1))
    cluster.checkpoint()
    cluster.judge()
    assert set(cluster.replica(1).differing) == {0, 3}
    cluster.lead(2)
    _away_for_long(cluster, 1)
    assert cluster.replica(1).copy_of == 2
    assert set(cluster.replica(1).differing) == {0, 3}
    cluster.lead(0)
    _away_for_long(cluster, 1)
    assert _set_aside(cluster, 1) == FIRST
    assert cluster.has_conflict(1)


def _away_for_long(cluster, node):
    """It comes back behind the log and takes the leader's state."""
    cluster.crash(node)
    for offset in range(300):
        cluster.ask(commit("", -1, offset, partition=1))
    cluster.restart(node)
    cluster.run(lambda: cluster.replica(node)._snapshots.installed)
    cluster.run(cluster.converged)


def _agree(cluster):
    """Three checkpoints, and a look after each: enough for whatever can be decided."""
    for _ in range(3):
        cluster.checkpoint()
        cluster.judge()
        cluster.run_for(1.0)


def _set_aside(cluster, node):
    """The offset in the state that this node set aside."""
    view = cluster.replica(node).set_aside.view
    return load_state(view.scan()).groups[GROUP].offsets["t", 0].offset


def _disputed():
    """Node 0 leads and is wrong, node 1 is right and said so, node 2 took the state of node 0."""
    cluster = grown(3, {0: FIRST - 1}, SHORT_LOG)
    cluster.lead(0)
    cluster.crash(2)
    for offset in range(300):
        cluster.ask(commit("", -1, offset, partition=1))
    cluster.checkpoint()
    cluster.judge(0, 1)
    cluster.restart(2)
    cluster.run(lambda: cluster.replica(2)._snapshots.installed)
    cluster.run(cluster.converged)
    cluster.judge()
    return cluster


def test_a_leader_that_nobody_agreed_with_yet_brings_up_who_is_behind_the_log():
    """Two of three are up, and nothing can commit before the second has the first one's state."""
    cluster = grown(3, {}, SHORT_LOG)
    cluster.lead(0)
    cluster.crash(2)
    for offset in range(300):
        cluster.ask(commit("", -1, offset, partition=1))
    cluster.crash(1)
    cluster.crash(0)
    cluster.restart(0)
    cluster.restart(2)
    cluster.ask(commit("", -1, 50))
    cluster.run(cluster.converged)
    assert cluster.replica(2).copy_of == 0
    assert [offset_of(cluster, n) for n in (0, 2)] == [50, 50]


def test_a_doubt_that_was_seen_is_not_over_because_somebody_does_not_answer():
    """The alert would come and go with every question."""
    cluster = grown(3, {0: FIRST - 1})
    cluster.crash(2)
    cluster.checkpoint()
    cluster.judge(0, 1)
    assert cluster.has_conflict(0)
    cluster.asked[0].said.clear()
    cluster.quarantines[0].judge()
    assert cluster.has_conflict(0)
    cluster.restart(2)
    cluster.run(cluster.converged)
    cluster.checkpoint()
    cluster.judge()
    assert cluster.quarantined() == [0]
    assert not cluster.has_conflict(1)


def test_a_replica_that_was_healed_is_a_witness_again_with_the_next_checkpoint():
    """It outvotes the next one that goes wrong, and its first state makes no difference."""
    cluster = grown(3, {0: FIRST - 1})
    cluster.checkpoint()
    cluster.judge()
    cluster.heal()
    assert cluster.replica(0).copy_of is not None
    cluster.checkpoint()
    cluster.judge()
    assert [cluster.replica(n).copy_of for n in cluster.ids] == [None] * 3
    damage(cluster, 1, FIRST - 1)
    cluster.checkpoint()
    cluster.judge()
    assert cluster.quarantined() == [1]
    cluster.heal()
    assert {offset_of(cluster, n) for n in cluster.ids} == {FIRST}


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_of_three_nodes_the_one_that_differs_takes_the_state_of_the_two(wrong):
    """Leader or not."""
    cluster = grown(3, {wrong: FIRST - 1})
    cluster.checkpoint()
    cluster.judge()
    assert cluster.quarantined() == [wrong]
    cluster.heal()
    assert {offset_of(cluster, n) for n in cluster.ids} == {FIRST}


@pytest.mark.parametrize("leads", [False, True])
def test_a_restart_does_not_end_the_quarantine(leads):
    """Not before a whole state has come: nobody is asked a second time for a verdict."""
    cluster = grown(3, {1: FIRST - 1})
    cluster.lead(1 if leads else 0)
    cluster.checkpoint()
    cluster.judge()
    cluster.run_for(0.003)
    assert cluster.shard(1).quarantined
    cluster.crash(1)
    cluster.restart(1)
    assert cluster.shard(1).quarantined
    assert not cluster.shard(1).current
    cluster.heal()
    assert {offset_of(cluster, n) for n in cluster.ids} == {FIRST}


def test_without_a_majority_nobody_stops_and_all_say_so():
    """Five nodes, two and two alike, and one for itself; a later majority ends the conflict."""
    cluster = grown(5, {0: FIRST - 1, 1: FIRST - 1, 2: FIRST - 2})
    cluster.checkpoint()
    cluster.judge()
    assert cluster.quarantined() == []
    assert all(cluster.has_conflict(n) for n in cluster.ids)
    cluster.ask(commit("", -1, 50))  # what differed is written anew, everywhere the same
    cluster.checkpoint()
    cluster.judge()
    assert cluster.quarantined() == []
    assert not any(cluster.has_conflict(n) for n in cluster.ids)


def test_a_state_that_cannot_be_read_replaces_nothing():
    """A record went wrong under the leader, which reads its records at its start alone.

    A follower behind the log keeps its own state, lives on, and starts again; the leader's other
    transfers do not wait for it.
    """
    cluster = grown(3, {}, SHORT_LOG)
    cluster.lead(0)
    cluster.crash(2)
    for offset in range(300):
        cluster.ask(commit("", -1, offset, partition=1))
    key = keys.state_prefix(0, cluster.replica(0)._snapshots.local_id)
    key += group_key(GROUP, ("t", 0))
    store = cluster.nodes[0].store
    value = store.get(Family.STATE, key)
    store.batch.put(Family.STATE, key, value + b"more")
    cluster.run_for(0.5)
    cluster.restart(2)
    try:
        cluster.run_for(2.0)
    except RecordError as error:
        raise AssertionError("the follower has ended") from error
    assert cluster.replica(2)._snapshots.installed == 0
    assert not cluster.replica(0)._snapshots._sending
    cluster.crash(2)
    cluster.restart(2)
    cluster.load(2)
    assert offset_of(cluster, 2) == FIRST
    store.batch.put(Family.STATE, key, value)
    cluster.run_for(0.5)
    cluster.run(lambda: cluster.replica(2)._snapshots.installed, limit_s=15.0)
    cluster.run(cluster.converged)


# ---- one verifier


class Said:
    """musterd.coordinator.integrity.verify.Peers: node -> index -> digest, of shard 0."""

    def __init__(self, **said):
        self.said = {NodeId(int(name[1:])): points for name, points in said.items()}
        self.copies = {}

    @property
    def nodes(self):
        return list(self.said)

    def checkpoints(self, node, shard):
        return self.said[node]

    def copy_of(self, node, shard):
        return self.copies.get(node)

    def set_aside(self, node, shard):
        return False


def judged(own, **said):
    """Shard 0 of node 0, which recorded `own`, and its verifier."""
    rig = Rig()
    rig.shard.persist._checkpoints.extend(CheckpointRecord(*point) for point in own.items())
    return rig, Verifier(0, [rig.shard], None, Said(**said))


def test_more_than_half_of_all_nodes_agree_against_one_that_is_outvoted():
    """Its own vote counts for none of the others; every split of three and five nodes."""
    for others in (2, 4):
        for digests in itertools.product((A, B, C), repeat=others):
            said = {f"n{node}": {10: digest} for node, digest in enumerate(digests, start=1)}
            rig, verifier = judged({10: A}, **said)
            against = [n for n, digest in enumerate(digests, start=1) if digest == B]
            against = against or [n for n, digest in enumerate(digests, start=1) if digest == C]
            most = max((B, C), key=digests.count)
            wanted = digests.count(most) > (others + 1) / 2
            found = verifier.outvoted_by(rig.shard)
            assert bool(found) == wanted
            if wanted:
                assert found == [n for n, one in enumerate(digests, start=1) if one == most]
            votes = [*digests, A]
            conflict = len(set(votes)) > 1 and max(map(votes.count, votes)) <= (others + 1) / 2
            assert bool(verifier.conflict(rig.shard)) == conflict


def test_an_index_that_this_node_did_not_record_says_nothing_of_it():
    """Nobody is outvoted there; agreement of two indexes is none."""
    rig, verifier = judged({10: A, 30: A}, n1={10: B, 20: B}, n2={20: B, 30: B})
    assert not verifier.outvoted_by(rig.shard)
    rig, verifier = judged({10: A}, n1={10: B}, n2={10: B})
    assert verifier.outvoted_by(rig.shard) == [1, 2]


def test_the_newest_majority_decides():
    """A replica that agrees with it now is right, whatever it held before."""
    rig, verifier = judged({10: A, 20: C}, n1={10: B, 20: C}, n2={10: B})
    assert not verifier.outvoted_by(rig.shard)
    assert not verifier.conflict(rig.shard)
    rig, verifier = judged({10: B, 20: A}, n1={10: B, 20: C}, n2={10: B, 20: C})
    assert verifier.outvoted_by(rig.shard) == [1, 2]


def test_copies_of_one_state_are_one_witness():
    """With their origin or without it; of which store else they may be."""
    rig, verifier = judged({10: A}, n1={10: B}, n2={10: B})
    verifier._peers.copies = {2: 1}
    assert not verifier.outvoted_by(rig.shard)
    assert verifier.conflict(rig.shard)
    rig, verifier = judged({10: A}, n1={10: B}, n2={10: B}, n3={10: B}, n4={})
    assert verifier.outvoted_by(rig.shard) == [1, 2, 3]
    verifier._peers.copies = {1: 4, 2: 4}
    assert not verifier.outvoted_by(rig.shard)
    verifier._peers.copies = {1: 4}
    assert verifier.outvoted_by(rig.shard) == [1, 2, 3]
    verifier._peers.copies = {1: 0}
    assert verifier.outvoted_by(rig.shard) == [1, 2, 3]


def test_a_copy_is_confirmed_by_a_majority_of_witnesses_or_by_all():
    """All: where every state is a copy of one, none is left that could be right instead."""
    rig, verifier = judged({10: A}, n1={10: A}, n2={10: B})
    rig.log.copy_of = 1
    quarantine = musterd.coordinator.integrity.quarantine.Quarantine([rig.shard], verifier)
    quarantine.judge()
    assert rig.log.copy_of == 1
    assert [point.copy_of for point in verifier.own_checkpoints([])] == [1]
    verifier._peers.said[2] = {}
    quarantine.judge()
    assert rig.log.copy_of == 1
    verifier._peers.said[2] = {10: A}
    verifier._peers.copies = {2: 1}
    rig.shard.loaded_index = 10
    quarantine.judge()
    assert rig.log.copy_of == 1  # its own record is of another state
    rig.shard.loaded_index = 9
    quarantine.judge()
    assert rig.log.copy_of is None
    assert not any(point.HasField("copy_of") for point in verifier.own_checkpoints([]))
    rig, verifier = judged({10: A}, n1={10: A}, n2={10: A}, n3={10: B}, n4={})
    rig.log.copy_of = 1
    assert not verifier.confirmed(rig.shard)
    rig.log.copy_of = 4
    assert verifier.confirmed(rig.shard)


def test_nothing_shown_is_neither_a_conflict_nor_the_end_of_one():
    """Nobody answers, or too few to differ."""
    for said in ({}, {10: A}):
        rig, verifier = judged({10: A}, n1=said, n2={}, n3={}, n4={})
        assert verifier.conflict(rig.shard) is None
        for known in (True, False):
            rig.log.differing = {1: 10} if known else {}
            quarantine = musterd.coordinator.integrity.quarantine.Quarantine([rig.shard], verifier)
            quarantine.judge()
            assert quarantine.conflicts == ({0} if known else set())


def test_what_was_recorded_before_the_state_was_loaded_is_no_vote():
    """Neither for the others nor against this one."""
    rig, verifier = judged({10: A, 20: A}, n1={10: B}, n2={10: B})
    assert [point.index for point in verifier.own_checkpoints([])] == [10, 20]
    rig.shard.loaded_index = 10
    assert [point.index for point in verifier.own_checkpoints([])] == [20]
    assert not verifier.outvoted_by(rig.shard)


def test_a_replica_that_loads_learns_or_is_in_quarantine_says_nothing():
    """It vouches for no state."""
    rig, verifier = judged({10: A})
    rig.log.loading = True
    assert not verifier.own_checkpoints([])
    rig.log.loading = False
    rig.log.role = Role.LEARNER
    assert not verifier.own_checkpoints([])
    rig.log.role = Role.FOLLOWER
    assert verifier.own_checkpoints([])
    rig.log.rebuild([1, 2])
    assert not verifier.own_checkpoints([])
    assert [point.index for point in verifier.own_checkpoints([], recorded=True)] == [10]
    rig.log.loaded(rig.log.view)
    rig.shard.loaded_index = 10
    assert not verifier.own_checkpoints([])


def test_in_quarantine_the_newest_majority_is_whom_it_takes_a_state_of():
    """Node 3 was wrong as well and healed since: its state will do now."""
    rig, verifier = judged({10: A}, n1={10: B}, n2={10: B}, n3={10: A}, n4={10: B})
    quarantine = musterd.coordinator.integrity.quarantine.Quarantine([rig.shard], verifier)
    quarantine.judge()
    assert rig.log.trusted == (1, 2, 4)
    verifier._peers.said = {1: {20: C}, 2: {20: C}, 3: {20: C}, 4: {}}
    quarantine.judge()
    assert rig.log.trusted == (1, 2, 3)


def test_in_quarantine_no_agreement_from_before_the_others_differed_counts():
    """Node 1 is wrong as well: while node 4 is away, it is not trusted for what it held before."""
    right = {10: A, 20: C}
    rig, verifier = judged({10: A, 20: B}, n1={10: A, 20: B}, n2=right, n3=right, n4=right)
    quarantine = musterd.coordinator.integrity.quarantine.Quarantine([rig.shard], verifier)
    quarantine.judge()
    assert rig.log.trusted == (2, 3, 4)
    verifier._peers.said[NodeId(4)] = {}
    quarantine.judge()
    assert rig.log.trusted == (2, 3, 4)


# ---- what peers are held to


class Answering(admin_pb2_grpc.AdminServicer):
    """A node that says what it is told."""

    answer: pb.CheckpointsResponse | None = None

    async def Checkpoints(self, request, context):  # noqa: N802
        if self.answer is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return self.answer


def said(store_uuid, *points):
    """An answer: (shard, index) pairs, all of digest A."""
    return pb.CheckpointsResponse(
        node_id=1,
        store_uuid=store_uuid,
        checkpoints=[
            pb.CheckpointsResponse.Checkpoint(shard=shard, index=index, digest=A)
            for shard, index in points
        ],
    )


def test_only_the_newest_answer_of_the_store_that_a_node_lives_in_counts():
    """What it does not say any more is void, and all of it once its store was replaced."""
    asyncio.run(_ask_one_node())


async def _ask_one_node():
    server, node = make_server(), Answering()
    admin_pb2_grpc.add_AdminServicer_to_server(node, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    directory = Directory(NodeId(0), "127.0.0.1:1", lambda: {1: f"127.0.0.1:{port}"})
    stores = {1: STORE}
    peers = PeerCheckpoints([NodeId(1)], directory, None, stores.get)
    try:
        node.answer = said(STORE, (0, 10), (1, 10))
        await peers.refresh()
        assert peers.checkpoints(NodeId(1), 1) == {10: A}
        node.answer.checkpoints[1].copy_of = 0
        await peers.refresh()
        assert [peers.copy_of(NodeId(1), shard) for shard in (0, 1)] == [None, 0]
        node.answer = said(STORE, (0, 20))
        await peers.refresh()
        assert peers.copy_of(NodeId(1), 1) is None
        assert peers.checkpoints(NodeId(1), 0) == {20: A}
        assert peers.checkpoints(NodeId(1), 1) == {}
        stores[1] = LATER_STORE
        assert peers.checkpoints(NodeId(1), 0) == {}
        await peers.refresh()  # the old store still answers
        assert peers.checkpoints(NodeId(1), 0) == {}
        node.answer = said(LATER_STORE, (0, 30))
        await peers.refresh()
        assert peers.checkpoints(NodeId(1), 0) == {30: A}
        node.answer = None
        await peers.refresh()
        assert peers.checkpoints(NodeId(1), 0) == {}
    finally:
        await peers.close()
        await server.stop(0)
