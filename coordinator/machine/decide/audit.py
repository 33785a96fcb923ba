"""RecordAudit: entries come behind those that are there, and the oldest make room."""

from collections.abc import Mapping

from musterd.coordinator.machine.audit import (
    BATCH,
    ENTRY_BYTES_MAX,
    KEPT,
    KEPT_BYTES,
    chained,
    put_entry,
)
from musterd.coordinator.machine.commands import AuditEntry, RecordAudit
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import AuditRecorded
from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.replies import Refused


def decide_audit(
    state: ShardState, command: RecordAudit, limits: Limits
) -> AuditRecorded | Refused | None:
    """What is recorded; None where this batch of the node was before, or a later one."""
    batches = state.audit_batches
    if command.batch <= batches.get(command.node_id, 0):
        return None
    if command.node_id not in batches and len(batches) >= limits.max_nodes:
        return Refused(Error.INVALID_REQUEST, "There are not so many nodes.")
    if not 0 < len(command.entries) <= BATCH:
        return Refused(Error.INVALID_REQUEST, f"A batch has 1 to {BATCH} entries.")
    if any(_size(entry) > ENTRY_BYTES_MAX for entry in command.entries):
        return Refused(Error.INVALID_REQUEST, f"An entry has at most {ENTRY_BYTES_MAX} bytes.")
    head = state.audit_head
    new: dict[int, AuditEntry] = {}
    hashes: list[str] = []
    for number, entry in enumerate(command.entries, state.audit_next):
        new[number] = entry
        head = chained(head, number, entry)
        hashes.append(head)
    dropped = _surplus({**state.audit, **new})
    return AuditRecorded(
        command.node_id,
        command.batch,
        state.audit_next,
        command.entries,
        tuple(hashes),
        dropped,
    )


def _surplus(entries: Mapping[int, AuditEntry]) -> tuple[int, ...]:
    """The numbers of the oldest ones, which have no room."""
    size, count = sum(map(_size, entries.values())), len(entries)
    dropped: list[int] = []
    for number, entry in entries.items():
        if count <= KEPT and size <= KEPT_BYTES:
            break
        dropped.append(number)
        count, size = count - 1, size - _size(entry)
    return tuple(dropped)


def _size(entry: AuditEntry) -> int:
    return len(put_entry(entry))


def evolve_audit(state: ShardState, event: AuditRecorded) -> None:
    """Apply it: the hash before the oldest entry that is kept moves on with it."""
    for number, entry in enumerate(event.entries, event.first):
        state.audit[number] = entry
        state.audit_hashes[number] = state.audit_head = event.hashes[number - event.first]
    for number in event.dropped:
        state.audit.pop(number)
        state.audit_base = state.audit_hashes.pop(number)
    state.audit_next = event.first + len(event.entries)
    state.audit_batches[event.node_id] = event.batch
