"""Unavailability as probes see it, from made-up commits."""

from musterd.chaos.run.probes import (
    Leaders,
    Probe,
    calm_of,
    hit_nodes,
    judge_fault,
    leaders_of,
    probes_of,
)
from musterd.chaos.run.result import FaultRun

MS = 1_000_000


def probe(group: str, *commits: tuple[float, float | None]) -> Probe:
    """Of (sent, acknowledged) in ms; None = given up after 1 ms."""
    made = Probe(group)
    for sent, acked in commits:
        made.sent.append(int(sent * MS))
        made.ended.append(int((sent + 1 if acked is None else acked) * MS))
        made.ok.append(acked is not None)
        made.nodes.append(0)
    return made


STEADY = [(t, t + 5) for t in range(0, 1000, 100)]
BROKEN = [(0, 5), (100, 105), (200, 900), (950, 955), (1050, 1055)]


def test_the_gap_begins_with_the_fault_at_the_earliest():
    """From its beginning to the first acknowledgement after it, or between two in its span."""
    assert probe("g", *BROKEN).gap_ms(150 * MS, 920 * MS) == 750.0
    assert probe("g", *BROKEN).gap_ms(50 * MS, 920 * MS) == 795.0


def test_an_outage_from_an_earlier_fault_counts_for_the_earlier():
    """The second fault begins amid it: each has what was missing in its own span."""
    outage = probe("g", (0, 5), (100, 9_005), (9_050, 9_055))
    assert outage.gap_ms(50 * MS, 8_000 * MS) == 7_950.0
    assert outage.gap_ms(8_000 * MS, 9_060 * MS) == 1_005.0


def test_gaps_beside_the_span_do_not_count():
    """Another fault's."""
    assert probe("g", *BROKEN).gap_ms(960 * MS, 1050 * MS) == 90.0


def test_a_gap_that_begins_at_the_end_of_the_span_is_the_next_faults():
    """The last acknowledgement before a fault lies in the span of the one before it."""
    assert probe("g", *BROKEN).gap_ms(0, 150 * MS) == 100.0


def test_a_group_that_is_never_served_again_is_unavailable_until_the_end():
    """And not available since nothing follows."""
    assert probe("g", (0, 5), (100, None)).gap_ms(50 * MS, 2000 * MS) == 1950.0


def test_a_group_that_never_got_an_acknowledgement_was_unavailable_for_the_whole_span():
    """It is neither 0 nor not measured; only one that never asked has no figure."""
    assert probe("g", (0, None)).gap_ms(0, 100 * MS) == 100.0
    assert probe("g").gap_ms(0, 100 * MS) is None


def test_the_calm_gap_is_that_of_spans_without_a_fault():
    """The fault's own outage is not in it, a stall before it is; nor is the time after the end."""
    fault = FaultRun("kill_leader", 0.0, 150 * MS, True, ["node-1"], True, 500 * MS, 880 * MS)
    assert calm_of([fault], 0, 5_000 * MS, [probe("g", *BROKEN)]) == 100.0
    assert calm_of([], 0, 5_000 * MS, [probe("g", *BROKEN)]) == 795.0
    assert calm_of([], 0, 5_000 * MS, [probe("g", (0, None))]) is None


def test_the_first_commit_is_one_that_was_sent_after_the_fault():
    """An answer that was under way says nothing of the recovery."""
    assert probe("g", *BROKEN).first_ms(150 * MS) == 750.0


def test_groups_of_the_hit_node_are_told_from_the_others():
    """By who led when the fault began."""
    fault = FaultRun("kill_leader", 0.0, 150 * MS, True, ["node-1"], True, 500 * MS, 900 * MS)
    leaders = Leaders([0, 160 * MS], [{3: 1, 4: 0}, {3: 2, 4: 0}])
    probes = {"hit": probe("hit", *BROKEN), "other": probe("other", *STEADY)}
    judge_fault(fault, 930 * MS, probes, {"hit": 3, "other": 4}, leaders)
    assert fault.hit_ms == 750.0
    assert fault.other_ms == 100.0
    assert fault.first_commit_ms == 750.0
    assert fault.latency_before.count == 4
    assert fault.latency_during.max == 700.0


def test_a_fault_that_hits_all_nodes_has_no_other_groups():
    """So their figure is not there."""
    fault = FaultRun("restart_all", 0.0, 150 * MS, True, ["node-0", "node-1"], False)
    probes = {"hit": probe("hit", *BROKEN)}
    judge_fault(fault, 930 * MS, probes, {"hit": 3}, Leaders([0], [{3: 1}]))
    assert (fault.hit_ms, fault.other_ms) == (750.0, None)


def test_the_node_of_a_cut_is_that_of_all_its_links():
    """`node-1>node-0` and `node-2>node-0` are about node 0."""
    assert hit_nodes(["node-1>node-0", "node-2>node-0"]) == {0}
    assert hit_nodes(["node-0>node-1", "node-1>node-0"]) == {0, 1}
    assert hit_nodes(["node-0", "node-2"]) == {0, 2}
    assert hit_nodes(["node-0>client-0", "client-0>node-0"]) == {0}
    assert hit_nodes([]) == set()


def test_tracks_become_probes_and_leaders():
    """Lines of all files, in the order of their times."""
    lines = [
        {"what": "probe", "group": "g", "sent_ns": 20, "ended_ns": 30, "ok": True, "node": 2},
        {"what": "probe", "group": "g", "sent_ns": 10, "ended_ns": 15, "ok": False, "node": None},
        {"what": "led", "at_ns": 5, "led": [[0, 1]], "silent": []},
    ]
    assert probes_of(lines)["g"].sent == [10, 20]
    assert leaders_of(lines).at(6) == {0: 1}
    assert leaders_of(lines).at(5) == {}


def test_a_leader_is_known_until_another_one_is_seen():
    """A look that a node missed is no news of what it leads."""
    lines = [
        {"what": "led", "at_ns": 5, "led": [[0, 1], [1, 2]], "silent": []},
        {"what": "led", "at_ns": 7, "led": [[1, 0]], "silent": [1]},
    ]
    assert leaders_of(lines).at(6) == {0: 1, 1: 2}
    assert leaders_of(lines).at(8) == {0: 1, 1: 0}
