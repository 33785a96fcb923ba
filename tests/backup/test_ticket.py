"""The ticket of a restore: one instant, one cluster, and digests that every node compares."""

import json
import queue

import pytest

from musterd.backup.archive import load_shard, read_manifest
from musterd.backup.errors import ArchiveError, BackupError
from musterd.backup.restored_state import restored
from musterd.backup.ticket import BYTES_MAX, decode, make_ticket
from musterd.coordinator.node.init import initialise, initialise_restored
from musterd.raft.identity import IdentityError, load_identity
from musterd.storage.rocks import RocksStore
from tests.backup.archives import LIVES, backed_up, world_of

NOW_S = 1_800_000_000


@pytest.fixture
def folder(tmp_path):
    """A backup of two shards."""
    return backed_up(tmp_path / "b", [world_of(LIVES[1]).state, world_of(LIVES[2]).state])[0]


def written(tmp_path, ticket, name="ticket.json"):
    """The ticket in a file."""
    path = tmp_path / name
    path.write_bytes(ticket.encode())
    return path


def begin(tmp_path, path, node=0, url="", cluster_id=""):
    """A node of three that begins with a ticket."""
    return initialise_restored(tmp_path / f"node-{node}", cluster_id, node, [0, 1, 2], path, url)


def test_a_ticket_comes_back_as_it_was_written(folder):
    """And names the digests of the restored states."""
    ticket = make_ticket(folder, "again", NOW_S)
    assert decode(ticket.encode(), "t") == ticket
    assert ticket.instant_s == NOW_S
    assert ticket.cluster_id.startswith("again-")


def test_no_two_restores_of_a_backup_have_one_instant(folder):
    """By the same clock, one that went back, and one that jumped: cluster ids differ, too."""
    made = [make_ticket(folder, "again", now_s) for now_s in (NOW_S, NOW_S, NOW_S - 9, NOW_S + 9)]
    assert [one.instant_s - NOW_S for one in made] == [0, 1, 2, 9]
    assert len({one.cluster_id for one in made}) == len(made)


def test_a_clock_before_the_backup_is_refused(tmp_path):
    """Its tokens would be below those that were given since."""
    folder, manifest = backed_up(tmp_path / "b", [world_of(LIVES[1]).state])
    assert make_ticket(folder, "again", 0).instant_s * 1_000 > manifest.finished_wall_ms
    with pytest.raises(BackupError, match="clock"):
        make_ticket(folder, "again", -1)


def test_a_damaged_backup_gets_no_ticket_and_no_instant(folder, tmp_path):
    """Digests are compared before anything is changed."""
    path = tmp_path / "b" / "shard-0001.records"
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match="shard-0001"):
        make_ticket(folder, "again", NOW_S)
    assert not (tmp_path / "b" / "restored").exists()


def test_a_node_begins_with_the_states_of_the_ticket(folder, tmp_path):
    """Its identity is the ticket's, each shard has the digest that it names."""
    ticket = make_ticket(folder, "again", NOW_S)
    identity = begin(tmp_path, written(tmp_path, ticket))
    assert (identity.cluster_id, identity.shards) == (ticket.cluster_id, 2)
    with pytest.raises(IdentityError, match="already"):
        begin(tmp_path, written(tmp_path, ticket))


def test_what_a_crash_left_is_no_node_and_begins_again(folder, tmp_path, monkeypatch):
    """A node has an identity once all of its states are on the disk."""
    ticket = make_ticket(folder, "again", NOW_S)
    path = written(tmp_path, ticket)

    def half(store, shard, *_where):
        if shard == 1:
            store.write()
            raise RuntimeError("gone")

    with monkeypatch.context() as patch:
        patch.setattr("musterd.backup.restore.put_log_behind", half)
        with pytest.raises(RuntimeError, match="gone"):
            begin(tmp_path, path)
    store = RocksStore(tmp_path / "node-0", queue.Queue().put, lambda: 0.0, print)
    try:
        with pytest.raises(IdentityError, match="muster init"):
            load_identity(store)
    finally:
        store.close()
    assert begin(tmp_path, path).cluster_id == ticket.cluster_id


def test_another_backup_or_an_edited_ticket_makes_no_node(folder, tmp_path):
    """What was written is no node either."""
    ticket = make_ticket(folder, "again", NOW_S)
    path = written(tmp_path, ticket)
    other, _ = backed_up(tmp_path / "other", [world_of(LIVES[0]).state] * 2)
    with pytest.raises(ArchiveError, match="another backup"):
        begin(tmp_path, path, url=other.url)
    with pytest.raises(IdentityError, match="leave --cluster-id out"):
        begin(tmp_path, path, cluster_id="mine")
    wrong = restored(load_shard(folder, read_manifest(folder).shards[0]), NOW_S + 1).digest
    body = json.loads(ticket.encode())
    for change in (
        {"instant_s": NOW_S + 1},
        {"digests": [f"{wrong:032x}", ticket.digests[1]]},
        {"name": "else"},
        {"digests": 7},
        {"more": 1},
    ):
        path.write_text(json.dumps({**body, **change}))
        with pytest.raises(ArchiveError, match=r"ticket\.json"):
            begin(tmp_path, path, node=1)
    path.write_bytes(b" " * (BYTES_MAX + 1))
    with pytest.raises(ArchiveError, match=r"ticket\.json"):
        begin(tmp_path, path, node=1)
    assert initialise(tmp_path / "node-1", "c", 1, [0, 1, 2], 2).cluster_id == "c"


def test_a_build_that_makes_another_state_is_refused(folder, tmp_path, monkeypatch):
    """All nodes of a cluster begin alike, or not at all."""
    ticket = make_ticket(folder, "again", NOW_S)
    monkeypatch.setattr("musterd.backup.restored_state.GENERATIONS", 7)
    with pytest.raises(ArchiveError, match="shard 0: this build makes another state"):
        begin(tmp_path, written(tmp_path, ticket))
