"""The audit trail in the machine: a chain of hashes, bounded in the state."""

import hashlib
from dataclasses import replace

import pytest

from muster.admin.audit import AuditEntry as ClientEntry
from muster.admin.audit import chained as client_chained
from musterd.coordinator.codec import decode_command, decode_events, encode_command, encode_events
from musterd.coordinator.machine import audit
from musterd.coordinator.machine.audit import NO_HASH, chained
from musterd.coordinator.machine.commands import AuditEntry, RecordAudit
from musterd.coordinator.machine.decide.audit import decide_audit
from musterd.coordinator.machine.decide.shard import decide_shard
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import LevelRaised
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Done, Refused
from musterd.coordinator.machine.shard_state import (
    ShardState,
    apply_entry,
    evolve_shard_counted,
    load_state,
    recount,
    reweigh,
    shard_records,
)
from musterd.levels import LEVEL
from tests.machine.test_properties import entry_of


def an_entry(number=1, **changes):
    """An entry of node 1."""
    fields = {"wall_ms": number, "node_id": 1, "principal": "operator", "peer": "ipv4:1.2.3.4:5"}
    fields |= {"method": "CreateTopic", "request_id": "r", "result": "OK", "detail": "{}"}
    return AuditEntry(**(fields | changes))


def record(state, *entries, batch, node=1):
    """Apply one command."""
    (result,) = apply_entry(state, entry_of(RecordAudit(node, batch, entries), batch), batch)
    return result


@pytest.fixture
def state():
    """Shard 0 of a cluster at this build's level."""
    state = ShardState()
    evolve_shard_counted(state, LevelRaised(LEVEL))
    return state


def test_entries_come_in_a_chain_and_a_restart_changes_nothing(state):
    """The state's hashes are those that anybody can compute of the entries."""
    for batch in range(1, 4):
        record(state, an_entry(batch), an_entry(batch, result="INVALID_REQUEST"), batch=batch)
    head = NO_HASH
    for number, one in enumerate(state.audit.values()):
        head = chained(head, number, one)
    assert (state.audit_head, state.audit_base, state.audit_next) == (head, NO_HASH, 6)
    assert state.digest == recount(state)
    assert state.bytes == reweigh(state)[0]
    loaded = load_state(sorted(shard_records(state)))
    for name in ("", "_hashes", "_head", "_base", "_next", "_batches"):
        assert getattr(loaded, f"audit{name}") == getattr(state, f"audit{name}")


def test_a_batch_that_comes_again_records_nothing(state):
    """A node does not know what became of a command that was not answered."""
    record(state, an_entry(), batch=5)
    again = record(state, an_entry(), batch=5)
    assert (again.events, again.reply) == ((), Done())
    assert record(state, an_entry(), batch=5, node=2).events, "another node's"
    assert len(state.audit) == 2


def test_the_oldest_make_room_and_the_hash_before_the_first_moves_on(state, monkeypatch):
    """By number, and by bytes."""
    monkeypatch.setitem(decide_audit.__globals__, "KEPT", 3)
    hashes = [NO_HASH]
    for batch in range(1, 8):
        record(state, an_entry(batch), batch=batch)
        hashes.append(state.audit_head)
    assert list(state.audit) == [4, 5, 6]
    assert state.audit_base == hashes[4]
    monkeypatch.setitem(decide_audit.__globals__, "KEPT_BYTES", 200)
    record(state, an_entry(8), batch=8)
    assert len(state.audit) == 2
    assert state.audit_base == hashes[6]


def test_a_batch_larger_than_all_that_is_kept_leaves_its_last_entries(state, monkeypatch):
    """What is dropped at once is in the chain, too."""
    monkeypatch.setitem(decide_audit.__globals__, "KEPT", 2)
    record(state, *map(an_entry, range(5)), batch=1)
    assert list(state.audit) == [3, 4]
    assert chained(chained(state.audit_base, 3, an_entry(3)), 4, an_entry(4)) == state.audit_head


@pytest.mark.parametrize(
    "entries",
    [(), (an_entry(),) * (audit.BATCH + 1), (an_entry(detail="x" * audit.ENTRY_BYTES_MAX),)],
)
def test_what_is_out_of_bounds_is_refused(state, entries):
    """None, too many, too long."""
    decision = decide_shard(state, RecordAudit(1, 1, entries), LIMITS)
    assert isinstance(decision.reply, Refused)
    assert decision.reply.error is Error.INVALID_REQUEST


def test_below_its_level_nothing_is_recorded():
    """Builds that are in the cluster could not read it."""
    state = ShardState()
    assert record(state, an_entry(), batch=1).reply.error is Error.UNSUPPORTED_VERSION
    assert not state.audit


def test_command_and_event_are_the_same_after_their_encoding(state):
    """Also of entries that say nothing."""
    command = RecordAudit(1, 2, (an_entry(), an_entry(detail="", principal="")))
    assert decode_command(encode_command(command)) == command
    events = decide_shard(state, command, LIMITS).events
    assert decode_events(encode_events(events)) == events


def test_whoever_verifies_computes_the_same_hash():
    """The SDK has the chain in a dozen lines of its own."""
    one = an_entry(detail='{"é": 1}')
    fields = {name: getattr(one, name) for name in AuditEntry.__dataclass_fields__}
    for changes in ({}, {"detail": "x"}, {"node_id": 2}, {"wall_ms": -1}):
        changed = replace(one, **changes)
        expected = chained(hashlib.sha256().hexdigest(), 7, changed)
        other = client_chained(hashlib.sha256().hexdigest(), ClientEntry(7, **(fields | changes)))
        assert other == expected
