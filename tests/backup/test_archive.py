"""A backup is read as it was taken; an edited byte in any file is named; no hostile one is read."""

import json

import pytest

from musterd.backup import manifest as manifests
from musterd.backup.archive import load_shard, read_manifest, verify
from musterd.backup.errors import ArchiveError, BackupError
from musterd.backup.folders import Directory
from musterd.backup.manifest import decode
from musterd.backup.urls import open_folder
from musterd.raft.identity import SHARDS_MAX
from tests.backup.archives import LIVES, backed_up, world_of


@pytest.fixture
def backup(tmp_path):
    """A backup of all lives: folder and manifest."""
    return backed_up(tmp_path / "b", [world_of(lines).state for lines in LIVES])


def wrong(folder):
    """What `verify` says is wrong."""
    return [one.wrong for one in verify(folder, read_manifest(folder)) if one.wrong]


def test_a_backup_that_was_not_touched_is_verified(backup):
    """Each state is the one that was backed up, by digest."""
    folder, manifest = backup
    assert read_manifest(folder) == manifest
    assert wrong(folder) == []
    for cut, lines in zip(manifest.shards, LIVES, strict=True):
        assert load_shard(folder, cut) == world_of(lines).state


def test_an_edited_byte_in_any_file_is_named(backup, tmp_path):
    """In each tenth part of each file, the manifest included."""
    folder, _ = backup
    files = sorted((tmp_path / "b").iterdir())
    assert len(files) == len(LIVES) + 1
    for path in files:
        whole = path.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 10)):
            edited = bytearray(whole)
            edited[at] ^= 1
            path.write_bytes(edited)
            if path.name == manifests.NAME:
                with pytest.raises(ArchiveError, match=manifests.NAME):
                    read_manifest(folder)
            else:
                [told] = wrong(folder)
                assert told.startswith(path.name)
        path.write_bytes(whole)
    assert wrong(folder) == []


def test_a_file_that_is_whole_but_of_another_shard_is_named(backup, tmp_path):
    """Its hash is not the manifest's."""
    folder, manifest = backup
    one, other = manifest.shards[1].file, manifest.shards[2].file
    (tmp_path / "b" / one).write_bytes((tmp_path / "b" / other).read_bytes())
    [told] = wrong(folder)
    assert told.startswith(one)


def test_an_unfinished_backup_is_never_taken_for_one(backup, tmp_path):
    """Without its manifest, or with half of a file under another name."""
    folder, _ = backup
    (tmp_path / "b" / manifests.NAME).unlink()
    with pytest.raises(BackupError, match="not finished"):
        read_manifest(folder)

    def write_half():
        with folder.create(manifests.NAME) as file:
            file.write(b"{}")
            raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_half()
    with pytest.raises(BackupError, match="not finished"):
        read_manifest(folder)


def test_a_folder_of_backups_names_them(backup, tmp_path):
    """Whoever names the folder above is told what is in it."""
    with pytest.raises(BackupError, match="name one: b"):
        read_manifest(Directory(tmp_path))
    with pytest.raises(BackupError, match="no backup"):
        read_manifest(Directory(tmp_path / "none"))


def edited(manifest, **changes):
    """The manifest's bytes with other fields and a checksum that fits."""
    body = json.loads(manifest.encode())
    del body["check"]
    body |= changes
    return json.dumps({**body, "check": manifests._check(body)}).encode()


def test_a_hostile_manifest_is_refused(backup):
    """Whatever its checksum says: types, counts, sizes, fields, names of files."""
    _, manifest = backup
    shards = json.loads(manifest.encode())["shards"]
    first = shards[0]
    hostile = [
        b"",
        b"[]",
        b"7",
        b"{}",
        b'{"format": "1", "check": ""}',
        b"\xff\xfe",
        b"[" * 100_000,
        b" " * (manifests.BYTES_MAX + 1),
        edited(manifest, format=2),
        edited(manifest, shards=[]),
        edited(manifest, shards=[first] * (SHARDS_MAX + 1)),
        edited(manifest, shards=[first, first]),
        edited(manifest, shards=shards[1:]),
        edited(manifest, shards=[{**first, "file": "../../etc/passwd"}]),
        edited(manifest, shards=[{**first, "records": -1}]),
        edited(manifest, shards=[{**first, "bytes": 2**64}]),
        edited(manifest, shards=[{**first, "index": True}]),
        edited(manifest, shards=[{**first, "digest": "z" * 32}]),
        edited(manifest, shards=[{**first, "sha256": ""}]),
        edited(manifest, shards=[7]),
        edited(manifest, cluster_id="x" * 1_000),
        edited(manifest, build=None),
        edited(manifest, more=1),
    ]
    for data in hostile:
        with pytest.raises(ArchiveError, match=manifests.NAME):
            decode(data)


@pytest.mark.parametrize("name", ["..", "../x", "/etc/passwd", "a/b", "", ".x", "x" * 201, "a\0b"])
def test_no_name_leads_out_of_a_folder(tmp_path, name):
    """Neither of a file nor of a folder."""
    folder = Directory(tmp_path)
    for use in (folder.folder, folder.open, lambda one: folder.claim(one, b"")):
        with pytest.raises(BackupError, match="cannot be the name"):
            use(name)


def test_a_claim_is_one_callers(tmp_path):
    """The second one is told so."""
    folder = Directory(tmp_path / "new")
    assert folder.claim("7", b"x")
    assert not folder.claim("7", b"y")
    assert folder.files() == ["7"]


def test_urls_that_mean_a_folder(tmp_path):
    """A path and a file:// URL; others are refused by name."""
    assert open_folder(str(tmp_path)).url == open_folder(f"file://{tmp_path}").url
    with pytest.raises(BackupError, match="ftp://x"):
        open_folder("ftp://x/y")
