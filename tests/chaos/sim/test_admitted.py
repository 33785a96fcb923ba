"""A replaced node counts too early: noticed when the entry that says so is put into the log."""

from ast import literal_eval
from dataclasses import dataclass

import pytest

from musterd.chaos.sim.checks.admission_checks import Admissions
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.raft.log_format import KIND_ADMITTED, KIND_COMMAND
from musterd.raft.peers import ReplicaAdmission
from musterd.storage import keys
from musterd.storage.memory import MemoryStore
from musterd.storage.store import Family

LEADER, VOTER, NEWCOMER = range(3)
TERM, ANNOUNCED, EFFECTIVE = 7, 40, 45
STORE = b"s" * 16


@dataclass
class Node:
    """What the checker asks of a node."""

    number: int
    store: MemoryStore
    voter: bool = True

    def is_admitted(self, shard):
        return self.voter

    def hold(self, index, term):
        """The entry is in the log, synced."""
        value = term.to_bytes(8, "big") + bytes((KIND_COMMAND,))
        self.store.batch.put(Family.LOG, keys.log_key(0, index), value)
        self.store.write()
        self.store.sync()


def entry(*, effective, leader=LEADER, term=TERM):
    """As it is in the log."""
    one = ReplicaAdmission(NEWCOMER, STORE, term, leader, effective=effective)
    return bytes((KIND_ADMITTED,)) + one.encode()


@pytest.fixture
def world():
    """Three nodes, of which node 2 was replaced and is announced; nobody holds that entry."""
    nodes = [Node(number, MemoryStore()) for number in range(3)]
    nodes[NEWCOMER].voter = False
    admissions = Admissions(ShardChecker(0, 3), nodes)
    admissions.appended(LEADER, ANNOUNCED, TERM, entry(effective=False))
    return admissions, nodes


def found(admissions):
    """Who lacked what, as told."""
    return [(v.invariant, literal_eval(v.what)["lacking"]) for v in admissions.checker.violations]


@pytest.mark.parametrize("lacks", [LEADER, VOTER, NEWCOMER])
def test_one_that_does_not_hold_the_announcement_is_named(world, lacks):
    """Every voter, the leader among them, and the newcomer."""
    admissions, nodes = world
    for node in nodes:
        node.hold(ANNOUNCED, TERM if node.number != lacks else TERM - 1)
    admissions.appended(LEADER, EFFECTIVE, TERM, entry(effective=True))
    assert found(admissions) == [("H-admitted-too-early", [lacks])]


def test_all_hold_it(world):
    """Nothing to say; the followers, who put the same entry, say nothing either."""
    admissions, nodes = world
    admissions.appended(VOTER, EFFECTIVE, TERM, entry(effective=True))
    assert found(admissions) == []
    for node in nodes:
        node.hold(ANNOUNCED, TERM)
    admissions.appended(LEADER, EFFECTIVE, TERM, entry(effective=True))
    assert found(admissions) == []


def test_what_an_earlier_leader_announced_counts_for_nothing(world):
    """Two entries of one leadership (raft/peers.py)."""
    admissions, nodes = world
    for node in nodes:
        node.hold(ANNOUNCED, TERM)
    later = entry(effective=True, leader=VOTER, term=TERM + 1)
    admissions.appended(VOTER, EFFECTIVE, TERM + 1, later)
    assert found(admissions) == [("H-admitted-too-early", [0, 1, 2])]
