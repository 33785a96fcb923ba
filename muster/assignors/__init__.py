"""Assignors: pure functions from subscriptions and partition counts to who owns what.

They run in the group leader only. `range` and `roundrobin` look at subscriptions alone; `sticky`
and `cooperative-sticky` are one algorithm that also looks at what each member owned before. A
function of your own may stand wherever a name does (docs/assignors.md).

No assignor here looks at racks: they are given partition counts, and no zones that could be near to
a member. A member's rack travels in its subscription, for your own assignors.
"""

from muster.assignors.base import Assignor, Function, Shares, Subscriber, in_order, wants_owned
from muster.assignors.plain import (
    RangeAssignor,
    RoundRobinAssignor,
    range_shares,
    roundrobin_shares,
)
from muster.assignors.registry import (
    Choice,
    FunctionAssignor,
    is_cooperative,
    is_own,
    register,
    resolve,
)
from muster.assignors.shares import checked_shares, withheld
from muster.assignors.sticky import CooperativeStickyAssignor, StickyAssignor, sticky_shares

__all__ = [
    "Assignor",
    "Choice",
    "CooperativeStickyAssignor",
    "Function",
    "FunctionAssignor",
    "RangeAssignor",
    "RoundRobinAssignor",
    "Shares",
    "StickyAssignor",
    "Subscriber",
    "checked_shares",
    "in_order",
    "is_cooperative",
    "is_own",
    "range_shares",
    "register",
    "resolve",
    "roundrobin_shares",
    "sticky_shares",
    "wants_owned",
    "withheld",
]
