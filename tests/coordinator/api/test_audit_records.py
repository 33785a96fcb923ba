"""RecordAudit as a node takes it from another one: whose calls, and which batches."""

import asyncio

import grpc
import pytest

from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from musterd.coordinator.api.frame.operator_access import METADATA_KEY
from musterd.coordinator.api.rpcs.audit_records import AHEAD_MS_MAX
from musterd.coordinator.machine.errors import Error
from tests.coordinator.api.test_access import SECRET, on_node
from tests.coordinator.api.test_audited_calls import OPERATOR, entries, follow
from tests.coordinator.api.test_certified_callers import certified
from tests.coordinator.local import LocalNode


def request(node_id, batch):
    """A batch of one entry of a call that this node answered."""
    entry = pb.AuditTrailEntry(node_id=node_id, method="CreateTopic")
    return pb.RecordAuditRequest(node_id=node_id, batch=batch, entries=[entry])


@pytest.mark.parametrize("batch", [2**62, 2**63 - 1, None])
def test_a_batch_far_ahead_of_the_clock_is_refused_and_the_nodes_own_are_recorded(batch):
    """Else no later one of that node would be recorded, and in the end none could be sent."""

    async def scenario():
        node = LocalNode()
        await node.start()
        try:
            node.shards[0].state.level = 6
            now_ms = node.wall_ms()
            far = now_ms + AHEAD_MS_MAX + 60_000 if batch is None else batch
            refused = await node.admin.RecordAudit(request(1, far))
            assert refused.status.code == Error.INVALID_REQUEST
            assert "clock" in refused.status.message
            for own in (now_ms, now_ms + AHEAD_MS_MAX):
                assert (await node.admin.RecordAudit(request(1, own))).status.code == 0
            assert len(node.shards[0].state.audit) == 2
        finally:
            await node.stop()

    asyncio.run(scenario())


def test_after_a_start_with_a_clock_far_ahead_a_nodes_later_batches_are_recorded():
    """It led shard 0 itself then, and goes on behind its last batch. Others lead since."""

    async def scenario():
        node = LocalNode()
        await node.start()
        try:
            state = node.shards[0].state
            state.level = 6
            last = state.audit_batches[1] = node.wall_ms() + 365 * AHEAD_MS_MAX
            refused = await node.admin.RecordAudit(request(1, last + AHEAD_MS_MAX + 1))
            assert refused.status.code == Error.INVALID_REQUEST
            for batch in (last + 1, last + 1 + AHEAD_MS_MAX):
                assert (await node.admin.RecordAudit(request(1, batch))).status.code == 0
            others = await node.admin.RecordAudit(request(2, last))
            assert others.status.code == Error.INVALID_REQUEST
        finally:
            await node.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("has_rules", [True, False])
def test_a_nodes_certificate_records_that_nodes_calls_alone(tmp_path, has_rules):
    """Also before there are rules, when a superuser's certificate is enough for other calls.

    It has no entry itself; what is refused is gathered.
    """

    async def scenario():
        async with certified(tmp_path) as node:
            node.shards[0].state.level = 6
            follow(node)
            if has_rules:
                await node.allow("root")
            answers = []
            node_1 = node.authority.node(1, ["localhost"]).folder
            for folder, of_node in (
                (node_1, 1),
                (node_1, 2),
                (node.authority.client("root").folder, 2),
                (node.authority.client("ann").folder, 2),
            ):
                async with node.connect(folder) as channel:
                    admin = admin_pb2_grpc.AdminStub(channel)
                    try:
                        answer = await admin.RecordAudit(request(of_node, 1))
                        answers.append(Error(answer.status.code))
                    except grpc.aio.AioRpcError as error:
                        answers.append(error.code())
            assert [one[0] for one in await entries(node)] == ["refusals", "unchanged"]
            denied = Error.CLUSTER_AUTHORIZATION_FAILED
            nobody = denied if has_rules else grpc.StatusCode.UNAUTHENTICATED
            assert answers == [Error.NONE, Error.INVALID_REQUEST, denied, nobody]
            assert set(node.shards[0].state.audit_batches) == {1}

    asyncio.run(scenario())


@pytest.mark.parametrize("has_rules", [True, False])
@pytest.mark.parametrize("shows", ["host", "another node"])
def test_with_the_admin_secret_the_certificate_of_another_does_not_matter(
    tmp_path, has_rules, shows
):
    """A company's certificates name nodes by their hosts; or all have one, which names one node."""

    async def scenario():
        async with certified(tmp_path) as node:
            node.shards[0].state.level = 6
            if has_rules:
                await node.allow("root")
            made = node.authority
            is_host = shows == "host"
            other = made.client("host-1") if is_host else made.node(0, ["localhost"])
            shown = ((METADATA_KEY, SECRET),)
            async with node.connect(other.folder) as channel:
                admin = admin_pb2_grpc.AdminStub(channel)
                answer = await admin.RecordAudit(request(1, 1), metadata=shown)
            assert answer.status.code == Error.NONE
            assert set(node.shards[0].state.audit_batches) == {1}

    asyncio.run(scenario())


@pytest.mark.parametrize("has_rules", [True, False])
def test_a_node_that_shows_its_certificate_and_the_secret_leaves_no_entry(tmp_path, has_rules):
    """As nodes do that have both: the trail would be full of their hand-overs."""

    async def scenario():
        async with certified(tmp_path) as node:
            node.shards[0].state.level = 6
            follow(node)
            if has_rules:
                await node.allow("root")
            shown = ((METADATA_KEY, SECRET),)
            async with node.connect(node.authority.node(1, ["localhost"]).folder) as channel:
                admin = admin_pb2_grpc.AdminStub(channel)
                for of_node in (1, 2):
                    answer = await admin.RecordAudit(request(of_node, 1), metadata=shown)
                    assert answer.status.code == Error.NONE
            (found,) = await entries(node)
            assert [one[4:] for one in found[2]["changes"]] == [[1, '{"node_id": 2}']]

    asyncio.run(scenario())


@on_node
async def test_who_records_without_a_nodes_certificate_is_in_the_trail(node):
    """Nodes show the admin secret, too: nobody can tell them from somebody else who has it."""
    follow(node)
    for batch in range(1, 31):
        await node.admin.RecordAudit(request(1, batch), metadata=OPERATOR)
    await node.admin.RecordAudit(request(2, 1), metadata=OPERATOR)
    others = request(2, 2)
    others.entries[0].node_id = 1
    await node.admin.RecordAudit(others, metadata=OPERATOR)
    found = {method: detail[method] for method, _, detail in await entries(node)}
    assert {method: [one[2:] for one in each] for method, each in found.items()} == {
        "changes": [
            ["RecordAudit", "OK", 30, '{"node_id": 1}'],
            ["RecordAudit", "OK", 1, '{"node_id": 2}'],
        ],
        "unchanged": [["RecordAudit", "INVALID_REQUEST", 1, '{"node_id": 2}']],
    }
    for principal, host, *_ in (one for each in found.values() for one in each):
        assert (principal, host.partition(":")[0]) == ("operator", "ipv4")
