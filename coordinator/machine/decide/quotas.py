"""The command about quotas (docs/adr/0029). It is shard 0's."""

from typing import Final

from musterd.coordinator.machine.commands import AlterQuotas
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import QuotasAltered
from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.quotas import QuotaChange
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.replies import Done, Refused
from musterd.invariant import invariant

VALUE_MAX: Final = 1_000_000_000_000


def decide_quotas(
    state: ShardState, command: AlterQuotas, limits: Limits
) -> tuple[tuple[QuotasAltered, ...], Done | Refused]:
    """All changes or none. Values that count already are no change."""
    refused = _refuse_changes(command.changes, limits)
    if refused is not None:
        return (), refused
    changes = tuple(one for one in command.changes if state.quotas.get(one.of, 0) != one.value)
    if not changes:
        return (), Done(changed=False)
    added = sum(one.of not in state.quotas for one in changes)
    removed = sum(not one.value for one in changes)
    if len(state.quotas) + added - removed > limits.max_quotas:
        return (), _invalid(f"The cluster has {limits.max_quotas} quotas at most: remove some.")
    return (QuotasAltered(changes),), Done()


def evolve_quotas(state: ShardState, event: QuotasAltered) -> None:
    """Apply the event; mutates `state`."""
    for change in event.changes:
        invariant(state.quotas.get(change.of, 0) != change.value, "a change changes a quota")
        if change.value:
            state.quotas[change.of] = change.value
        else:
            del state.quotas[change.of]


def _refuse_changes(changes: tuple[QuotaChange, ...], limits: Limits) -> Refused | None:
    if not 0 < len(changes) <= limits.alter_quotas_max:
        return _invalid(f"One call changes 1 to {limits.alter_quotas_max} quotas.")
    if len(dict.fromkeys(one.of for one in changes)) < len(changes):
        return _invalid("A quota is named twice.")
    for one in changes:
        if len(one.name.encode()) > limits.id_max_bytes:
            name = quoted(one.name[:16])
            return _invalid(
                f"The name {name}... of an entity is longer than {limits.id_max_bytes} bytes."
            )
        if not 0 <= one.value <= VALUE_MAX:
            return _invalid(f"A quota is 1 to {VALUE_MAX}, or 0 to remove it.")
    return None


def _invalid(message: str) -> Refused:
    return Refused(Error.INVALID_REQUEST, message)
