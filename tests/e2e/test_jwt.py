"""A worker with JWTs in a file, on real nodes: it goes on when keys and token are others."""

import asyncio
import json
import time
import urllib.request

import pytest

import muster
from muster.cli.errors import ExitCode
from musterd.coordinator.api.frame.jwt_verifier import LEEWAY_MS
from musterd.coordinator.node.launcher import Cluster
from tests.bad_input.world import command, wait_for
from tests.identity_provider import AUDIENCE, ISSUER, ec_key, jwk, key_server, key_set, signed

pytestmark = pytest.mark.processes

PATIENCE_S = 60
LASTS_S = 6
"""A token that ends under a call."""


@pytest.fixture(scope="module")
def provider():
    """The identity provider's key set, and its first key."""
    first = ec_key()
    with key_server(jwk(first, "k1")) as server:
        yield server, first


@pytest.fixture(scope="module")
def cluster(provider, tmp_path_factory):
    """Three nodes that take its JWTs; `jwt:root` is a superuser, `jwt:ann` works."""
    server, first = provider
    folder = tmp_path_factory.mktemp("jwt")
    flags = (
        f"--jwt-issuer={ISSUER}",
        f"--jwt-audience={AUDIENCE}",
        f"--jwt-keys={server.url}",
        "--superusers=jwt:root",
    )
    root = folder / "root.jwt"
    root.write_text(signed(first, sub="root", exp=int(time.time()) + 3_600))
    with Cluster(folder / "dev", shards=4, flags=flags) as nodes:
        nodes.wait_ready()
        for rule in (("join,commit", "group", "billing-*"), ("describe", "topic", "orders")):
            granted = acl(nodes, root, "grant", "jwt:ann", *rule, "--wait")
            assert granted.code == ExitCode.OK, granted.err
        made = command(
            "topic", "create", "orders", "-p", "2", f"--bootstrap={nodes.bootstrap}", **shown(root)
        )
        assert made.code == ExitCode.OK, made.err
        yield nodes, root


def shown(root):
    return {"MUSTER_TOKEN_FILE": str(root)}


def acl(nodes, root, *args):
    """`muster acl ARGS`, as the superuser."""
    return command("acl", *args, f"--bootstrap={nodes.bootstrap}", **shown(root))


def replace(path, text):
    """As an agent does that keeps a token fresh."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_a_worker_goes_on_through_a_change_of_keys_and_of_its_token(cluster, provider, tmp_path):
    """The old key is gone from the set, and the old token would be refused; nobody restarts."""
    nodes, _ = cluster
    server, first = provider
    second, file = ec_key(), tmp_path / "ann.jwt"
    file.write_text(signed(first))

    async def work():
        async with muster.Client(nodes.bootstrap, token_file=str(file)) as client:
            group = client.group("billing-eu", ["orders"])
            async with group:
                async with asyncio.timeout(PATIENCE_S):
                    await group.next_assignment()
                await group.commit({("orders", 0): 1})
                server.body = key_set(jwk(first, "k1"), jwk(second, "k2"))
                replace(file, signed(second, "k2"))
                await group.commit({("orders", 0): 2})
                server.body = key_set(jwk(second, "k2"))
                return await group.committed()

    assert asyncio.run(work())["orders", 0].offset == 2
    server.body = key_set(jwk(first, "k1"), jwk(second, "k2"))


class Slow(muster.RebalanceListener):
    """A member that gives its partitions up when it is told to."""

    def __init__(self):
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def revoked(self, _group, _assignment):
        self.asked.set()
        await self.may.wait()


def test_a_parked_join_outlives_its_token_where_the_file_has_another(cluster, provider, tmp_path):
    """The round waits for a slow member; the Join is made again when its token has ended."""
    nodes, _ = cluster
    _, first = provider
    lasting, brief = tmp_path / "lasting.jwt", tmp_path / "brief.jwt"
    lasting.write_text(signed(first))

    async def work():
        slow = Slow()
        async with (
            muster.Client(nodes.bootstrap, token_file=str(lasting)) as earlier,
            earlier.group("billing-slow", ["orders"], listener=slow) as there,
        ):
            await there.next_assignment()
            brief.write_text(signed(first, exp=int(time.time()) + LASTS_S - LEEWAY_MS // 1_000))
            async with (
                muster.Client(nodes.bootstrap, token_file=str(brief)) as later,
                later.group("billing-slow", ["orders"]) as group,
            ):
                joining = asyncio.create_task(group.next_assignment())
                await slow.asked.wait()
                replace(brief, signed(first))
                attempts = later.counters.attempts
                while later.counters.attempts == attempts and not joining.done():
                    await asyncio.sleep(0.01)
                slow.may.set()
                return len((await joining).partitions)

    assert asyncio.run(asyncio.wait_for(work(), PATIENCE_S)) == 1


def test_what_is_wrong_with_a_token_is_told_and_nothing_else(cluster, provider, tmp_path):
    """UNAUTHENTICATED, with the reason where the provider has signed it."""
    nodes, _ = cluster
    _, first = provider
    now = int(time.time())
    for text, why in (
        (signed(first, exp=now - 60), "has expired"),
        (signed(first, aud="other"), "another audience"),
        (signed(first, iss="https://other.test"), "another issuer"),
        (signed(ec_key()), "not valid"),
    ):
        file = tmp_path / "bad.jwt"
        file.write_text(text)
        done = command("group", "list", f"--bootstrap={nodes.bootstrap}", **shown(file))
        assert done.code != ExitCode.OK
        assert why in done.err
    file.write_text(signed(first, sub="bob"))
    done = command("group", "list", f"--bootstrap={nodes.bootstrap}", **shown(file))
    assert done.code != ExitCode.OK
    assert "jwt:bob" in done.err


def test_the_audit_trail_and_the_metrics_know_jwts(cluster):
    """Under the name of the rules."""
    nodes, root = cluster

    def entries():
        done = command(
            *("audit", "query", "-o", "json", f"--bootstrap={nodes.bootstrap}"), **shown(root)
        )
        assert done.code == ExitCode.OK, done.err
        return json.loads(done.out)["entries"]

    wait_for(
        lambda: any(
            one["principal"] == "jwt:root" and one["method"] == "AlterAcls" for one in entries()
        ),
        "the entry of a rule",
    )
    text = "".join(
        urllib.request.urlopen(f"http://{node.metrics_endpoint}/metrics", timeout=10)
        .read()
        .decode()
        for node in nodes.nodes.values()
    )
    assert 'muster_jwt_checks_total{result="verified"}' in text
    assert 'muster_jwt_key_fetches_total{result="read"}' in text
