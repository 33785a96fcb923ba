"""What fuzzing found stays found."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cryptography import x509

from muster.errors import MusterError
from muster.tasks import task_store
from musterd.backup import manifest as backup_manifest
from musterd.backup.errors import ArchiveError
from musterd.coordinator.api.frame.client_certificate import principal_of
from musterd.coordinator.codec import UnknownFormatError
from musterd.coordinator.node.config import ConfigError, load_settings
from musterd.export.layout import Gap, LayoutError, Manifest
from musterd.raft import codec
from musterd.raft.codec import FRAME_MESSAGES_MAX, CodecError
from musterd.raft.identity import Identity, load_identity, write_identity
from musterd.raft.log_format import decode_entry, decode_hard_state
from musterd.raft.tls import PeerTlsError, TlsSession
from musterd.replay.checks import SourceFile, inspect
from musterd.storage import keys
from musterd.storage.life import Life
from musterd.storage.memory import MemoryStore
from musterd.storage.store import CorruptStoreError, Family
from tests.fuzz.credentials import CLUSTER_ID, pem_of
from tests.fuzz.decoders import BY_NAME, CORPUS


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ["a"], "config": {}, "since": 1},
        {"name": "a", "config": 1, "since": 1},
        {"name": "a", "config": {}, "since": "1"},
        {"name": "a", "config": {"x": float("inf")}, "since": 1},
    ],
)
def test_a_tasks_definition_of_other_types_is_refused(fields):
    """Whoever may commit in the group may write one."""
    with pytest.raises(MusterError, match="not a task"):
        task_store.decode(SimpleNamespace(offset=1, metadata=json.dumps(fields)))


def test_a_tasks_definition_of_brackets_is_refused():
    """As many as an offset's metadata has room for."""
    with pytest.raises(MusterError, match="not a task"):
        task_store.decode(SimpleNamespace(offset=1, metadata="[" * 4096))


def test_a_frame_of_very_many_messages_is_refused_before_it_is_parsed(monkeypatch):
    """It would hold the loop for seconds and take gigabytes."""
    vote = bytes.fromhex("12026a00")

    def refuse(*_args):
        raise AssertionError

    most = codec.checksum(vote * FRAME_MESSAGES_MAX) + vote * FRAME_MESSAGES_MAX
    assert len(codec.decode_frame(most)[1]) == FRAME_MESSAGES_MAX
    monkeypatch.setattr(codec, "_parse", refuse)
    data = vote * (FRAME_MESSAGES_MAX + 1)
    with pytest.raises(CodecError, match="more than 65536 messages"):
        codec.decode_frame(codec.checksum(data) + data)


def test_an_append_of_very_many_entries_is_refused():
    """Whatever is in them."""
    data = codec.pb.Frame()
    append = data.messages.add(term=1).append_entries
    append.prev_index = 1
    entries = append.entries
    for _ in range(codec.APPEND_ENTRIES_MAX + 1):
        entries.add(index=2, term=1, command=b"x")
    sealed = data.SerializeToString()
    with pytest.raises(CodecError, match="an append of 4097 entries"):
        codec.decode_frame(codec.checksum(sealed) + sealed)


def test_a_value_of_the_store_that_is_cut_short_is_damage():
    """Not an error of Python that says nothing of how to rebuild the node."""
    for broken in (
        lambda: decode_entry(keys.log_key(0, 1), bytes(7)),
        lambda: decode_entry(keys.log_key(0, 1), bytes(8)),
        lambda: decode_entry(b"x", bytes(9)),
        lambda: decode_hard_state(bytes(23)),
    ):
        with pytest.raises(CorruptStoreError):
            broken()
    with pytest.raises(ValueError, match="lives"):
        Life.decode(bytes(9))


@pytest.mark.parametrize(
    "change",
    [
        {"shards": "4"},
        {"nodes": ["0"]},
        {"cluster_id": None},
        {"nodes": [0, 2**32]},
        {"node_id": -1},
        {"shards": 0},
    ],
)
def test_an_identity_of_other_types_or_of_impossible_ids_is_damage(change):
    """The node says how it is rebuilt."""
    store = MemoryStore()
    write_identity(store, Identity("dev", 0, bytes(16), 4, (0,)))
    store.write()
    value = json.loads(store.get(Family.META, keys.IDENTITY)) | change
    store.batch.put(Family.META, keys.IDENTITY, json.dumps(value).encode())
    store.write()
    with pytest.raises(CorruptStoreError):
        load_identity(store)


def test_settings_of_brackets_are_refused(tmp_path):
    """A file of settings that is none."""
    file = tmp_path / "node.toml"
    file.write_bytes(b"x = " + b"[" * 20_000)
    with pytest.raises(ConfigError):
        load_settings(file, {"data_dir": tmp_path})


def test_a_manifest_of_other_types_or_of_brackets_is_refused():
    """Also where its checksum is right."""
    with pytest.raises(LayoutError):
        Manifest.decode("[" * 60_000, "it")
    sound = Manifest.decode(BY_NAME["export_manifest"].corpus()[0].decode(), "it")
    for change in ({"first": "1"}, {"digest": "x"}, {"gap": Gap(1, [], "")}, {"rows": True}):
        with pytest.raises(LayoutError):
            Manifest.decode(replace(sound, **change).encode(), "it")


def test_a_backups_manifest_of_an_infinite_format_is_refused():
    """Python reads such a number, and no int is made of it."""
    sound = json.loads(BY_NAME["backup_manifest"].corpus()[0])
    with pytest.raises(ArchiveError, match="not a manifest"):
        backup_manifest.decode(json.dumps(sound | {"format": float("inf")}).encode())


def test_a_segment_whose_events_cannot_be_read_is_unsound(tmp_path, monkeypatch):
    """Replay says so and goes on with the others."""
    described, _, content = BY_NAME["export_segment"].corpus()[0].partition(b"\n")
    path = tmp_path / "part.parquet"
    path.write_bytes(content)
    monkeypatch.setattr("musterd.replay.checks.decode_events", _unreadable)
    found = inspect(SourceFile(str(path), Manifest.decode(described.decode(), "it")))
    assert not found.sound


def _unreadable(_data):
    raise UnknownFormatError("a later build wrote this")


@pytest.mark.parametrize("name", ["version", "bit-string"])
def test_a_clients_certificate_of_an_unknown_form_names_nobody(name):
    """A version that does not exist, and a common name of bits; both are in the corpus."""
    lines = (CORPUS / "client_certificate.txt").read_text("ascii").splitlines()
    (data,) = [bytes.fromhex(line.split()[1]) for line in lines if line.startswith(f"{name} ")]
    with pytest.raises((x509.InvalidVersion, TypeError)):
        x509.load_der_x509_certificate(data).subject  # noqa: B018 - it is what raises
    assert principal_of(pem_of(data), CLUSTER_ID, "cn") is None


def test_a_peers_certificate_that_python_cannot_take_apart_ends_its_connection_alone():
    """Python's ssl raises SystemError of some names, where OpenSSL took the certificate."""

    def getpeercert():
        raise SystemError("returned a result with an exception set")

    session = TlsSession.__new__(TlsSession)
    session._cluster_id, session._tls = CLUSTER_ID, SimpleNamespace(getpeercert=getpeercert)
    with pytest.raises(PeerTlsError, match="no text"):
        session._peer()
