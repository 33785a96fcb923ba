"""What a node gathers for the audit trail: bounded, in order, and of secrets nothing."""

import asyncio
import json
import re

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from muster.v1 import access_pb2, admin_pb2, errors_pb2
from musterd.coordinator.api.frame import audit_trail
from musterd.coordinator.api.frame.audit_trail import (
    BATCH,
    GATHERED_ENTRIES_MAX,
    GATHERED_MAX,
    QUIET_ROUNDS,
    READS,
    ROUNDS_MAX,
    TEXT_MAX,
    WAITING_MAX,
    AuditTrail,
    CallRecord,
    HandOver,
    result_of,
)
from musterd.coordinator.api.frame.operator_access import METADATA_KEY
from musterd.coordinator.machine.access import AclRule, Operation, Pattern, Resource
from musterd.coordinator.machine.audit import ENTRY_BYTES_MAX, put_entry
from tests.coordinator.api.test_access import SECRET, on_node


class ShardZero:
    """What a trail hands its batches to."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.batches = []

    async def __call__(self, batch, entries):
        self.batches.append((batch, [one.request_id for one in entries]))
        self.last = entries
        return self.outcomes.pop(0) if self.outcomes else HandOver.DONE


@pytest.fixture
def trail():
    """One that gathers, at wall time 1,000."""
    made = AuditTrail()
    made.follow(1, lambda: 1_000, lambda: True, lambda: 0)
    return made


def note(trail, request_id="r", detail="{}"):
    """One call."""
    trail.note("operator", "ipv4:1.2.3.4:5", "CreateTopic", request_id, "OK", detail)


def test_a_batch_that_was_not_answered_comes_again_as_it_was(trail):
    """Shard 0 knows it by its number; what came since is not in it."""
    shard_0 = ShardZero(HandOver.AGAIN)
    note(trail, "a")
    asyncio.run(trail.flush(shard_0))
    note(trail, "b")
    asyncio.run(trail.flush(shard_0))
    (first, one), (again, same), (later, other) = shard_0.batches
    assert (again, same) == (first, one) == (first, ["a"])
    assert (later > first, other) == (True, ["b"])
    assert (trail.waiting, trail.lost_total) == (0, 0)


def test_batches_are_bounded_and_those_that_are_refused_for_good_are_lost(trail):
    """Others are not kept waiting behind them."""
    shard_0 = ShardZero(HandOver.LOST)
    for number in range(BATCH + 1):
        note(trail, str(number))
    asyncio.run(trail.flush(shard_0))
    assert [len(each) for _, each in shard_0.batches] == [BATCH, 1]
    assert (trail.waiting, trail.lost_total) == (0, BATCH)


def test_entries_that_come_while_a_batch_is_under_way_are_not_lost(trail):
    """A node that stops hands over what waits, beside the hand-over of each second."""
    answered = asyncio.Event()
    shard_0 = ShardZero()

    async def slowly(batch, entries):
        await answered.wait()
        return await shard_0(batch, entries)

    async def scenario():
        note(trail, "a")
        note(trail, "b")
        both = [asyncio.create_task(trail.flush(slowly)) for _ in range(2)]
        await asyncio.sleep(0)
        note(trail, "c")
        answered.set()
        await asyncio.gather(*both)

    asyncio.run(scenario())
    assert [one for _, each in shard_0.batches for one in each] == ["a", "b", "c"]
    assert (trail.waiting, trail.lost_total) == (0, 0)


def test_entries_that_find_no_room_are_counted(trail):
    """A cluster without a leader of shard 0 takes no node's memory."""
    for _ in range(WAITING_MAX + 3):
        note(trail)
    assert (trail.waiting, trail.lost_total) == (WAITING_MAX, 3)


def test_a_later_process_goes_on_behind_what_shard_0_has(trail):
    """Also where its wall clock went back."""
    trail.follow(1, lambda: 5, lambda: True, lambda: 77)
    shard_0 = ShardZero()
    note(trail)
    asyncio.run(trail.flush(shard_0))
    assert shard_0.batches[0][0] == 78


def test_no_batch_is_numbered_before_it_is_known_what_shard_0_has(trail):
    """It would be taken for a repetition where the clock went back; once known it stays so."""
    recorded = None
    trail.follow(1, lambda: 5, lambda: True, lambda: recorded)
    shard_0 = ShardZero()
    note(trail, "a")
    asyncio.run(trail.flush(shard_0))
    assert (shard_0.batches, trail.waiting) == ([], 1)
    recorded = 77
    asyncio.run(trail.flush(shard_0))
    recorded = None
    note(trail, "b")
    asyncio.run(trail.flush(shard_0))
    assert shard_0.batches == [(78, ["a"]), (79, ["b"])]


def test_below_its_level_nothing_is_gathered():
    """And nothing where nobody hands it over, as in the simulator."""
    trail = AuditTrail()
    note(trail)
    trail.follow(1, lambda: 0, lambda: False, lambda: 0)
    note(trail)
    trail.refused("p", "ipv4:1.2.3.4:5", "JoinGroup", "GROUP_AUTHORIZATION_FAILED")
    asyncio.run(trail.flush(ShardZero()))
    assert (trail.waiting, trail.lost_total) == (0, 0)


@pytest.mark.parametrize("kind", ["refused", "unchanged"])
def test_as_many_distinct_ones_of_a_second_are_named_as_the_docs_say(trail, kind):
    """By name and count, whatever port they came from; the rest is counted."""
    host, error = "ipv4:10.20.30.40", "CONSUMER_GROUP_AUTHORIZATION_FAILED"
    asked = json.dumps({"group_id": "billing-of-the-west", "dry_run": True, "x": "y" * 70})

    def happens(principal, port):
        if kind == "refused":
            trail.refused(principal, f"{host}:{port}", "AlterGroupOffsets", error)
        else:
            trail.unchanged(principal, f"{host}:{port}", "AlterGroupOffsets", error, asked)

    for port in range(1_000):
        happens("billing-worker-0000", port)
    for number in range(1, GATHERED_MAX + 9):
        happens(f"billing-worker-{number:04}", 5)
    shard_0 = ShardZero()
    asyncio.run(trail.flush(shard_0))
    said = [json.loads(entry.detail) for entry in shard_0.last]
    named = [tuple(one[:5]) for part in said for one in part[kind]]
    assert GATHERED_MAX == 64, "so many, by docs/audit.md"
    assert named == [
        (f"billing-worker-{number:04}", host, "AlterGroupOffsets", error, 1 if number else 1_000)
        for number in range(GATHERED_MAX)
    ]
    assert [part["more"] for part in said] == [0] * (len(said) - 1) + [9]
    assert sum(part["calls"] for part in said) == 1_000 + GATHERED_MAX + 8
    for part in said:
        assert sum(one[4] for one in part[kind]) + part["more"] == part["calls"]
    assert len(said) <= GATHERED_ENTRIES_MAX
    asyncio.run(trail.flush(shard_0))
    assert len(shard_0.batches) == 1, "nothing happens any more"


def seconds(trail, count, *, refusals=GATHERED_MAX):
    """So many hand-overs, with so many refusals before each; the entries of each."""
    found, shard_0 = [], ShardZero()
    for _ in range(count):
        for number in range(refusals):
            trail.refused(f"guest-{number}", "ipv4:10.20.30.40:5", "JoinGroup", "R" * 100)
        shard_0.last = ()
        asyncio.run(trail.hand_over(shard_0))
        found.append(len(shard_0.last))
    return found


def test_refusals_that_go_on_are_an_entry_a_minute(trail):
    """The first are said within the second, all of them; nobody pushes all entries out soon."""
    found = seconds(trail, 304)
    assert {second: number for second, number in enumerate(found) if number} == {
        0: 3,
        2: 1,
        6: 1,
        14: 1,
        30: 1,
        62: 1,
        122: 1,
        182: 1,
        242: 1,
        302: 1,
    }
    asyncio.run(trail.flush(ShardZero()))
    assert sum(seconds(trail, 6 * QUIET_ROUNDS, refusals=0)) == 0
    assert seconds(trail, 4)[0] == 3, "as in the beginning"


def test_who_waits_gets_no_more_entries_out_of_it_than_who_goes_on(trail):
    """That is one a minute: quiet minutes make the time half as long, entries twice as long."""
    seconds(trail, 304)
    found, passed = 0, 0
    for quiet in (1, 30, ROUNDS_MAX, QUIET_ROUNDS, 2 * QUIET_ROUNDS):
        for _ in range(10):
            found += sum(seconds(trail, 1)) + sum(seconds(trail, quiet, refusals=0))
            passed += 1 + quiet
    assert found <= passed / 60 + GATHERED_ENTRIES_MAX


def test_what_is_gathered_still_is_handed_over_at_the_end(trail):
    """However long it would have been gathered otherwise."""
    seconds(trail, 10, refusals=1)
    shard_0 = ShardZero()
    asyncio.run(trail.flush(shard_0))
    (entry,) = shard_0.last
    assert json.loads(entry.detail)["calls"] == 3


@pytest.mark.parametrize(
    ("victim", "hosts"),
    [("mallory", 1), ("mallory", 99), ("guest", 1)],
    ids=["another caller", "a caller of one address", "another address"],
)
def test_no_caller_hides_another_by_calls_of_many_kinds(trail, victim, hosts):
    """Whoever has most loses the latest ones, and those of others are said in turn with them."""
    long = "R" * 400  # so that there is no room for all
    for number in range(10 * GATHERED_MAX):
        trail.refused("guest", f"ipv4:1.2.3.{number % hosts}:5", f"M{number}", long)
    trail.refused(victim, "ipv4:9.9.9.9:5", "CreateToken", "CLUSTER_AUTHORIZATION_FAILED")
    shard_0 = ShardZero()
    asyncio.run(trail.flush(shard_0))
    said = [json.loads(entry.detail) for entry in shard_0.last]
    assert said[0]["refused"][1][:3] == [victim, "ipv4:9.9.9.9", "CreateToken"]
    assert sum(part["calls"] for part in said) == 10 * GATHERED_MAX + 1


def test_the_longest_entry_fits(trail):
    """Whatever callers call themselves and ask for, in any script."""
    long = "\U0001f600" * 5_000
    trail.refused(long, long, long[:100], long[:100])  # which finds no room in any
    for number in range(GATHERED_MAX):
        trail.refused(f"{number}{long}", long, "M" * 100, "R" * 100)
        trail.unchanged(f"{number}{long}", long, "M" * 100, "R" * 100, json.dumps(long[:10]))
        trail.changed(f"{number}{long}", long, "M" * 100, "R" * 100, json.dumps(long[:10]))
    request = admin_pb2.DeleteGroupsRequest(group_ids=[long] * 50)
    record = CallRecord("DeleteGroups", request, {"x-request-id": long}, always=True)
    record.before = record.after = {long: long}
    record.ended(trail, long, long, long)
    shard_0 = ShardZero()
    asyncio.run(trail.flush(shard_0))
    assert len(shard_0.last) == 3 * GATHERED_ENTRIES_MAX + 1
    for entry in shard_0.last:
        assert len(put_entry(entry)) <= ENTRY_BYTES_MAX
        assert max(map(len, (entry.principal, entry.peer, entry.request_id))) <= TEXT_MAX


@on_node
async def test_no_secret_comes_into_an_entry(node):
    """Neither a new token, nor the admin secret or the token that the callers showed."""
    trail, shard_0 = node.core.audit, ShardZero()
    trail.follow(1, lambda: 1_000, lambda: True, lambda: 0)
    by_secret = ((METADATA_KEY, SECRET),)
    root = await node.token_of("root")
    await node.allow(AclRule("a", Operation.JOIN, Resource.GROUP, Pattern.LITERAL, "g"))
    request = access_pb2.CreateTokenRequest(principal="ann")
    answers = [
        await node.access_rpcs.CreateToken(request, metadata=metadata)
        for metadata in (by_secret, root)
    ]
    await trail.flush(shard_0)
    said = repr(shard_0.last)
    assert said.count("CreateToken") == 2
    assert '"principal": "ann"' in said
    shown = [value for _, value in root]
    for secret in (SECRET.decode(), SECRET.hex(), *shown, *(one.token for one in answers)):
        assert secret
        assert secret.removeprefix("Bearer ") not in said


def test_a_secret_in_a_request_is_said_to_be_there_alone(trail):
    """Also in a message within, by the names that secrets have; no request has one today."""
    made = descriptor_pb2.FileDescriptorProto(name="made_up.proto", package="made_up")
    inner = made.message_type.add(name="Inner")
    outer = made.message_type.add(name="Outer")
    string, message = 9, 11
    for number, name in enumerate(("principal", "secret", "token", "password", "private_key"), 1):
        inner.field.add(name=name, number=number, type=string, label=1)
    outer.field.add(name="inner", number=1, type=message, label=3, type_name=".made_up.Inner")
    outer.field.add(name="token", number=2, type=string, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(made)
    request_type = message_factory.GetMessageClass(pool.FindMessageTypeByName("made_up.Outer"))
    hidden = dict.fromkeys(("secret", "token", "password", "private_key"), "hidden")
    request = request_type(inner=[{"principal": "ann", **hidden}], token="hidden")
    CallRecord("MadeUp", request, {}, always=True).ended(trail, "operator", "p", "OK")
    shard_0 = ShardZero()
    asyncio.run(trail.flush(shard_0))
    told = dict.fromkeys(hidden, "...")
    assert json.loads(shard_0.last[0].detail)["request"] == {
        "inner": [{"principal": "ann", **told}],
        "token": "...",
    }


def test_a_field_that_sounds_like_a_secret_is_one_or_is_known_to_be_none():
    """Of each request that has an entry: whoever adds such a field says which it is."""
    known = {"token_id"}

    def fields(message, seen):
        for field in message.fields:
            yield field.name
            if field.message_type and field.message_type not in seen:
                yield from fields(field.message_type, [*seen, field.message_type])

    names = {
        name
        for file in (admin_pb2, access_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.name not in READS
        for name in fields(method.input_type, [])
    }
    assert "principal" in names
    suspect = {name for name in names if re.search("secret|token|passw|private|credential", name)}
    assert suspect - known <= audit_trail._SECRETS


def test_the_result_of_a_call_is_that_of_its_parts():
    """OK, one error, or several."""
    response = admin_pb2.DeleteGroupsResponse
    result, status = response.Result, errors_pb2.Status
    refused = result(status=status(code=errors_pb2.NON_EMPTY_GROUP))
    failed = status(code=errors_pb2.NOT_COORDINATOR)
    assert result_of(response()) == "OK"
    assert result_of(response(results=[result()])) == "OK"
    assert result_of(response(results=[refused])) == "NON_EMPTY_GROUP"
    assert result_of(response(results=[result(), refused])) == "MIXED"
    assert result_of(response(status=failed)) == "NOT_COORDINATOR"


def test_what_changes_nothing_is_no_operators_call():
    """Every other RPC of operators has an entry: those that are added have one by themselves."""
    services = [
        service
        for file in (admin_pb2, access_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
    ]
    names = {method.name for service in services for method in service.methods}
    assert names >= READS
    assert {"CreateTopic", "DeleteTopic", "ReplaceNode", "AcceptLoss"} <= names - READS
