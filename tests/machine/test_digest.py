"""The digest covers everything: any one field of any state, walked generically (arch-3.9)."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from enum import Enum

import pytest

from musterd.coordinator.machine.commands import RoundTimer
from musterd.coordinator.machine.events import RemovalCause
from musterd.coordinator.machine.evolve_history import rounds_of
from musterd.coordinator.machine.records.digest import digest_bytes, record_digest
from musterd.coordinator.machine.shard_state import (
    ShardState,
    load_state,
    recount,
    reweigh,
    shard_records,
)
from tests.machine.world import World


def worlds() -> Iterator[World]:
    """States that together have every field in use."""
    for lines in (
        ["join a topics=t,u protocols=range,rr", "join b protocols=range,rr"],
        ["join a", "join b", "fire", "fire", "sync a-1 a-1:A b-1:B", "commit a-1 t/0=5@9:m seq=3"],
        ["join a", "fire", "leave a-1", "commit - t/1=2"],
        ["topic t 3", "replace 2 uuid", "time 5", "join a"],
        ["join a instance=i", "join b nonce= drawn=p", "join a nonce=2 instance=i", "fire"],
        [
            "acl +ann:join:group:g +bob:describe:topic:t* +bob:admin:cluster::deny",
            "token a ann join:group:g* expires=9",
            "token b bob describe:cluster:",
            "backup 5",
        ],
        ["quota group:g joins=3 commits=4", "quota principal joins=9", "quota group:g joins=0"],
        ["topic t 3", "grow t 4", "config size=3 delay=0", "join a", "fire", "commit a-1 t/0=1..5"],
        [
            *(
                "topic t 3 zones=y;z",
                "hear a join instance=i zone=z capacity=5",
                "settle",
                "hear b join",
            ),
            *("tell", "plan", "hear a away back=9", "hear c join topics=t,u assignor=range"),
        ],
        ["topic t 3", "hear a join", "settle", "hear b join", "settle", "hear c join", "plan"],
        ["topic t 3", "hear a join", "tell", "hear b join", "plan size=2 to=1"],
        [
            *("topic A 2", "join c keeps= topics=A", "fire", "sync c-1 c-1:=A/0,A/1"),
            *("hear m join topics=A", "settle"),
        ],
    ):
        world = World()
        for line in lines:
            world.run(line)
        world.state.generation_floor = 7
        world.state.fence_floor = 9
        yield world


def changed(value: object) -> Iterator[object]:  # noqa: C901, PLR0912 - one case per kind
    """Each value that differs from `value` in one place, of the same type."""
    match value:
        case bool():
            yield not value
        case Enum():
            yield next(other for other in type(value) if other is not value)
            if isinstance(value, RoundTimer | RemovalCause):
                yield None  # where there may be none
        case int():
            yield value + 1
            yield -value - 1
        case str():
            yield value + "x"
        case bytes():
            yield value + b"x"
        case None:
            yield from (1, 0)
        case list():
            yield [*value, *(value[-1:] or [0])]
            for i, item in enumerate(value):
                for other in changed(item):
                    yield [*value[:i], other, *value[i + 1 :]]
        case tuple() if hasattr(value, "_fields"):
            for name, item in zip(value._fields, value, strict=True):
                for other in changed(item):
                    yield value._replace(**{name: other})
        case tuple():
            yield (*value, *(value[-1:] or ("x",)))
            for i, item in enumerate(value):
                yield value[:i] + value[i + 1 :]
                for other in changed(item):
                    yield (*value[:i], other, *value[i + 1 :])
        case _ if is_dataclass(value):
            for field in fields(value):
                if field.metadata.get("derived") or (
                    field.name in ("begun", "modern", "moves", "protocols", "replaced")
                    and not getattr(value, field.name)
                ):
                    continue  # recounted by the invariants, or changed in another world
                for other in changed(getattr(value, field.name)):
                    copy = deepcopy(value)
                    object.__setattr__(copy, field.name, other)
                    yield copy
        case dict():
            for key, item in value.items():
                yield {k: v for k, v in value.items() if k != key}
                for other in changed(item) if item is not None else ():  # keys alone
                    yield {**value, key: other}
        case _:
            raise AssertionError(f"no change known for {value!r}")


def variants(state: ShardState) -> Iterator[ShardState]:
    """Every state that differs from `state` in one field of one object, the digest apart."""
    for field in fields(state):
        if field.name == "digest" or field.metadata.get("derived"):
            continue
        for other in changed(getattr(state, field.name)):
            copy = deepcopy(state)
            setattr(copy, field.name, other)
            yield copy


def keyed_consistently(state: ShardState) -> bool:
    """Ids that are also keys cannot differ from them: the machine forbids it (gp-I7)."""
    return all(
        group_id == group.group_id
        and all(member_id == m.member_id for member_id, m in group.members.items())
        and all(
            member_id == m.member_id
            for member_id, m in (group.modern.members.items() if group.modern else ())
        )
        for group_id, group in state.groups.items()
    )


@pytest.mark.parametrize("number", range(12))
def test_changing_any_one_field_changes_the_digest(number):
    """Every field of every dataclass in the state, found by walking: none is forgotten."""
    state = list(worlds())[number].state
    original = recount(state)
    count = 0
    for variant in variants(state):
        if not keyed_consistently(variant):
            continue
        count += 1
        assert recount(variant) != original, variant
    assert count > 20


def test_the_states_have_what_only_some_of_them_may_lack():
    """What `changed` passes over where it is empty is there in another state, and changed there."""
    groups = [group for world in worlds() for group in world.state.groups.values()]
    consumers = [one for group in groups if group.modern for one in group.modern.members.values()]
    assert any(one.protocols for one in consumers)
    assert any(one.begun for one in consumers)
    assert any(group.modern.replaced for group in groups if group.modern)
    assert any(record.moves for group in groups for _, record in rounds_of(group))


def test_an_armed_timer_of_any_kind_has_its_own_digest():
    """None and each timer differ."""
    (world, *_) = worlds()
    (group,) = world.state.groups.values()
    digests = []
    for timer in (None, *RoundTimer):
        group.timer = timer
        digests.append(recount(world.state))
    assert len({*digests}) == len(digests)


def test_restored_state_is_the_original():
    """Records in key order give back the same state, join order included."""
    for world in worlds():
        world.state.digest, world.state.bytes = recount(world.state), reweigh(world.state)[0]
        assert load_state(sorted(shard_records(world.state))) == world.state


def test_join_order_survives_key_order():
    """arch-3.2: ids whose order differs from the order of joining."""
    world = World()
    for client in ("z", "m", "a"):
        world.run(f"join {client}")
    restored = load_state(sorted(shard_records(world.state)))
    assert list(restored.groups["g"].members) == ["z-1", "m-1", "a-1"]


def test_a_records_digest_tells_key_from_value():
    """Length prefixes: moving a byte from the key to the value is another record."""
    assert record_digest(b"ab", b"c") != record_digest(b"a", b"bc")
    assert len(digest_bytes(record_digest(b"", b""))) == 16


def test_digest_of_an_empty_shard_is_zero():
    """A new shard and a shard with nothing have the same digest."""
    assert recount(ShardState()) == 0 == ShardState().digest
