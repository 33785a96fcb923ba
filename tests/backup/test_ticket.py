"""The ticket of a restore: one instant, one cluster, and digests that every node compares."""

import json
import queue
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from muster.cli import build, families
from muster.cli.errors import CommandError, ExitCode
from musterd.backup.archive import load_shard, read_manifest
from musterd.backup.errors import ArchiveError, BackupError, UsedTicketError
from musterd.backup.folders import Directory
from musterd.backup.restored_state import restored
from musterd.backup.ticket import BYTES_MAX, CLAIMS_MAX, decode, make_ticket, use_ticket
from musterd.coordinator.machine.shard_state import load_state, shard_records
from musterd.coordinator.node.init import RESTORING, initialise, initialise_restored
from musterd.raft.contract import ShardId
from musterd.raft.identity import IdentityError, load_identity
from musterd.raft.log_format import FIRST_SNAPSHOT_ID, put_log_behind
from musterd.raft.state import ShardView
from musterd.storage import keys
from musterd.storage.rocks import RocksStore
from musterd.storage.store import Family
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


def begin(tmp_path, path, node=0, url="", cluster_id="", nodes=(0, 1, 2)):
    """A node, of three where no others are named, that begins with a ticket."""
    return initialise_restored(tmp_path / f"node-{node}", cluster_id, node, nodes, path, url)


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


def test_no_two_restores_of_backups_of_one_place_have_one_instant(folder, tmp_path, monkeypatch):
    """They are of one cluster, mostly; however the place is written, and by a link."""
    other, _ = backed_up(tmp_path / "c", [world_of(LIVES[3]).state])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "last").symlink_to(tmp_path / "c")
    monkeypatch.chdir(tmp_path / "c")
    ways = (folder, other, Directory(Path("../b")), Directory(Path()))
    ways = (*ways, Directory(tmp_path / "elsewhere" / "last"))
    made = [make_ticket(one, "again", NOW_S).instant_s - NOW_S for one in ways]
    assert made == list(range(len(ways)))
    assert len(list((tmp_path / "restored").iterdir())) == len(ways)


def test_the_backup_before_one_that_a_clock_ahead_restored_repeats_no_token(folder, tmp_path):
    """The later cluster, by a right clock, would begin below the former one."""
    last, _ = backed_up(tmp_path / "c", [world_of(LIVES[3]).state])
    assert make_ticket(last, "one", NOW_S + 3_600).instant_s == NOW_S + 3_600
    with pytest.raises(BackupError, match=r"ran ahead.*--instant"):
        make_ticket(folder, "two", NOW_S)
    assert make_ticket(folder, "two", NOW_S + 3_000).instant_s == NOW_S + 3_601


def test_a_clock_before_the_backup_is_refused(tmp_path):
    """Its tokens would be below those that were given since."""
    folder, manifest = backed_up(tmp_path / "b", [world_of(LIVES[1]).state])
    assert make_ticket(folder, "again", 0).instant_s * 1_000 > manifest.finished_wall_ms
    with pytest.raises(BackupError, match="clock"):
        make_ticket(folder, "again", -1)


AHEAD_S = NOW_S + 10 * 365 * 86_400


@pytest.mark.parametrize("of", ["floor", "group"])
def test_a_cluster_that_was_restored_by_a_clock_that_ran_ahead_repeats_no_token(tmp_path, of):
    """It has given out more since its backup, so the next floor is not the one that it had then."""
    state = load_state(restored(world_of(LIVES[1]).state, AHEAD_S).records)
    if of == "group":
        state.groups["g"].fence, state.fence_floor = state.fence_floor + 1, 0
    state = load_state(sorted(shard_records(state)))
    folder, _ = backed_up(tmp_path / "b", [world_of(LIVES[0]).state, state])
    earliest = AHEAD_S + CLAIMS_MAX + 1 + NOW_S
    with pytest.raises(BackupError, match=f"ran ahead.*--instant.*not before {earliest}$"):
        make_ticket(folder, "again", NOW_S)
    with pytest.raises(BackupError, match="--instant"):
        make_ticket(folder, "again", AHEAD_S)
    assert not (tmp_path / "restored").exists()
    ticket = make_ticket(folder, "again", AHEAD_S + 1)
    assert ticket.instant_s == AHEAD_S + 1


def test_a_backup_that_was_restored_by_a_clock_that_ran_ahead_repeats_no_token(folder):
    """Its first life has given out tokens since, and the next second is not above all of them."""
    assert make_ticket(folder, "one", AHEAD_S).instant_s == AHEAD_S
    with pytest.raises(BackupError, match="ran ahead") as refused:
        make_ticket(folder, "two", NOW_S)
    late_enough = int(str(refused.value).rpartition(" ")[2])
    assert late_enough > AHEAD_S + NOW_S
    assert make_ticket(folder, "two", late_enough).instant_s == late_enough


def test_an_instant_can_be_chosen_and_never_one_that_has_passed(folder, tmp_path):
    """Of the clock and the option the later one counts."""
    app = build(families(["cluster"]))
    seconds, before_s = [], int(time.time())
    for number, instant in enumerate(["0", "1", str(AHEAD_S)]):
        to = tmp_path / f"{number}.json"
        run = ["cluster", "restore", folder.url, "--name", "n", "--to", str(to)]
        result = CliRunner().invoke(app, [*run, "--instant", instant])
        assert result.exit_code == 0, result.output
        seconds.append(decode(to.read_bytes(), "t").instant_s)
    assert seconds[1] > seconds[0] >= before_s
    assert seconds[2] == AHEAD_S


@pytest.mark.parametrize("keeps", [False, True], ids=["void", "kept"])
def test_bearer_tokens_are_void_in_the_new_cluster_unless_they_are_to_be_kept(tmp_path, keeps):
    """As `--keep-tokens` says, down to the store of a node that begins with the ticket."""
    before = world_of(["token a ann join:group:g*", "token b bob"]).state
    assert len(before.tokens) == 2
    folder, _ = backed_up(tmp_path / "b", [before])
    path = tmp_path / "ticket.json"
    run = ["cluster", "restore", folder.url, "--name", "n", "--to", str(path)]
    app = build(families(["cluster"]))
    result = CliRunner().invoke(app, [*run, *["--keep-tokens"] * keeps])
    assert result.exit_code == 0, result.output
    begin(tmp_path, path)
    store = RocksStore(tmp_path / "node-0", queue.Queue().put, lambda: 0.0, print)
    try:
        view = ShardView(store, ShardId(0), FIRST_SNAPSHOT_ID, 0)
        assert load_state(view.scan()).tokens == (before.tokens if keeps else {})
    finally:
        store.close()


def test_a_damaged_backup_gets_no_ticket_and_no_instant(folder, tmp_path):
    """Digests are compared before anything is changed."""
    path = tmp_path / "b" / "shard-0001.records"
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match="shard-0001"):
        make_ticket(folder, "again", NOW_S)
    assert not (tmp_path / "restored").exists()


def test_a_node_begins_with_the_states_of_the_ticket(folder, tmp_path):
    """Its identity is the ticket's, each shard has the digest that it names."""
    ticket = make_ticket(folder, "again", NOW_S)
    identity = begin(tmp_path, written(tmp_path, ticket))
    assert (identity.cluster_id, identity.shards) == (ticket.cluster_id, 2)
    with pytest.raises(IdentityError, match="already"):
        begin(tmp_path, written(tmp_path, ticket))


def cut_short(tmp_path, monkeypatch, path):
    """Leave what a crash leaves of a node that begins with a ticket: some of it is on the disk."""

    def half(store, shard, *where):
        put_log_behind(store, shard, *where)
        if shard == 1:
            store.write()
            raise RuntimeError("gone")

    with monkeypatch.context() as patch:
        patch.setattr("musterd.backup.restore.put_log_behind", half)
        with pytest.raises(RuntimeError, match="gone"):
            begin(tmp_path, path)


def contents(path):
    """All that a node's store holds but what it keeps of itself, and the node's identity."""
    store = RocksStore(path, queue.Queue().put, lambda: 0.0, print)
    try:
        own = {keys.IDENTITY, keys.SEQUENCE, keys.LIFE}
        every = {family: dict(store.scan(family, b"", b"\xff")) for family in Family}
        every[Family.META] = {k: v for k, v in every[Family.META].items() if k not in own}
        return every, load_identity(store)
    finally:
        store.close()


def test_what_a_crash_left_is_no_node_and_begins_again(folder, tmp_path, monkeypatch):
    """A node has an identity once all of its states are on the disk."""
    ticket = make_ticket(folder, "again", NOW_S)
    path = written(tmp_path, ticket)
    cut_short(tmp_path, monkeypatch, path)
    with pytest.raises(IdentityError, match="muster init"):
        contents(tmp_path / "node-0")
    assert begin(tmp_path, path).cluster_id == ticket.cluster_id


def test_nothing_that_a_crash_left_is_in_the_node_that_is_made_then(folder, tmp_path, monkeypatch):
    """Of whatever cluster: a new one, also of fewer shards, or one of another backup."""
    path = written(tmp_path, make_ticket(folder, "again", NOW_S))
    other, _ = backed_up(tmp_path / "other", [world_of(LIVES[0]).state])
    others = written(tmp_path, make_ticket(other, "else", NOW_S), "others.json")
    for make in (
        lambda where: initialise(where / "node-0", "mine", 0, [0, 1, 2], 2),
        lambda where: initialise(where / "node-0", "mine", 0, [0, 1, 2], 1),
        lambda where: begin(where, others),
    ):
        cut_short(tmp_path, monkeypatch, path)
        made = make(tmp_path)
        for claim in tmp_path.glob("restored/*.*"):
            claim.unlink()  # so that the same ticket makes the same states once more
        fresh = make(tmp_path / "fresh")
        assert made.cluster_id == fresh.cluster_id
        left, identity = contents(tmp_path / "node-0")
        assert identity == made
        assert left == contents(tmp_path / "fresh" / "node-0")[0]
        shutil.rmtree(tmp_path / "node-0")
        shutil.rmtree(tmp_path / "fresh")


def test_a_ticket_makes_each_node_of_one_cluster_and_once(folder, tmp_path):
    """A second cluster would give out the fencing tokens of the first one, whatever its nodes."""
    path = written(tmp_path, make_ticket(folder, "again", NOW_S))
    made = [begin(tmp_path / "first", path, node) for node in (0, 1, 2)]
    assert len({one.cluster_id for one in made}) == 1
    for node in (0, 1, 2):
        with pytest.raises(UsedTicketError, match=f"node {node} was made"):
            begin(tmp_path / "second", path, node)
    for nodes in ((3, 4, 5), (0,), (0, 1, 2, 3, 4)):
        with pytest.raises(UsedTicketError, match="other nodes"):
            begin(tmp_path / "second", path, nodes[0], nodes=nodes)
    with pytest.raises(IdentityError, match="muster init"):
        contents(tmp_path / "second" / "node-0")
    another = written(tmp_path, make_ticket(folder, "again", NOW_S), "another.json")
    assert begin(tmp_path / "second", another).cluster_id != made[0].cluster_id


def test_of_two_lists_of_nodes_at_the_same_time_one_at_most_is_made(folder, tmp_path, monkeypatch):
    """Each looks again when its own note is there."""
    path = written(tmp_path, make_ticket(folder, "again", NOW_S))
    claim = Directory.claim

    def late(place, name, content):
        is_first = claim(place, name, content)
        claim(place, f"{NOW_S}.3-4-5.3", b"")
        return is_first

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "claim", late)
        with pytest.raises(UsedTicketError, match="other nodes"):
            begin(tmp_path, path)


def test_an_init_that_was_interrupted_uses_the_ticket_again_in_its_own_directory(
    folder, tmp_path, monkeypatch
):
    """Also where the ticket was noted as used already; elsewhere it is refused."""
    path = written(tmp_path, make_ticket(folder, "again", NOW_S))

    def gone(*given):
        use_ticket(*given)
        raise RuntimeError("gone")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr("musterd.coordinator.node.init.use_ticket", gone)
            with pytest.raises(RuntimeError, match="gone"):
                begin(tmp_path, path)
    with pytest.raises(UsedTicketError, match="node 0 was made"):
        begin(tmp_path / "elsewhere", path)
    assert begin(tmp_path, path).node_id == 0
    assert not (tmp_path / "node-0" / RESTORING).exists()


def test_a_place_that_takes_no_file_makes_no_node_and_says_what_to_do(
    folder, tmp_path, monkeypatch
):
    """Nobody would know that the ticket was used."""
    path = written(tmp_path, make_ticket(folder, "again", NOW_S))

    def read_only(place, name, content):
        raise BackupError(f"{place.url} cannot be written: Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "claim", read_only)
        with pytest.raises(BackupError, match=r"Read-only.*copy the backup.*--backup"):
            begin(tmp_path, path)
    with pytest.raises(IdentityError, match="muster init"):
        contents(tmp_path / "node-0")
    assert begin(tmp_path, path).node_id == 0


def test_a_second_use_of_a_ticket_is_a_conflict_that_names_the_next_step(folder, tmp_path):
    """By the command: exit code 4, and a new ticket."""
    path = written(tmp_path, make_ticket(folder, "again", NOW_S))
    begin(tmp_path / "first", path)
    where = ["--data-dir", str(tmp_path / "node-0"), "--node-id", "0"]
    result = CliRunner().invoke(build(families(["init"])), ["init", *where, "--restore", str(path)])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == ExitCode.CONFLICT
    assert "write a new ticket" in result.exception.next_step


def test_another_backup_or_an_edited_ticket_makes_no_node(folder, tmp_path):
    """What was written is no node either."""
    ticket = make_ticket(folder, "again", NOW_S)
    path = written(tmp_path, ticket)
    other, _ = backed_up(tmp_path / "other", [world_of(LIVES[0]).state] * 2)
    with pytest.raises(ArchiveError, match="another backup"):
        begin(tmp_path, path, url=other.url)
    with pytest.raises(IdentityError, match="leave --cluster-id out"):
        begin(tmp_path, path, cluster_id="mine")
    with pytest.raises(IdentityError, match="for 2 shards: leave --shards out"):
        initialise_restored(tmp_path / "node-0", "", 0, (0, 1, 2), path, "", 6)
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
