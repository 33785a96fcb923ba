"""`muster audit verify`: an entry that was changed, and one that is missing, is named."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from muster.admin.audit import NO_HASH, AuditEntry, chained
from muster.v1 import log_pb2
from muster.v1.admin_pb2 import DescribeAuditResponse

LAST = 9
KEPT = 6
"""The cluster keeps the entries from this one on."""
FIELDS = ("wall_ms", "node_id", "principal", "peer", "method", "request_id", "result", "detail")


def an_entry(number):
    """The entry of this number."""
    what = ("operator", "ipv4:1.2.3.4:5", "CreateTopic", f"r{number}", "OK", "{}")
    return AuditEntry(number, 1_000 + number, 1, *what)


def whole_trail():
    """All entries that there ever were, each with its hash."""
    head, trail = NO_HASH, []
    for one in map(an_entry, range(LAST + 1)):
        head = chained(head, one)
        trail.append((one, head))
    return trail


@pytest.fixture
def trail(cluster):
    """The trail; the nodes keep its end."""
    made = whole_trail()
    answer = DescribeAuditResponse(
        kept=KEPT, next=LAST + 1, base=made[KEPT - 1][1], head=made[-1][1]
    )
    for one, said in made[KEPT:]:
        answer.entries.add(number=one.number, hash=said, **told(one))
    for node in cluster.nodes:
        node.script["DescribeAudit"] = answer
    return made


def told(one):
    """Its fields as messages have them."""
    return {name: getattr(one, name) for name in FIELDS}


def write(folder, *parts):
    """An export of one file for each list of entries."""
    place = folder / "shard=00"
    place.mkdir(parents=True)
    for at, part in enumerate(parts):
        rows = []
        for one, said in part:
            event = log_pb2.EventList()
            made = event.events.add().audit_recorded
            made.first = one.number
            made.entries.add(**told(one))
            made.hashes.append(said)
            rows.append(event.SerializeToString())
        columns = {"events": rows, "kind": ["record_audit"] * len(rows)}
        pq.write_table(pa.table(columns), place / f"part-{at}.parquet")
    return folder


@pytest.fixture
def verify(trail, muster, tmp_path):
    """Run the command with an export of these files: its exit code and its document."""

    def run(*parts):
        to = write(tmp_path / "export", *parts)
        ran = muster("audit", "verify", "--export", str(to), "-o", "json")
        return ran.exit_code, json.loads(ran.out)

    return run


def edited(trail, number):
    """The trail with one entry changed, whose hash is as it was."""
    one, said = trail[number]
    return [*trail[:number], (replace(one, principal="nobody"), said), *trail[number + 1 :]]


def test_a_whole_export_is_sound(verify, trail):
    """In any number of files."""
    code, document = verify(trail[:3], trail[3:])
    assert (code, document["wrong"]) == (0, [])
    assert (document["exported"], document["checked_from"]) == (LAST + 1, 0)


@pytest.mark.parametrize("first", [1, KEPT - 1, KEPT, KEPT + 1])
def test_a_missing_beginning_is_no_fault_and_is_said(verify, trail, first):
    """Of the first entry none is known before it, unless the cluster keeps that."""
    code, document = verify(trail[first:])
    assert (code, document["wrong"]) == (0, [])
    assert document["checked_from"] == min(first + 1, KEPT)


def test_a_hole_is_named(verify, trail):
    """Also one of which nothing else is wrong."""
    code, document = verify(trail[:2], trail[4:])
    assert (code, document["wrong"]) == (5, ["the export lacks entries 2 to 3"])


def test_a_hole_before_what_the_cluster_keeps_is_named(verify, trail):
    """Nothing ties the two together."""
    code, document = verify(trail[: KEPT - 1])
    assert code == 5
    assert document["wrong"] == [f"neither export nor cluster has entry {KEPT - 1}"]


def test_the_first_entry_behind_a_hole_is_checked_where_the_one_before_is_kept(verify, trail):
    """And named beside the hole."""
    changed = edited(trail, KEPT + 2)
    code, document = verify(changed[: KEPT + 1], changed[KEPT + 2 :])
    assert code == 5
    assert document["wrong"] == [
        f"the export lacks entry {KEPT + 1}",
        f"entry {KEPT + 2} of the export is not what it was",
        f"entry {KEPT + 2} is another one in the export",
    ]


@pytest.mark.parametrize("number", range(LAST + 1))
def test_any_edited_entry_is_named_first(verify, trail, number):
    """Also the first one and the last."""
    code, document = verify(edited(trail, number))
    assert code == 5
    assert document["wrong"][0] == f"entry {number} of the export is not what it was"


def test_an_edited_first_entry_is_named_where_the_cluster_keeps_it_too(verify, trail):
    """By what it says: none is known before it, and its hash was left as it was."""
    code, document = verify(edited(trail, KEPT)[KEPT:])
    assert code == 5
    assert f"entry {KEPT} is another one in the export" in document["wrong"]


def test_two_entries_of_one_number_are_named(verify, trail):
    """An edited one does not hide behind that of another node's export."""
    code, document = verify(edited(trail, 3)[:5], trail)
    assert code == 5
    assert document["wrong"][0] == "the export has two entries 3"


def test_an_entry_that_the_cluster_does_not_know_is_named(verify, trail):
    """The trail was made anew behind it, or the export is another cluster's."""
    more = an_entry(LAST + 1)
    code, document = verify([*trail, (more, chained(trail[-1][1], more))])
    assert code == 5
    assert document["wrong"] == [f"entry {LAST + 1} of the export is unknown to the cluster"]


def test_the_error_names_what_is_wrong_first(trail, muster, tmp_path):
    """And the table has it."""
    to = write(tmp_path / "export", trail[:2], trail[4:])
    ran = muster("audit", "verify", "--export", str(to))
    assert ran.exit_code == 5
    assert "error: the audit trail is not whole: the export lacks entries 2 to 3" in ran.err
    assert ran.out.rstrip().endswith("the export lacks entries 2 to 3")
