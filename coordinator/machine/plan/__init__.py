"""The planner: which member shall have which partition of a group whose coordinator assigns.

`plan` is a function of its `Spec` alone, and `planning` is that function in slices: it runs on the
node's loop, in slices between other work, outside of what applies entries. Nothing of it is
replicated but its result. The order of members, topics and subscriptions in a spec makes no
difference.
"""

from musterd.coordinator.machine.plan.differences import parts
from musterd.coordinator.machine.plan.planning import plan, planning
from musterd.coordinator.machine.plan.spec import (
    Assignor,
    Change,
    Part,
    PlanMember,
    Spec,
    TargetPlan,
    Unowned,
    Why,
)

__all__ = [
    "Assignor",
    "Change",
    "Part",
    "PlanMember",
    "Spec",
    "TargetPlan",
    "Unowned",
    "Why",
    "parts",
    "plan",
    "planning",
]
