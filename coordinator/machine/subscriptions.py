"""The topics that a group reads: those that its members name in their Joins (gp-1.2, sc-G14).

The coordinator never reads a member's metadata: a Join names its topics beside it, so a
subscription is always known. It is that of the members now, not of the last generation: who has
left reads nothing, and who waits for the round is about to.
"""

from collections.abc import KeysView

from musterd.coordinator.machine.state import Group

CONSUMER = "consumer"
"""The protocol type whose members read topics."""


def named_topics(group: Group) -> KeysView[str]:
    """Every topic that a member names, in no order, whatever the protocol type makes of it.

    It is the group's own count, not a copy: nobody walks what all the members name. Of a modern
    group it is what its members read and there is.
    """
    return group.tally.topics.keys() if group.modern is None else group.modern.topics.keys()


def is_subscribed(group: Group, topic: str) -> bool:
    """True where a consumer of the group reads `topic`; other protocol types read none (sc-G35)."""
    return group.protocol_type == CONSUMER and topic in named_topics(group)
