"""A backup in an S3 bucket is what one in a directory is: atomic, verified, claimed once."""

import threading

import pytest

from musterd.backup import manifest as manifests
from musterd.backup.archive import read_manifest, verify
from musterd.backup.errors import ArchiveError, BackupError, UsedTicketError
from musterd.backup.ticket import make_ticket
from musterd.backup.urls import open_folder
from musterd.coordinator.node.init import initialise_restored
from tests.backup.archives import LIVES, fill_folder, world_of

pytestmark = pytest.mark.s3

NOW_S = 1_800_000_000


@pytest.fixture(scope="module")
def server():
    """The URL of an S3 server on loopback."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415  # only this target needs it

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    """A client of that server, whose bucket `backups` is empty."""
    import boto3  # noqa: PLC0415  # an extra

    for name, value in (
        ("AWS_ENDPOINT_URL", server),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="backups")
    yield client
    for one in client.list_objects_v2(Bucket="backups").get("Contents", ()):
        client.delete_object(Bucket="backups", Key=one["Key"])


def backup(name="one"):
    """A backup of all lives in the bucket: its folder."""
    folder = open_folder("s3://backups/all").folder(name)
    fill_folder(folder, [world_of(lines).state for lines in LIVES])
    return folder


def test_a_backup_in_a_bucket_is_read_as_it_was_written(bucket):
    """Folders and files are listed by name, and all digests are right."""
    folder = backup()
    assert open_folder("s3://backups/all").folders() == ["one"]
    assert len(folder.files()) == len(LIVES) + 1
    manifest = read_manifest(open_folder(folder.url))
    assert [one.wrong for one in verify(folder, manifest)] == [""] * len(LIVES)


def test_an_edited_byte_is_named(bucket):
    """In a file of records and in the manifest."""
    folder = backup()
    for name in ("shard-0002.records", manifests.NAME):
        key = f"all/one/{name}"
        content = bytearray(bucket.get_object(Bucket="backups", Key=key)["Body"].read())
        content[-30] ^= 1
        bucket.put_object(Bucket="backups", Key=key, Body=bytes(content))
    with pytest.raises(ArchiveError, match=manifests.NAME):
        read_manifest(folder)


def test_what_is_not_finished_is_not_there(bucket):
    """Neither half of a file, nor a backup without a manifest."""
    folder = open_folder("s3://backups/half")

    def write_half():
        with folder.create(manifests.NAME) as file:
            file.write(b"{}")
            raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_half()
    assert folder.files() == []
    with pytest.raises(BackupError, match="no backup"):
        read_manifest(folder)


def test_an_instant_is_claimed_once_by_many(bucket):
    """Of restores at the same time, of two backups, each gets a second of its own."""
    folders, made = [backup("one"), backup("two")], []

    def restore(folder):
        made.append(make_ticket(folder, "again", NOW_S).instant_s)

    threads = [threading.Thread(target=restore, args=(one,)) for one in 2 * folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == list(range(NOW_S, NOW_S + 4))
    claims = open_folder("s3://backups/all/restored").files()
    assert claims == [str(one) for one in sorted(made)]


def test_a_backup_that_is_a_whole_bucket_keeps_its_claims_itself(bucket):
    """There is nothing beside it."""
    folder = open_folder("s3://backups")
    fill_folder(folder, [world_of(LIVES[1]).state])
    assert [make_ticket(folder, "again", NOW_S).instant_s for _ in range(2)] == [NOW_S, NOW_S + 1]
    assert open_folder("s3://backups/restored").files() == [str(NOW_S), str(NOW_S + 1)]


def test_a_ticket_of_a_backup_in_a_bucket_makes_a_node_once(bucket, tmp_path):
    """By a conditional put; the next node of the same cluster is made."""
    ticket = make_ticket(backup(), "again", NOW_S)
    path = tmp_path / "ticket.json"
    path.write_bytes(ticket.encode())
    for node in (0, 1):
        initialise_restored(tmp_path / f"a-{node}", "", node, [0, 1, 2], path, "")
        with pytest.raises(UsedTicketError, match=f"node {node} was made"):
            initialise_restored(tmp_path / f"b-{node}", "", node, [0, 1, 2], path, "")
    with pytest.raises(UsedTicketError, match="other nodes"):
        initialise_restored(tmp_path / "c-3", "", 3, [3, 4, 5], path, "")
    claims = open_folder("s3://backups/all/restored").files()
    assert claims == [str(NOW_S), f"{NOW_S}.0-1-2.0", f"{NOW_S}.0-1-2.1"]


def test_what_s3_refuses_is_told_with_the_place(bucket):
    """A bucket that is not there, a file that is not there, no bucket at all."""
    with pytest.raises(BackupError, match="s3://nobody/x"):
        open_folder("s3://nobody/x").files()
    with pytest.raises(BackupError, match="is not there"):
        open_folder("s3://backups/x").open("manifest.json")
    with pytest.raises(BackupError, match="needs a bucket"):
        open_folder("s3:///x")
