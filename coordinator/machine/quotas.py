"""Quotas: how much a principal or a group may do in a second, or have, as shard 0 keeps them.

A value is of one entity and one key. An entity is a principal or a group by its name, or with the
name "" each of its kind that has no value of its own (KIP-546). Whoever answers calls keeps the
buckets (coordinator/api/limits/quota_buckets.py); nothing here counts anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class QuotaEntity(IntEnum):
    """What a quota is for."""

    PRINCIPAL = 1
    GROUP = 2


class QuotaKey(IntEnum):
    """What is counted: in a second, but for members."""

    JOINS = 1
    COMMITS = 2
    """Offsets: each partition that a commit names is one."""
    COMMIT_BYTES = 3
    NEW_GROUPS = 4
    MEMBERS = 5
    """Members at a time: of a group, or of a principal in all groups."""


class QuotaOf(NamedTuple):
    """What a value belongs to. `name` "": the default of its kind."""

    entity: QuotaEntity
    name: str
    key: QuotaKey


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """One value that is to count from now on. `value` 0: none does."""

    entity: QuotaEntity
    name: str
    key: QuotaKey
    value: int

    @property
    def of(self) -> QuotaOf:
        """What the value belongs to."""
        return QuotaOf(self.entity, self.name, self.key)


def quota_in_force(
    quotas: Mapping[QuotaOf, int], entity: QuotaEntity, name: str, key: QuotaKey
) -> int:
    """The value that counts for the entity; 0: there is none, so it may do as much as it wants."""
    own = quotas.get(QuotaOf(entity, name, key))
    return own or quotas.get(QuotaOf(entity, "", key), 0)
