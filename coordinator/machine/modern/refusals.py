"""Refuses heartbeats of modern groups that no state could accept (gp-2.6, C2 to C4)."""

from typing import Final

from musterd.coordinator.machine.commands import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    UNCHANGED_MS,
    ConsumerGroupHeartbeat,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.plan import Assignor
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import Refused

_ASSIGNORS: Final = tuple(assignor.value for assignor in Assignor)
CAPACITY_MAX: Final = 1_000_000
"""A thousand members of the usual capacity."""


def refuse_heartbeat(command: ConsumerGroupHeartbeat, limits: Limits) -> Refused | None:
    """Return what is wrong with a heartbeat beside its group id and the number of its topics."""
    if not command.member_id:
        return _invalid("A member makes its own id, and names it in each heartbeat.")
    if command.member_epoch < AWAY_EPOCH:
        return _invalid("A member epoch is at least -2.")
    if command.known_token is not None and command.known_token < 0:
        return _invalid("A known token is at least 0.")
    if command.subscription_seq < 0:
        return _invalid("A subscription_seq is at least 0.")
    if command.member_epoch == AWAY_EPOCH and command.back_in_ms < 1:
        return _invalid("Who goes away says in how many ms it will be back, 1 at least.")
    return (
        _refuse_texts(command, limits) or _refuse_join(command, limits) or _refuse_assignor(command)
    )


def _refuse_texts(command: ConsumerGroupHeartbeat, limits: Limits) -> Refused | None:
    most = limits.id_max_bytes
    texts = {
        "A member id": command.member_id,
        "An instance id": command.group_instance_id,
        "A client id": command.client_id,
        "A client host": command.client_host,
        "A zone": command.zone or "",
    }
    for what, text in texts.items():
        if len(text.encode()) > most:
            return _invalid(f"{what} has at most {most} bytes.")
    topics = command.topics or ()
    if any(not 0 < len(topic.encode()) <= most for topic in topics):
        return _invalid(f"A topic's name has 1 to {most} bytes.")
    pattern = command.pattern or ""
    longest = limits.pattern_max_bytes
    if len(pattern.encode()) > longest:
        return Refused(
            Error.INVALID_REGULAR_EXPRESSION,
            f"A pattern has at most {longest} bytes; this one has {len(pattern.encode())}.",
        )
    weight = len(pattern.encode()) + sum(len(topic.encode()) for topic in topics)
    if weight > limits.member_metadata_max_bytes:
        most = limits.member_metadata_max_bytes
        return _invalid(f"A member's topics have at most {most} bytes; these have {weight}.")
    owned = command.owned or ()
    if sum(len(one.partitions) for one in owned) > limits.modern_max_partitions:
        return _invalid(f"A member owns at most {limits.modern_max_partitions} partitions.")
    return None


def _refuse_join(command: ConsumerGroupHeartbeat, limits: Limits) -> Refused | None:
    timeout_ms = command.rebalance_timeout_ms
    if timeout_ms != UNCHANGED_MS and timeout_ms < 1:
        return _invalid("A rebalance timeout is at least 1 ms.")
    if command.capacity != UNCHANGED_MS and not 1 <= command.capacity <= CAPACITY_MAX:
        return _invalid(f"A capacity is 1 to {CAPACITY_MAX} thousandths.")
    if command.member_epoch != JOIN_EPOCH:
        return None
    low, high = limits.session_timeout_min_ms, limits.session_timeout_max_ms
    if not low <= command.session_timeout_ms <= high:
        return Refused(
            Error.INVALID_SESSION_TIMEOUT,
            f"A session timeout is {low} to {high} ms; this one is {command.session_timeout_ms}.",
        )
    if timeout_ms == UNCHANGED_MS:
        return _invalid("Who joins says its rebalance timeout.")
    if not (command.topics or command.pattern):
        return _invalid("Who joins names the topics that it reads, or a pattern of names.")
    if command.owned:
        return _invalid("Who joins owns nothing.")
    return None


def _refuse_assignor(command: ConsumerGroupHeartbeat) -> Refused | None:
    if not command.assignor or command.assignor in _ASSIGNORS:
        return None
    known = ", ".join(_ASSIGNORS)
    return Refused(
        Error.UNSUPPORTED_ASSIGNOR,
        f"There is no assignor {quoted(command.assignor[:80])}; there are {known}.",
    )


def _invalid(message: str) -> Refused:
    return Refused(Error.INVALID_REQUEST, message)
