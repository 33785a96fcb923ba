"""Token buckets of quotas: what principals and groups have left at this node, and how long to wait.

Quotas are replicated (coordinator/machine/quotas.py), what was used is this node's own: a principal
has its rates at each node, as in Kafka, and a group, which has one coordinator, has them once.
Members are no rate (member_quota.py).
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple

from musterd.coordinator.machine.quotas import QuotaEntity, QuotaKey, QuotaOf, quota_in_force

BUCKETS_MAX: Final = 65_536
"""Buckets of a node, about 20 MiB. Beyond it the one that was asked least recently is forgotten: it
is full again when it is asked next, as that of a name that was never seen."""

BURST_S: Final = 2
"""So many seconds' worth may be used at once by who used nothing."""

ROUNDING_S: Final = 1e-6
"""So much too early is not early: fractions of seconds are rounded."""

DELAY_MS_MAX: Final = 30_000
"""What a caller is told to wait at most; it is told again when it comes too early."""

DELAYED_MAX: Final = 10
"""Principals and groups whose names a node keeps of those that were told to wait."""

KEY_NAMES: Final = {
    QuotaKey.JOINS: "joins_per_s",
    QuotaKey.COMMITS: "commits_per_s",
    QuotaKey.COMMIT_BYTES: "commit_bytes_per_s",
    QuotaKey.NEW_GROUPS: "groups_per_s",
    QuotaKey.MEMBERS: "members",
}
"""As commands and metrics call them."""


class Amount(NamedTuple):
    """What a call uses of one key."""

    key: QuotaKey
    amount: int


class _Bucket:
    """What is left of one quota."""

    __slots__ = ("left", "per_s", "seen")

    def __init__(self, per_s: int, now: float) -> None:
        self.per_s = per_s
        self.left = float(per_s * BURST_S)
        self.seen = now

    def refill(self, per_s: int, now: float) -> None:
        self.left = min(self.left + (now - self.seen) * per_s, float(per_s * BURST_S))
        self.per_s, self.seen = per_s, now

    def missing_s(self, amount: int) -> float:
        """For how long it has to be left alone; 0 where the amount may be taken.

        Who wants more than there ever is waits until it is full, and leaves a debt.
        """
        missing = (min(amount, self.per_s * BURST_S) - self.left) / self.per_s
        return missing if missing > ROUNDING_S else 0.0


class QuotaBuckets:
    """Charges calls, and counts those that were told to wait."""

    def __init__(
        self, quotas: Callable[[], Mapping[QuotaOf, int]], clock: Callable[[], float]
    ) -> None:
        """`quotas`: those in force. `clock` gives seconds and never goes back."""
        self._quotas = quotas
        self._clock = clock
        self._buckets: OrderedDict[QuotaOf, _Bucket] = OrderedDict()
        self.throttled_total = dict.fromkeys(QuotaKey, 0)
        """Calls that were told to wait, by what they had used up; of members, newcomers that were
        refused (member_quota.py)."""
        self.delayed: dict[QuotaOf, int] = {}
        """How often each of those was that were told so last, as long as it is among them, the
        latest at the end. DELAYED_MAX at most."""

    @property
    def has_quotas(self) -> bool:
        """Whether anything is to be charged at all."""
        return bool(self._quotas())

    def __len__(self) -> int:
        return len(self._buckets)

    def delay_ms(self, principal: str, group_id: str, amounts: Sequence[Amount]) -> int:
        """Charge a call; returns 0. Over a quota nothing is charged; returns how long to wait."""
        quotas, now = self._quotas(), self._clock()
        named = ((QuotaEntity.PRINCIPAL, principal), (QuotaEntity.GROUP, group_id))
        to_charge: list[tuple[_Bucket, int]] = []
        longest, over = 0.0, None
        for entity, name in named:
            for key, amount in amounts:
                per_s = quota_in_force(quotas, entity, name, key)
                if not per_s:
                    continue
                of = QuotaOf(entity, name, key)
                bucket = self._bucket(of, per_s, now)
                missing = bucket.missing_s(amount)
                if missing > longest:
                    longest, over = missing, of
                to_charge.append((bucket, amount))
        if over is not None:
            self.count(over)
            return min(ceil(longest * 1000), DELAY_MS_MAX)
        for bucket, amount in to_charge:
            bucket.left -= amount
        return 0

    def count(self, over: QuotaOf) -> None:
        """A call was told to wait, or a newcomer refused, since this entity was over its quota."""
        self.throttled_total[over.key] += 1
        self.delayed[over] = self.delayed.pop(over, 0) + 1
        if len(self.delayed) > DELAYED_MAX:
            del self.delayed[next(iter(self.delayed))]

    def _bucket(self, of: QuotaOf, per_s: int, now: float) -> _Bucket:
        bucket = self._buckets.get(of)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets.popitem(last=False)
            bucket = self._buckets[of] = _Bucket(per_s, now)
            return bucket
        self._buckets.move_to_end(of)
        bucket.refill(per_s, now)
        return bucket
