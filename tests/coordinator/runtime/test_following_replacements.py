"""What shard 0 says of nodes' stores reaches the node's peer port, with the index of that word."""

from types import SimpleNamespace

from musterd.coordinator.machine.commands import ReplaceNode
from musterd.coordinator.machine.envelope import FORMAT
from musterd.coordinator.machine.limits import LIMITS_VERSION
from musterd.coordinator.machine.shard_state import Entry, ShardState, apply_entry
from musterd.coordinator.node.assembly import _follow_replacements
from musterd.levels import LEVEL
from musterd.raft.contract import ShardId
from musterd.raft.peers import Replacement

A, B = "a" * 32, "b" * 32


def followed(loaded_index=0):
    """Shard 0 with its state, and what the driver is told."""
    told = []
    shard = SimpleNamespace(
        observers=(observers := []),
        on_reload=(on_reload := []),
        subscribe=observers.append,
        subscribe_reload=on_reload.append,
        state=ShardState(),
        loaded_index=loaded_index,
    )
    _follow_replacements(SimpleNamespace(allow_replacement=told.append), shard)
    return shard, told


def replace(shard, index, store_uuid):
    """Apply a ReplaceNode of node 1."""
    commands = (ReplaceNode(1, store_uuid),)
    entry = Entry(FORMAT, LEVEL, 0, 0, LIMITS_VERSION, commands)
    results = apply_entry(shard.state, entry, index)
    for observe in shard.observers:
        observe(ShardId(0), index, entry, results)


def test_an_entry_is_true_as_of_its_index():
    """Each in its turn: a node that reads an old log may know of a later one by then."""
    shard, told = followed()
    replace(shard, 5, A)
    replace(shard, 9, B)
    replace(shard, 12, B)  # a repeat says nothing new
    assert told == [Replacement(1, bytes.fromhex(A), 5), Replacement(1, bytes.fromhex(B), 9)]


def test_a_loaded_state_is_true_as_of_the_index_that_it_was_applied_to():
    """It holds the last replacement alone, and not when that was."""
    shard, told = followed(loaded_index=20)
    replace(shard, 5, A)
    replace(shard, 9, B)
    told.clear()
    for reloaded in shard.on_reload:
        reloaded()
    assert told == [Replacement(1, bytes.fromhex(B), 20)]
