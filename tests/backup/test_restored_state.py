"""A restored state: no members, no old token, all offsets, and the same on each node."""

from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musterd.backup import restored_state
from musterd.backup.restored_state import GENERATIONS, TOKENS_PER_S, restored
from musterd.coordinator.machine.audit import chained
from musterd.coordinator.machine.decide.audit import decide_audit
from musterd.coordinator.machine.events import LevelRaised
from musterd.coordinator.machine.invariants import check
from musterd.coordinator.machine.records.digest import digest_of
from musterd.coordinator.machine.shard_state import (
    ShardState,
    evolve_shard_counted,
    load_state,
    shard_records,
)
from musterd.coordinator.machine.state import Phase
from musterd.levels import LEVEL
from tests.backup.archives import LIVES, world_of
from tests.machine.test_audit import an_entry, record

INSTANT_S = 1_800_000_000


def after(lines, instant_s=INSTANT_S):
    """The state of these verbs, and the one that is restored of it."""
    before = world_of(lines).state
    made = restored(world_of(lines).state, instant_s)
    assert made.digest == digest_of(made.records)
    return before, load_state(made.records)


@pytest.mark.parametrize("lines", LIVES, ids=lambda lines: lines[-1])
def test_all_members_are_removed_and_all_else_stays(lines):
    """Offsets, blobs and settings; groups are kept from the instant on."""
    before, state = after(lines)
    assert state.groups.keys() == before.groups.keys()
    for group_id, group in state.groups.items():
        old = before.groups[group_id]
        assert (group.phase, group.members, group.pending) == (Phase.EMPTY, {}, {})
        assert group.modern is None
        assert (group.offsets, group.blob, group.config) == (old.offsets, old.blob, old.config)
        assert group.emptied_wall_ms == INSTANT_S * 1_000
        assert group.timer is None
        check(group)
    assert state.topics == before.topics


@pytest.mark.parametrize("lines", LIVES, ids=lambda lines: lines[-1])
def test_the_next_token_and_generation_are_above_all_that_were_given(lines):
    """Of groups that were there, and of those that were not."""
    before, state = after(lines)
    old = max(max(group.fence, group.generation) for group in before.groups.values())
    generation = max(group.generation for group in before.groups.values())
    world = world_of([])
    world.state, world.now_ms = state, state.time_ms
    for group_id in ("g", "new"):
        for line in (f"join z group={group_id}", f"fire group={group_id}"):
            world.run(line)
        group = world.state.groups[group_id]
        assert group.fence > max(old, INSTANT_S * TOKENS_PER_S)
        assert generation + GENERATIONS < group.generation < 2**31


def test_a_group_is_emptied_whichever_of_its_members_go_first(monkeypatch):
    """It is a classic group with an open round once its last modern member is gone."""
    monkeypatch.setattr(restored_state, "LEAVING_MAX", 1)
    _, state = after(LIVES[-1])
    assert state.groups["g"].phase is Phase.EMPTY


def test_restored_twice_gives_no_token_twice():
    """The first life may take a million tokens a second until the second one begins."""
    _, first = after(LIVES[1])
    _, second = after(LIVES[1], INSTANT_S + 1)
    assert second.fence_floor >= first.fence_floor + TOKENS_PER_S


def test_a_later_floor_is_never_lowered():
    """Of a backup of a restored cluster, by a clock that went back."""
    _, state = after(LIVES[1])
    fence, generation = state.fence_floor, state.generation_floor
    again = load_state(restored(state, 1).records)
    assert again.fence_floor >= fence
    assert again.generation_floor >= generation + GENERATIONS


def test_nodes_that_were_replaced_are_forgotten():
    """They are of another cluster: node 2 of the new one has a store of its own."""
    before, state = after(["topic t 3", "replace 2 uuid", "join a"])
    assert before.replaced_nodes
    assert not state.replaced_nodes
    assert state.topics == before.topics


@settings(max_examples=20)
@given(st.sampled_from(LIVES), st.integers(1, 2**32))
def test_every_node_makes_the_same_state(lines, instant_s):
    """Of one backup and one instant, also of a state that was loaded."""
    live = restored(world_of(lines).state, instant_s)
    loaded = load_state(sorted(shard_records(world_of(lines).state)))
    assert restored(loaded, instant_s) == live


ACCESS = ["acl +ann:join:group:billing-*", "token a ann join:group:g*"]


def test_bearer_tokens_are_void_and_rules_stay():
    """Unless they are to be kept; who knew the access before is told of another one."""
    before, state = after(ACCESS)
    assert before.tokens
    assert not state.tokens
    assert state.rules == before.rules
    assert state.access_version > before.access_version
    kept = load_state(restored(world_of(ACCESS).state, INSTANT_S, keep_tokens=True).records)
    assert (kept.tokens, kept.rules) == (before.tokens, before.rules)


def test_the_audit_trail_goes_on_and_takes_entries_of_new_nodes(monkeypatch):
    """Its chain stays, also where the oldest entries made room; a new node begins at batch 1."""
    monkeypatch.setitem(decide_audit.__globals__, "KEPT", 3)
    state = ShardState()
    evolve_shard_counted(state, LevelRaised(LEVEL))
    for number in range(5):
        record(state, an_entry(number, detail=f"call {number}"), batch=500 + number)
    before = deepcopy(state)
    again = load_state(restored(state, INSTANT_S).records)
    assert list(again.audit) == [2, 3, 4]
    for name in ("audit", "audit_hashes", "audit_base", "audit_head", "audit_next"):
        assert getattr(again, name) == getattr(before, name), name
    assert before.audit_batches == {1: 504}
    assert again.audit_batches == {}
    record(again, an_entry(9), batch=1)
    assert again.audit_head == chained(before.audit_head, 5, an_entry(9))
