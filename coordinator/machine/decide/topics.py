"""TopicsChanged (arch-6): what a running group reads has more partitions than it shares."""

from musterd.coordinator.machine.commands import TopicsChanged
from musterd.coordinator.machine.decide.decision import NOTHING, Decision
from musterd.coordinator.machine.decide.rebalance_rounds import Roster, rebalance
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.events import Trigger
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import Done
from musterd.coordinator.machine.state import Group, Phase
from musterd.coordinator.machine.subscriptions import is_subscribed

FORMED = (Phase.COMPLETING_REBALANCE, Phase.STABLE)
"""In the others no generation shares partitions yet: the next one is told of all there are."""


def decide_topics(group: Group | None, command: TopicsChanged, env: Envelope) -> Decision:
    """Open a round, once: a generation that formed under this version or a later one knows."""
    if (
        group is None
        or group.phase not in FORMED
        or group.topics_version >= command.topics_version
        or not is_subscribed(group, command.topic)
    ):
        return NOTHING
    reason = f"topic {quoted(command.topic)} has {command.partitions} partitions"
    if not command.partitions:
        reason = f"topic {quoted(command.topic)} was deleted"
    return Decision(
        tuple(rebalance(group, env, Roster(group), Trigger.TOPICS_CHANGED, "", reason)), Done()
    )
