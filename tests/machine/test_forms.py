"""What released builds write and decide stays as it is: tests/testdata/forms.txt.

One form a line: the level, what it is, its name, its digest. Outcomes, entries and records are
those of the golden scenarios, run at that level; a field is one of a message of the log or of the
peer port; a frame is a message as it travels. A line of a released level never changes and never
goes. What is new belongs to the level that is not released yet: `pytest --rewrite` adds it.
"""

import re
from hashlib import blake2b
from pathlib import Path

import pytest

from muster.v1 import log_pb2, peer_pb2
from musterd.coordinator.codec import encode_entry
from musterd.coordinator.machine import shard_state
from musterd.coordinator.machine.shard_state import shard_records
from musterd.levels import LAST_UNNAMED, LEVEL
from musterd.raft import codec, log_format
from musterd.raft.peers import ReplicaAdmission
from musterd.raft.snapshots import encode_pairs
from tests.machine import world as words
from tests.machine.test_golden import SCENARIOS
from tests.machine.world import World

FILE = Path(__file__).parents[1] / "testdata" / "forms.txt"
RELEASED = 5
"""The level of the last release; with each release it rises (CONTRIBUTING.md, Cut a release)."""
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
VERSION = re.compile(r"^## \[(.+?)\].*\n\n(?:Nodes know levels up to (\d+) )?", re.MULTILINE)


class Noted(World):
    """A world that notes each entry and the records after it."""

    def __init__(self, level):
        super().__init__(level)
        self.entries, self.records = blake2b(digest_size=8), blake2b(digest_size=8)

    def do_rules(self, plain, options):
        """A scenario runs at one level here, whatever it says."""

    def apply(self, *commands):
        original = words.encode_entry
        try:
            words.encode_entry = self._encode
            return super().apply(*commands)
        finally:
            words.encode_entry = original
            for key, value in sorted(shard_records(self.state)):
                self.records.update(b"%d:%b%d:%b" % (len(key), key, len(value), value))

    def _encode(self, entry):
        encoded = encode_entry(entry)
        self.entries.update(encoded)
        return encoded


def of_scenario(path, level, monkeypatch):
    """Yield the forms of one scenario at a level."""
    world = Noted(level)

    def do_limits(one, plain, options):
        World.do_limits(one, plain, options)
        monkeypatch.setattr(shard_state, "LIMITS_BY_VERSION", {1: one.limits})

    monkeypatch.setattr(Noted, "do_limits", do_limits, raising=False)
    printed = blake2b(digest_size=8)
    name = f"{path.parent.name}/{path.stem}"
    with monkeypatch.context() as context:
        context.setattr(shard_state, "LIMITS_BY_VERSION", shard_state.LIMITS_BY_VERSION)
        for block in path.read_text().strip("\n").split("\n\n")[1:]:
            for line in block.partition("\n----")[0].splitlines():
                if not line.startswith("#"):
                    printed.update(world.run(line).encode())
        monkeypatch.setattr(shard_state, "LIMITS_BY_VERSION", LIMITS)
    yield f"outcome {name}", printed.hexdigest()
    yield f"entries {name}", world.entries.hexdigest()
    yield f"records {name}", world.records.hexdigest()


LIMITS = shard_state.LIMITS_BY_VERSION


def of_fields():
    """Yield every field of every message of the log and of the peer port."""
    for file in (log_pb2, peer_pb2):
        for message in file.DESCRIPTOR.message_types_by_name.values():
            yield from _fields(message)
        for enum in file.DESCRIPTOR.enum_types_by_name.values():
            for value in enum.values:
                yield f"number {enum.name}.{value.name}", str(value.number)


def _fields(message):
    for field in message.fields:
        kind = field.message_type or field.enum_type
        type_ = kind.full_name if kind else str(field.type)
        shape = f"{field.number}/{type_}/{field.is_repeated}/{field.has_presence}"
        yield f"field {message.full_name.removeprefix('muster.v1.')}.{field.name}", shape
    for nested in message.nested_types:
        yield from _fields(nested)


ADMISSION = ReplicaAdmission(3, b"s" * 16, 7, 1, effective=True, life=2).encode()
MESSAGE = {
    "term": 7,
    "seq": 3,
    "commit_index": 8,
    "prevLogIdx": 5,
    "prevLogTerm": 6,
    "entries": [(log_format.NOOP, 6, 7)],
    "next_node_idx": 9,
    "success": True,
    "reset": True,
    "behind": True,
    "last_log_index": 5,
    "last_log_term": 6,
    "force": True,
    "next_term": 8,
    "granted": True,
    "snapshot_id": 2,
    "number": 0,
    "pairs": b"p",
    "last": True,
    "crc32": 4,
    "entry": (log_format.NOOP, 6, 7),
    "admissions": [ADMISSION],
    "copy_of": 1,
    "next_number": 2,
    "store_uuid": b"s" * 16,
    "replaced": True,
    "as_of": 3,
    "life": 2,
    "known_life": 1,
}
"""What any peer message may say."""


def of_frames():
    """Yield each peer message in a frame, and the forms of the log and of snapshots."""
    sender = codec.Sender(1, 2, 3)
    for kind in codec._ENCODERS:
        frame = codec.encode_frame(sender, [(4, {"type": kind, **MESSAGE})])
        yield f"frame {kind}", blake2b(frame, digest_size=8).hexdigest()
    yield "journal entry", log_format.encode_value(log_format.NOOP, 7).hex()
    yield "journal hard state", log_format.encode_hard_state(7, 2, 3).hex()
    yield "journal kinds", ",".join(map(str, sorted(log_format.KINDS)))
    yield "snapshot pairs", encode_pairs([(b"k", b"v"), (b"l", b"")]).hex()
    yield "admission", ADMISSION.hex()


def produced(monkeypatch):
    """Every form of this build: its name -> digest, at each level that scenarios run at."""
    made = {}
    for level in range(LAST_UNNAMED, LEVEL + 1):
        for path in SCENARIOS:
            if int(path.parent.name.removeprefix("rules-")) <= level:
                for name, digest in of_scenario(path, level, monkeypatch):
                    made[f"at {level} {name}"] = digest
    made.update(of_fields())
    made.update(of_frames())
    return made


def read():
    """The recorded lines, as name -> (level, digest)."""
    lines = [line.split(" ", 1) for line in FILE.read_text().splitlines() if line[:1].isdigit()]
    parts = [(int(level), *rest.rsplit(" = ", 1)) for level, rest in lines]
    return {name: (level, digest) for level, name, digest in parts}


def changed(recorded, made):
    """Names of released forms that are otherwise now, or gone."""
    released = {name: digest for name, (level, digest) in recorded.items() if level <= RELEASED}
    return sorted(name for name, digest in released.items() if made.get(name) != digest)


def released_level(changelog):
    """The level of the last version that CHANGELOG.md has; before a first one the unnamed level."""
    levels = {version: int(level or 0) for version, level in VERSION.findall(changelog)}
    assert levels.pop("Unreleased") == LEVEL
    return next(iter(levels.values()), LAST_UNNAMED)


def test_the_level_of_the_last_release_is_that_of_the_changelog():
    """Whoever cuts a release raises `RELEASED` with it."""
    assert released_level(CHANGELOG.read_text("utf-8")) == RELEASED


def test_a_release_in_the_changelog_raises_the_level():
    """So that the test before this one fails until `RELEASED` has followed."""
    heads = "## [Unreleased]\n\n{0}\n\n## [0.2.0] - 2026-12-01\n\n{0}\n"
    assert released_level(heads.format(f"Nodes know levels up to {LEVEL} (x).")) == LEVEL


def test_released_forms_do_not_change(monkeypatch, rewrite):
    """A change of outcome, entry, record or frame stands behind a level: docs/levels.md."""
    recorded = read() if FILE.exists() else {}
    made = produced(monkeypatch)
    wrong = changed(recorded, made)
    assert not wrong, f"a released form changed: put the change behind level {LEVEL}: {wrong}"
    if rewrite:
        kept = {name: level for name, (level, _) in recorded.items()}
        lines = sorted(f"{kept.get(name, LEVEL)} {name} = {made[name]}" for name in made)
        FILE.write_text("\n".join(["# See tests/machine/test_forms.py.", *lines]) + "\n")
    now = {name: digest for name, (_, digest) in read().items()}
    differ = sorted(name for name in now.keys() | made.keys() if now.get(name) != made.get(name))
    assert not differ, f"new forms of level {LEVEL}: record them with --rewrite: {differ[:20]}"


@pytest.mark.parametrize("name", ["frame append_entries", "field Entry.level", "journal entry"])
def test_a_change_without_a_level_is_noticed(monkeypatch, name):
    """A form that is otherwise, and one that is gone."""
    recorded = read()
    made = {one: digest for one, (_, digest) in recorded.items()}
    assert changed(recorded, made) == []
    assert changed(recorded, {**made, name: "other"}) == [name]
    del made[name]
    assert changed(recorded, made) == [name]
