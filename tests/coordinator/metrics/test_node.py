"""The whole page of a node: every metric of the catalog, right values, bounded size."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from musterd.coordinator.api.frame.audit_trail import AuditTrail
from musterd.coordinator.api.frame.forwarding import ForwardedCounts
from musterd.coordinator.api.frame.jwt_verifier import JwtVerifier
from musterd.coordinator.api.limits.admission import Admission
from musterd.coordinator.api.limits.quota_buckets import QuotaBuckets
from musterd.coordinator.api.limits.requests_under_way import Requests
from musterd.coordinator.api.limits.untaken_answers import UntakenAnswers
from musterd.coordinator.api.stream.client_stream import StreamTotals
from musterd.coordinator.integrity.quarantine import Quarantine
from musterd.coordinator.machine.commands import OffsetCommit, PartitionCommit
from musterd.coordinator.machine.quotas import QuotaEntity, QuotaKey, QuotaOf
from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.machine.state import Offset
from musterd.coordinator.metrics.catalog import CATALOG
from musterd.coordinator.metrics.http_page import encode
from musterd.coordinator.metrics.node import OFFSETS_PER_SLICE, NodeMetrics, Sources
from musterd.coordinator.metrics.raft import LeaderWatcher, MeasuredProposals
from musterd.coordinator.runtime.calls import CountedLimit
from musterd.coordinator.runtime.disconnect_detector import DisconnectDetector
from musterd.coordinator.runtime.heartbeats import Heartbeats
from musterd.coordinator.runtime.topic_registry import TopicRegistry
from musterd.raft.contract import (
    Applied,
    ClientReach,
    NodeId,
    NotLeader,
    Overloaded,
    Role,
    Room,
    ShardId,
    Unknown,
)
from tests.coordinator.fakes import FakeLog, Rig, commit, join

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


class Journal:
    """A log's extent."""

    first_index, last_index, disk_bytes = 3, 40, 4096


def _measured(rig):
    rig.log.journal = Journal()
    rig.log.leader_heard = False
    rig.log.matches = lambda: {NodeId(2): 40, NodeId(3): 25} if rig.log.leader == 0 else {}
    return rig


class AgainstAll:
    """A verifier that finds every shard outvoted, and the others at odds."""

    def outvoted_by(self, shard):
        return [1, 2]

    def conflict(self, shard):
        return True

    def confirmed(self, shard):
        return False


@pytest.fixture
def rig():
    """A shard that is about to lead."""
    return _measured(Rig())


@pytest.fixture
def quarantine(rig):
    """Of the rig's shard, which every other node contradicts."""
    return Quarantine([rig.shard], AgainstAll())


@pytest.fixture
def metrics(rig, quarantine, tmp_path):
    """Metrics attached to the rig's one shard."""
    metrics = NodeMetrics()
    metrics.attach(_sources(rig, quarantine, tmp_path))
    return metrics


def _jwt():
    known = JwtVerifier("https://idp", "muster")
    known.verified_total, known.refused_total, known.awaited_total = 5, 4, 2
    return known


def _quotas():
    buckets = QuotaBuckets(dict, lambda: 0.0)
    for _ in range(2):
        buckets.count(QuotaOf(QuotaEntity.PRINCIPAL, 'a "b"', QuotaKey.JOINS))
    return buckets


def _sources(rig, quarantine, data_dir):
    refusing = Requests()
    refusing.refused_total = 4
    return Sources(
        node_id=NodeId(1),
        version="9.9",
        data_dir=data_dir,
        shards=[rig.shard],
        logs=[rig.log],
        connected=lambda: {NodeId(2): True, NodeId(3): False},
        losses=lambda: {1: 0, 2: 1},
        lost=lambda: {1: False, 2: True},
        learner_shards=lambda: {1: 0, 2: 3},
        reach=lambda: {1: ClientReach.OK, 2: ClientReach.FAILS, 3: ClientReach.UNKNOWN},
        tasks=lambda: 17,
        levels=lambda: {0: 6, 1: 0},
        unsynced_s=lambda: 4.5,
        quarantine=quarantine,
        access_refusals=lambda: (2, 1),
        jwt=_jwt(),
        jwt_fetches=lambda: (7, 3),
        topics=TopicRegistry(lambda: ShardState(topics={"t": 4}, topics_version=4), lambda: True),
        heartbeats=Heartbeats([rig.shard], DisconnectDetector()),
        admission=Admission(),
        call_limits=rig.call_limits,
        audit=AuditTrail(),
        quotas=_quotas(),
        certificates=lambda: {"peers": 1_700_000_000.0},
        untaken=UntakenAnswers(lambda: 0.0, lambda _: None),
        connections_ended=lambda: 6,
        requests=lambda: (refusing, refusing),
        streams=StreamTotals(open=3, frames_in=5, frames_out=4),
        forwarded=lambda: ForwardedCounts(9, 2, 8, 1, 5),
        leader_waits_refused=lambda: 4,
        room=lambda: Room.ENOUGH,
        reserve=0,
        state_size=rig.shard.node.state_size,
    )


def _page(metrics):
    """The page as a scraper reads it: (name, labels) -> value."""
    families = [family for family in metrics.families() if family is not None]
    text = b"".join(piece for family in families for piece in encode(family)).decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, f"a scrape with {key} twice is refused whole"
            samples[key] = sample.value
    return samples


def _value(page, name, /, **labels):
    return page[name, tuple(sorted(labels.items()))]


def test_the_page_has_every_metric_of_the_catalog_and_no_other(rig, metrics):
    """With a group that has an end offset nothing is missing; a stranger would be undocumented."""
    rig.log.lead()
    rig.ask("join", join("a"))
    commits = (PartitionCommit("t", 0, 10, "", 25),)
    rig.ask("commit", OffsetCommit("s", "", -1, 0, commits))
    rig.run(100)
    rig.shard.state.backup_wall_ms = 1
    families = {family.name: family for family in metrics.families() if family is not None}
    shown = {
        name + ("_total" if family.type == "counter" else ""): family
        for name, family in families.items()
        if name.startswith("muster_")
    }
    assert set(shown) == set(CATALOG)
    for name, family in shown.items():
        assert family.type == CATALOG[name].kind, name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(CATALOG[name].labels), name
    without_samples = {name for name, family in shown.items() if not family.samples}
    # nobody is Stable in this rig, and no group a modern one
    assert without_samples == {"muster_group_members_idle", "muster_group_partitions_unowned"}


def test_a_group_without_series_whose_worker_died_counts_under_other(rig, metrics):
    """Behind busier groups a dead one has no series of its own; the alarm comes all the same."""
    rig.log.lead()
    rig.ask("join", join("a"))
    rig.run(4_000)
    assert rig.answers["join"].generation == 1
    metrics.groups._groups_max = 0
    metrics.groups.own.clear()
    assert _value(_page(metrics), "muster_group_partitions_unassigned", group="(other)") == 0
    rig.ask("commit", commit("a", 1, 5))
    rig.run(61_000)
    assert not rig.shard.state.groups["g"].members
    assert _value(_page(metrics), "muster_group_partitions_unassigned", group="(other)") == 1
    rig.ask("commit 2", commit("", -1, 5))
    rig.turn()
    assert _value(_page(metrics), "muster_group_partitions_unassigned", group="(other)") == 4


def test_the_documentation_lists_the_catalog():
    """docs/metrics.md has a row for each metric, with its type and labels, and none beyond."""
    rows = re.findall(r"^\| `(muster_\w+)` \| (\w+) \| (.*?) \|", DOCS.read_text(), re.MULTILINE)
    documented = {name: (kind, labels) for name, kind, labels in rows}
    assert len(documented) == len(rows)
    assert documented == {
        name: (spec.kind, ", ".join(f"`{label}`" for label in spec.labels))
        for name, spec in CATALOG.items()
    }


def test_names_follow_prometheus_practice():
    """Counters end in _total, durations in _seconds, sizes in _bytes; ids are never labels."""
    for name, spec in CATALOG.items():
        assert re.fullmatch(r"muster_[a-z0-9_]+", name)
        assert name.endswith("_total") == (spec.kind == "counter"), name
        if spec.kind == "histogram":
            assert name.endswith("_seconds"), name
        assert not name.endswith(("_ms", "_millis", "_count", "_sum", "_bucket")), name
        assert not {"member", "member_id", "client_id"} & set(spec.labels), name
        assert spec.help.endswith("."), name


def test_consensus_is_shown_as_it_stands(rig, metrics):
    """Leader, term, indexes, followers and connections of the leader; none of it on a follower."""
    page = _page(metrics)
    assert _value(page, "muster_raft_has_leader", shard="0") == 0
    rig.log.lead()
    rig.log.leader_heard = True
    rig.log.commit_index, rig.log.applied_index = 39, 38
    metrics.after_apply(0.0)
    page = _page(metrics)
    assert _value(page, "muster_raft_has_leader", shard="0") == 1
    assert _value(page, "muster_raft_is_leader", shard="0") == 1
    assert _value(page, "muster_raft_term", shard="0") == 1
    assert _value(page, "muster_raft_commit_index", shard="0") == 39
    assert _value(page, "muster_raft_applied_index", shard="0") == 38
    assert _value(page, "muster_raft_snapshot_index", shard="0") == 2
    assert _value(page, "muster_raft_peer_match_lag_entries", shard="0", peer="3") == 15
    assert _value(page, "muster_raft_peer_active", peer="2") == 1
    assert _value(page, "muster_raft_peer_active", peer="3") == 0
    assert _value(page, "muster_raft_elections_total", shard="0", result="won") == 1
    assert _value(page, "muster_node_reaches_itself", node="1") == 1
    assert _value(page, "muster_node_reaches_itself", node="2") == 0
    assert ("muster_node_reaches_itself", (("node", "3"),)) not in page
    assert _value(page, "muster_store_losses_total", node="1") == 0
    assert _value(page, "muster_store_losses_total", node="2") == 1
    assert _value(page, "muster_store_lost", node="1") == 0
    assert _value(page, "muster_store_lost", node="2") == 1
    assert _value(page, "muster_learner_shards", node="1") == 0
    assert _value(page, "muster_learner_shards", node="2") == 3
    assert _value(page, "muster_wal_bytes") == 4096
    assert _value(page, "muster_build_info", version="9.9", node="1") == 1


def test_the_last_backup_is_told_once_one_was_noted(rig, metrics):
    """Its time, in seconds; before there is no sample, so no age."""
    assert ("muster_backup_last_timestamp_seconds", ()) not in _page(metrics)
    rig.shard.state.backup_wall_ms = 1_700_000_000_500
    assert _value(_page(metrics), "muster_backup_last_timestamp_seconds") == 1_700_000_000.5


def test_the_end_of_each_certificate_is_told(metrics):
    """By the port that shows it."""
    name = "muster_certificate_expiry_timestamp_seconds"
    assert _value(_page(metrics), name, port="peers") == 1_700_000_000


def test_a_quarantine_is_counted_once_and_stays_counted(rig, quarantine, metrics):
    """It heals within milliseconds, between two scrapes or two looks: the counter keeps it."""
    for _ in range(2):
        quarantine.judge()
        quarantine.judge()
        assert _value(_page(metrics), "muster_shard_quarantined", shard="0") == 1
        rig.log.loaded(rig.log.view)
    page = _page(metrics)
    assert _value(page, "muster_shard_quarantined", shard="0") == 0
    assert _value(page, "muster_shard_quarantines_total", shard="0") == 2
    assert _value(page, "muster_shard_digest_conflict", shard="0") == 1


def test_proposals_queue_and_limits_are_counted(rig, metrics):
    """A commit passes the queue and the log; shed and refused requests are counted by limit."""
    rig.log.lead()
    rig.ask("commit", commit("", -1, 5))
    rig.turn()
    rig.shard.queue_meter.shed_total = 3
    rig.call_limits.parked.refused_total = 2
    rig.call_limits.planning.failed_total = 7
    page = _page(metrics)
    assert _value(page, "muster_raft_proposals_total", shard="0", result="committed") == 1
    assert _value(page, "muster_raft_proposals_pending", shard="0") == 0
    assert _value(page, "muster_raft_commit_duration_seconds_count", shard="0") == 1
    assert _value(page, "muster_coordinator_queue_duration_seconds_count") == 1
    assert _value(page, "muster_throttled_requests_total", limit="shard_queue") == 3
    assert _value(page, "muster_throttled_requests_total", limit="parked_calls") == 2
    assert _value(page, "muster_throttled_requests_total", limit="request_bytes") == 8
    assert _value(page, "muster_plans_failed_total") == 7
    assert _value(page, "muster_client_connections_ended_total") == 6
    assert _value(page, "muster_forwarded_calls_total", direction="out") == 9
    assert _value(page, "muster_forwarded_calls_open", direction="out") == 2
    assert _value(page, "muster_forwarded_calls_total", direction="in") == 8
    assert _value(page, "muster_forward_unconnected_nodes") == 5
    assert _value(page, "muster_leader_waits_refused_total") == 4
    assert _value(page, "muster_forwarded_calls_open", direction="in") == 1
    assert _value(page, "muster_client_streams") == 3
    assert _value(page, "muster_client_frames_total", direction="in") == 5
    assert _value(page, "muster_client_frames_total", direction="out") == 4
    assert _value(page, "muster_quota_throttled_total", key="joins_per_s") == 2
    whose = {"entity": "principal", "name": 'a "b"', "key": "joins_per_s"}
    assert _value(page, "muster_quota_delays_total", **whose) == 2
    assert _value(page, "muster_groups", state="Empty", type="classic") == 1
    kinds = {dict(labels)["type"] for name, labels in page if name == "muster_groups"}
    assert kinds == {"classic", "consumer"}
    assert _value(page, "muster_groups", state="Stable", type="consumer") == 0


def test_a_parked_call_beyond_the_limit_is_counted():
    """The budget of parked calls counts what it refuses."""
    budget = CountedLimit("parked calls", 1)
    assert [budget.take(), budget.take()] == [True, False]
    assert budget.refused_total == 1


def test_the_rest_of_the_groups_is_one_series(tmp_path):
    """300 groups, 200 with series of their own: the page is bounded and no member is lost."""
    rig = _measured(Rig())
    metrics = NodeMetrics(groups_max=200)
    metrics.attach(_sources(rig, Quarantine([], AgainstAll()), tmp_path))
    rig.log.lead()
    for number in range(300):
        rig.ask(f"join {number}", join("a", group=f"g{number}"))
    rig.run(50)
    page = _page(metrics)
    members = {
        dict(labels)["group"]: v
        for (name, labels), v in page.items()
        if name == "muster_group_members"
    }
    assert len(members) == 201
    assert sum(members.values()) == 300
    assert _value(page, "muster_metrics_groups_dropped") == 100


def test_the_loop_may_turn_after_each_group_and_after_so_many_of_its_offsets(rig, metrics):
    """Ten groups of 100,000 offsets were read in one go: 400 ms."""
    rig.log.lead()
    for number in range(3):
        rig.ask(number, commit("", -1, 1, group=f"g{number}"))
    rig.run(50)
    now = Offset(1, "", 2, "", -1, 0, 1)
    rig.shard.state.groups["g1"].stored = {("t", n): now for n in range(2 * OFFSETS_PER_SLICE + 1)}
    page = _page(metrics)
    pauses = list(metrics._own_groups(metrics._sources))
    assert _value(page, "muster_group_lag", group="g1", topic="t") == 2 * OFFSETS_PER_SLICE + 1
    assert pauses.count(None) == 3 + 1 + 3 + 1


def test_metrics_of_a_node_that_is_not_built_yet_are_empty():
    """A scrape during the start answers a page without muster metrics, not an error."""
    assert list(NodeMetrics().families()) == []


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (Applied(1, 1, None), "committed"),
        (NotLeader(None), "failed"),
        (Overloaded("x"), "failed"),
        (Unknown(), "unknown"),
    ],
)
def test_a_proposal_ends_once_with_its_result(outcome, result):
    """Pending falls again, the result is counted, and only what was applied is timed."""
    now = [10.0]
    proposals = MeasuredProposals(lambda: now[0])
    waiting = []
    told = []
    proposals.around(lambda entry, done: waiting.append(done))(b"", told.append)
    assert proposals.pending == 1
    now[0] = 10.5
    waiting[0](outcome)
    assert told == [outcome]
    assert proposals.pending == 0
    assert {r for r, count in proposals.results.items() if count} == {result}
    assert proposals.seconds.total == (0.5 if result == "committed" else 0.0)


def _watch(*looks):
    """Feed (role, term, leader) to a watcher, one per turn."""
    log = FakeLog()
    watcher = LeaderWatcher([log])
    for role, term, leader in looks:
        log.role, log.term, log.leader = role, term, leader
        watcher.turn()
    return watcher.seen[ShardId(0)]


F, C, L = Role.FOLLOWER, Role.CANDIDATE, Role.LEADER


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(F, 1, 2), (F, 1, 2)], (1, 0, 0)),
        ([(F, 1, 2), (C, 2, None), (L, 2, 0)], (2, 1, 0)),
        ([(F, 1, 2), (C, 2, None), (F, 2, 3)], (2, 0, 1)),
        ([(C, 2, None), (C, 3, None), (L, 3, 0)], (1, 1, 1)),
        ([(C, 2, None), (L, 3, 0)], (1, 1, 1)),
        ([(L, 1, 0)], (1, 1, 0)),
        ([(F, 1, None), (F, 2, None), (F, 2, 3)], (1, 0, 0)),
        ([(F, 1, 2), (F, 2, 2)], (2, 0, 0)),
    ],
)
def test_elections_and_leaders_are_counted_once(looks, expected):
    """Each term's leader is one change; an election stood in is won or lost, never both."""
    seen = _watch(*looks)
    assert (seen.changes, seen.won, seen.lost) == expected
