"""Which topics a group reads (gp-1.2, sc-G14): what its members name in their Joins.

The coordinator never reads a member's metadata: a Join names its topics beside it, so a
subscription is always known. It is that of the members now, not of the last generation: who has
left reads nothing, and who waits for the round is about to.
"""

from coordinator.machine.state import Group

CONSUMER = "consumer"
"""The protocol type whose members read topics."""


def named_topics(group: Group) -> tuple[str, ...]:
    """Every topic that a member names, in join order, whatever the protocol type makes of it."""
    members = group.members.values()
    return tuple(dict.fromkeys(topic for member in members for topic in member.subscribed_topics))


def is_subscribed(group: Group, topic: str) -> bool:
    """True where a consumer of the group reads `topic`; other protocol types read none (sc-G35)."""
    return group.protocol_type == CONSUMER and any(
        topic in member.subscribed_topics for member in group.members.values()
    )
