"""Events that workers report to the runner: one JSON object per line on stdout.

`at_ns` is CLOCK_MONOTONIC, which all processes of a machine share: an event of one worker can be
ordered against another's. Offsets are maps from partition to offset.
"""

from typing import TypeAlias

import msgspec

LINE_BYTES_MAX = 256 * 1024
"""Bytes of one event; a worker with all 1,000 partitions stays below it."""

Offsets: TypeAlias = dict[int, int]


class Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    """An event of a worker; each subclass adds its fields to the time."""

    at_ns: int


class Took(Event, frozen=True):
    """A new assignment: what was claimed from where, and what had been committed.

    `committed` was read linearizably in `read_term`, in a read that began at `started_ns`; 0 where
    nothing was. `refused` are partitions whose claim the ledger refused.
    """

    generation: int
    member: str
    started_ns: int
    read_term: int
    resumed: Offsets
    committed: Offsets
    refused: list[int]


class Reading(Event, frozen=True):
    """About to read lines [first, end) of a partition."""

    partition: int
    first: int
    end: int


class Attempt(Event, frozen=True):
    """The worker begins to commit these offsets."""

    generation: int
    offsets: Offsets


class Acknowledged(Event, frozen=True):
    """A commit was answered: durable on a majority, says the coordinator of `term`."""

    generation: int
    term: int
    offsets: Offsets


class NotCommitted(Event, frozen=True):
    """A commit was refused, or nobody knows what became of it."""

    generation: int
    error: str
    offsets: Offsets


class Compared(Event, frozen=True):
    """The group has a later coordinator: what this owner had committed, read before going on."""

    generation: int
    old_term: int
    new_term: int
    started_ns: int
    read_term: int
    committed: Offsets


class Fenced(Event, frozen=True):
    """The ledger refused a write: somebody newer owns the partition; this owner stopped."""

    partition: int
    token: int
    member: str


class Ended(Event, frozen=True):
    """An assignment is over, or a partition of it: given up in good order, or lost."""

    generation: int
    lost: bool
    partitions: list[int]


class Closed(Event, frozen=True):
    """The worker has left the group. Retries are those of its SDK."""

    calls: int
    attempts: int


WorkerEvent: TypeAlias = (
    Took | Reading | Attempt | Acknowledged | NotCommitted | Compared | Fenced | Ended | Closed
)


class Pace(msgspec.Struct, frozen=True):
    """A line from the runner to workers' stdin: how much of each partition has arrived by now."""

    allowed_ppm: int


_DECODER: msgspec.json.Decoder[WorkerEvent] = msgspec.json.Decoder(WorkerEvent)


def encode_event(event: WorkerEvent) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def decode_event(line: bytes) -> WorkerEvent:
    """The event on a line; raises `msgspec.DecodeError` or `msgspec.ValidationError`."""
    return _DECODER.decode(line)
