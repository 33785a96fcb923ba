"""A member whose client certificate is renewed twice while it works, on real nodes."""

import asyncio
import logging
import time

import pytest

import muster
from muster import timeouts
from musterd.coordinator.node.authority import Authority
from musterd.coordinator.node.launcher import Cluster
from tests.certificates import signed
from tests.e2e.guarded import Ready, TlsFolders, tls

NAME = "renewals"
NODES = 3
PATIENCE_S = 60
LASTS_S = 6
"""A certificate; nodes refuse one that has ended, on connections that stand, too."""
DAY_S = 24 * 3_600
SOON_MS = 50


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """Authority and nodes, TLS on both ports; clients must show a certificate."""
    root = tmp_path_factory.mktemp("renewals")
    authority = Authority.create(root / "certs", NAME)
    for node in range(NODES):
        authority.node(node, ["localhost", "127.0.0.1"])
    cluster = Cluster(
        root / "cluster",
        nodes=NODES,
        shards=2,
        equipment=(TlsFolders(root / "certs"),),
        name=NAME,
    )
    cluster.tls = Ready(certificate(authority, root, "first", DAY_S))
    with cluster:
        cluster.wait_ready()
        yield cluster, authority


def certificate(authority, folder, name, lasts_s):
    """One of client `worker`, with a new key."""
    uri = f"muster://{NAME}/client/worker".encode()
    return signed(authority, folder / name, [uri], ends_days=lasts_s / DAY_S)


def put(files, new):
    """Write it over the former one, file by file, as `muster cert renew` does."""
    for now, then in ((files.cert, new.cert), (files.key, new.key)):
        then.replace(now)


@pytest.mark.processes
@pytest.mark.faults
@pytest.mark.parametrize("look_ms", [SOON_MS, 3_600_000])
def test_a_member_works_through_two_renewals_of_its_certificate(
    secure, tmp_path, monkeypatch, caplog, look_ms
):
    """Each former certificate ends meanwhile. One generation, and nothing went wrong.

    Where it looks at the files only when nodes refuse what it showed, a heartbeat may be late: its
    last answer is as old as the call that was held, and the log may say so.
    """
    cluster, authority = secure
    monkeypatch.setattr(timeouts, "TLS_FILES_LOOK_MS", look_ms)
    caplog.set_level(logging.WARNING, "muster")
    files = certificate(authority, tmp_path, "own", LASTS_S)

    async def work():
        ends_s, number = time.time() + LASTS_S, 0
        async with muster.Client(cluster.bootstrap, tls=tls(files)) as client:
            await client.create_topic("orders", 1, exist_ok=True)
            async with client.group("billing", ["orders"]) as group:
                begun = await group.next_assignment()
                for renewal, lasts_s in enumerate((3 * LASTS_S, DAY_S)):
                    put(files, certificate(authority, tmp_path, f"new-{renewal}", lasts_s))
                    former_s, ends_s = ends_s, time.time() + lasts_s
                    while time.time() < former_s + 1:
                        number += 1
                        await group.commit({("orders", 0): number})
                stored = (await group.committed())["orders", 0].offset
                return begun, group.assignment, number, stored

    begun, ended, number, stored = asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    assert (ended.generation, stored) == (begun.generation, number)
    if look_ms == SOON_MS:
        # gRPC's own poller says something about the loop of the earlier run.
        assert [one.getMessage() for one in caplog.records if one.name == "muster"] == []
